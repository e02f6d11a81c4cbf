/* How calls, ranks and comms end: killed, stopped, late, aborted, closed. Cases F38 to F40. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "group.h"

#define N 3000

/* Calls until one fails; its result. */
static rf_result call_until_failure(rf_comm *comm, int *calls)
{
    float x[N];
    rf_result result;
    for (*calls = 0; *calls < 1000000; ++*calls) {
        for (int i = 0; i < N; i++)
            x[i] = 1;
        result = rf_all_reduce(comm, 0, x, x, N, RF_F32, NULL);
        if (result)
            return result;
        RANK_CHECK(x[0] == (float)rf_comm_world(comm) && x[N - 1] == x[0], "call %d: %g", *calls,
                   (double)x[0]);
    }
    return RF_OK;
}

static void check_error(const rf_comm *comm, rf_result result, rf_result code, int culprit)
{
    const rf_error *err = rf_comm_error(comm);
    char name[16];
    snprintf(name, sizeof name, "rank %d", culprit);
    RANK_CHECK(result == code, "%d instead of %d: %s", (int)result, (int)code, err->text);
    RANK_CHECK(err->rank == culprit && strstr(err->text, name), "rank %d: %s", err->rank,
               err->text);
    rf_health h;
    RANK_CHECK(rf_comm_check(comm, &h) == RF_OK && h.code == code && h.culprit == culprit,
               "health: code %d, culprit %d", (int)h.code, h.culprit);
}

/* Nothing of a comm stays in this process. */
typedef struct before {
    int fds, mappings;
} before;

static before count(void)
{
    return (before){group_fds(), group_mappings()};
}

static void check_nothing_left(before b)
{
    before now = count();
    RANK_CHECK(now.fds == b.fds, "%d descriptors before, %d after", b.fds, now.fds);
    RANK_CHECK(now.mappings == b.mappings, "%d mappings before, %d after", b.mappings,
               now.mappings);
}

/* ---- F38 ---- */

typedef struct names {
    char all[64], survivors[64];
} names;

static names new_names(void)
{
    names n;
    snprintf(n.all, sizeof n.all, "%s", group_name());
    snprintf(n.survivors, sizeof n.survivors, "%s", group_name());
    return n;
}

static void *kill_soon(void *arg)
{
    (void)arg;
    usleep(50000);
    kill(getpid(), SIGKILL);
    return NULL;
}

static void killed(int rank, int world, void *arg)
{
    const names *n = arg;
    rf_config config = group_config();
    before b = count();
    rf_comm *comm = group_create(n->all, &config, rank, world);
    int calls;
    if (rank == 2) {
        pthread_t t;
        pthread_create(&t, NULL, kill_soon, NULL);
    }
    rf_result result = call_until_failure(comm, &calls);
    check_error(comm, result, RF_E_PEER, 2);
    RANK_CHECK(calls > 0, "no call before the kill");
    rf_error err = {0};
    result = rf_comm_close(comm, 20000, &err);
    RANK_CHECK(result == RF_E_PEER && err.rank == 2, "close: %d, rank %d: %s", (int)result,
               err.rank, err.text);
    rf_comm_destroy(comm);
    check_nothing_left(b);

    comm = group_create(n->survivors, &config, rank - (rank > 2), world - 1);
    group_call(comm, 0, NULL, 0, RF_BF16, 777, 1, 0, 1);
    group_close(comm);
    check_nothing_left(b);
}

static void test_a_killed_rank_is_named_and_the_survivors_go_on(void **state)
{
    (void)state;
    names n = new_names();
    RANKS_ASSERT(ranks_run(4, killed, &n, &(ranks_options){.may_die = 1 << 2}));
}

static void stopped(int rank, int world, void *arg)
{
    rf_config config = group_config();
    config.deadline_ms = 1000;
    before b = count();
    rf_comm *comm = group_create(arg, &config, rank, world);
    int calls;
    group_call(comm, 0, NULL, 0, RF_F32, N, 1, 0, 0);
    rank_barrier();
    if (rank == 1)
        raise(SIGSTOP);
    rf_result result = call_until_failure(comm, &calls);
    if (rank != 1)
        check_error(comm, result, RF_E_TIMEOUT, 1);
    if (rank == 0)
        kill(rank_pid(1), SIGCONT);
    if (rank == 1) /* learns from its poison word whom the others blamed */
        RANK_CHECK(result == RF_E_TIMEOUT, "%d: %s", (int)result, rf_comm_error(comm)->text);
    result = call_until_failure(comm, &calls);
    RANK_CHECK(result == RF_E_POISONED && calls == 0, "after the failure: %d", (int)result);

    rf_error err = {0};
    RANK_CHECK(rf_comm_reset(comm, 20000, &err) == RF_OK, "reset: %s", err.text);
    group_call(comm, 0, NULL, 0, RF_F32, N, 2, 0, 0);
    group_close(comm);
    check_nothing_left(b);
}

