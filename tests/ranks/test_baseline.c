/* The caller's own collective as a tactic: measured, recorded, remembered, dispatched to. It is a
 * sum through memory that the ranks share; ours is one slow kernel. Cases F13, F29, F36, F37. */
#define _GNU_SOURCE
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "group.h"

extern const int rfi_abi_4;

#define WORLD 2
#define N     256
#define MOST  4096 /* elements that the baseline can do */

static const rf_shape eager = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 4, 64};
static const rf_shape graph = {RF_ALL_REDUCE, RF_F32, RF_GRAPH, 4, 64};

/* ---- ours: right, and slow ---- */

static rf_cpu_entry honest;

static void kernel_slow(const rf_params *p)
{
    usleep(20000);
    honest(p);
}

static const rf_variant slow = {
    .hash = {0xFA, 's'}, .name = "kernel_slow", .world = WORLD, .unroll = 1, .entry = kernel_slow};
static const rf_shard slow_shard = {.name = "slow", .world = WORLD, .n = 1, .variants = &slow};
static const rf_shard *const slow_shards[] = {&slow_shard};
static const rf_pack slow_pack = {
    RF_ABI, sizeof(rf_pack), "slow", "cc", &rfi_abi_4, 1, 1, slow_shards,
};

/* ---- theirs ---- */

typedef struct shared {
    uint32_t arrivals;
    float data[WORLD][MOST];
} shared;

static shared *memory;

static struct theirs {
    int rank, calls;
    int slow, wrong, near;
    rf_result fails;
    uint32_t meetings;
} theirs;

static void meet(void)
{
    uint32_t all = WORLD * ++theirs.meetings;
    __atomic_add_fetch(&memory->arrivals, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&memory->arrivals, __ATOMIC_SEQ_CST) < all)
        sched_yield();
}

typedef struct job {
    const float *in;
    float *out;
    uint64_t count;
} job;

static rf_result sum(void *arg)
{
    const job *j = arg;
    memcpy(memory->data[theirs.rank], j->in, j->count * sizeof *j->in);
    meet();
    for (uint64_t i = 0; i < j->count; i++)
        j->out[i] = memory->data[1][i] + memory->data[0][i];
    if (theirs.wrong)
        j->out[j->count / 2] *= 1.01f;
    for (uint64_t i = 0; i < j->count && theirs.near; i++)
        j->out[i] = nextafterf(j->out[i], 0);
    if (theirs.slow)
        usleep(30000); /* so that a candidate of ours would be dropped for it */
    meet();
    return RF_OK;
}

static rf_result reduce(void *ctx, const void *in, void *out, uint64_t count, rf_dtype dtype,
                        void *stream)
{
    static job jobs[4096]; /* graphs keep them */
    static int n;
    RANK_CHECK(ctx == &theirs && dtype == RF_F32 && count <= MOST, "%llu",
               (unsigned long long)count);
    theirs.calls++;
    if (theirs.fails)
        return theirs.fails;
    job *j = &jobs[n++ % 4096];
    *j = (job){in, out, count};
    return stream ? rf_cpu_stream_call(stream, sum, j) : sum(j);
}

static rf_baseline baseline(void)
{
    return (rf_baseline){.name = "shared memory", .all_reduce = reduce, .ctx = &theirs};
}

/* ---- one rank's comm ---- */

typedef struct session {
    char name[64], db[256];
} session;

static session new_session(const char *name)
{
    session s;
    memset(memory, 0, sizeof *memory);
    const char *folder = getenv("TMPDIR");
    snprintf(s.name, sizeof s.name, "%s", group_name());
    snprintf(s.db, sizeof s.db, "%s/baseline-%s-%d.db", folder ? folder : "/tmp", name,
             (int)getpid());
    return s;
}

typedef struct rank_comm {
    rf_comm *comm;
    rf_store *store; /* rank 0 */
} rank_comm;

/* nth: comms of one session have names of their own. */
static rank_comm open_comm(const session *s, int nth, int rank, const rf_baseline *b)
{
    rank_comm c = {0};
    char name[80];
    rf_error err = {0};
    const rf_pack *packs[] = {&slow_pack};
    rf_config config = group_config();
    config.packs = packs;
    if (rank == 0)
        rf_store_open(s->db, NULL, 0, &c.store, &err);
    config.store = c.store;
    snprintf(name, sizeof name, "%s-%d", s->name, nth);
    c.comm = group_create(name, &config, rank, WORLD);
    theirs.rank = rank;
    if (b)
        RANK_CHECK(rf_comm_baseline(c.comm, b, &err) == RF_OK, "%s", err.text);
    return c;
}

