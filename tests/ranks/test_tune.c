/* Tuning sessions of several ranks: honest candidates come from the small pack, bad ones are C
 * functions here. Cases F29, F30, F34, F36. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "core/group.h"
#include "group.h"

extern const int rfi_abi_4;

/* ---- candidates that misbehave, for two ranks and f32; the honest work is a variant's of the
 * small pack ---- */

static rf_cpu_entry honest; /* generic one-shot, f32, world 2 */

static void kernel_good(const rf_params *p)
{
    honest(p);
}

static uint32_t wrong_rank = 1;

static void kernel_wrong_on_one_rank(const rf_params *p)
{
    honest(p);
    if (p->rank == wrong_rank)
        ((unsigned char *)p->out)[p->count * 4 - 1] ^= 1;
}

static int hangs[2]; /* on each rank */

static void kernel_hangs(const rf_params *p)
{
    rf_region *peer = (rf_region *)p->peer[1 - p->rank];
    rf_params hurried = *p;
    hurried.deadline_ns = 200000000;
    p->host->wait(&hurried, 1 - p->rank, &peer->arrive, UINT64_MAX, RF_STEP_ARRIVE);
    hangs[p->rank]++;
}

/* As if a rank was stopped for a while. */
static void kernel_hangs_at_first(const rf_params *p)
{
    static int calls;
    (calls++ ? honest : kernel_hangs)(p);
}

static void kernel_hangs_when_measured(const rf_params *p)
{
    static int calls; /* 4 of them checked it */
    (calls++ == 4 ? kernel_hangs : honest)(p);
}

/* Once, when it is measured for the first time, by more than ten times the next. */
static void kernel_is_late(const rf_params *p)
{
    static int calls;
    usleep(calls < 4 ? 1000 : calls == 5 ? 400000 : 0);
    calls++;
    honest(p);
}

/* By more than what a busy machine takes a core away for. */
static void kernel_slow(const rf_params *p)
{
    usleep(20000);
    honest(p);
}

#define FAKE(letter, kernel)                                                                       \
    {                                                                                              \
        .hash = {0xFA, letter}, .name = #kernel, .world = 2, .unroll = 1, .entry = kernel          \
    }
static const rf_variant fakes[] = {
    FAKE('g', kernel_good),
    FAKE('h', kernel_hangs),
    FAKE('s', kernel_slow),
    FAKE('w', kernel_wrong_on_one_rank),
    {.hash = {0xFA, 'd'},
     .name = "kernel_dependent",
     .world = 2,
     .unroll = 1,
     .flags = RF_VARIANT_DEPENDENT,
     .entry = kernel_good},
};
static const rf_shard fake_shard = {
    .name = "fake", .world = 2, .n = sizeof fakes / sizeof *fakes, .variants = fakes};
static const rf_shard *const fake_shards[] = {&fake_shard};
static const rf_pack fake_pack = {
    RF_ABI, sizeof(rf_pack), "fake", "cc", &rfi_abi_4, 1, sizeof fakes / sizeof *fakes, fake_shards,
};

/* Its only variant for everybody is slower by far than the dependent one. */
static const rf_variant unlike[] = {
    FAKE('s', kernel_slow),
    {.hash = {0xFA, 'd'},
     .name = "kernel_dependent",
     .world = 2,
     .unroll = 1,
     .flags = RF_VARIANT_DEPENDENT,
     .entry = kernel_good},
};
static const rf_shard unlike_shard = {.name = "unlike", .world = 2, .n = 2, .variants = unlike};
static const rf_shard *const unlike_shards[] = {&unlike_shard};
static const rf_pack unlike_pack = {
    RF_ABI, sizeof(rf_pack), "unlike", "cc", &rfi_abi_4, 1, 2, unlike_shards,
};

static const rf_variant unsteady[] = {
    FAKE('1', kernel_hangs_at_first),
    FAKE('2', kernel_hangs_when_measured),
};
static const rf_shard unsteady_shard = {
    .name = "unsteady", .world = 2, .n = 2, .variants = unsteady};
static const rf_shard *const unsteady_shards[] = {&unsteady_shard};
static const rf_pack unsteady_pack = {
    RF_ABI, sizeof(rf_pack), "unsteady", "cc", &rfi_abi_4, 1, 2, unsteady_shards,
};

static const rf_variant late[] = {
    FAKE('l', kernel_is_late),
    FAKE('s', kernel_slow),
};
static const rf_shard late_shard = {.name = "late", .world = 2, .n = 2, .variants = late};
static const rf_shard *const late_shards[] = {&late_shard};
static const rf_pack late_pack = {
    RF_ABI, sizeof(rf_pack), "late", "cc", &rfi_abi_4, 1, 2, late_shards,
};

/* ---- a store that fails, or kills, at the k-th transaction ---- */

static struct {
    rf_store base; /* what the comm sees */
    rf_store *real;
    int wrap;   /* use it at all */
    int left;   /* records that still work */
    int deadly; /* then: killed, instead of an error */
    rf_result code;
} bad = {.code = RF_E_DB_FULL};

