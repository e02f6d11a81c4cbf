/* The hot path: checks, one look-up, one launch. No allocation, no lock, no system call unless
 * something is wrong. */
#include <stdio.h>

#include "core/comm.h"

#define STEP "call"

/* ---- failing: off the hot path ---- */

static __attribute__((cold)) rf_result keep(rf_comm *comm, rfi_channel *channel,
                                            const rf_error *err)
{
    pthread_mutex_lock(&comm->lock);
    comm->error = *err;
    pthread_mutex_unlock(&comm->lock);
    if (channel)
        __atomic_store_n(&channel->calls[RFI_PATH_FAILED], channel->calls[RFI_PATH_FAILED] + 1,
                         __ATOMIC_RELAXED);
    return err->code;
}

#define FAIL(comm, channel, code, rank, ...)                                                       \
    do {                                                                                           \
        rf_error fail_err;                                                                         \
        rfi_fail(&fail_err, code, rank, STEP, __VA_ARGS__);                                        \
        return keep(comm, channel, &fail_err);                                                     \
    } while (0)

/* What a rank waited for; from the last on, what had been relayed (abi.h). */
static const char *const step_text[] = {"entry", "arrival", "answer", "relayed answer"};
#define LAST_STEP (sizeof step_text / sizeof *step_text - 1)

/* What a fault record adds to "rank 2 did not arrive ...". */
static void describe(const rf_fault *f, const rf_params *params, uint64_t count, char *buf,
                     size_t size)
{
    buf[0] = 0;
    int used = 0;
    if (f->code)
        used = snprintf(buf, size, " (step %llu, %s", (unsigned long long)f->sequence,
                        step_text[f->step < LAST_STEP ? f->step : LAST_STEP]);
    if (f->code == RF_FAULT_DEADLINE)
        snprintf(buf + used, size - (size_t)used, ", after %llu ms)",
                 (unsigned long long)(params->deadline_ns / 1000000u));
    else if (f->code == RF_FAULT_MISMATCH)
        snprintf(buf + used, size - (size_t)used, ": %s %llu expected, %llu found)",
                 f->expected == count ? "count" : "variant", (unsigned long long)f->expected,
                 (unsigned long long)f->found);
    else if (f->code)
        snprintf(buf + used, size - (size_t)used, ")");
}

/* `result` and `err` are what the launch gave; E_POISONED = the channel was poisoned before it.
 * Then, if no kernel of ours has failed, a peer did it between two calls: the first call to notice
 * gets the cause. */
static __attribute__((cold)) rf_result explain(rf_comm *comm, rfi_channel *channel,
                                               const rf_params *params, rf_result result,
                                               const rf_error *err)
{
    int index = (int)(channel - comm->channels);
    uint32_t poison;
    rf_fault fault;
    comm->backend->read_fault(comm->device, params, &poison, &fault);
    if (!poison) /* not the protocol's: a queue without memory, say */
        FAIL(comm, channel, result, comm->rank, "channel %d: %s", index,
             err->text[0] ? err->text : rf_strerror(result));
    uint32_t code = fault.code ? fault.code : RF_POISON_CODE(poison);
    int culprit = (int)(fault.code ? fault.culprit : RF_POISON_CULPRIT(poison));
    const char *what = rfi_fault_text(code);
    if (result == RF_E_POISONED && !fault.code && !channel->told)
        result = rfi_fault_result(code);
    channel->told = 1;
    if (result == RF_E_POISONED)
        FAIL(comm, channel, result, culprit, "channel %d: poisoned since rank %d %s; %s", index,
             culprit, what,
             rfi_fault_result(code) == RF_E_PEER ? "destroy the comm" : "rf_comm_reset revives it");
    char detail[160];
    describe(&fault, params, params->count, detail, sizeof detail);
    FAIL(comm, channel, result, culprit, "channel %d: rank %d %s%s", index, culprit, what, detail);
}

/* ---- checking ---- */

