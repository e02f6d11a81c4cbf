/* Health, abort, reset, close, destroy. */
#include <string.h>

#include "core/comm.h"

static void poison(rf_comm *comm, uint8_t transport, uint32_t channel, int rank, rf_fault_code code)
{
    comm->backend->poison(comm->device, transport, &comm->channels[channel].params[transport], rank,
                          RF_POISON(comm->rank, code));
}

/* Poisons a channel of this rank and of its peers. The caller holds the lock, or is the only
 * thread. */
static void poison_all(rf_comm *comm, uint32_t channel, rf_fault_code code)
{
    for (int i = 0, t; (t = rfi_transport_on(comm, i)) >= 0; i++)
        for (int r = 0; r < comm->world; r++)
            poison(comm, (uint8_t)t, channel, r, code);
}

rf_result rf_comm_check(const rf_comm *comm, rf_health *out)
{
    if (!comm || !out)
        return RF_E_ARG;
    static const int ours[] = {
#define RF_X(name, text, ours) ours,
        RFI_PATH_LIST(RF_X)
#undef RF_X
    };
    rf_health h = {.culprit = -1};
    pthread_mutex_t *lock = (pthread_mutex_t *)&comm->lock;
    pthread_mutex_lock(lock);
    for (uint32_t c = 0; c < comm->n_channels; c++) {
        const rfi_channel *channel = &comm->channels[c];
        for (int p = 0; p < RFI_N_PATHS; p++)
            if (ours[p])
                h.calls += __atomic_load_n(&channel->calls[p], __ATOMIC_RELAXED);
        uint32_t word = 0;
        rf_fault fault = {0};
        for (int i = 0, t; !comm->closed && !word && (t = rfi_transport_on(comm, i)) >= 0; i++)
            comm->backend->read_fault(comm->device, &channel->params[t], &word, &fault);
        if (!word || h.code)
            continue;
        uint32_t code = fault.code ? fault.code : RF_POISON_CODE(word);
        h.code = rfi_fault_result(code);
        h.channel = (int)c;
        h.culprit = (int)(fault.code ? fault.culprit : RF_POISON_CULPRIT(word));
        h.sequence = fault.sequence;
    }
    if (comm->closed)
        h.code = RF_E_CLOSED;
    pthread_mutex_unlock(lock);
    *out = h;
    return RF_OK;
}

void rf_comm_abort(rf_comm *comm)
{
    if (!comm)
        return;
    pthread_mutex_lock(&comm->lock);
    for (uint32_t c = 0; c < comm->config.channels && !comm->closed; c++)
        poison_all(comm, c, RF_FAULT_ABORT);
    pthread_mutex_unlock(&comm->lock);
}

/* ---- reset ---- */

static rf_result drain(rf_comm *comm, const char *step, uint32_t timeout_ms, rf_error *err)
{
    rf_result bad = comm->backend->drain(comm->device, timeout_ms);
    return bad ? rfi_fail(err, bad, comm->rank, step,
                          "launches of rank %d are still running after %u ms", comm->rank,
                          timeout_ms)
               : RF_OK;
}

static rf_result clear(rf_comm *comm, rf_error *err)
{
    for (uint32_t c = 0; c < comm->config.channels; c++) {
        comm->channels[c].stream = 0;
        comm->channels[c].told = 0;
    }
    return rfi_channels_clear(comm, err);
}

/* Drain, barrier, clear, barrier: nobody clears while a peer's kernel may still write or read, and
 * nobody launches before every region is clear. */
rf_result rf_comm_reset(rf_comm *comm, uint32_t timeout_ms, rf_error *err)
{
    if (!comm)
        return rfi_fail(err, RF_E_ARG, -1, "reset", "comm is NULL");
    if (comm->closed)
        return rfi_fail(err, RF_E_CLOSED, comm->rank, "reset", "the comm is closed");
    rf_error mine = {0};
    rf_result bad = drain(comm, "reset", timeout_ms, &mine);
    bad = rfi_agree(comm, "reset", bad, &mine, timeout_ms, err);
    if (bad)
        return bad;
    pthread_mutex_lock(&comm->lock);
    comm->generation++;
    bad = clear(comm, &mine);
    pthread_mutex_unlock(&comm->lock);
    bad = rfi_agree(comm, "reset", bad, &mine, timeout_ms, err);
    for (int i = 0, t; bad && (t = rfi_transport_on(comm, i)) >= 0; i++)
        for (uint32_t c = 0; c < comm->config.channels; c++) /* not everybody is ready */
            poison(comm, (uint8_t)t, c, comm->rank, RF_FAULT_ABORT);
    return bad;
}

/* ---- ends ---- */

static void forget_imports(rf_comm *comm)
{
    for (int t = 0; t < RFI_N_TRANSPORTS; t++)
        for (int r = 0; r < comm->world; r++)
            comm->backend->forget(comm->device, &comm->transport[t].import[r]);
}

static void mark_closed(rf_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->closed = 1;
    pthread_mutex_unlock(&comm->lock);
}

/* Drain, agree, unmap imports, agree, free the own memory. Without agreement the comm is closed all
 * the same: shared memory lives until its last mapping goes. */
rf_result rf_comm_close(rf_comm *comm, uint32_t timeout_ms, rf_error *err)
{
    if (!comm)
        return rfi_fail(err, RF_E_ARG, -1, "close", "comm is NULL");
    if (comm->closed)
        return RF_OK;
    rf_error mine = {0};
    rf_result bad = drain(comm, "close", timeout_ms, &mine);
    bad = rfi_agree(comm, "close", bad, &mine, timeout_ms, err);
    if (bad) /* whoever still calls shall hear of it */
        for (uint32_t c = 0; c < comm->config.channels; c++)
            poison_all(comm, c, RF_FAULT_DEAD);
    mark_closed(comm);
    comm->backend->end(comm->device);
    forget_imports(comm);
    if (!bad)
        bad = rfi_control_agree(&comm->control, "close", RF_OK, NULL, timeout_ms, err);
    for (int t = 0; t < RFI_N_TRANSPORTS; t++)
        comm->backend->forget(comm->device, &comm->transport[t].own);
    return bad;
}

void rf_comm_destroy(rf_comm *comm)
{
    if (!comm)
        return;
    for (uint32_t c = 0; c < comm->config.channels && !comm->closed; c++)
        poison_all(comm, c, RF_FAULT_DEAD);
    rfi_control_shutdown(&comm->control);
    rfi_comm_free(comm);
}
