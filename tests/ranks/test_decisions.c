/* What measurements and decisions do to calls of several ranks: fallback to the caller's own
 * collective, tables of another capacity or environment, a forced tactic. Cases F31, F32, F37.
 * (F29 and the tuner's own cases are in test_tune.c.) */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/codes.h"
#include "group.h"

static const rf_shape shape = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 4, 256};
#define N 1024

/* ---- F37: the baseline was measured faster up to 4 KiB ---- */

static int lookup_fallback(rf_store *s, const rfi_key *key, rfi_have_fn have, void *ctx,
                           rfi_decision *out)
{
    (void)s, (void)have, (void)ctx;
    *out = (rfi_decision){.rung = RF_RUNG_EXACT,
                          .fallback = 1,
                          .bucket = rfi_bucket(key->bytes),
                          .median_ns = 1000,
                          .reason = "the baseline won"};
    return key->bytes <= 4096;
}

static int n_left;

static void count_left(void *ctx, int level, const char *line)
{
    (void)ctx;
    n_left += level == 1 && strstr(line, "own collective") && strstr(line, ": 2 of 3; ");
}

static void fallback(int rank, int world, void *arg)
{
    static const rfi_store_vtable v = {
        .lookup = lookup_fallback, .warning = group_no_warning, .generation = group_one_generation};
    static rf_store store = {&v};
    rf_config config = group_config();
    if (rank == 0)
        config.store = &store;
    config.log = count_left;
    rf_comm *comm = group_create(arg, &config, rank, world);
    rf_error err = {0};
    const rf_shape shapes[] = {shape,
                               {RF_ALL_REDUCE, RF_F32, RF_EAGER, 2, 256},
                               {RF_ALL_REDUCE, RF_F32, RF_EAGER, 16, 256}};
    RANK_CHECK(rf_prepare(comm, 0, shapes, 3, &err) == RF_OK, "%s", err.text);
    RANK_CHECK(n_left == !rank, "said %d times that nobody sums them", n_left);
    rf_plan_info info;
    RANK_CHECK(rf_plan_query(comm, 0, N, RF_F32, RF_EAGER, &info) == RF_OK && info.fallback,
               "no fallback: %s", info.reason);

    rf_cpu_stream *s;
    RANK_CHECK(rf_cpu_stream_create(&s, NULL) == RF_OK, "stream");
    float x[N];
    for (int i = 0; i < N; i++)
        x[i] = 1;
    RANK_CHECK(rf_all_reduce(comm, 0, x, x, N, RF_F32, s) == RF_FALLBACK, "eager");
    RANK_CHECK(rf_cpu_stream_synchronize(s) == RF_OK && x[0] == 1 && x[N - 1] == 1,
               "the stream was touched");
    rf_cpu_stream_destroy(s); /* nor does the channel belong to it */
    group_call(comm, 0, NULL, 0, RF_F32, 16 * 256, 1, 0, 0);
    group_close(comm);
}

static void test_fallback_is_said_before_the_stream_is_touched(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, fallback, (void *)group_name(), NULL));
}

/* ---- what was decided is what is launched ---- */

#define DECIDED_GRID 100u /* more than there is room for */

static struct {
    const rf_variant *variant;
    uint32_t grid;
} launched;

static rf_result note_launch(rfi_device *device, const rf_variant *variant, const rf_params *params,
                             void *stream, rf_error *err)
{
    launched.variant = variant, launched.grid = params->grid;
    return rfi_backend_cpu.launch(device, variant, params, stream, err);
}

static size_t n_loaded;
static const rf_variant *loaded[256];

static rf_result note_load(rfi_device *device, const rf_shard *shard, const rf_variant *variant,
                           rf_error *err)
{
    if (n_loaded < sizeof loaded / sizeof *loaded)
        loaded[n_loaded++] = variant;
    return rfi_backend_cpu.load(device, shard, variant, err);
}

static int is_loaded(const rf_variant *v)
{
    for (size_t i = 0; i < n_loaded; i++)
        if (loaded[i] == v)
            return 1;
    return 0;
}

static char stale[256];

static void note_stale(void *ctx, int level, const char *line)
{
    (void)ctx;
    if (level == 1)
        snprintf(stale, sizeof stale, "%s", line);
}

static void few_blocks(const rfi_device *device, rfi_capabilities *out)
{
    rfi_backend_cpu.capabilities(device, out);
    out->max_grid = 60;
}

static const rf_variant *decided[2]; /* by mode */
static const rf_variant *other_dtype;
static uint8_t asked_for;

