/* What every rank does with one candidate: a kernel that is wrong in one way only is found, calls
 * are as many as were asked for, and times are those of one call. */
#define _GNU_SOURCE
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/group.h"
#include "group.h"

extern const int rfi_abi_4;

#define WORLD 2
#define N     256

static rf_cpu_entry honest; /* generic one-shot, f32, world 2 */

/* ---- wrong in one way each; every one is checked once in a process ---- */

static float *element(void *tensor, uint64_t i)
{
    return (float *)tensor + i;
}

static void kernel_wrong_in_place(const rf_params *p)
{
    static int calls;
    honest(p);
    if (p->in == p->out && calls++ == 1)
        *element(p->out, 0) += 1;
}

static void kernel_wrong_out_of_place(const rf_params *p)
{
    static int calls;
    honest(p);
    if (p->in != p->out && calls++ == 1)
        *element(p->out, 0) += 1;
}

static void kernel_wrong_in_an_odd_slot(const rf_params *p) /* in place only, as well */
{
    static int calls;
    honest(p);
    if (calls++ % 2 && p->in == p->out)
        *element(p->out, 0) += 1;
}

static void kernel_wrong_in_an_even_slot(const rf_params *p)
{
    static int calls;
    honest(p);
    if (calls++ % 2 == 0 && p->in == p->out)
        *element(p->out, 0) += 1;
}

static void kernel_wrong_at_first(const rf_params *p)
{
    static int calls;
    honest(p);
    if (!calls++)
        *element(p->out, 0) += 1;
}

static void kernel_says_the_same_again(const rf_params *p)
{
    static float first[N];
    static int calls;
    honest(p);
    memcpy(calls ? p->out : first, calls ? first : p->out, sizeof first);
    calls++;
}

static void kernel_loses_infinities(const rf_params *p)
{
    honest(p);
    for (uint64_t i = 0; i < p->count; i++)
        if (isinf(*element(p->out, i)))
            *element(p->out, i) = FLT_MAX;
}

static void kernel_rounds_once_more(const rf_params *p)
{
    honest(p);
    for (uint64_t i = 0; i < p->count; i++)
        if (isnormal(*element(p->out, i)))
            *element(p->out, i) = nextafterf(*element(p->out, i), 0);
}

static void kernel_changes_its_input(const rf_params *p)
{
    honest(p);
    if (p->in != p->out)
        *element((void *)p->in, 3) = 12345;
}

static void kernel_writes_behind(const rf_params *p)
{
    honest(p);
    *element(p->out, p->count) = 0;
}

static struct noted {
    int calls;
    uint64_t count, deadline_ms;
} noted;

static void kernel_takes_notes(const rf_params *p)
{
    honest(p);
    noted.calls++;
    noted.count = p->count;
    noted.deadline_ms = p->deadline_ns / 1000000;
}

static void kernel_hangs(const rf_params *p)
{
    rf_region *peer = (rf_region *)p->peer[1 - p->rank];
    rf_params hurried = *p;
    hurried.deadline_ns = 20000000;
    p->host->wait(&hurried, 1 - p->rank, &peer->arrive, UINT64_MAX, RF_STEP_ARRIVE);
}

#define NAP_US 1000

static void kernel_naps(const rf_params *p)
{
    usleep(NAP_US);
    honest(p);
}

#define DIFFERS "differs from the oracle at element "
#define FAULTS(X)                                                                                  \
    X(kernel_wrong_in_place, DIFFERS "0 of 256")                                                   \
    X(kernel_wrong_out_of_place, DIFFERS "0 of 256")                                               \
    X(kernel_wrong_in_an_odd_slot, DIFFERS "0 of 256")                                             \
    X(kernel_wrong_in_an_even_slot, DIFFERS "0 of 256")                                            \
    X(kernel_wrong_at_first, DIFFERS "0 of 256")                                                   \
    X(kernel_says_the_same_again, DIFFERS "0 of 256")                                              \
    X(kernel_loses_infinities, DIFFERS)                                                            \
    X(kernel_rounds_once_more, DIFFERS)                                                            \
    X(kernel_changes_its_input, "changed its input at element 3 of 256")                           \
    X(kernel_writes_behind, "wrote behind the output, element 256 of 256")
#define OTHERS(X)                                                                                  \
    X(kernel_hangs, "")                                                                            \
    X(kernel_takes_notes, "")                                                                      \
    X(kernel_naps, "")

/* Which one it is. */
enum {
#define RF_X(kernel, text) NTH_##kernel,
    FAULTS(RF_X) OTHERS(RF_X)
#undef RF_X
        N_KERNELS
};