static void test_a_stopped_rank_is_a_timeout_that_reset_heals(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, stopped, (void *)group_name(), NULL));
}

/* Rank 1 makes one call fewer. */
static void missing(int rank, int world, void *arg)
{
    rf_config config = group_config();
    config.deadline_ms = 1000;
    rf_comm *comm = group_create(arg, &config, rank, world);
    float x = 1;
    if (rank != 1)
        check_error(comm, rf_all_reduce(comm, 0, &x, &x, 1, RF_F32, NULL), RF_E_TIMEOUT, 1);
    rank_barrier();
    rf_comm_destroy(comm);
}

static void test_a_rank_that_does_not_call_is_named(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run_threads(3, missing, (void *)group_name(), NULL));
}

/* The environment's deadline holds, not the config's. */
static void missing_early(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    float x = 1;
    if (rank == 0) {
        check_error(comm, rf_all_reduce(comm, 0, &x, &x, 1, RF_F32, NULL), RF_E_TIMEOUT, 1);
        RANK_CHECK(strstr(rf_comm_error(comm)->text, "150 ms"), "%s", rf_comm_error(comm)->text);
    }
    rank_barrier();
    rf_comm_destroy(comm);
}

static void test_the_deadline_of_the_environment(void **state)
{
    (void)state;
    setenv("RANKFOLD_DEADLINE_MS", "150", 1);
    const char *text = ranks_run(2, missing_early, (void *)group_name(), NULL);
    unsetenv("RANKFOLD_DEADLINE_MS");
    RANKS_ASSERT(text);
}

/* A two-shot whose rank 1 arrives and then answers nothing: of three ranks that wait, it is to
 * blame. */
static void no_answer(const rf_params *p)
{
    rf_flag *flag = &((rf_region *)(void *)p->peer[p->rank])->arrive;
    flag->call[1].count = p->count;
    flag->call[1].tag = p->tag;
    __atomic_store_n(&flag->sequence, 1, __ATOMIC_RELEASE);
}

static void silent(int rank, int world, void *arg)
{
    rf_config config = group_config();
    config.deadline_ms = 1000;
    rf_comm *comm = group_create(arg, &config, rank, world);
    const rf_variant *v = rfi_variant_by_name(comm, "ar_w4_f32_h0_ts_cpu_flag_scalar_u1_ca");
    RANK_CHECK(v, "no such variant");
    rf_variant dropping = *v;
    dropping.entry = no_answer;
    float x[N] = {0};
    rf_result result = rfi_launch(comm, 0, rank == 1 ? &dropping : v, 64, x, x, N, RF_F32, NULL);
    if (rank != 1) {
        check_error(comm, result, RF_E_TIMEOUT, 1);
        RANK_CHECK(strstr(rf_comm_error(comm)->text, "answer"), "%s", rf_comm_error(comm)->text);
    }
    rank_barrier();
    rf_comm_destroy(comm);
}

static void test_a_dropped_answer_names_its_owner(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(4, silent, (void *)group_name(), NULL));
}

/* ---- abort ---- */

static void *abort_soon(void *arg)
{
    usleep(20000);
    rf_comm_abort(arg);
    return NULL;
}

static void aborted(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    float x = 1;
    pthread_t t = 0;
    rf_error err = {0};
    if (rank == 1)
        RANK_CHECK(!pthread_create(&t, NULL, abort_soon, comm), "thread");
    if (rank != 2) /* rank 2 does not come: only the abort frees the others */
        check_error(comm, rf_all_reduce(comm, 0, &x, &x, 1, RF_F32, NULL), RF_E_ABORTED, 1);
    if (rank == 1)
        pthread_join(t, NULL);
    RANK_CHECK(rf_comm_reset(comm, 20000, &err) == RF_OK, "reset: %s", err.text);
    group_call(comm, 0, NULL, 0, RF_F32, N, 2, 0, 0);
    group_close(comm);
}

static void test_abort_from_another_thread_frees_all(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, aborted, (void *)group_name(), NULL));
    RANKS_ASSERT(ranks_run_threads(3, aborted, (void *)group_name(), NULL));
}

/* ---- what any thread may call at any time ---- */

typedef struct watch {
    rf_comm *comm;
    int stop;
    unsigned long seen;
} watch;

static void *look_on(void *arg)
{
    watch *w = arg;
    char text[2000];
    rf_health h;
    for (; !__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE); w->seen++)
        if (rf_comm_check(w->comm, &h) != RF_OK || !rf_status_json(w->comm, text, sizeof text))
            return "a look failed";
    return NULL;
}

