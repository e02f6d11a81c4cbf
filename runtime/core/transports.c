/* The kinds of memory that the ranks meet in. Each is built by all ranks together - permitted,
 * allocated, mapped, probed - and works on all of them or is taken down on all of them. A comm
 * lives on what is left. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/codes.h"
#include "core/comm.h"

static rf_result permit(rf_comm *comm, uint8_t code, rf_error *err)
{
    const char *why = rfi_config_forbids(&comm->config, comm->world, code);
    return why ? rfi_fail(err, RF_E_BACKEND, comm->rank, "permit", "%s", why)
               : comm->backend->permit(comm->device, code, err);
}

static rf_result allocate(rf_comm *comm, uint8_t code, rf_error *err)
{
    rfi_transport *t = &comm->transport[code];
    t->layout = comm->backend->layout(code, comm->config.capacity_bytes);
    size_t bytes = comm->config.channels * t->layout.region_bytes;
    return comm->backend->allocate(comm->device, code, bytes, &t->own, err);
}

/* Where a rank's memory lies, for ranks of the same process. */
typedef struct address {
    uint64_t base, host;
} address;

static unsigned char *pointer(uint64_t at)
{
    return (unsigned char *)(uintptr_t)at;
}

static rf_result import_all(rf_comm *comm, uint8_t code, rf_error *err)
{
    rfi_transport *t = &comm->transport[code];
    uint32_t timeout = comm->config.create_timeout_ms;
    address mine = {(uint64_t)(uintptr_t)t->own.base, (uint64_t)(uintptr_t)t->own.host};
    address all[RF_MAX_WORLD];
    int fds[RF_MAX_WORLD];
    rf_error local = {0};
    rf_result bad = rfi_allgather(comm, "map", &mine, all, sizeof mine, timeout, err);
    if (!bad)
        bad = rfi_control_exchange_fd(&comm->control, "map", t->own.fd, fds, timeout, err);
    if (bad)
        return bad;
    for (int r = 0; r < comm->world && !bad; r++) {
        if (r == comm->rank)
            continue;
        rfi_memory theirs = {.base = pointer(all[r].base),
                             .host = pointer(all[r].host),
                             .bytes = t->own.bytes,
                             .fd = fds[r]};
        bad = comm->backend->import(comm->device, code, &theirs, comm->control.link[r].same_process,
                                    &t->import[r], &local);
        if (bad) /* the backend does not know whose memory it was */
            rfi_fail(&local, bad, comm->rank, "map", "memory of rank %d: %s", r, local.text);
    }
    for (int r = 0; r < comm->world; r++)
        if (fds[r] >= 0)
            close(fds[r]);
    bad = rfi_agree(comm, "map", bad, &local, timeout, err);
    if (t->own.fd >= 0)
        close(t->own.fd);
    t->own.fd = -1;
    return bad;
}

static rf_result probe(rf_comm *comm, uint8_t code, rf_error *err)
{
    return rfi_probe(comm, code, comm->config.create_timeout_ms, err);
}

/* Either `local`, whose verdict is then agreed, or `together`, which is collective itself. */
static const struct step {
    const char *name;
    rf_result (*local)(rf_comm *comm, uint8_t code, rf_error *err);
    rf_result (*together)(rf_comm *comm, uint8_t code, rf_error *err);
} steps[] = {
    {"permit", permit, NULL},
    {"allocate", allocate, NULL},
    {"map", NULL, import_all},
    {"probe", NULL, probe},
};
#define N_STEPS (sizeof steps / sizeof *steps)

static rf_result take(rf_comm *comm, const struct step *step, uint8_t code, rf_error *err)
{
    if (step->together)
        return step->together(comm, code, err);
    rf_error mine = {0};
    rf_result bad = step->local(comm, code, &mine);
    return rfi_agree(comm, step->name, bad, &mine, comm->config.create_timeout_ms, err);
}

static void take_down(rf_comm *comm, uint8_t code)
{
    rfi_transport *t = &comm->transport[code];
    for (int r = 0; r < RF_MAX_WORLD; r++)
        comm->backend->forget(comm->device, &t->import[r]);
    comm->backend->forget(comm->device, &t->own);
}

/* What the packs have for a transport in this world: instruction sets, a bit each. */
static uint32_t isas_for(const rf_comm *comm, uint8_t code)
{
    uint32_t isas = 0;
    for (size_t i = 0; i < comm->n_variants; i++)
        if (comm->variants[i]->transport == code && comm->variants[i]->isa < 32)
            isas |= 1u << comm->variants[i]->isa;
    return isas;
}