static int bad_lookup(rf_store *s, const rfi_key *key, rfi_have_fn have, void *ctx,
                      rfi_decision *out)
{
    (void)s;
    return bad.real->v->lookup(bad.real, key, have, ctx, out);
}
static int bad_swept(rf_store *s, const rfi_key *key)
{
    (void)s;
    return bad.real->v->swept(bad.real, key);
}
static int bad_measured(rf_store *s, const rfi_key *key, const rf_variant *v, uint32_t grid,
                        rfi_measurement *out)
{
    (void)s;
    return bad.real->v->measured(bad.real, key, v, grid, out);
}
static rf_result bad_begin(rf_store *s, const rfi_campaign *c, rf_error *err)
{
    (void)s;
    return bad.real->v->begin(bad.real, c, err);
}
static rf_result bad_record(rf_store *s, const rfi_measurement *m, size_t n, rf_error *err)
{
    (void)s;
    if (bad.left-- > 0)
        return bad.real->v->record(bad.real, m, n, err);
    if (bad.deadly)
        raise(SIGKILL);
    return rfi_fail(err, bad.code, 0, "test", "no space left, says the test");
}
static rf_result bad_finish(rf_store *s, const rfi_key *key, rf_error *err)
{
    (void)s;
    return bad.real->v->finish_shape(bad.real, key, err);
}
static rf_result bad_end(rf_store *s, rf_error *err)
{
    (void)s;
    return bad.real->v->end(bad.real, err);
}
static uint64_t bad_generation(rf_store *s)
{
    (void)s;
    return bad.real->v->generation(bad.real);
}
static const char *bad_warning(const rf_store *s)
{
    (void)s;
    return bad.real->v->warning(bad.real);
}
static void bad_close(rf_store *s)
{
    (void)s;
    bad.real->v->close(bad.real);
}
static const rfi_store_vtable bad_vtable = {
    bad_lookup, bad_swept, bad_measured,   bad_begin,   bad_record,
    bad_finish, bad_end,   bad_generation, bad_warning, bad_close,
};

/* ---- one rank's comm ---- */

typedef struct rank_comm {
    rf_comm *comm;
    rf_store *store; /* rank 0 */
} rank_comm;

static void path_of(const char *name, char out[300])
{
    const char *folder = getenv("TMPDIR");
    snprintf(out, 300, "%s/%s.db", folder ? folder : "/tmp", name);
}

/* One text out of a test's database. */
static const char *ask(const char *db, const char *query)
{
    static char answer[1024];
    char path[300];
    sqlite3 *file = NULL;
    sqlite3_stmt *row = NULL;
    path_of(db, path);
    snprintf(answer, sizeof answer, "no answer");
    if (!sqlite3_open_v2(path, &file, SQLITE_OPEN_READONLY, NULL) &&
        !sqlite3_prepare_v2(file, query, -1, &row, NULL) && sqlite3_step(row) == SQLITE_ROW)
        snprintf(answer, sizeof answer, "%s", (const char *)sqlite3_column_text(row, 0));
    sqlite3_finalize(row);
    sqlite3_close(file);
    return answer;
}

static uint32_t comm_flags, store_flags;
static const rf_pack *comm_pack = &fake_pack;

/* Every test has a database of its own name; NULL = no store. */
static rank_comm open_comm(int rank, int world, const char *db)
{
    rank_comm c = {0};
    rf_error err = {0};
    rf_bootstrap boot;
    char name[64], path[300];
    const rf_pack *packs[] = {comm_pack};
    rf_config config = RF_CONFIG_INIT;
    config.packs = packs;
    config.n_packs = 1;
    config.capacity_bytes = 1 << 20;
    config.flags = comm_flags;
    if (rank == 0 && db) {
        path_of(db, path);
        rf_store_open(path, NULL, store_flags, &c.store, &err);
        bad.real = c.store;
        bad.base.v = &bad_vtable;
        config.store = bad.wrap ? &bad.base : c.store;
    }
    snprintf(name, sizeof name, "test_tune-%d", getppid());
    RANK_CHECK(rf_bootstrap_socket(name, rank, world, &boot, &err) == RF_OK, "%s", err.text);
    rf_result rc = rf_comm_create(&config, &boot, &c.comm, &err);
    RANK_CHECK(rc == RF_OK, "%s", err.text);
    rf_bootstrap_free(&boot);
    return c;
}

static void close_comm(rank_comm *c)
{
    rf_comm_close(c->comm, 5000, NULL);
    rf_comm_destroy(c->comm);
    rf_store_close(c->store);
}

static const rf_shape small = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 4, 64};
static const rf_shape other = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 64, 64};

static rf_tune_options options(const char *filter)
{
    rf_tune_options o = RF_TUNE_OPTIONS_INIT;
    o.budget_ms = 60000; /* a limit for busy machines: rounds end a session */
    o.rounds = 3;
    o.seed = 1;
    o.variant_filter = filter;
    return o;
}

static rf_tune_summary tune(const rank_comm *c, const rf_shape *shapes, size_t n,
                            const rf_tune_options *o)
{
    rf_tune_summary s = {0};
    rf_error err = {0};
    rf_result rc = rf_tune(c->comm, 0, shapes, n, o, &s, &err);
    RANK_CHECK(rc == RF_OK, "%s", err.text);
    return s;
}

static rf_plan_info plan_of(const rank_comm *c, const rf_shape *shape)
{
    rf_plan_info plan = {0};
    rf_result rc =
        rf_plan_query(c->comm, 0, shape->rows * shape->hidden, shape->dtype, shape->mode, &plan);
    RANK_CHECK(rc == RF_OK, "%s", rf_strerror(rc));
    return plan;
}

static void check_call(const rank_comm *c)
{
    float in[256], out[256];
    for (int i = 0; i < 256; i++)
        in[i] = (float)(i + 1);
    rf_result rc = rf_all_reduce(c->comm, 0, in, out, 256, RF_F32, NULL);
    RANK_CHECK(rc == RF_OK, "%s", rf_strerror(rc));
    for (int i = 0; i < 256; i++)
        RANK_CHECK(out[i] == 2 * in[i], "element %d is %g", i, out[i]);
}

/* ---- what has to be admitted is told ---- */