static void watched(int rank, int world, void *arg)
{
    rf_config config = group_config();
    config.channels = 2;
    rf_comm *comm = group_create(arg, &config, rank, world);
    rf_error err = {0};
    watch w = {.comm = comm};
    pthread_t t;
    RANK_CHECK(!pthread_create(&t, NULL, look_on, &w), "thread");
    for (uint64_t i = 1; i <= 5; i++) {
        const rf_shape shape = {RF_ALL_REDUCE, RF_F32, RF_EAGER, i, 256};
        int channel;
        RANK_CHECK(rf_prepare(comm, 0, &shape, 1, &err) == RF_OK, "%s", err.text);
        for (uint64_t k = 0; k < 10; k++)
            group_call(comm, 0, NULL, 0, RF_F32, i * 256, k, 0, 0);
        RANK_CHECK(rf_channel_open(comm, "other", &channel, &err) == RF_OK, "%s", err.text);
        RANK_CHECK(rf_comm_reset(comm, 20000, &err) == RF_OK, "%s", err.text);
    }
    RANK_CHECK(rf_comm_close(comm, 20000, &err) == RF_OK, "%s", err.text);
    __atomic_store_n(&w.stop, 1, __ATOMIC_RELEASE);
    void *trouble;
    pthread_join(t, &trouble);
    RANK_CHECK(!trouble, "%s", (const char *)trouble);
    rf_comm_destroy(comm);
}

static void test_health_and_status_are_read_from_another_thread(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run_threads(2, watched, (void *)group_name(), NULL));
}

/* ---- calls that differ ---- */

typedef struct differing {
    const char *name;
    uint64_t count[2]; /* of rank 0 and rank 1 */
    rf_dtype dtype[2];
    const char *what;
} differing;

static void mismatched(int rank, int world, void *arg)
{
    const differing *d = arg;
    rf_config config = group_config();
    rf_comm *comm = group_create(d->name, &config, rank, world);
    float x[100] = {0};
    rf_result result = rf_all_reduce(comm, 0, x, x, d->count[rank], d->dtype[rank], NULL);
    const rf_error *err = rf_comm_error(comm);
    RANK_CHECK(result == RF_E_MISMATCH, "%d: %s", (int)result, err->text);
    RANK_CHECK(strstr(err->text, "rank 1") || strstr(err->text, "rank 0"), "%s", err->text);
    RANK_CHECK(strstr(err->text, d->what) || !strstr(err->text, "expected"), "%s", err->text);
    rank_barrier();
    RANK_CHECK(rf_comm_reset(comm, 20000, NULL) == RF_OK, "reset");
    group_call(comm, 0, NULL, 0, RF_F32, N, 2, 0, 0);
    group_close(comm);
}

static void test_other_counts_are_caught(void **state)
{
    (void)state;
    differing d = {group_name(), {64, 65}, {RF_F32, RF_F32}, ": count 6"};
    RANKS_ASSERT(ranks_run(2, mismatched, &d, NULL));
    d = (differing){group_name(), {1, 2}, {RF_F32, RF_F32}, ": count "};
    RANKS_ASSERT(ranks_run_threads(2, mismatched, &d, NULL));
}

static void test_other_dtypes_are_caught(void **state)
{
    (void)state;
    differing d = {group_name(), {64, 64}, {RF_BF16, RF_F16}, ": variant "};
    RANKS_ASSERT(ranks_run(2, mismatched, &d, NULL));
}

/* ---- F39, F40 ---- */

static rf_comm *at_exit;

static void destroy_at_exit(void)
{
    rf_comm_destroy(at_exit);
    _exit(at_exit ? 0 : 1);
}

static void exits(int rank, int world, void *arg)
{
    rf_config config = group_config();
    config.create_timeout_ms = config.deadline_ms = 3600000; /* nothing may wait for a peer */
    at_exit = group_create(arg, &config, rank, world);
    group_call(at_exit, 0, NULL, 0, RF_F32, N, 1, 0, 0);
    rank_barrier();
    if (rank == 1)
        kill(getpid(), SIGKILL);
    if (rank == 2)
        return; /* gone without close or destroy */
    float x = 1;
    RANK_CHECK(rf_all_reduce(at_exit, 0, &x, &x, 1, RF_F32, NULL) == RF_E_PEER, "%s",
               rf_comm_error(at_exit)->text);
    pid_t child = fork(); /* an exit handler must not run cmocka's */
    RANK_CHECK(child >= 0, "fork");
    if (!child) {
        atexit(destroy_at_exit);
        exit(1);
    }
    int status;
    RANK_CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status),
               "the exit handler ended with %x", status);
    rf_comm_destroy(at_exit);
}

static void test_destroy_at_exit_after_the_peers_are_gone(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, exits, (void *)group_name(), &(ranks_options){.may_die = 2}));
}