static const struct kernel {
    rf_variant variant;
    const char *text; /* what is said of it */
} kernels[] = {
#define RF_X(kernel, text)                                                                         \
    {{.hash = {0xFA, NTH_##kernel},                                                                \
      .name = #kernel,                                                                             \
      .world = WORLD,                                                                              \
      .unroll = 1,                                                                                 \
      .entry = kernel},                                                                            \
     text},
    FAULTS(RF_X) OTHERS(RF_X)
#undef RF_X
};

static rf_variant notes; /* the pack's only one */
static const rf_shard shard = {.name = "notes", .world = WORLD, .n = 1, .variants = &notes};
static const rf_shard *const shards[] = {&shard};
static const rf_pack pack = {
    RF_ABI, sizeof(rf_pack), "notes", "cc", &rfi_abi_4, 1, 1, shards,
};

/* ---- one rank's comm ---- */

static char said[2048]; /* to the log */

static void listen(void *ctx, int level, const char *line)
{
    (void)ctx, (void)level;
    snprintf(said, sizeof said, "%s", line);
}

/* Of one kernel. */
static rf_comm *open_comm(const char *name, int nth, int rank)
{
    static const rf_pack *packs[] = {&pack};
    char own[80];
    rf_config config = group_config();
    notes = kernels[nth].variant;
    config.packs = packs;
    config.log = listen;
    snprintf(own, sizeof own, "%s-%d", name, nth);
    return group_create(own, &config, rank, WORLD);
}

static rf_shape shape_of(rf_mode mode, uint64_t hidden)
{
    return (rf_shape){RF_ALL_REDUCE, RF_F32, mode, N / 64, hidden};
}

static void plan(rf_comm *comm, const rf_shape *shape)
{
    rf_error err = {0};
    RANK_CHECK(rfi_plan_set(comm, 0, shape, &notes, 64, 0, 0, &err) == RF_OK, "%s", err.text);
}

/* ---- checks ---- */

static void faults(int rank, int world, void *arg)
{
    (void)world;
    rf_shape shape = shape_of(RF_EAGER, 64);
    for (int i = 0; i < N_KERNELS; i++) {
        if (i == NTH_kernel_hangs)
            continue;
        rf_error err = {0};
        rf_comm *comm = open_comm(arg, i, rank);
        plan(comm, &shape);
        said[0] = 0;
        rf_result rc = rf_verify(comm, 0, &shape, 1, &err);
        RANK_CHECK(rc == (*kernels[i].text ? RF_E_WRONG : RF_OK), "%s: %s %s",
                   kernels[i].variant.name, rf_strerror(rc), err.text);
        RANK_CHECK(strstr(said, kernels[i].text), "%s: %s", kernels[i].variant.name, said);
        group_close(comm);
    }
}

static void test_whatever_is_wrong_is_found(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(WORLD, faults, (void *)group_name(), NULL));
}

/* Of a call that failed the caller hears as after a call of its own. */
static void hangs(int rank, int world, void *arg)
{
    (void)world;
    rf_comm *comm = open_comm(arg, NTH_kernel_hangs, rank);
    for (int mode = RF_EAGER; mode <= RF_GRAPH; mode++) {
        rf_shape shape = shape_of((rf_mode)mode, 64);
        rf_error err = {0};
        plan(comm, &shape);
        rf_result rc = rf_verify(comm, 0, &shape, 1, &err);
        RANK_CHECK(rc == RF_E_TIMEOUT && strstr(err.text, "did not arrive within the deadline"),
                   "mode %d: %s: %s", mode, rf_strerror(rc), err.text);
        RANK_CHECK(rf_comm_reset(comm, 20000, &err) == RF_OK, "%s", err.text);
        double us;
        rc = rf_time(comm, 0, &shape, 1, &us, 1, &err);
        RANK_CHECK(rc == RF_E_TIMEOUT && strstr(err.text, "did not arrive within the deadline"),
                   "mode %d: %s: %s", mode, rf_strerror(rc), err.text);
        RANK_CHECK(rf_comm_reset(comm, 20000, &err) == RF_OK, "%s", err.text);
    }
    group_close(comm);
}

static void test_a_call_that_fails_is_told_of(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(WORLD, hangs, (void *)group_name(), NULL));
}

/* ---- calls ---- */