static void test_packs_tell_what_has_to_be_admitted(void **state)
{
    (void)state;
    for (size_t i = 0; i < rf_pack_count(&fake_pack); i++) {
        rf_variant_info v;
        assert_int_equal(rf_pack_variant(&fake_pack, i, &v), RF_OK);
        assert_int_equal(v.dependent, !strcmp(v.name, "kernel_dependent"));
        assert_int_equal(v.reassoc + v.lossy, 0);
    }
}

/* ---- the bad ones are excluded, the good one wins ---- */

static void bad_candidates(int rank, int world, void *arg)
{
    rank_comm c = open_comm(rank, world, arg);
    rf_tune_options o = options(NULL);
    rf_tune_summary s = tune(&c, &small, 1, &o);
    RANK_CHECK(s.wrong == 1, "%u", s.wrong);
    RANK_CHECK(s.timeout == 1, "%u", s.timeout);
    RANK_CHECK(hangs[rank] == 2, "tried %d times", hangs[rank]);
    RANK_CHECK(s.measured == 2, "%u", s.measured);
    RANK_CHECK(s.shapes == 1 && s.warm == 0, "%u %u", s.shapes, s.warm);
    RANK_CHECK(s.seconds > 0, "%g", s.seconds);
    rf_plan_info plan = plan_of(&c, &small);
    RANK_CHECK(strcmp(plan.variant, "kernel_good") == 0, "%s: %s", plan.variant, plan.reason);
    /* the store knows more than one session */
    RANK_CHECK(plan.rung == (arg ? RF_RUNG_EXACT : RF_RUNG_SESSION), "%s", plan.reason);
    RANK_CHECK(s.unfinished == 0, "%u", s.unfinished);
    check_call(&c);
    close_comm(&c);
}

static void test_bad_candidates_are_excluded_on_all_ranks(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, bad_candidates, "bad", NULL));
}

static void test_without_a_store_the_winner_is_used(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, bad_candidates, NULL, NULL));
}

static void test_ranks_may_be_threads(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run_threads(2, bad_candidates, NULL, NULL));
}

static void storeless(int rank, int world, void *arg)
{
    (void)arg;
    const rf_shape shapes[] = {small, other};
    rank_comm c = open_comm(rank, world, NULL);
    rf_tune_options o = options("kernel_good");
    tune(&c, shapes, 2, &o);
    for (int i = 0; i < 2; i++) {
        rf_plan_info plan = plan_of(&c, &shapes[i]);
        RANK_CHECK(!strcmp(plan.variant, "kernel_good"), "%d: %s", i, plan.reason);
        RANK_CHECK(plan.grid == 16, "%d: %u", i, plan.grid); /* the only one for so little */
        RANK_CHECK(plan.median_us > 0 && plan.baseline_us == 0, "%d: %g %g", i, plan.median_us,
                   plan.baseline_us);
    }
    close_comm(&c);
}

static void test_without_a_store_every_shape_has_its_winner(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, storeless, NULL, NULL));
}

static void held_up(int rank, int world, void *arg)
{
    (void)arg;
    comm_pack = &unsteady_pack;
    rank_comm c = open_comm(rank, world, "held_up");
    rf_tune_options o = options(NULL);
    rf_tune_summary s = tune(&c, &small, 1, &o);
    RANK_CHECK(hangs[rank] == 2, "%d", hangs[rank]);
    RANK_CHECK(s.measured == 2 && s.timeout == 0, "%u %u", s.measured, s.timeout);
    RANK_CHECK(s.resets == 2, "%u", s.resets);
    close_comm(&c);
}

static void test_a_candidate_is_not_to_blame_for_a_rank_that_was_held_up(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, held_up, NULL, NULL));
}

static void late_once(int rank, int world, void *arg)
{
    (void)arg;
    comm_pack = &late_pack;
    rank_comm c = open_comm(rank, world, "late");
    rf_tune_options o = options(NULL);
    tune(&c, &small, 1, &o);
    rf_plan_info plan = plan_of(&c, &small);
    RANK_CHECK(strcmp(plan.variant, "kernel_is_late") == 0, "%s", plan.variant);
    close_comm(&c);
}

static void test_nor_is_it_slow_for_a_rank_that_was_late_once(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, late_once, NULL, NULL));
}

static void graph_mode(int rank, int world, void *arg)
{
    rank_comm c = open_comm(rank, world, arg);
    rf_shape shape = small;
    shape.mode = RF_GRAPH;
    rf_tune_options o = options("kernel_[gsw]*");
    wrong_rank = 0; /* the first, or above the last: each counts */
    rf_tune_summary s = tune(&c, &shape, 1, &o);
    RANK_CHECK(s.wrong == 1 && s.measured == 2, "%u %u", s.wrong, s.measured);
    rf_plan_info plan = plan_of(&c, &shape);
    RANK_CHECK(strcmp(plan.variant, "kernel_good") == 0, "%s", plan.variant);
    check_call(&c);
    close_comm(&c);
}

static void test_graph_shapes_are_measured_by_replay(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, graph_mode, "graph", NULL));
}

/* ---- plans are checked and timed as they stand ---- */