static rf_result check(rf_comm *comm, rfi_channel *channel, const void *in, const void *out,
                       uint64_t count, rf_dtype dtype)
{
    if (__builtin_expect(count > comm->max_count[dtype], 0))
        FAIL(comm, channel, RF_E_CAPACITY, comm->rank,
             "%llu elements of %s are more than the capacity of %llu bytes",
             (unsigned long long)count, rf_dtype_name(dtype),
             (unsigned long long)comm->config.capacity_bytes);
    size_t size = dtype == RF_F32 ? 4 : 2;
    uintptr_t a = (uintptr_t)in, b = (uintptr_t)out;
    if (__builtin_expect(!a || !b, 0))
        FAIL(comm, channel, RF_E_ARG, comm->rank, "%s is NULL", a ? "out" : "in");
    if (__builtin_expect((a | b) & (size - 1), 0))
        FAIL(comm, channel, RF_E_ALIGN, comm->rank, "%s is not aligned to %zu bytes",
             a & (size - 1) ? "in" : "out", size);
    if (__builtin_expect(a != b && (a > b ? a - b : b - a) < count * size, 0))
        FAIL(comm, channel, RF_E_OVERLAP, comm->rank,
             "in and out are %llu bytes apart and %llu bytes long",
             (unsigned long long)(a > b ? a - b : b - a), (unsigned long long)(count * size));
    return RF_OK;
}

/* What holds for every call; *channel is set on success. */
static rf_result enter(rf_comm *comm, int index, rf_dtype dtype, rfi_channel **channel)
{
    if (__builtin_expect(!comm, 0))
        return RF_E_ARG;
    if (__builtin_expect(comm->closed, 0))
        FAIL(comm, NULL, RF_E_CLOSED, comm->rank, "the comm is closed");
    if (__builtin_expect(index < 0 || (uint32_t)index >= comm->n_channels, 0))
        FAIL(comm, NULL, RF_E_CHANNEL, comm->rank, "channel %d: expected 0 to %u, which are open",
             index, comm->n_channels - 1);
    *channel = &comm->channels[index];
    if (__builtin_expect((unsigned)dtype >= RFI_DTYPES, 0))
        FAIL(comm, *channel, RF_E_DTYPE, comm->rank, "dtype %d: expected 0 to %d", (int)dtype,
             RFI_DTYPES - 1);
    return RF_OK;
}

static void count_call(rfi_channel *channel, rfi_path path)
{
    __atomic_store_n(&channel->calls[path], channel->calls[path] + 1, __ATOMIC_RELAXED);
}

static rf_result issue(rf_comm *comm, rfi_channel *channel, const rfi_plan *plan, const void *in,
                       void *out, uint64_t count, void *stream, const rfi_stream_info *s)
{
    if (__builtin_expect(channel->stream != s->id, 0)) {
        if (channel->stream)
            FAIL(comm, channel, RF_E_STREAM, comm->rank,
                 "channel %d belongs to stream %llu, this launch is on stream %llu%s; "
                 "rf_channel_rebind hands it over",
                 (int)(channel - comm->channels), (unsigned long long)channel->stream,
                 (unsigned long long)s->id, s->capturing ? ", which is capturing" : "");
        channel->stream = s->id;
    }
    rf_params p = channel->params[plan->variant->transport];
    p.in = in;
    p.out = out;
    p.count = count;
    p.tag = plan->tag;
    p.grid = plan->grid;
    rf_error err;
    err.text[0] = 0;
    rf_result result = comm->backend->launch(comm->device, plan->variant, &p, stream, &err);
    return __builtin_expect(result != RF_OK, 0) ? explain(comm, channel, &p, result, &err) : RF_OK;
}

static rf_result call_baseline(rf_comm *comm, rfi_channel *channel, const void *in, void *out,
                               uint64_t count, rf_dtype dtype, void *stream)
{
    const rf_baseline *b = &comm->baseline;
    if (!b->all_reduce) {
        count_call(channel, RFI_PATH_FALLBACK);
        return RF_FALLBACK;
    }
    rf_result result = b->all_reduce(b->ctx, in, out, count, dtype, stream);
    if (__builtin_expect(result != RF_OK, 0))
        FAIL(comm, channel, result, comm->rank, "the baseline, %.160s: %s", b->name,
             rf_strerror(result));
    count_call(channel, RFI_PATH_BASELINE);
    return RF_OK;
}

/* ---- public ---- */