/* No variant can run: what was found, where expected is one of comm->isa_mask. */
static rf_result no_variant(const rf_comm *comm, uint32_t isas, const char *what, int rank,
                            rf_error *err)
{
    char names[128] = "";
    size_t used = 0;
    for (unsigned i = 0; i < 32; i++)
        if (isas >> i & 1 && used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                                     rfi_isa_text(i));
    return rfi_fail(err, RF_E_VARIANT, rank, "packs",
                    isas ? "no pack has a variant of %s for world %d that runs on %s: those that "
                           "are there need %s"
                         : "no pack has a variant of %s for world %d",
                    what, comm->world, comm->arch, names);
}

/* RF_OK although it is off: ask t->on. Else the ranks have lost each other. */
static rf_result build(rf_comm *comm, uint8_t code, rf_error *err)
{
    rfi_transport *t = &comm->transport[code];
    rf_result bad = RF_OK;
    for (size_t i = 0; i < N_STEPS && !bad; i++)
        bad = take(comm, &steps[i], code, &t->why);
    t->on = !bad;
    if (!bad)
        return RF_OK;
    take_down(comm, code);
    if (!comm->control.broken.code)
        return RF_OK;
    if (err)
        *err = t->why;
    return bad;
}

/* What the last one that was tried has died of, with the reasons of all. */
static rf_result nothing_left(const rf_comm *comm, rf_error *err)
{
    const rf_error *last = NULL;
    int tried = 0;
    uint32_t isas = 0;
    char all[RF_ERROR_TEXT];
    for (int i = 0; i < comm->backend->n_transports; i++) {
        isas |= isas_for(comm, comm->backend->transports[i]);
        const rf_error *why = &comm->transport[comm->backend->transports[i]].why;
        if (why->code == RF_E_VARIANT)
            continue;
        last = why;
        tried++;
    }
    if (!last)
        return no_variant(comm, isas, comm->backend->name, comm->rank, err);
    rfi_transports_off(comm, all, sizeof all);
    return rfi_fail(err, last->code, last->rank, last->step, "%s", tried > 1 ? all : last->text);
}

rf_result rfi_transports_open(rf_comm *comm, rf_error *err)
{
    int on = 0;
    for (int i = 0; i < comm->backend->n_transports; i++) {
        uint8_t code = comm->backend->transports[i];
        rfi_transport *t = &comm->transport[code];
        uint32_t isas = isas_for(comm, code);
        if (!(isas & comm->isa_mask)) {
            no_variant(comm, isas, "it", -1, &t->why);
            continue;
        }
        if (on && comm->world == 1) {
            rfi_fail(&t->why, RF_E_VARIANT, -1, "packs", "one rank alone needs no second one");
            continue;
        }
        rf_result bad = build(comm, code, err);
        if (bad)
            return bad;
        on += t->on;
    }
    if (!on)
        return nothing_left(comm, err);
    char off[RF_ERROR_TEXT];
    rfi_transports_off(comm, off, sizeof off);
    if (off[0])
        rfi_log(comm, 1, "%s", off);
    return RF_OK;
}

int rfi_transport_on(const rf_comm *comm, int n)
{
    for (int i = 0; i < comm->backend->n_transports; i++) {
        uint8_t code = comm->backend->transports[i];
        if (comm->transport[code].on && n-- == 0)
            return code;
    }
    return -1;
}

void rfi_transports_off(const rf_comm *comm, char *buf, size_t size)
{
    size_t used = 0;
    buf[0] = 0;
    for (int i = 0; i < comm->backend->n_transports; i++) {
        uint8_t code = comm->backend->transports[i];
        const rf_error *why = &comm->transport[code].why;
        if (!why->code || why->code == RF_E_VARIANT || used >= size)
            continue;
        used += (size_t)snprintf(buf + used, size - used, "%s%s is off: %.220s", used ? "; " : "",
                                 rfi_transport_text(code), why->text);
    }
}

unsigned char *rfi_region(const rf_comm *comm, int transport, int rank, int channel)
{
    const rfi_transport *t = &comm->transport[transport];
    unsigned char *base = rank == comm->rank ? t->own.base : t->import[rank].base;
    return base + (size_t)channel * t->layout.region_bytes;
}

rf_result rf_transport_query(const rf_comm *comm, size_t i, rf_transport_info *out)
{
    if (!comm || !out || i >= comm->backend->n_transports)
        return RF_E_ARG;
    uint8_t code = comm->backend->transports[i];
    const rfi_transport *t = &comm->transport[code];
    memset(out, 0, sizeof *out);
    out->name = rfi_transport_text(code);
    out->on = t->on;
    if (!t->on)
        memcpy(out->reason, t->why.text, sizeof out->reason);
    return RF_OK;
}