static void plans(int rank, int world, void *arg)
{
    rank_comm c = open_comm(rank, world, arg);
    rf_error err = {0};
    double us[3] = {0};
    for (int mode = RF_EAGER; mode <= RF_GRAPH; mode++) {
        rf_shape shape = small;
        shape.mode = (rf_mode)mode;
        RANK_CHECK(rfi_plan_set(c.comm, 0, &shape, &fakes[0], 64, 0, 0, &err) == RF_OK, "%s",
                   err.text);
        RANK_CHECK(rf_verify(c.comm, 0, &shape, 1, &err) == RF_OK, "%s", err.text);
        RANK_CHECK(rf_time(c.comm, 0, &shape, 10, us, 3, &err) == RF_OK, "%s", err.text);
        RANK_CHECK(us[0] > 0 && us[1] > 0 && us[2] > 0, "%g %g %g", us[0], us[1], us[2]);
        double all[3 * 2];
        rfi_allgather(c.comm, "test", us, all, sizeof us, 1000, NULL);
        RANK_CHECK(memcmp(all, all + 3, sizeof us) == 0, "the ranks' figures differ");
        if (mode == RF_EAGER)
            check_call(&c);
        rfi_plan_set(c.comm, 0, &shape, &fakes[3], 64, 0, 0, &err); /* wrong on rank 1 only */
        rf_result rc = rf_verify(c.comm, 0, &shape, 1, &err);
        RANK_CHECK(rc == RF_E_WRONG && err.rank == 1, "%s, rank %d", rf_strerror(rc), err.rank);
    }
    RANK_CHECK(rf_verify(c.comm, 1, &small, 1, &err) == RF_E_CHANNEL, "%s", err.text);
    RANK_CHECK(rf_time(c.comm, 0, NULL, 1, us, 1, &err) == RF_E_ARG, "%s", err.text);
    close_comm(&c);
}

static void test_plans_are_verified_and_timed(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, plans, NULL, NULL));
}

/* ---- what is known is not measured again ---- */

typedef struct outcome {
    rf_tune_summary summary[2];
    rf_plan_info plan[2];
} outcome;

static void twice(int rank, int world, void *arg)
{
    outcome *out = arg;
    const rf_shape shapes[] = {small, other};
    rf_tune_options o = options(NULL);
    for (int i = 0; i < 2; i++) {
        rank_comm c = open_comm(rank, world, "twice");
        rf_tune_summary s = tune(&c, shapes, 2, &o);
        if (rank == 0) {
            out->summary[i] = s;
            out->plan[i] = plan_of(&c, &small);
        }
        close_comm(&c);
        rank_barrier();
    }
}

static void test_a_warm_database_answers_without_measuring(void **state)
{
    (void)state;
    outcome *out = ranks_shared(sizeof *out);
    RANKS_ASSERT(ranks_run(2, twice, out, NULL));
    assert_int_equal(out->summary[0].warm, 0);
    assert_int_equal(out->summary[0].measured, 4);
    assert_int_equal(out->summary[1].warm, 2);
    assert_int_equal(out->summary[1].measured, 0);
    assert_int_equal(out->summary[1].wrong + out->summary[1].timeout, 0);
    assert_string_equal(out->plan[0].variant, out->plan[1].variant);
    assert_int_equal(out->plan[0].grid, out->plan[1].grid);
    assert_string_equal(ask("twice", "SELECT count(*) FROM campaign"), "1");
    ranks_shared_free(out, sizeof *out);
}

/* What a campaign says of itself. */
static void told(int rank, int world, void *arg)
{
    rank_comm c = open_comm(rank, world, arg);
    rf_tune_options o = options("kernel_g\n\x7f*");
    tune(&c, &small, 1, &o);
    close_comm(&c);
}

static void test_a_campaign_says_how_it_was_made(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, told, "told", NULL));
    assert_string_equal(
        ask("told", "SELECT policy FROM campaign"),
        "baseline=\nbudget_ms=60000\nfilter=kernel_g??*\nforce=0\nrounds=3\nseed=1\n"
        "statistic=median of rounds, max over ranks\n");
    assert_string_equal(ask("told",
                            "SELECT toolchain || ',' || substr(architecture, 1, 6) || ',' || "
                            "substr(tool, 1, 9) FROM campaign"),
                        "cc,x86-64,rankfold ");
    assert_string_equal(ask("told", "SELECT count(*) FROM finish"), "1");
}

/* One comm after the other tunes the same shape; it admits dependent launch, or does not. */
typedef struct opt_in {
    const char *db;
    uint32_t flags[4];
    rf_tune_summary summary[4];
    rf_plan_info plan[4];
} opt_in;

static void opt_ins(int rank, int world, void *arg)
{
    opt_in *o = arg;
    rf_tune_options all = options(NULL);
    for (int i = 0; i < 4; i++) {
        comm_flags = o->flags[i];
        rank_comm c = open_comm(rank, world, o->db);
        rf_tune_summary s = tune(&c, &small, 1, &all);
        rf_plan_info plan = plan_of(&c, &small);
        RANK_CHECK(plan.rung == RF_RUNG_EXACT, "%d: %s", i, plan.reason);
        if (rank == 0)
            o->summary[i] = s, o->plan[i] = plan;
        close_comm(&c);
        rank_barrier();
    }
}

static void test_what_an_opt_in_adds_is_all_that_is_measured(void **state)
{
    (void)state;
    opt_in *o = ranks_shared(sizeof *o);
    o->db = "without_first";
    o->flags[1] = o->flags[3] = RF_DEPENDENT;
    RANKS_ASSERT(ranks_run(2, opt_ins, o, NULL));
    assert_int_equal(o->summary[0].measured, 2);
    assert_int_equal(o->summary[1].warm, 0);
    assert_int_equal(o->summary[1].measured, 1);
    assert_int_equal(o->summary[1].wrong + o->summary[1].timeout, 0); /* known already */
    assert_int_equal(o->summary[2].warm, 1);
    assert_int_equal(o->summary[3].warm, 1);
    assert_string_equal(o->plan[2].variant, "kernel_good");
    assert_string_equal(o->plan[3].variant, o->plan[1].variant);
    ranks_shared_free(o, sizeof *o);
}