const rfi_plan *rfi_plan_resolve(const rf_comm *comm, const rfi_channel *channel, rf_dtype dtype,
                                 rf_mode mode, uint64_t count, rfi_path *path)
{
    const rfi_plan *plan = rfi_plan_find(&channel->plans, dtype, mode, count);
    *path = RFI_PATH_PREPARED;
    if (__builtin_expect(!plan, 0)) {
        *path = RFI_PATH_NEAREST;
        plan = rfi_plan_nearest(&channel->plans, dtype, mode, count);
        if (plan && plan->variant &&
            comm->backend->misfit(plan->variant,
                                  channel->params[plan->variant->transport].slot_bytes,
                                  count * rf_dtype_size(dtype)))
            plan = NULL;
    }
    if (__builtin_expect(!plan, 0)) {
        *path = RFI_PATH_CLASS;
        plan = &comm->class_plan[dtype][rfi_class_of(count * rf_dtype_size(dtype))];
    }
    return plan->variant || plan->fallback ? plan : NULL;
}

rf_result rf_all_reduce(rf_comm *comm, int index, const void *in, void *out, uint64_t count,
                        rf_dtype dtype, void *stream)
{
    rfi_channel *channel;
    rf_result bad = enter(comm, index, dtype, &channel);
    if (bad || !count)
        return bad;
    bad = check(comm, channel, in, out, count, dtype);
    if (bad)
        return bad;
    rfi_stream_info s;
    comm->backend->stream_info(comm->device, stream, &s);
    rfi_path path;
    const rfi_plan *plan =
        rfi_plan_resolve(comm, channel, dtype, s.capturing ? RF_GRAPH : RF_EAGER, count, &path);
    if (__builtin_expect(!plan, 0))
        FAIL(comm, channel, RF_E_VARIANT, comm->rank, "the packs have no %s variant that runs here",
             rf_dtype_name(dtype));
    if (plan->fallback) {
        count_call(channel, RFI_PATH_FALLBACK);
        return RF_FALLBACK;
    }
    count_call(channel, path);
    return issue(comm, channel, plan, in, out, count, stream, &s);
}

rf_result rf_dispatch(rf_comm *comm, int index, const void *in, void *out, uint64_t count,
                      rf_dtype dtype, void *stream)
{
    rfi_channel *channel;
    rf_result bad = enter(comm, index, dtype, &channel);
    if (bad || !count)
        return bad;
    rfi_stream_info s;
    comm->backend->stream_info(comm->device, stream, &s);
    const rfi_plan *plan =
        rfi_plan_find(&channel->plans, dtype, s.capturing ? RF_GRAPH : RF_EAGER, count);
    if (!plan || plan->fallback)
        return call_baseline(comm, channel, in, out, count, dtype, stream);
    bad = check(comm, channel, in, out, count, dtype);
    if (bad)
        return bad;
    count_call(channel, RFI_PATH_PREPARED);
    return issue(comm, channel, plan, in, out, count, stream, &s);
}

rf_result rfi_launch(rf_comm *comm, int index, const rf_variant *variant, uint32_t grid,
                     const void *in, void *out, uint64_t count, rf_dtype dtype, void *stream)
{
    rfi_channel *channel;
    rf_result bad = enter(comm, index, dtype, &channel);
    if (bad || !count)
        return bad;
    bad = check(comm, channel, in, out, count, dtype);
    if (bad)
        return bad;
    if (variant == &rfi_baseline)
        return call_baseline(comm, channel, in, out, count, dtype, stream);
    rf_shape shape = {.dtype = dtype, .rows = 1, .hidden = count};
    if (variant->hidden && count % variant->hidden == 0)
        shape.hidden = variant->hidden;
    const char *refusal = grid ? rfi_refusal(comm, variant, &shape) : "grid is 0";
    if (refusal)
        FAIL(comm, channel, RF_E_VARIANT, comm->rank, "%s: %s", variant->name, refusal);
    rf_error err;
    if (rfi_variant_ready(comm, variant, &err))
        return keep(comm, channel, &err);
    rfi_stream_info s;
    comm->backend->stream_info(comm->device, stream, &s);
    grid = grid < comm->max_grid ? grid : comm->max_grid;
    rfi_plan plan = {.variant = variant, .grid = grid, .tag = rfi_plan_tag(variant, grid)};
    count_call(channel, RFI_PATH_DIRECT);
    return issue(comm, channel, &plan, in, out, count, stream, &s);
}

const rf_error *rf_comm_error(const rf_comm *comm)
{
    return comm ? &comm->error : NULL;
}