static void counts(int rank, int world, void *arg)
{
    (void)world;
    static const struct {
        rf_mode mode;
        uint32_t calls;
        int runs; /* of one sample: the call that the ranks meet in is one more */
    } rows[] = {
        {RF_EAGER, 0, 1}, /* one is the least */
        {RF_EAGER, 10, 10}, {RF_GRAPH, 10, 10},
        {RF_GRAPH, 64, 64}, {RF_GRAPH, 65, 2 * 64}, /* whole graphs */
    };
    rf_comm *comm = open_comm(arg, NTH_kernel_takes_notes, rank);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rf_shape shape = shape_of(rows[i].mode, 64);
        rf_error err = {0};
        double us[3];
        plan(comm, &shape);
        noted = (struct noted){0};
        RANK_CHECK(rf_time(comm, 0, &shape, rows[i].calls, us, 3, &err) == RF_OK, "%s", err.text);
        RANK_CHECK(noted.calls == 3 * (rows[i].runs + 1), "row %zu: %d calls", i, noted.calls);
        RANK_CHECK(noted.count == N, "row %zu: of %d elements", i, (int)noted.count);
    }
    group_close(comm);
}

static void test_calls_are_as_many_as_were_asked_for(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(WORLD, counts, (void *)group_name(), NULL));
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One takes its nap at least, and all of them what the caller saw pass at most. */
static void times(int rank, int world, void *arg)
{
    (void)world;
    rf_comm *comm = open_comm(arg, NTH_kernel_naps, rank);
    for (int mode = RF_EAGER; mode <= RF_GRAPH; mode++) {
        rf_shape shape = shape_of((rf_mode)mode, 64);
        rf_error err = {0};
        double us[2], start = seconds();
        plan(comm, &shape);
        RANK_CHECK(rf_time(comm, 0, &shape, 16, us, 2, &err) == RF_OK, "%s", err.text);
        double all = (seconds() - start) * 1e6;
        RANK_CHECK(us[0] >= NAP_US && us[1] >= NAP_US, "mode %d: %g %g", mode, us[0], us[1]);
        RANK_CHECK(16 * (us[0] + us[1]) <= all, "mode %d: %g %g of %g", mode, us[0], us[1], all);
        rf_tune_options options = RF_TUNE_OPTIONS_INIT;
        rf_tune_summary summary;
        rf_plan_info planned;
        options.rounds = 1;
        RANK_CHECK(rf_tune(comm, 0, &shape, 1, &options, &summary, &err) == RF_OK, "%s", err.text);
        rf_plan_query(comm, 0, N, RF_F32, (rf_mode)mode, &planned);
        RANK_CHECK(planned.median_us >= NAP_US && planned.median_us <= summary.seconds * 1e6,
                   "mode %d: %g of %g s", mode, planned.median_us, summary.seconds);
    }
    group_close(comm);
}

static void test_times_are_those_of_one_call(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(WORLD, times, (void *)group_name(), NULL));
}

/* ---- a candidate that hangs gives up in seconds; a program's call does not ---- */

static void deadlines(int rank, int world, void *arg)
{
    (void)world;
    static const struct {
        uint64_t hidden, ms;
    } rows[] = {{64, 2000}, {4096, 2000 + 65536u * WORLD / 50000}};
    static float x[N];
    rf_comm *comm = open_comm(arg, NTH_kernel_takes_notes, rank);
    rf_tune_options options = RF_TUNE_OPTIONS_INIT;
    options.rounds = 1;
    options.budget_ms = 2000;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rf_shape shape = shape_of(RF_EAGER, rows[i].hidden);
        rf_error err = {0};
        RANK_CHECK(rf_tune(comm, 0, &shape, 1, &options, NULL, &err) == RF_OK, "%s", err.text);
        RANK_CHECK(noted.deadline_ms == rows[i].ms, "%zu: %d", i, (int)noted.deadline_ms);
        RANK_CHECK(rf_all_reduce(comm, 0, x, x, N, RF_F32, NULL) == RF_OK, "call");
        RANK_CHECK(noted.deadline_ms == group_config().deadline_ms, "%d", (int)noted.deadline_ms);
    }
    group_close(comm);
}

static void test_candidates_are_in_a_hurry(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(WORLD, deadlines, (void *)group_name(), NULL));
}

int main(void)
{
    honest = group_honest(WORLD);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whatever_is_wrong_is_found),
        cmocka_unit_test(test_a_call_that_fails_is_told_of),
        cmocka_unit_test(test_calls_are_as_many_as_were_asked_for),
        cmocka_unit_test(test_times_are_those_of_one_call),
        cmocka_unit_test(test_candidates_are_in_a_hurry),
    };
    return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