static void test_tuned_with_an_opt_in_is_tuned_without(void **state)
{
    (void)state;
    opt_in *o = ranks_shared(sizeof *o);
    o->db = "with_first";
    o->flags[0] = o->flags[2] = RF_DEPENDENT;
    RANKS_ASSERT(ranks_run(2, opt_ins, o, NULL));
    assert_int_equal(o->summary[0].measured, 3);
    assert_int_equal(o->summary[1].warm, 1);
    assert_int_equal(o->summary[2].warm, 1);
    assert_string_equal(o->plan[1].variant, "kernel_good");
    ranks_shared_free(o, sizeof *o);
}

static void unlike_opt_ins(int rank, int world, void *arg)
{
    comm_pack = &unlike_pack;
    opt_ins(rank, world, arg);
}

static void test_the_best_without_an_opt_in_is_not_dropped_for_one_with_it(void **state)
{
    (void)state;
    opt_in *o = ranks_shared(sizeof *o);
    o->db = "unlike";
    o->flags[0] = RF_DEPENDENT;
    RANKS_ASSERT(ranks_run(2, unlike_opt_ins, o, NULL));
    assert_string_equal(o->plan[0].variant, "kernel_dependent");
    assert_int_equal(o->summary[1].warm, 1);
    assert_string_equal(o->plan[1].variant, "kernel_slow");
    ranks_shared_free(o, sizeof *o);
}

/* Its pack has nothing lossy: to admit that changes nothing. */
static void test_an_opt_in_that_no_variant_needs_changes_nothing(void **state)
{
    (void)state;
    opt_in *o = ranks_shared(sizeof *o);
    o->db = "no_need";
    o->flags[1] = RF_LOSSY;
    RANKS_ASSERT(ranks_run(2, opt_ins, o, NULL));
    assert_int_equal(o->summary[1].warm, 1);
    ranks_shared_free(o, sizeof *o);
}

/* F30: the good one is measured faster beyond any noise, so every session decides the same. */
static void forced(int rank, int world, void *arg)
{
    outcome *out = arg;
    rf_tune_options o = options("kernel_[gs]*");
    o.flags = RF_TUNE_FORCE;
    rank_comm c = open_comm(rank, world, "forced");
    for (int i = 0; i < 2; i++) {
        rf_tune_summary s = tune(&c, &small, 1, &o);
        if (rank == 0)
            out->summary[i] = s, out->plan[i] = plan_of(&c, &small);
    }
    close_comm(&c);
}

static void test_forced_sessions_measure_again_and_decide_the_same(void **state)
{
    (void)state;
    outcome *out = ranks_shared(sizeof *out);
    RANKS_ASSERT(ranks_run(2, forced, out, NULL));
    assert_int_equal(out->summary[1].measured, 2);
    assert_string_equal(out->plan[0].variant, out->plan[1].variant);
    ranks_shared_free(out, sizeof *out);
}

/* F34: rank 0 dies at its second transaction; the first was one round of facts. */
static void killed(int rank, int world, void *arg)
{
    (void)arg;
    bad.wrap = 1, bad.left = 1, bad.deadly = 1;
    rank_comm c = open_comm(rank, world, "killed");
    rf_tune_options o = options(NULL);
    rf_error err = {0};
    rf_result rc = rf_tune(c.comm, 0, &small, 1, &o, NULL, &err);
    RANK_CHECK(rc == RF_E_PEER, "%s", err.text);
    RANK_CHECK(strstr(err.text, "rank 0") != NULL, "%s", err.text);
    rf_comm_destroy(c.comm);
}

static void resumed(int rank, int world, void *arg)
{
    outcome *out = arg;
    rank_comm c = open_comm(rank, world, "killed");
    rf_tune_options o = options(NULL);
    rf_tune_summary s = tune(&c, &small, 1, &o);
    if (rank == 0)
        out->summary[0] = s, out->plan[0] = plan_of(&c, &small);
    close_comm(&c);
}

static void test_a_killed_session_is_gone_on_with(void **state)
{
    (void)state;
    outcome *out = ranks_shared(sizeof *out);
    RANKS_ASSERT(ranks_run(2, killed, NULL, &(ranks_options){.may_die = 1}));
    RANKS_ASSERT(ranks_run(2, resumed, out, NULL));
    assert_int_equal(out->summary[0].wrong + out->summary[0].timeout, 0); /* known already */
    assert_int_equal(out->summary[0].warm, 0);
    assert_in_range(out->summary[0].measured, 1, 2);
    assert_string_equal(out->plan[0].variant, "kernel_good");
    ranks_shared_free(out, sizeof *out);
}

static void disk_full(int rank, int world, void *arg)
{
    char name[32];
    bad.wrap = 1, bad.left = 1, bad.code = *(const rf_result *)arg;
    const rf_shape shapes[] = {small, other};
    snprintf(name, sizeof name, "full-%d", (int)bad.code);
    rank_comm c = open_comm(rank, world, name);
    rf_tune_options o = options(NULL);
    rf_error err = {0};
    rf_result rc = rf_tune(c.comm, 0, shapes, 2, &o, NULL, &err);
    RANK_CHECK(rc == bad.code, "%d %s", (int)rc, err.text);
    RANK_CHECK(strstr(err.text, "no space left") != NULL, "%s", err.text);
    rf_plan_info plan = plan_of(&c, &small);
    RANK_CHECK(strcmp(plan.variant, "kernel_good") == 0, "%s", plan.variant);
    RANK_CHECK(plan.rung == RF_RUNG_SESSION, "%d: %s", plan.rung, plan.reason);
    check_call(&c);
    bad.left = 1000; /* there is space again, for the same store */
    tune(&c, shapes, 2, &o);
    close_comm(&c);
}

static void test_a_full_disk_ends_the_session_and_the_winner_stays(void **state)
{
    (void)state;
    rf_result codes[] = {RF_E_DB, RF_E_DB_FULL, RF_E_DB_ABSENT};
    for (int i = 0; i < 3; i++)
        RANKS_ASSERT(ranks_run(2, disk_full, &codes[i], NULL));
}