static void close_comm(rank_comm *c)
{
    group_close(c->comm);
    rf_store_close(c->store);
}

static rf_tune_summary tune_for(const rank_comm *c, uint32_t ms, const rf_shape *shapes, size_t n)
{
    rf_tune_options o = RF_TUNE_OPTIONS_INIT;
    rf_tune_summary s = {0};
    rf_error err = {0};
    o.budget_ms = ms;
    o.rounds = 3;
    o.seed = 1;
    RANK_CHECK(rf_tune(c->comm, 0, shapes, n, &o, &s, &err) == RF_OK, "%s", err.text);
    return s;
}

static rf_tune_summary tune(const rank_comm *c, const rf_shape *shapes, size_t n)
{
    return tune_for(c, 6000, shapes, n);
}

static rf_plan_info plan_of(const rank_comm *c, const rf_shape *shape)
{
    rf_plan_info plan = {0};
    rf_result rc = rf_plan_query(c->comm, 0, N, shape->dtype, shape->mode, &plan);
    RANK_CHECK(rc == RF_OK, "%s", rf_strerror(rc));
    return plan;
}

/* A call of the dispatcher with `count` elements; it was theirs that ran, or ours. */
static void check_dispatch(const rank_comm *c, uint64_t count, int by_theirs)
{
    static float in[MOST], out[MOST];
    int before = theirs.calls;
    for (uint64_t i = 0; i < count; i++)
        in[i] = (float)(i + 1), out[i] = 7;
    rf_result rc = rf_dispatch(c->comm, 0, in, out, count, RF_F32, NULL);
    RANK_CHECK(rc == RF_OK, "%s", rf_comm_error(c->comm)->text);
    for (uint64_t i = 0; i < count; i++)
        RANK_CHECK(out[i] == 2 * in[i], "element %d is %g", (int)i, out[i]);
    RANK_CHECK(theirs.calls - before == by_theirs, "%d calls", theirs.calls - before);
}

static void check_status(const rank_comm *c, const char *text)
{
    static char status[65536];
    rf_status_json(c->comm, status, sizeof status);
    RANK_CHECK(strstr(status, text), "no %s in %s", text, status);
}

/* ---- the faster one wins ---- */

static void wins(int rank, int world, void *arg)
{
    (void)world;
    const rf_shape shapes[] = {eager, graph};
    float x[N] = {1};
    double us[2];
    rf_error err = {0};
    rf_baseline b = baseline();
    rank_comm c = open_comm(arg, 0, rank, &b);
    rf_tune_summary s = tune(&c, shapes, 2);
    RANK_CHECK(s.measured == 4 && s.warm == 0, "%u measured, %u warm", s.measured, s.warm);
    for (int i = 0; i < 2; i++) {
        rf_plan_info plan = plan_of(&c, &shapes[i]);
        RANK_CHECK(plan.fallback && plan.rung == RF_RUNG_EXACT, "mode %d: %s: %s", i, plan.variant,
                   plan.reason);
        RANK_CHECK(plan.baseline_us == plan.median_us && plan.median_us > 0, "%g and %g",
                   plan.baseline_us, plan.median_us);
        theirs.near = i; /* it may round at each step, but not be wrong */
        RANK_CHECK(rf_verify(c.comm, 0, &shapes[i], 1, &err) == RF_OK, "%s", err.text);
        theirs.near = 0;
        RANK_CHECK(rf_time(c.comm, 0, &shapes[i], 3, us, 2, &err) == RF_OK && us[1] > 0, "%s",
                   err.text);
    }
    RANK_CHECK(rf_all_reduce(c.comm, 0, x, x, N, RF_F32, NULL) == RF_FALLBACK, "call");
    check_dispatch(&c, N, 1);
    check_status(&c, "\"baseline\":{\"name\":\"shared memory\",\"reason\":null}");
    check_status(&c, "\"fallback\":1,");
    close_comm(&c);

    c = open_comm(arg, 1, rank, &b);
    theirs.calls = 0;
    s = tune(&c, shapes, 2);
    RANK_CHECK(s.warm == 2 && s.measured == 0 && theirs.calls == 0,
               "%u warm, %u measured, %d calls", s.warm, s.measured, theirs.calls);
    RANK_CHECK(plan_of(&c, &eager).fallback, "forgotten");
    check_dispatch(&c, N, 1);
    close_comm(&c);

    c = open_comm(arg, 2, rank, NULL); /* the decision without the baseline itself */
    RANK_CHECK(rf_prepare(c.comm, 0, &eager, 1, &err) == RF_OK, "%s", err.text);
    RANK_CHECK(rf_dispatch(c.comm, 0, x, x, N, RF_F32, NULL) == RF_FALLBACK, "without");
    RANK_CHECK(rf_verify(c.comm, 0, &eager, 1, &err) == RF_FALLBACK, "verify");
    check_status(&c, "\"baseline\":{\"name\":null,\"reason\":\"none was given");
    close_comm(&c);
}

