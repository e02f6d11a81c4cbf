/* What peers.py calls through ctypes: a comm on a pack with a tactic database, tuned and called.
 * Linked with the pack and the libraries into one shared library. 0 = done, else shim_error(). */
#include <stdio.h>
#include <stdlib.h>

#include "rankfold.h"

extern const rf_pack PACK;
static const rf_pack *const packs[] = {&PACK};
static rf_error err;

typedef struct shim {
    rf_comm *comm;
    rf_store *store; /* rank 0's */
} shim;

RF_API const char *shim_error(void);
RF_API shim *shim_open(const char *name, int rank, int world, uint64_t capacity, uint32_t flags,
                       const char *database);
RF_API int shim_tune(shim *s, const uint64_t *counts, size_t n, uint32_t budget_ms);
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

/* The device is the rank's ordinal; flags as in rf_config. NULL: see shim_error. */
shim *shim_open(const char *name, int rank, int world, uint64_t capacity, uint32_t flags,
                const char *database)
{
    shim *s = calloc(1, sizeof *s);
    rf_bootstrap boot;
    rf_config config = RF_CONFIG_INIT;
    if (!s || (rank == 0 && rf_store_open(database, NULL, 0, &s->store, &err)))
        return NULL;
    config.backend = RF_BACKEND_CUDA;
    config.device = rank;
    config.packs = packs;
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

/* Collective; what the database knows is not measured again. */
int shim_tune(shim *s, const uint64_t *counts, size_t n, uint32_t budget_ms)
{
    rf_tune_options options = RF_TUNE_OPTIONS_INIT;
    rf_shape shapes[MOST_SHAPES];
    options.budget_ms = budget_ms;
    options.seed = 1;
    for (size_t i = 0; i < n && i < MOST_SHAPES; i++)
        shapes[i] = flat(counts[i]);
    return rf_tune(s->comm, 0, shapes, n, &options, NULL, &err);
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