/* Nothing can be kept, so nothing is measured: plans stay, and what had none has none. */
static void read_only(int rank, int world, void *arg)
{
    (void)arg;
    store_flags = RF_STORE_READ;
    rank_comm c = open_comm(rank, world, "readonly");
    rf_tune_options o = options(NULL);
    rf_error err = {0};
    RANK_CHECK(rf_prepare(c.comm, 0, &other, 1, &err) == RF_OK, "%s", err.text);
    rf_plan_info before = plan_of(&c, &other);
    const rf_shape shapes[] = {small, other};
    RANK_CHECK(rf_tune(c.comm, 0, shapes, 2, &o, NULL, &err) == RF_E_DB_READONLY, "%s", err.text);
    RANK_CHECK(strstr(plan_of(&c, &small).reason, "not prepared"), "%s",
               plan_of(&c, &small).reason);
    rf_plan_info after = plan_of(&c, &other);
    RANK_CHECK(!memcmp(&before, &after, sizeof after), "%s", after.reason);
    check_call(&c);
    close_comm(&c);
}

static void test_a_store_for_reading_leaves_all_as_it_was(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, read_only, NULL, NULL));
}

/* ---- arguments ---- */

static void mismatch(int rank, int world, void *arg)
{
    rank_comm c = open_comm(rank, world, NULL);
    rf_tune_options o = options(NULL);
    rf_error err = {0};
    (void)arg;
    o.rounds += rank;
    rf_result rc = rf_tune(c.comm, 0, &small, 1, &o, NULL, &err);
    RANK_CHECK(rc == RF_E_MISMATCH, "%s", rf_strerror(rc));
    RANK_CHECK(strstr(err.text, "options.rounds is 4 on rank 1, 3") != NULL, "%s", err.text);
    RANK_CHECK(!rf_can_profile(c.comm), "still open");
    o = options("kernel_good");
    tune(&c, &small, 1, &o); /* nothing is out of step */
    close_comm(&c);
}

static void test_ranks_that_differ_are_told(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, mismatch, NULL, NULL));
}

/* The candidates are not to blame for a call that failed before. */
static void poisoned(int rank, int world, void *arg)
{
    (void)arg;
    rank_comm c = open_comm(rank, world, "poisoned");
    rf_tune_options o = options("kernel_good");
    rf_error err = {0};
    rf_comm_abort(c.comm);
    rank_barrier();
    rf_result rc = rf_tune(c.comm, 0, &small, 1, &o, NULL, &err);
    RANK_CHECK(rc == RF_E_POISONED, "%d %s", (int)rc, err.text);
    RANK_CHECK(strstr(err.text, "rf_comm_reset revives it") != NULL, "%s", err.text);
    rc = rf_comm_reset(c.comm, 5000, &err);
    RANK_CHECK(rc == RF_OK, "%s", err.text);
    rf_tune_summary s = tune(&c, &small, 1, &o);
    RANK_CHECK(s.measured == 1 && s.timeout == 0, "%u %u", s.measured, s.timeout);
    o = options("kernel_[gs]*");
    s = tune(&c, &small, 1, &o);
    RANK_CHECK(s.warm == 0, "what a filter let through is not the whole field");
    close_comm(&c);
}

static void test_a_poisoned_channel_is_no_candidates_fault(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, poisoned, NULL, NULL));
}

static void filtered(int rank, int world, void *arg)
{
    static const struct {
        const char *filter;
        uint32_t unmatched;
    } rows[] = {{"kernel_good", 0}, {"nothing*", 1}, {"kernel_dependent", 1} /* not admitted */};
    rank_comm c = open_comm(rank, world, arg);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rf_tune_options o = options(rows[i].filter);
        rf_tune_summary s = tune(&c, &small, 1, &o);
        RANK_CHECK(s.unmatched == rows[i].unmatched, "%s: %u", rows[i].filter, s.unmatched);
    }
    close_comm(&c);
}

static void test_a_filter_that_leaves_nothing_is_counted(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, filtered, NULL, NULL));
}

static void too_large_on_one(int rank, int world, void *arg)
{
    rank_comm c = open_comm(rank, world, NULL);
    rf_tune_options o = options(NULL);
    rf_shape shape = small;
    rf_error err = {0};
    (void)arg;
    shape.rows = rank == 1 ? UINT64_MAX : 1;
    rf_result rc = rf_tune(c.comm, 0, &shape, 1, &o, NULL, &err);
    RANK_CHECK(rc == RF_E_CAPACITY || rc == RF_E_REMOTE, "%s", rf_strerror(rc));
    RANK_CHECK(strstr(err.text, "capacity") != NULL, "%s", err.text);
    close_comm(&c);
}

static void test_a_bad_argument_on_one_rank_is_an_error_on_all(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, too_large_on_one, NULL, NULL));
}

static void nothing_to_do(int rank, int world, void *arg)
{
    rank_comm c = open_comm(rank, world, arg);
    rf_tune_summary s = tune(&c, NULL, 0, NULL);
    RANK_CHECK(s.shapes == 0 && s.measured == 0, "%u %u", s.shapes, s.measured);
    close_comm(&c);
}

static void test_no_shapes_is_fine(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, nothing_to_do, NULL, NULL));
}

/* ---- F29: sessions of other comms ---- */

typedef struct watch {
    rf_comm *mine, *theirs;
    int seen_mine, seen_theirs;
} watch;

static void look(void *ctx, const rf_tune_progress *p)
{
    watch *w = ctx;
    (void)p;
    w->seen_mine |= rf_can_profile(w->mine);
    w->seen_theirs |= rf_can_profile(w->theirs);
}

