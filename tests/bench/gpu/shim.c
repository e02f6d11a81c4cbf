/* What peers.py calls through ctypes: a comm on a pack with a tactic database, tuned and called.
 * Linked with the pack and the libraries into one shared library. 0 = done, else shim_error(). */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

#include "abi.h"
#include "rankfold.h"

extern const rf_pack PACK;
static rf_error err;

typedef struct shim {
    rf_comm *comm;
    rf_store *store; /* rank 0's */
    rf_pack pack;    /* of PACK, the variants that were asked for */
    const rf_pack *packs[1];
} shim;

RF_API const char *shim_error(void);
RF_API shim *shim_open(const char *name, int rank, int world, uint64_t capacity, uint32_t flags,
                       const char *database, const char *const *globs, size_t n_globs);
RF_API int shim_tune(shim *s, const uint64_t *counts, size_t n, uint32_t budget_ms, char *text,
                     size_t size);
RF_API int shim_baseline(shim *s, void *nccl_comm);
RF_API int shim_prepare(shim *s, const uint64_t *counts, size_t n);
RF_API int shim_plan(shim *s, uint64_t count, char *text, size_t size);
RF_API int shim_call(shim *s, const void *in, void *out, uint64_t count, void *stream);
RF_API void shim_rebind(shim *s);
RF_API size_t shim_status(shim *s, char *text, size_t size);
RF_API int shim_close(shim *s);
RF_API int shim_oracle(const void *const *in, void *out, uint64_t count, int world);

const char *shim_error(void)
{
    return err.text;
}

static int is_wanted(const char *name, const char *const *globs, size_t n)
{
    int wanted = n == 0;
    for (size_t i = 0; i < n && !wanted; i++)
        wanted = fnmatch(globs[i], name, 0) == 0;
    return wanted;
}

/* What it takes stays: a comm may outlive it. */
static int choose(rf_pack *pack, const char *const *globs, size_t n)
{
    *pack = PACK;
    rf_shard *shards = calloc(PACK.n_shards, sizeof *shards);
    const rf_shard **list = calloc(PACK.n_shards, sizeof *list);
    if (!shards || !list)
        return -1;
    pack->shards = list;
    pack->n_variants = 0;
    for (uint32_t i = 0; i < PACK.n_shards; i++) {
        const rf_shard *from = PACK.shards[i];
        rf_variant *chosen = calloc(from->n + 1, sizeof *chosen);
        if (!chosen)
            return -1;
        list[i] = &shards[i];
        shards[i] = *from;
        shards[i].variants = chosen;
        shards[i].n = 0;
        for (uint32_t v = 0; v < from->n; v++)
            if (is_wanted(from->variants[v].name, globs, n))
                chosen[shards[i].n++] = from->variants[v];
        pack->n_variants += shards[i].n;
    }
    return 0;
}

/* The device is the rank's ordinal; flags as in rf_config. Only variants that one of the globs
 * matches, without any all. NULL: see shim_error. */
shim *shim_open(const char *name, int rank, int world, uint64_t capacity, uint32_t flags,
                const char *database, const char *const *globs, size_t n_globs)
{
    shim *s = calloc(1, sizeof *s);
    rf_bootstrap boot;
    rf_config config = RF_CONFIG_INIT;
    if (!s || choose(&s->pack, globs, n_globs))
        return NULL;
    s->packs[0] = &s->pack;
    if (rank == 0 && rf_store_open(database, NULL, 0, &s->store, &err))
        return NULL;
    config.backend = RF_BACKEND_CUDA;
    config.device = rank;
    config.packs = s->packs;
    config.n_packs = 1;
    config.store = s->store;
    config.capacity_bytes = capacity;
    config.flags = flags;
    if (rf_bootstrap_socket(name, rank, world, &boot, &err) != RF_OK)
        return NULL;
    rf_result bad = rf_comm_create(&config, &boot, &s->comm, &err);
    rf_bootstrap_free(&boot);
    return bad ? NULL : s;
}

static rf_shape flat(uint64_t count)
{
    return (rf_shape){RF_ALL_REDUCE, RF_BF16, RF_GRAPH, 1, count};
}

enum { MOST_SHAPES = 64 };

/* Collective; what the database knows is not measured again. `text` says what was done. */
int shim_tune(shim *s, const uint64_t *counts, size_t n, uint32_t budget_ms, char *text,
              size_t size)
{
    rf_tune_summary sum = {0};
    rf_tune_options options = RF_TUNE_OPTIONS_INIT;
    rf_shape shapes[MOST_SHAPES];
    options.budget_ms = budget_ms;
    options.seed = 1;
    for (size_t i = 0; i < n && i < MOST_SHAPES; i++)
        shapes[i] = flat(counts[i]);
    rf_result bad = rf_tune(s->comm, 0, shapes, n, &options, &sum, &err);
    snprintf(text, size, "%u shapes, %u known, %u measured, %u wrong, %u timeouts, %.1f s",
             sum.shapes, sum.warm, sum.measured, sum.wrong, sum.timeout, sum.seconds);
    return bad;
}

/* Collective: from now on this ncclComm_t is tuned along. */
int shim_baseline(shim *s, void *nccl_comm)
{
    rf_baseline baseline;
    rf_result bad = rf_baseline_nccl(nccl_comm, &baseline, &err);
    return bad ? bad : rf_comm_baseline(s->comm, &baseline, &err);
}

int shim_prepare(shim *s, const uint64_t *counts, size_t n)
{
    rf_shape shapes[MOST_SHAPES];
    for (size_t i = 0; i < n && i < MOST_SHAPES; i++)
        shapes[i] = flat(counts[i]);
    return rf_prepare(s->comm, 0, shapes, n, &err);
}

/* "variant/blocks (rung)" */
int shim_plan(shim *s, uint64_t count, char *text, size_t size)
{
    rf_plan_info plan;
    rf_result bad = rf_plan_query(s->comm, 0, count, RF_BF16, RF_GRAPH, &plan);
    if (!bad)
        snprintf(text, size, "%s/%u (%s)", plan.variant, plan.grid, rf_rung_text(plan.rung));
    return bad;
}

int shim_call(shim *s, const void *in, void *out, uint64_t count, void *stream)
{
    rf_result bad = rf_all_reduce(s->comm, 0, in, out, count, RF_BF16, stream);
    if (bad)
        err = *rf_comm_error(s->comm);
    return bad;
}

void shim_rebind(shim *s)
{
    rf_channel_rebind(s->comm, 0);
}

size_t shim_status(shim *s, char *text, size_t size)
{
    return rf_status_json(s->comm, text, size);
}

/* Fails where the comm is unhealthy, too. */
int shim_close(shim *s)
{
    rf_health health;
    rf_comm_check(s->comm, &health);
    rf_result bad = health.code ? health.code : rf_comm_close(s->comm, 10000, &err);
    rf_comm_destroy(s->comm);
    rf_store_close(s->store);
    free(s);
    return bad;
}

int shim_oracle(const void *const *in, void *out, uint64_t count, int world)
{
    return rf_oracle_all_reduce(in, out, count, RF_BF16, world);
}