/* Twice the rows: of an earlier build, whose name is left; four times: without a grid. */
static int lookup_decided(rf_store *s, const rfi_key *key, rfi_have_fn have, void *ctx,
                          rfi_decision *out)
{
    const rf_variant *v = decided[key->mode];
    static const unsigned char nobodys[16];
    (void)s;
    RANK_CHECK(have(ctx, v->hash, "x") == 2 && have(ctx, nobodys, v->name) == 1, "had");
    RANK_CHECK(!have(ctx, nobodys, "x"), "not had");
    RANK_CHECK(!have(ctx, other_dtype->hash, other_dtype->name), "of another dtype");
    asked_for = key->admits;
    *out = (rfi_decision){.rung = key->rows == 8 ? RF_RUNG_OTHER_HASH : RF_RUNG_EXACT,
                          .bucket = rfi_bucket(key->bytes),
                          .grid = key->rows == 16 ? 0 : DECIDED_GRID,
                          .median_ns = 1000,
                          .reason = "scripted"};
    if (key->rows != 8)
        memcpy(out->hash, v->hash, sizeof out->hash);
    snprintf(out->variant, sizeof out->variant, "%s", v->name);
    return 1;
}

/* The n-th that runs everywhere with any count, or that is for a hidden size. */
static const rf_variant *pick(const rf_comm *comm, int n, int with_hidden)
{
    for (size_t i = 0; i < rfi_variant_count(comm); i++) {
        const rf_variant *v = rfi_variant_at(comm, i);
        if (v->dtype == RF_F32 && !!v->hidden == with_hidden &&
            (v->hidden || v->isa == RFI_ISA_SCALAR) && !n--)
            return v;
    }
    RANK_CHECK(0, "the pack has too few variants");
    return NULL;
}

static void check_launched(const rf_comm *comm, const rf_variant *v, const char *what)
{
    RANK_CHECK(launched.variant == v && launched.grid == comm->max_grid, "%s: %s, grid %u, not %s",
               what, launched.variant->name, launched.grid, v->name);
}