static void two_comms(int rank, int world, void *arg)
{
    watch w = {0};
    rf_error err = {0};
    rf_bootstrap boot;
    char name[64];
    rf_config config = RF_CONFIG_INIT;
    const rf_pack *packs[] = {&rf_pack_cpu_small};
    (void)arg;
    config.packs = packs;
    config.n_packs = 1;
    config.capacity_bytes = 1 << 20;
    rank_comm tuned = open_comm(rank, world, "theirs");
    snprintf(name, sizeof name, "test_tune-quiet-%d", getppid());
    RANK_CHECK(rf_bootstrap_socket(name, rank, world, &boot, &err) == RF_OK, "%s", err.text);
    RANK_CHECK(rf_comm_create(&config, &boot, &w.mine, &err) == RF_OK, "%s", err.text);
    rf_bootstrap_free(&boot);
    RANK_CHECK(rf_prepare(w.mine, 0, &small, 1, &err) == RF_OK, "%s", err.text);
    rank_comm quiet = {w.mine, NULL};
    rf_plan_info before = plan_of(&quiet, &small);

    w.theirs = tuned.comm;
    rf_tune_options o = options("kernel_[gs]*");
    o.progress = look;
    o.progress_ctx = &w;
    tune(&tuned, &small, 1, &o);
    RANK_CHECK(w.seen_theirs && !w.seen_mine, "%d %d", w.seen_theirs, w.seen_mine);
    RANK_CHECK(!rf_can_profile(tuned.comm), "still open");

    rf_plan_info after = plan_of(&quiet, &small);
    RANK_CHECK(strcmp(before.variant, after.variant) == 0, "%s", after.variant);
    RANK_CHECK(before.rung == after.rung && before.grid == after.grid, "%d", after.rung);
    check_call(&quiet);
    close_comm(&quiet);
    close_comm(&tuned);
}

static void test_a_session_of_another_comm_changes_nothing_here(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, two_comms, NULL, NULL));
}

/* ---- progress ---- */

typedef struct trail {
    int n, backwards, strange;
    double first, done;
    const char *phase;
} trail;

static void follow(void *ctx, const rf_tune_progress *p)
{
    trail *t = ctx;
    if (!t->n++)
        t->first = p->done;
    t->backwards |= p->done < t->done;
    t->done = p->done;
    t->phase = p->phase;
    t->strange |= p->n_shapes != 2 || p->shape_index > 1 || p->eta_seconds < 0 ||
                  p->shape.rows != (p->shape_index ? other : small).rows;
}

static void progress(int rank, int world, void *arg)
{
    (void)arg;
    const rf_shape shapes[] = {small, other};
    trail t = {0};
    rank_comm c = open_comm(rank, world, NULL);
    rf_tune_options o = options("kernel_good");
    o.progress = follow;
    o.progress_ctx = &t;
    tune(&c, shapes, 2, &o);
    RANK_CHECK(t.first == 0 && t.done == 1, "from %g to %g", t.first, t.done);
    RANK_CHECK(!t.backwards && !t.strange, "%d %d", t.backwards, t.strange);
    RANK_CHECK(!strcmp(t.phase, "decide"), "%s", t.phase);
    close_comm(&c);
}

static void test_progress_goes_from_nothing_to_all(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, progress, NULL, NULL));
}

/* ---- ends before their time ---- */

static void give_up(void *ctx, const rf_tune_progress *p)
{
    if (!strcmp(p->phase, "measure"))
        rf_comm_abort(ctx);
}

static void aborted(int rank, int world, void *arg)
{
    rf_error err = {0};
    rank_comm c = open_comm(rank, world, arg);
    rf_tune_options o = options("kernel_good");
    o.progress = rank == 1 ? give_up : NULL;
    o.progress_ctx = c.comm;
    rf_result rc = rf_tune(c.comm, 0, &small, 1, &o, NULL, &err);
    RANK_CHECK(rc == RF_E_ABORTED && strstr(err.text, "rank 1 aborted"), "%s", err.text);
    RANK_CHECK(rf_comm_reset(c.comm, 5000, &err) == RF_OK, "%s", err.text);
    o.progress = NULL;
    rf_tune_summary s = tune(&c, &small, 1, &o); /* nothing is out of step */
    RANK_CHECK(s.measured == 1, "%u", s.measured);
    close_comm(&c);
}

static void test_an_abort_ends_the_session_on_all_ranks(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, aborted, "aborted", NULL));
}

static void die(void *ctx, const rf_tune_progress *p)
{
    (void)ctx;
    if (!strcmp(p->phase, "decide"))
        raise(SIGKILL);
}

static void dies_late(int rank, int world, void *arg)
{
    rf_error err = {0};
    rank_comm c = open_comm(rank, world, arg);
    rf_tune_options o = options("kernel_good");
    o.progress = rank == 1 ? die : NULL;
    rf_result rc = rf_tune(c.comm, 0, &small, 1, &o, NULL, &err);
    RANK_CHECK(rc == RF_E_PEER && strstr(err.text, "rank 1"), "%s: %s", rf_strerror(rc), err.text);
    rf_comm_destroy(c.comm);
    rf_store_close(c.store);
}

static void test_a_rank_that_dies_at_last_is_told_of(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, dies_late, "dies", &(ranks_options){.may_die = 2}));
}

/* ---- the budget ---- */