static void test_a_faster_baseline_wins_and_is_remembered(void **state)
{
    (void)state;
    session s = new_session("wins");
    RANKS_ASSERT(ranks_run(WORLD, wins, &s, NULL));
    unlink(s.db);
}

/* ---- the slower one loses, and still serves what ours does not ---- */

static void loses(int rank, int world, void *arg)
{
    (void)world;
    rf_baseline b = baseline();
    theirs.slow = 1;
    rank_comm c = open_comm(arg, 0, rank, NULL);
    rf_tune_summary s = tune(&c, &eager, 1);
    RANK_CHECK(s.measured == 1 && plan_of(&c, &eager).baseline_us == 0, "%u", s.measured);
    rf_error err = {0};
    RANK_CHECK(rf_comm_baseline(c.comm, &b, &err) == RF_OK, "%s", err.text);
    s = tune(&c, &eager, 1);
    RANK_CHECK(s.warm == 0 && s.measured == 2, "the baseline is not measured: %u", s.measured);
    rf_plan_info plan = plan_of(&c, &eager);
    RANK_CHECK(!strcmp(plan.variant, "kernel_slow"), "%s", plan.reason);
    RANK_CHECK(plan.baseline_us > plan.median_us && plan.baseline_us < 1e9, "%g and %g",
               plan.baseline_us, plan.median_us);
    theirs.slow = 0;
    check_dispatch(&c, N, 0);
    check_dispatch(&c, N + 1, 1); /* not prepared */
    check_status(&c, "\"baseline\":");
    close_comm(&c);

    const rf_pack *packs[] = {&slow_pack};
    rf_config config = group_config();
    config.packs = packs;
    config.capacity_bytes = 1024;
    char name[80];
    snprintf(name, sizeof name, "%s-c", ((const session *)arg)->name);
    c = (rank_comm){group_create(name, &config, rank, WORLD), NULL};
    RANK_CHECK(rf_comm_baseline(c.comm, &b, &err) == RF_OK, "%s", err.text);
    check_dispatch(&c, 1024, 1); /* beyond the capacity */
    close_comm(&c);
}

static void test_a_slower_baseline_loses(void **state)
{
    (void)state;
    session s = new_session("loses");
    RANKS_ASSERT(ranks_run(WORLD, loses, &s, NULL));
    unlink(s.db);
}

/* ---- the time was up before anything of ours was measured ---- */

static void alone(int rank, int world, void *arg)
{
    (void)world;
    rf_baseline b = baseline();
    rank_comm c = open_comm(arg, 0, rank, &b);
    rf_tune_summary s = tune_for(&c, 1, &eager, 1);
    RANK_CHECK(s.unfinished == 1 && s.measured == 1, "%u, %u", s.unfinished, s.measured);
    RANK_CHECK(!plan_of(&c, &eager).fallback, "it was compared with nothing");
    s = tune(&c, &eager, 1);
    RANK_CHECK(s.unfinished == 0 && plan_of(&c, &eager).fallback, "%u", s.unfinished);
    close_comm(&c);
}

static void test_a_baseline_alone_does_not_win(void **state)
{
    (void)state;
    session s = new_session("alone");
    RANKS_ASSERT(ranks_run(WORLD, alone, &s, NULL));
    unlink(s.db);
}

/* ---- F36: wrong or failing on one rank, excluded on all ---- */

static void bad(int rank, int world, void *arg)
{
    (void)world;
    rf_baseline b = baseline();
    theirs.wrong = rank == 1;
    rank_comm c = open_comm(arg, 0, rank, &b);
    rf_tune_summary s = tune(&c, &eager, 1);
    RANK_CHECK(s.wrong == 1 && s.measured == 1, "%u wrong, %u measured", s.wrong, s.measured);
    RANK_CHECK(!plan_of(&c, &eager).fallback, "a wrong one won");
    check_dispatch(&c, N, 0);
    s = tune(&c, &eager, 1);
    RANK_CHECK(s.warm == 1, "measured again, though it is known to fail");
    theirs.wrong = 0;
    theirs.fails = rank == 1 ? RF_E_BACKEND : RF_E_POISONED; /* which follows from the other */
    s = tune(&c, &graph, 1);
    theirs.fails = RF_E_BACKEND;
    RANK_CHECK(s.infeasible == 1 && s.measured == 1, "%u failed, %u measured", s.infeasible,
               s.measured);
    RANK_CHECK(!plan_of(&c, &graph).fallback, "a failing one won");
    float x[N + 1];
    RANK_CHECK(rf_dispatch(c.comm, 0, x, x, N + 1, RF_F32, NULL) == RF_E_BACKEND, "call");
    RANK_CHECK(strstr(rf_comm_error(c.comm)->text, "shared memory"), "%s",
               rf_comm_error(c.comm)->text);
    close_comm(&c);
}

