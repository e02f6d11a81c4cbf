/* The helper itself: what a rank does wrong reaches the parent, named. */
#define _GNU_SOURCE
#include "../ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef const char *run_fn(int, rank_fn, void *, const ranks_options *);
static run_fn *const ways[] = {ranks_run, ranks_run_threads};

#define FOR_BOTH_WAYS(run)                                                                         \
    for (size_t way = 0; way < 2; way++)                                                           \
        for (run_fn *run = ways[way]; run; run = NULL)

#define assert_says(text, words)                                                                   \
    do {                                                                                           \
        const char *said = (text);                                                                 \
        if (!said || !strstr(said, words))                                                         \
            fail_msg("\"%s\" not in: %s", words, said ? said : "");                                \
    } while (0)

static void fine(int rank, int world, void *arg)
{
    rank_barrier();
    atomic_fetch_add((_Atomic int *)arg, 1 << 4 * rank);
    rank_barrier();
    RANK_CHECK(*(_Atomic int *)arg == 0x111, "%x after a barrier of %d", *(int *)arg, world);
}

static void test_all_pass(void **state)
{
    (void)state;
    FOR_BOTH_WAYS(run)
    {
        _Atomic int *sum = ranks_shared(sizeof *sum);
        RANKS_ASSERT(run(3, fine, sum, NULL));
        assert_int_equal(*sum, 0x111);
        ranks_shared_free(sum, sizeof *sum);
    }
}

static void one_fails(int rank, int world, void *arg)
{
    (void)world, (void)arg;
    RANK_CHECK(rank != 1, "this is rank %d", rank);
}

static void test_a_failing_rank_is_named(void **state)
{
    (void)state;
    FOR_BOTH_WAYS(run)
    {
        const char *text = run(3, one_fails, NULL, NULL);
        assert_says(text, "rank 1: ");
        assert_says(text, "rank != 1: this is rank 1");
        assert_null(strstr(text, "rank 0: "));
        assert_null(strstr(text, "rank 2: "));
    }
}

static void one_hangs(int rank, int world, void *arg)
{
    (void)world, (void)arg;
    while (rank == 2)
        pause();
}

static void test_a_hanging_rank_is_ended_at_the_deadline(void **state)
{
    (void)state;
    FOR_BOTH_WAYS(run)
    assert_string_equal(run(3, one_hangs, NULL, &(ranks_options){.deadline_ms = 400}),
                        "rank 2: hung");
}

static void one_crashes(int rank, int world, void *arg)
{
    (void)world, (void)arg;
    if (rank == 1)
        raise(SIGKILL);
}

static void test_a_killed_rank_is_named(void **state)
{
    (void)state;
    assert_says(ranks_run(3, one_crashes, NULL, NULL), "rank 1: killed by signal 9");
    assert_says(ranks_run_threads(2, one_crashes, NULL, NULL), "killed by signal 9");
}

static void test_a_death_that_belongs_to_the_test_is_fine(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, one_crashes, NULL, &(ranks_options){.may_die = 1 << 1}));
}

static void one_exits(int rank, int world, void *arg)
{
    (void)world, (void)arg;
    if (rank == 0)
        _exit(0);
}

static void test_an_exit_without_a_verdict_fails(void **state)
{
    (void)state;
    assert_says(ranks_run(2, one_exits, NULL, NULL), "rank 0: exited with code 0");
    assert_says(ranks_run_threads(1, one_exits, NULL, NULL), "rank 0: exited with code 0");
}

static void failing_frees_waiting(int rank, int world, void *arg)
{
    (void)world, (void)arg;
    RANK_CHECK(rank != 0, "first");
    rank_barrier();
}

static void test_a_failure_ends_the_others_before_the_deadline(void **state)
{
    (void)state;
    FOR_BOTH_WAYS(run)
    {
        const char *text =
            run(2, failing_frees_waiting, NULL, &(ranks_options){.deadline_ms = 600000});
        assert_says(text, "rank 0: ");
        assert_says(text, "rank 1: hung");
    }
}

/* A grandchild holds the write end of a pipe; its end-of-file says that it is gone. */
static void leaves_a_child(int rank, int world, void *arg)
{
    (void)rank, (void)world, (void)arg;
    if (fork() == 0)
        for (;;)
            pause();
}

static void test_what_ranks_forked_is_gone(void **state)
{
    (void)state;
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    RANKS_ASSERT(ranks_run(1, leaves_a_child, NULL, NULL));
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 0);
    close(ends[0]);
}

/* The outer rank is a parent that dies; the inner one tells its fate through the pipe. */
static void inner(int rank, int world, void *arg)
{
    (void)rank, (void)world, (void)arg;
    raise(SIGSTOP);
}

static void dies_as_a_parent(int rank, int world, void *arg)
{
    (void)rank, (void)world, (void)arg;
    alarm(1);
    ranks_run(1, inner, NULL, NULL);
}

static void test_ranks_die_with_their_parent(void **state)
{
    (void)state;
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    RANKS_ASSERT(ranks_run(1, dies_as_a_parent, NULL, &(ranks_options){.may_die = 1}));
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 0);
    close(ends[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_pass),
        cmocka_unit_test(test_a_failing_rank_is_named),
        cmocka_unit_test(test_a_hanging_rank_is_ended_at_the_deadline),
        cmocka_unit_test(test_a_killed_rank_is_named),
        cmocka_unit_test(test_a_death_that_belongs_to_the_test_is_fine),
        cmocka_unit_test(test_an_exit_without_a_verdict_fails),
        cmocka_unit_test(test_a_failure_ends_the_others_before_the_deadline),
        cmocka_unit_test(test_what_ranks_forked_is_gone),
        cmocka_unit_test(test_ranks_die_with_their_parent),
    };
    return cmocka_run_group_tests_name("ranks", tests, NULL, NULL);
}