static void tiny_budget(int rank, int world, void *arg)
{
    (void)arg;
    const rf_shape shapes[] = {small, other};
    rank_comm c = open_comm(rank, world, "budget");
    rf_tune_options o = options("kernel_[gs]*");
    o.budget_ms = 1;
    rf_tune_summary s = tune(&c, shapes, 2, &o);
    RANK_CHECK(s.measured < 4, "all of it"); /* one call of the slow one takes longer */
    RANK_CHECK(s.unfinished == 2, "%u", s.unfinished);
    check_call(&c);
    o.budget_ms = 60000;
    s = tune(&c, shapes, 2, &o);
    RANK_CHECK(s.warm == 0 && s.measured > 0, "%u %u", s.warm, s.measured);
    RANK_CHECK(s.unfinished == 0, "%u", s.unfinished);
    close_comm(&c);
}

static void test_what_the_budget_left_out_is_measured_next_time(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, tiny_budget, NULL, NULL));
}

/* Two candidates, one of them too slow for two in one session. */
static void short_sessions(int rank, int world, void *arg)
{
    static const struct {
        uint32_t flags, unfinished, warm, measured;
        rf_rung rung;
    } rows[] = {
        {0, 1, 0, 1, RF_RUNG_SESSION},
        {0, 0, 0, 1, RF_RUNG_EXACT},
        {0, 0, 1, 0, RF_RUNG_EXACT},
        {RF_TUNE_FORCE, 1, 0, 1, RF_RUNG_EXACT}, /* a whole sweep stays the better answer */
    };
    comm_pack = &unlike_pack;
    comm_flags = RF_DEPENDENT;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rank_comm c = open_comm(rank, world, arg);
        rf_tune_options o = options(NULL);
        o.budget_ms = 1;
        o.flags = rows[i].flags;
        rf_tune_summary s = tune(&c, &small, 1, &o);
        rf_plan_info plan = plan_of(&c, &small);
        RANK_CHECK(s.unfinished == rows[i].unfinished, "%zu: %u", i, s.unfinished);
        RANK_CHECK(s.warm == rows[i].warm, "%zu: %u", i, s.warm);
        RANK_CHECK(s.measured == rows[i].measured, "%zu: %u", i, s.measured);
        RANK_CHECK(plan.rung == rows[i].rung, "%zu: %s", i, plan.reason);
        check_call(&c);
        close_comm(&c);
        rank_barrier();
    }
}

static void test_sessions_that_are_too_short_come_to_an_end(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, short_sessions, "short", NULL));
    assert_string_equal(
        ask("short", "SELECT count(*) || ' with ' || min(samples) FROM measurement"), "3 with 3");
    assert_string_equal(ask("short", "SELECT count(*) FROM sweep"), "1");
}

static void few_samples(int rank, int world, void *arg)
{
    static const uint32_t rows[][2] = {
        {1, 1}, {1, 0}, {3, 1}, {3, 0}, {7, 0}}; /* rounds, measured */
    rank_comm c = open_comm(rank, world, arg);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rf_tune_options o = options("kernel_good");
        o.rounds = rows[i][0];
        rf_tune_summary s = tune(&c, &small, 1, &o);
        RANK_CHECK(s.measured == rows[i][1], "%zu: %u", i, s.measured);
    }
    close_comm(&c);
}

static void test_what_has_too_few_samples_is_measured_again(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, few_samples, "few", NULL));
}

int main(void)
{
    honest = group_honest(2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_candidates_are_excluded_on_all_ranks),
        cmocka_unit_test(test_without_a_store_the_winner_is_used),
        cmocka_unit_test(test_without_a_store_every_shape_has_its_winner),
        cmocka_unit_test(test_ranks_may_be_threads),
        cmocka_unit_test(test_a_candidate_is_not_to_blame_for_a_rank_that_was_held_up),
        cmocka_unit_test(test_nor_is_it_slow_for_a_rank_that_was_late_once),
        cmocka_unit_test(test_graph_shapes_are_measured_by_replay),
        cmocka_unit_test(test_plans_are_verified_and_timed),
        cmocka_unit_test(test_a_warm_database_answers_without_measuring),
        cmocka_unit_test(test_a_campaign_says_how_it_was_made),
        cmocka_unit_test(test_what_an_opt_in_adds_is_all_that_is_measured),
        cmocka_unit_test(test_tuned_with_an_opt_in_is_tuned_without),
        cmocka_unit_test(test_the_best_without_an_opt_in_is_not_dropped_for_one_with_it),
        cmocka_unit_test(test_an_opt_in_that_no_variant_needs_changes_nothing),
        cmocka_unit_test(test_forced_sessions_measure_again_and_decide_the_same),
        cmocka_unit_test(test_a_killed_session_is_gone_on_with),
        cmocka_unit_test(test_a_full_disk_ends_the_session_and_the_winner_stays),
        cmocka_unit_test(test_a_store_for_reading_leaves_all_as_it_was),
        cmocka_unit_test(test_a_poisoned_channel_is_no_candidates_fault),
        cmocka_unit_test(test_ranks_that_differ_are_told),
        cmocka_unit_test(test_packs_tell_what_has_to_be_admitted),
        cmocka_unit_test(test_a_filter_that_leaves_nothing_is_counted),
        cmocka_unit_test(test_a_bad_argument_on_one_rank_is_an_error_on_all),
        cmocka_unit_test(test_no_shapes_is_fine),
        cmocka_unit_test(test_a_session_of_another_comm_changes_nothing_here),
        cmocka_unit_test(test_progress_goes_from_nothing_to_all),
        cmocka_unit_test(test_an_abort_ends_the_session_on_all_ranks),
        cmocka_unit_test(test_a_rank_that_dies_at_last_is_told_of),
        cmocka_unit_test(test_what_the_budget_left_out_is_measured_next_time),
        cmocka_unit_test(test_sessions_that_are_too_short_come_to_an_end),
        cmocka_unit_test(test_what_has_too_few_samples_is_measured_again),
    };
    return cmocka_run_group_tests_name("tune", tests, NULL, NULL);
}
