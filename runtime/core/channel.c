/* Channels: independent protocol state inside one allocation, opened by name. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "core/comm.h"

void rfi_channels_link(rf_comm *comm)
{
    for (int i = 0, t; (t = rfi_transport_on(comm, i)) >= 0; i++)
        for (uint32_t c = 0; c < comm->config.channels; c++) {
            rf_params *p = &comm->channels[c].params[t];
            memset(p, 0, sizeof *p);
            for (int r = 0; r < comm->world; r++)
                p->peer[r] = rfi_region(comm, t, r, (int)c);
            p->slot_bytes = comm->transport[t].layout.slot_bytes;
            p->deadline_ns = (uint64_t)comm->config.deadline_ms * 1000000u;
            p->rank = (uint32_t)comm->rank;
            memcpy(p->order, comm->islands.order, sizeof p->order);
            comm->backend->bind(comm->device, (uint8_t)t, (int)c, p);
        }
}

rf_result rfi_channels_clear(rf_comm *comm, rf_error *err)
{
    rf_result bad = RF_OK;
    for (int i = 0, t; !bad && (t = rfi_transport_on(comm, i)) >= 0; i++)
        for (uint32_t c = 0; !bad && c < comm->config.channels; c++) {
            rf_params *p = &comm->channels[c].params[t];
            p->generation = comm->generation;
            bad = comm->backend->clear(comm->device, (uint8_t)t, p,
                                       comm->transport[t].layout.region_bytes, err);
        }
    return bad;
}

typedef struct request {
    char name[RFI_CHANNEL_NAME];
} request;

static rf_result check_name(const rf_comm *comm, const char *name, const int *channel,
                            rf_error *err)
{
    if (!name || !channel)
        return rfi_fail(err, RF_E_ARG, comm->rank, "channel", "%s is NULL",
                        name ? "channel" : "name");
    size_t n = strnlen(name, RFI_CHANNEL_NAME);
    if (n == 0 || n == RFI_CHANNEL_NAME)
        return rfi_fail(err, RF_E_ARG, comm->rank, "channel", "a channel name has 1 to %d bytes",
                        RFI_CHANNEL_NAME - 1);
    for (const char *c = name; *c; c++)
        if (*c < ' ' || *c > '~')
            return rfi_fail(err, RF_E_ARG, comm->rank, "channel",
                            "a channel name is printable ASCII");
    return RF_OK;
}

rf_result rf_channel_open(rf_comm *comm, const char *name, int *channel, rf_error *err)
{
    if (!comm)
        return rfi_fail(err, RF_E_ARG, -1, "channel", "comm is NULL");
    uint32_t timeout = comm->config.create_timeout_ms;
    rf_error bad_err = {0};
    rf_result bad = check_name(comm, name, channel, &bad_err);
    bad = rfi_agree(comm, "channel", bad, &bad_err, timeout, err);
    if (bad)
        return bad;
    request mine = {.name = ""}, all[RF_MAX_WORLD];
    snprintf(mine.name, sizeof mine.name, "%s", name);
    bad = rfi_allgather(comm, "channel", &mine, all, sizeof mine, timeout, err);
    if (bad)
        return bad;
    for (int r = 1; r < comm->world; r++)
        if (strncmp(all[r].name, all[0].name, sizeof mine.name))
            return rfi_fail(err, RF_E_MISMATCH, r, "channel",
                            "rank %d opens channel '%.*s', rank 0 '%.*s'", r, RFI_CHANNEL_NAME - 1,
                            all[r].name, RFI_CHANNEL_NAME - 1, all[0].name);
    for (uint32_t c = 0; c < comm->n_channels; c++)
        if (!strcmp(comm->channels[c].name, mine.name)) {
            *channel = (int)c;
            return RF_OK;
        }
    if (comm->n_channels == comm->config.channels)
        return rfi_fail(err, RF_E_CHANNEL, comm->rank, "channel",
                        "all %u channels are in use: config.channels says how many there are",
                        comm->n_channels);
    pthread_mutex_lock(&comm->lock);
    memcpy(comm->channels[comm->n_channels].name, mine.name, sizeof mine.name);
    *channel = (int)comm->n_channels++;
    pthread_mutex_unlock(&comm->lock);
    return RF_OK;
}

rf_result rf_channel_rebind(rf_comm *comm, int channel)
{
    if (!comm)
        return RF_E_ARG;
    if (channel < 0 || (uint32_t)channel >= comm->n_channels)
        return RF_E_CHANNEL;
    comm->channels[channel].stream = 0;
    return RF_OK;
}