static void launches(int rank, int world, void *arg)
{
    static const rfi_store_vtable v = {
        .lookup = lookup_decided, .warning = group_no_warning, .generation = group_one_generation};
    static rf_store store = {&v};
    rfi_backend backend = rfi_backend_cpu;
    rf_config config = group_config();
    rf_comm *comm;
    rf_error err = {0};
    config.capacity_bytes = 4 << 20; /* more than the last class begins with */
    backend.launch = note_launch;
    backend.load = note_load;
    config.log = note_stale;
    backend.capabilities = few_blocks;
    if (rank == 0)
        config.store = &store;
    RANK_CHECK(!group_try(&backend, arg, &config, rank, world, &comm, &err), "%s", err.text);
    RANK_CHECK(comm->max_grid && comm->max_grid < DECIDED_GRID, "%u blocks", comm->max_grid);
    for (int c = 0; c < rfi_class_count(); c++) {
        uint64_t most = comm->max_count[RF_F32], count = comm->class_plan[RF_F32][c].count;
        RANK_CHECK(count && (c + 1 < rfi_class_count() ? count <= most : count == most),
                   "class %d is for up to %llu", c, (unsigned long long)count);
    }
    decided[RF_EAGER] = pick(comm, 0, 0), decided[RF_GRAPH] = pick(comm, 1, 0);
    for (size_t i = 0; i < rfi_variant_count(comm) && !other_dtype; i++)
        if (rfi_variant_at(comm, i)->dtype == RF_F16)
            other_dtype = rfi_variant_at(comm, i);
    comm->admits = RF_VARIANT_LOSSY; /* as if the pack had some */
    n_loaded = 0;
    const rf_shape shapes[] = {shape,
                               {RF_ALL_REDUCE, RF_F32, RF_GRAPH, 4, 256},
                               {RF_ALL_REDUCE, RF_F32, RF_EAGER, 8, 256},
                               {RF_ALL_REDUCE, RF_F32, RF_EAGER, 16, 256}};
    RANK_CHECK(rf_prepare(comm, 0, shapes, 4, &err) == RF_OK, "%s", err.text);
    RANK_CHECK(is_loaded(decided[RF_EAGER]) && is_loaded(decided[RF_GRAPH]), "not loaded");
    RANK_CHECK(rank != 0 || asked_for == RF_VARIANT_LOSSY, "asked for %u", asked_for);
    RANK_CHECK(rank != 0 || !strcmp(stale, "scripted"), "what is stale is not said: %s", stale);

    rf_plan_info info;
    group_call(comm, 0, NULL, 0, RF_F32, N, 1, 0, 0);
    check_launched(comm, decided[RF_EAGER], "eager");
    RANK_CHECK(comm->channels[0].calls[RFI_PATH_PREPARED] == 1, "not counted");
    RANK_CHECK(rf_plan_query(comm, 0, N + 1, RF_F32, RF_EAGER, &info) == RF_OK, "query");
    RANK_CHECK(info.rung == RF_RUNG_NEAREST && info.median_us == 0, "%s, %g us",
               rf_rung_text(info.rung), info.median_us);
    group_call(comm, 0, NULL, 0, RF_F32, 2 * N, 1, 0, 0);
    check_launched(comm, decided[RF_EAGER], "by name");
    RANK_CHECK(rf_plan_query(comm, 0, 4 * N, RF_F32, RF_EAGER, &info) == RF_OK, "query");
    RANK_CHECK(info.rung == RF_RUNG_CLASS || info.rung == RF_RUNG_GENERIC, "no grid: %s",
               rf_rung_text(info.rung));

    rf_cpu_stream *s;
    rf_cpu_graph *graph;
    float x[N] = {0};
    rf_channel_rebind(comm, 0);
    RANK_CHECK(!rf_cpu_stream_create(&s, NULL) && !rf_cpu_capture_begin(s), "stream");
    RANK_CHECK(rf_all_reduce(comm, 0, x, x, N, RF_F32, s) == RF_OK, "capture");
    check_launched(comm, decided[RF_GRAPH], "captured");
    launched.variant = decided[RF_EAGER];
    RANK_CHECK(rf_dispatch(comm, 0, x, x, N, RF_F32, s) == RF_OK, "capture");
    check_launched(comm, decided[RF_GRAPH], "captured by rf_dispatch");
    RANK_CHECK(rf_cpu_capture_end(s, &graph) == RF_OK, "capture");
    rf_cpu_graph_destroy(graph);
    rf_cpu_stream_destroy(s);
    rf_channel_rebind(comm, 0);

    group_call(comm, 0, decided[RF_GRAPH], DECIDED_GRID, RF_F32, N, 1, 0, 0);
    check_launched(comm, decided[RF_GRAPH], "measured");
    RANK_CHECK(rfi_plan_set(comm, 0, &shape, decided[RF_GRAPH], 0, 1, 1, &err) == RF_E_VARIANT,
               "grid 0");
    RANK_CHECK(rfi_plan_set(comm, 0, &shape, decided[RF_GRAPH], DECIDED_GRID, 1, 1, &err) == RF_OK,
               "%s", err.text);
    group_call(comm, 0, NULL, 0, RF_F32, N, 1, 0, 0);
    check_launched(comm, decided[RF_GRAPH], "set");

    const uint32_t isa_mask = comm->isa_mask;
    if (rank == 1)
        comm->isa_mask = 0; /* nothing runs there any more */
    RANK_CHECK(rf_prepare(comm, 0, shapes, 2, &err) == RF_E_VARIANT && err.rank == 1, "%d: %s",
               err.rank, err.text);
    comm->isa_mask = isa_mask;
    const rf_variant *rows = pick(comm, 0, 1);
    if (!rfi_refusal_here(comm, rows))
        group_call(comm, 0, rows, 1, RF_F32, 2 * (uint64_t)rows->hidden, 1, 0, 0);
    RANK_CHECK(rfi_launch(comm, 0, rows, 1, x, x, 500, RF_F32, NULL) == RF_E_VARIANT,
               "%s takes 500 elements", rows->name);
    group_close(comm);
}

static void test_what_was_decided_is_launched(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, launches, (void *)group_name(), NULL));
}

/* ---- F31, F32: tuned once, used with another capacity, in another environment ---- */

typedef struct sessions {
    char name[5][64], db[256];
} sessions;

static rf_store *open_store(const char *db)
{
    rf_store *store;
    rf_error err = {0};
    RANK_CHECK(rf_store_open(db, NULL, 0, &store, &err) == RF_OK, "%s", err.text);
    RANK_CHECK(!rf_store_warning(store), "%s", rf_store_warning(store));
    return store;
}

/* Creates a comm with the database, prepares the shape, tells the plan. */
static rf_plan_info plan_of(const rfi_backend *backend, const char *name, const rf_config *base,
                            const char *db, int rank, int world)
{
    rf_config config = *base;
    rf_comm *comm;
    rf_error err = {0};
    rf_plan_info info;
    if (rank == 0)
        config.store = open_store(db);
    RANK_CHECK(!group_try(backend, name, &config, rank, world, &comm, &err), "%s", err.text);
    RANK_CHECK(rf_prepare(comm, 0, &shape, 1, &err) == RF_OK, "%s", err.text);
    RANK_CHECK(rf_plan_query(comm, 0, N, RF_F32, RF_EAGER, &info) == RF_OK, "query");
    group_call(comm, 0, NULL, 0, RF_F32, N, 1, 0, 0);
    group_close(comm);
    rf_store_close(config.store);
    return info;
}

