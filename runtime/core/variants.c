/* The variants of a comm: those of its packs for its world, and why one may not run. */
#include <stdlib.h>
#include <string.h>

#include "core/codes.h"
#include "core/comm.h"

static int compare_hash(const void *a, const void *b)
{
    return memcmp((*(const rf_variant *const *)a)->hash, (*(const rf_variant *const *)b)->hash, 16);
}

rf_result rfi_variants_open(rf_comm *comm, rf_error *err)
{
    size_t n = 0, shards_n = 0;
    for (size_t p = 0; p < comm->config.n_packs; p++)
        for (uint32_t s = 0; s < comm->config.packs[p]->n_shards; s++, shards_n++)
            if (comm->config.packs[p]->shards[s]->world == (uint32_t)comm->world)
                n += comm->config.packs[p]->shards[s]->n;
    if (!n)
        return rfi_fail(err, RF_E_VARIANT, comm->rank, "packs",
                        "no pack has a variant for world %d (packs: %zu, shards: %zu)", comm->world,
                        comm->config.n_packs, shards_n);
    comm->variants = malloc(n * sizeof *comm->variants);
    comm->by_hash = malloc(n * sizeof *comm->by_hash);
    if (!comm->variants || !comm->by_hash)
        return rfi_fail(err, RF_E_MEMORY, comm->rank, "packs", "no memory for %zu variants", n);
    for (size_t p = 0; p < comm->config.n_packs; p++)
        for (uint32_t s = 0; s < comm->config.packs[p]->n_shards; s++) {
            const rf_shard *shard = comm->config.packs[p]->shards[s];
            if (shard->world != (uint32_t)comm->world)
                continue;
            for (uint32_t v = 0; v < shard->n; v++)
                comm->variants[comm->n_variants++] = &shard->variants[v];
        }
    memcpy(comm->by_hash, comm->variants, n * sizeof *comm->variants);
    qsort(comm->by_hash, n, sizeof *comm->by_hash, compare_hash);
    return RF_OK;
}

void rfi_variants_close(rf_comm *comm)
{
    free(comm->variants);
    free(comm->by_hash);
    comm->variants = comm->by_hash = NULL;
    comm->n_variants = 0;
}

size_t rfi_variant_count(const rf_comm *comm)
{
    return comm->n_variants;
}

const rf_variant *rfi_variant_at(const rf_comm *comm, size_t i)
{
    return comm->variants[i];
}

const rf_variant *rfi_variant_by_hash(const rf_comm *comm, const unsigned char hash[16])
{
    rf_variant wanted;
    memcpy(wanted.hash, hash, sizeof wanted.hash);
    const rf_variant *key = &wanted, **found;
    found = bsearch(&key, comm->by_hash, comm->n_variants, sizeof *comm->by_hash, compare_hash);
    return found ? *found : NULL;
}

const rf_variant *rfi_variant_by_name(const rf_comm *comm, const char *name)
{
    for (size_t i = 0; i < comm->n_variants; i++)
        if (!strcmp(comm->variants[i]->name, name))
            return comm->variants[i];
    return NULL;
}

rf_result rfi_variant_ready(const rf_comm *comm, const rf_variant *variant, rf_error *err)
{
    const rf_shard *home = NULL; /* of none: the caller's own, as in tests */
    for (size_t p = 0; p < comm->config.n_packs; p++)
        for (uint32_t s = 0; s < comm->config.packs[p]->n_shards; s++) {
            const rf_shard *shard = comm->config.packs[p]->shards[s];
            if (variant >= shard->variants && variant < shard->variants + shard->n)
                home = shard;
        }
    return comm->backend->load(comm->device, home, variant, err);
}

/* By code of the transport. */
static const char *const off[RFI_N_TRANSPORTS] = {
    [RFI_TRANSPORT_CPU] = "no shared memory: see the status",
    [RFI_TRANSPORT_PEER] = "no peer access: see the status",
    [RFI_TRANSPORT_HOST] = "no host memory that the GPUs share: see the status",
};

/* What a caller has to ask for by a flag of its config. */
static const struct {
    unsigned flag, asked; /* of the variant, of the config */
    const char *name, *refusal;
} opt_ins[] = {
    {RF_VARIANT_DEPENDENT, RF_DEPENDENT, "RF_DEPENDENT",
     "starts before earlier kernels have ended: needs RF_DEPENDENT"},
    {RF_VARIANT_REASSOC, RF_REASSOC, "RF_REASSOC", "sums in another order: needs RF_REASSOC"},
    {RF_VARIANT_LOSSY, RF_LOSSY, "RF_LOSSY", "rounds on the wire: needs RF_LOSSY"},
};
#define N_OPT_INS (sizeof opt_ins / sizeof *opt_ins)

const char *rfi_refusal_here(const rf_comm *comm, const rf_variant *v)
{
    if (v->transport >= RFI_N_TRANSPORTS)
        return "meets in memory that this version does not know";
    const rfi_transport *t = &comm->transport[v->transport];
    if (!t->on)
        return t->why.code ? off[v->transport] : "needs another backend";
    if (v->algo == RFI_ALGO_ISLANDS && !comm->islands.on)
        return "the ranks are on no two islands: see the status";
    if (v->isa > 31 || !(comm->isa_mask >> v->isa & 1))
        return "needs instructions that not every rank has";
    for (size_t i = 0; i < N_OPT_INS; i++)
        if (v->flags & opt_ins[i].flag && !(comm->config.flags & opt_ins[i].asked))
            return opt_ins[i].refusal;
    return NULL;
}

/* Why nothing that the caller would admit by `flag` runs here. */
static const char *why_nothing(const rf_comm *comm, unsigned flag)
{
    for (size_t i = 0; i < comm->n_variants; i++) {
        const rf_variant *v = comm->variants[i];
        if (v->flags & flag)
            return v->algo == RFI_ALGO_ISLANDS && !comm->islands.on ? comm->islands.reason
                                                                    : rfi_refusal_here(comm, v);
    }
    return "the packs have no such kernel for this world";
}

void rfi_variants_admit(rf_comm *comm)
{
    for (size_t i = 0; i < comm->n_variants; i++)
        if (!rfi_refusal_here(comm, comm->variants[i]))
            comm->admits |= (uint8_t)(comm->variants[i]->flags & RFI_OPT_INS);
    for (size_t i = 0; i < N_OPT_INS; i++)
        if (comm->config.flags & opt_ins[i].asked && !(comm->admits & opt_ins[i].flag))
            rfi_log(comm, 1, "%s admits nothing here: %s", opt_ins[i].name,
                    why_nothing(comm, opt_ins[i].flag));
}

const uint8_t *rfi_sum_order(const rf_comm *comm, const rf_variant *variant)
{
    return variant->algo == RFI_ALGO_ISLANDS ? comm->islands.order : NULL;
}

uint8_t rfi_admits(const rf_comm *comm)
{
    return comm->admits;
}

const char *rfi_refusal(const rf_comm *comm, const rf_variant *v, const rf_shape *shape)
{
    const char *here = rfi_refusal_here(comm, v);
    if (here)
        return here;
    if (v->op != shape->op)
        return "does another operation";
    if (v->world != comm->world)
        return "made for another world size";
    if (v->dtype != shape->dtype)
        return "made for another dtype";
    if (v->hidden && v->hidden != shape->hidden)
        return "made for another hidden size";
    return comm->backend->misfit(v, comm->transport[v->transport].layout.slot_bytes,
                                 rfi_shape_bytes(shape));
}