static void test_a_bad_baseline_is_excluded_on_all_ranks(void **state)
{
    (void)state;
    session s = new_session("bad");
    RANKS_ASSERT(ranks_run(WORLD, bad, &s, NULL));
    unlink(s.db);
}

/* ---- F13: one rank has none, so none has ---- */

static void absent(int rank, int world, void *arg)
{
    (void)world;
    rf_baseline b = baseline(), none = {.name = "no NCCL: libnccl.so.2 is on holiday"};
    rf_error err = {0};
    rank_comm c = open_comm(arg, 0, rank, NULL);
    rf_result rc = rf_comm_baseline(c.comm, rank == 1 ? &none : &b, &err);
    RANK_CHECK(rc == RF_E_BACKEND && err.rank == 1 && strstr(err.text, "holiday"), "%d: %s", rc,
               err.text);
    check_status(&c, "rank 1: no NCCL: libnccl.so.2 is on holiday");
    rf_tune_summary s = tune(&c, &eager, 1);
    RANK_CHECK(s.measured == 1 && theirs.calls == 0, "%u", s.measured);
    check_dispatch(&c, N, 0);
    close_comm(&c);
}

static void test_no_rank_has_what_one_lacks(void **state)
{
    (void)state;
    session s = new_session("absent");
    RANKS_ASSERT(ranks_run(WORLD, absent, &s, NULL));
    unlink(s.db);
}

static void test_nccl_is_there_or_says_why_not(void **state)
{
    (void)state;
    rf_baseline b;
    rf_error err = {0};
    int something;
    assert_int_equal(rf_baseline_nccl(NULL, &b, &err), RF_E_ARG);
    rf_result rc = rf_baseline_nccl(&something, &b, &err);
    assert_int_equal(b.all_reduce != NULL, rc == RF_OK);
    assert_true(strlen(b.name) > 0);
    if (rc)
        assert_string_equal(err.text, b.name);
}

/* ---- opted in and out by one variable, on all ranks alike ---- */

static void opt_in(int rank, int world, void *arg)
{
    static const struct {
        const char *value[WORLD];
        rf_result result;
    } cases[] = {
        {{NULL, NULL}, RF_E_BACKEND},
        {{"0", NULL}, RF_E_BACKEND},
        {{"0", "1"}, RF_E_BACKEND},
        {{"0", "0"}, RF_OK},
    };
    rf_config config = group_config();
    config.flags = RF_OPT_IN;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rf_comm *comm = NULL;
        rf_error err = {0};
        char name[80];
        snprintf(name, sizeof name, "%s-%zu", (const char *)arg, i);
        if (cases[i].value[rank])
            setenv("RANKFOLD_DISABLE", cases[i].value[rank], 1);
        else
            unsetenv("RANKFOLD_DISABLE");
        rf_result rc = group_try(&rfi_backend_cpu, name, &config, rank, world, &comm, &err);
        RANK_CHECK(rc == cases[i].result, "case %zu: %d: %s", i, rc, err.text);
        RANK_CHECK(!rc || strstr(err.text, "RANKFOLD_DISABLE"), "%s", err.text);
        if (comm)
            group_close(comm);
    }
}

static void test_one_variable_opts_in_and_out(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(WORLD, opt_in, (void *)group_name(), NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_faster_baseline_wins_and_is_remembered),
        cmocka_unit_test(test_a_slower_baseline_loses),
        cmocka_unit_test(test_a_baseline_alone_does_not_win),
        cmocka_unit_test(test_a_bad_baseline_is_excluded_on_all_ranks),
        cmocka_unit_test(test_no_rank_has_what_one_lacks),
        cmocka_unit_test(test_nccl_is_there_or_says_why_not),
        cmocka_unit_test(test_one_variable_opts_in_and_out),
    };
    honest = group_honest(WORLD);
    memory = ranks_shared(sizeof *memory);
    int failed = cmocka_run_group_tests_name("baseline", tests, NULL, NULL);
    ranks_shared_free(memory, sizeof *memory);
    return failed;
}