static void other_driver(const rfi_device *device, rfi_capabilities *out)
{
    static char text[65536];
    rfi_backend_cpu.capabilities(device, out);
    snprintf(text, sizeof text, "%sdriver=999\n",
             out->env_text ? out->env_text : ""); /* it is there after `join` */
    out->env_text = text;
}

/* As mpirun does and taskset: from now on this rank has one of its cpus. 0 = it had no more. */
static int bind_to_one(void)
{
    cpu_set_t all, one;
    CPU_ZERO(&one);
    RANK_CHECK(!sched_getaffinity(0, sizeof all, &all), "affinity: %d", errno);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    RANK_CHECK(!sched_setaffinity(0, sizeof one, &one), "affinity: %d", errno);
    return CPU_COUNT(&all) > 1;
}

static void tuned_elsewhere(int rank, int world, void *arg)
{
    const sessions *s = arg;
    rf_config config = group_config();
    rf_error err = {0};
    rf_tune_options options = RF_TUNE_OPTIONS_INIT;
    options.budget_ms = 20000;
    options.rounds = 3;
    if (rank == 0)
        config.store = open_store(s->db);
    rf_comm *comm = group_create(s->name[0], &config, rank, world);
    RANK_CHECK(rf_tune(comm, 0, &shape, 1, &options, NULL, &err) == RF_OK, "%s", err.text);
    rf_plan_info tuned;
    RANK_CHECK(rf_plan_query(comm, 0, N, RF_F32, RF_EAGER, &tuned) == RF_OK, "query");
    group_close(comm);
    rf_store_close(config.store);

    config = group_config();
    config.capacity_bytes *= 2;
    rf_plan_info other = plan_of(&rfi_backend_cpu, s->name[1], &config, s->db, rank, world);
    RANK_CHECK(other.rung == RF_RUNG_EXACT, "another capacity: %s: %s", rf_rung_text(other.rung),
               other.reason);
    RANK_CHECK(!strcmp(other.variant, tuned.variant) && other.grid == tuned.grid, "%s, not %s",
               other.variant, tuned.variant);

    rfi_backend updated = rfi_backend_cpu;
    updated.capabilities = other_driver;
    other = plan_of(&updated, s->name[2], &config, s->db, rank, world);
    RANK_CHECK(other.rung == RF_RUNG_OTHER_ENV, "another driver: %s: %s", rf_rung_text(other.rung),
               other.reason);
    RANK_CHECK(!strcmp(other.variant, tuned.variant), "%s, not %s", other.variant, tuned.variant);
    RANK_CHECK(strstr(other.reason, "driver"), "the field is not named: %s", other.reason);

    int bound = bind_to_one();
    other = plan_of(&rfi_backend_cpu, s->name[3], &config, s->db, rank, world);
    RANK_CHECK(other.rung == (bound ? RF_RUNG_OTHER_ENV : RF_RUNG_EXACT), "bound: %s: %s",
               rf_rung_text(other.rung), other.reason);
    RANK_CHECK(!strcmp(other.variant, tuned.variant), "%s, not %s", other.variant, tuned.variant);
    RANK_CHECK(!bound || strstr(other.reason, "usable_cpus"), "not named: %s", other.reason);

    setenv("RANKFOLD_TACTIC", "*_ts_*", 1);
    other = plan_of(&rfi_backend_cpu, s->name[4], &config, s->db, rank, world);
    RANK_CHECK(other.rung == RF_RUNG_FORCED && strstr(other.variant, "_ts_"), "%s: %s",
               other.variant, other.reason);
}

static void test_a_table_of_another_capacity_driver_or_binding_is_used(void **state)
{
    (void)state;
    sessions s;
    const char *folder = getenv("TMPDIR");
    for (int i = 0; i < 5; i++)
        snprintf(s.name[i], sizeof s.name[i], "%s", group_name());
    snprintf(s.db, sizeof s.db, "%s/decisions-%d.db", folder ? folder : "/tmp", (int)getpid());
    RANKS_ASSERT(ranks_run(2, tuned_elsewhere, &s, NULL));
    unlink(s.db);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fallback_is_said_before_the_stream_is_touched),
        cmocka_unit_test(test_what_was_decided_is_launched),
        cmocka_unit_test(test_a_table_of_another_capacity_driver_or_binding_is_used),
    };
    return cmocka_run_group_tests_name("decisions", tests, NULL, NULL);
}