static void closes_twice(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    rf_error err = {0};
    before b = count();
    RANK_CHECK(rf_comm_close(comm, 20000, &err) == RF_OK, "%s", err.text);
    RANK_CHECK(rf_comm_close(comm, 20000, &err) == RF_OK, "the second close: %s", err.text);
    RANK_CHECK(group_mappings() == b.mappings - world, "close left mappings");
    float x = 1;
    RANK_CHECK(rf_all_reduce(comm, 0, &x, &x, 1, RF_F32, NULL) == RF_E_CLOSED, "a call");
    RANK_CHECK(rf_comm_reset(comm, 100, &err) == RF_E_CLOSED, "reset: %s", err.text);
    const rf_shape shape = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, 7};
    RANK_CHECK(rf_prepare(comm, 0, &shape, 1, &err) == RF_E_CLOSED, "prepare: %s", err.text);
    rf_comm_abort(comm);
    rf_comm_destroy(comm);
}

static void test_the_second_close_is_a_no_op(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, closes_twice, (void *)group_name(), NULL));
}

static void closes_alone(int rank, int world, void *arg)
{
    rf_config config = group_config();
    before b = count();
    rf_comm *comm = group_create(arg, &config, rank, world);
    rf_error err = {0};
    if (rank == 0) {
        rf_result result = rf_comm_close(comm, 200, &err);
        RANK_CHECK(result == RF_E_TIMEOUT && err.rank > 0, "%d, rank %d: %s", (int)result, err.rank,
                   err.text);
        RANK_CHECK(strstr(err.text, "1") && strstr(err.text, "2"), "not all missing ranks: %s",
                   err.text);
        float x = 1;
        RANK_CHECK(rf_all_reduce(comm, 0, &x, &x, 1, RF_F32, NULL) == RF_E_CLOSED, "open");
    }
    rank_barrier();
    rf_comm_destroy(comm);
    check_nothing_left(b);
}

static void test_close_on_one_rank_names_the_missing(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, closes_alone, (void *)group_name(), NULL));
}

/* Rank 1 destroys without close while the others call. */
static void destroys(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    if (rank != 1) {
        int calls;
        float x = 0;
        check_error(comm, call_until_failure(comm, &calls), RF_E_PEER, 1);
        rf_result again = rf_all_reduce(comm, 0, &x, &x, 1, RF_F32, NULL);
        RANK_CHECK(again == RF_E_POISONED, "%d", (int)again);
        RANK_CHECK(strstr(rf_comm_error(comm)->text, "is gone; destroy the comm"), "%s",
                   rf_comm_error(comm)->text);
    }
    rf_comm_destroy(comm);
}

static void test_peers_of_a_destroyed_comm_see_it(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, destroys, (void *)group_name(), NULL));
    RANKS_ASSERT(ranks_run_threads(3, destroys, (void *)group_name(), NULL));
}

/* As a permuted two-shot of eight ranks may: in its seventh step. */
static void kernel_late_step(const rf_params *p)
{
    (p->host->fail)(p, RF_FAULT_DEADLINE, 0, (rf_step)7, 1, 0, 0); /* cmocka has a fail() */
}

static void fails_late(int rank, int world, void *arg)
{
    static const rf_variant late = {
        .name = "kernel_late_step", .world = 1, .unroll = 1, .entry = kernel_late_step};
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    float x[4] = {0};
    check_error(comm, rfi_launch(comm, 0, &late, 1, x, x, 4, RF_F32, NULL), RF_E_TIMEOUT, 0);
    const char *text = rf_comm_error(comm)->text;
    RANK_CHECK(strstr(text, "(step 1, relayed answer, after"), "%s", text);
    rf_comm_destroy(comm);
}

static void test_later_steps_have_a_name_too(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(1, fails_late, (void *)group_name(), NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_killed_rank_is_named_and_the_survivors_go_on),
        cmocka_unit_test(test_a_stopped_rank_is_a_timeout_that_reset_heals),
        cmocka_unit_test(test_a_rank_that_does_not_call_is_named),
        cmocka_unit_test(test_the_deadline_of_the_environment),
        cmocka_unit_test(test_a_dropped_answer_names_its_owner),
        cmocka_unit_test(test_abort_from_another_thread_frees_all),
        cmocka_unit_test(test_health_and_status_are_read_from_another_thread),
        cmocka_unit_test(test_other_counts_are_caught),
        cmocka_unit_test(test_other_dtypes_are_caught),
        cmocka_unit_test(test_destroy_at_exit_after_the_peers_are_gone),
        cmocka_unit_test(test_the_second_close_is_a_no_op),
        cmocka_unit_test(test_close_on_one_rank_names_the_missing),
        cmocka_unit_test(test_peers_of_a_destroyed_comm_see_it),
        cmocka_unit_test(test_later_steps_have_a_name_too),
    };
    return cmocka_run_group_tests_name("ends", tests, NULL, NULL);
}
