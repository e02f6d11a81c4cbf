/* Streams, graphs, replays and skew. Cases F17 to F24. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/codes.h"
#include "group.h"
#include "one_slot.h"

/* Data that is quick to make and to check: small integers, exact in f32. */
static float value(uint64_t call, int rank, uint64_t i)
{
    return (float)(call % 1000 + 3 * (uint64_t)rank + i % 5);
}

static void fill(float *x, uint64_t call, int rank, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        x[i] = value(call, rank, i);
}

static void check(const float *x, uint64_t call, int world, uint64_t n, const char *what)
{
    for (uint64_t i = 0; i < n; i++) {
        int sum = world * (int)(call % 1000 + i % 5) + 3 * world * (world - 1) / 2;
        float want = (float)sum;
        RANK_CHECK(x[i] == want, "%s, call %llu: wrong data, element %llu is %g instead of %g",
                   what, (unsigned long long)call, (unsigned long long)i, (double)x[i],
                   (double)want);
    }
}

static rf_cpu_stream *new_stream(void)
{
    rf_cpu_stream *s;
    rf_error err = {0};
    RANK_CHECK(rf_cpu_stream_create(&s, &err) == RF_OK, "%s", err.text);
    return s;
}

#define OK(expression)                                                                             \
    do {                                                                                           \
        rf_result ok_result = (expression);                                                        \
        RANK_CHECK(ok_result == RF_OK, "%d: %s", (int)ok_result, rf_comm_error(comm)->text);       \
    } while (0)

typedef struct graph {
    float *in, *out;
    uint64_t n;
    rf_cpu_graph *graph;
} graph;

/* `calls` calls of n elements, each from `in` to its own part of `out`. */
static graph capture(rf_comm *comm, rf_cpu_stream *s, uint64_t n, int calls)
{
    graph g = {.n = n};
    g.in = malloc(n * sizeof(float));
    g.out = malloc((size_t)calls * n * sizeof(float));
    OK(rf_cpu_capture_begin(s));
    for (int c = 0; c < calls; c++)
        OK(rf_all_reduce(comm, 0, g.in, g.out + (uint64_t)c * n, n, RF_F32, s));
    OK(rf_cpu_capture_end(s, &g.graph));
    return g;
}

static void drop(graph *g)
{
    rf_cpu_graph_destroy(g->graph);
    free(g->in);
    free(g->out);
}

static void replay(rf_comm *comm, rf_cpu_stream *s, graph *g, int calls, uint64_t turn)
{
    fill(g->in, turn, rf_comm_rank(comm), g->n);
    memset(g->out, 0, (size_t)calls * g->n * sizeof(float));
    OK(rf_cpu_graph_launch(g->graph, s));
    OK(rf_cpu_stream_synchronize(s));
    for (int c = 0; c < calls; c++)
        check(g->out + (uint64_t)c * g->n, turn, rf_comm_world(comm), g->n, "replay");
}

static void eager(rf_comm *comm, rf_cpu_stream *s, uint64_t n, uint64_t turn)
{
    float *x = malloc(n * sizeof(float));
    fill(x, turn, rf_comm_rank(comm), n);
    OK(rf_all_reduce(comm, 0, x, x, n, RF_F32, s));
    OK(rf_cpu_stream_synchronize(s));
    check(x, turn, rf_comm_world(comm), n, "eager");
    free(x);
}

/* ---- F18, F19, F21 ---- */

/* Replays of an odd number of calls; one in twenty is of many elements. Fewer where more ranks than
 * cores wait for each other. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TURNS(world) 3000
#else
#define TURNS(world) ((world) == 2 ? 100000 : 10000)
#endif

static void replays(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    rf_cpu_stream *s = new_stream();
    graph many = capture(comm, s, 4099, 3), few = capture(comm, s, 37, 3),
          one = capture(comm, s, 5, 1);
    for (uint64_t turn = 0; turn < TURNS(world); turn++) {
        replay(comm, s, turn % 20 ? &few : &many, 3, turn);
        if (turn % 3 == 0)
            eager(comm, s, 1 + turn % 300, turn);
        if (turn % 5 == 0)
            replay(comm, s, &one, 1, turn);
        if (turn % 300 == 0) { /* made and thrown away */
            graph unused = capture(comm, s, 100 + turn % 10000, 1);
            drop(&unused);
        }
    }
    drop(&many);
    drop(&few);
    drop(&one);
    rf_cpu_stream_destroy(s);
    group_close(comm);
}

static void test_odd_graphs_replayed_between_eager_calls(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, replays, (void *)group_name(), NULL));
}

static void test_replays_by_threads(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run_threads(3, replays, (void *)group_name(), NULL));
}

/* ---- F20 ---- */

static void changes(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    static const uint32_t grids[] = {1, 64, 3, 128, 2};
    const uint64_t n = 5000;
    float *x = malloc(n * sizeof *x);
    size_t variants = rfi_variant_count(comm);
    for (uint64_t turn = 0; turn < 600; turn++) {
        const rf_variant *v = rfi_variant_at(comm, turn % variants);
        rf_shape shape = {.dtype = RF_F32, .rows = 1, .hidden = n};
        if (v->dtype != RF_F32 || rfi_refusal(comm, v, &shape))
            continue;
        uint64_t count = 1 + turn * 37 % n;
        fill(x, turn, rank, count);
        OK(rfi_launch(comm, 0, v, grids[turn % 5], x, x, count, RF_F32, NULL));
        check(x, turn, world, count, v->name);
    }
    free(x);
    group_close(comm);
}

static void test_grid_and_algorithm_change_between_calls(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, changes, (void *)group_name(), NULL));
}

/* ---- F22 ---- */

static void unprepared(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    rf_error err = {0};
    rf_cpu_stream *s = new_stream();
    const rf_shape shape = {RF_ALL_REDUCE, RF_F32, RF_GRAPH, 4, 256};
    RANK_CHECK(rf_prepare(comm, 0, &shape, 1, &err) == RF_OK, "%s", err.text);
    graph near = capture(comm, s, 1025, 1), far = capture(comm, s, 60000, 1);
    for (uint64_t turn = 0; turn < 3; turn++) {
        replay(comm, s, &near, 1, turn);
        replay(comm, s, &far, 1, turn);
    }
    drop(&near);
    drop(&far);
    rf_cpu_stream_destroy(s);
    group_close(comm);
}

static void test_an_unprepared_shape_during_capture(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, unprepared, (void *)group_name(), NULL));
}

/* ---- F23: one rank 200 us late, each in turn ---- */

static void late(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    rf_cpu_stream *s = new_stream();
    enum { CALLS = 9, MOST = 20000 };
    float *x = malloc(CALLS * MOST * sizeof *x);
    for (uint64_t turn = 0; turn < 40; turn++) {
        uint64_t n = 1 + turn * 997 % MOST;
        for (int c = 0; c < CALLS; c++)
            fill(x + c * MOST, turn + (uint64_t)c, rank, n);
        for (int c = 0; c < CALLS; c++) {
            if (c % world == rank)
                OK(rf_cpu_stream_delay(s, 200));
            OK(rf_all_reduce(comm, 0, x + c * MOST, x + c * MOST, n, RF_F32, s));
        }
        OK(rf_cpu_stream_synchronize(s));
        for (int c = 0; c < CALLS; c++)
            check(x + c * MOST, turn + (uint64_t)c, world, n, "late");
    }
    free(x);
    rf_cpu_stream_destroy(s);
    group_close(comm);
}

static void test_one_rank_late_in_turn(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, late, (void *)group_name(), NULL));
    RANKS_ASSERT(ranks_run_threads(4, late, (void *)group_name(), NULL));
}

/* The slots of the protocol: rank 2 arrives late, so that rank 1 waits for it, and then rank 1 is
 * slow to read what has arrived while rank 0 goes on to the next call. */
static int (*true_wait)(const rf_params *, uint32_t, rf_flag *, uint64_t, rf_step);

static int slow_wait(const rf_params *p, uint32_t peer, rf_flag *flag, uint64_t sequence,
                     rf_step step)
{
    int result = true_wait(p, peer, flag, sequence, step);
    if (p->rank == 1)
        usleep(5000);
    return result;
}

static void slow_bind(rfi_device *device, uint8_t transport, int channel, rf_params *params)
{
    static rf_cpu_host host; /* ranks are processes here */
    rfi_backend_cpu.bind(device, transport, channel, params);
    host = *params->host;
    true_wait = host.wait;
    host.wait = slow_wait;
    host.spin = 1;
    params->host = &host;
}

typedef struct slow {
    const char *name;
    const rf_variant *variant; /* NULL = the pack's */
} slow;

static void slow_reader(int rank, int world, void *arg)
{
    const slow *test = arg;
    rfi_backend backend = rfi_backend_cpu;
    backend.bind = slow_bind;
    rf_config config = group_config();
    rf_comm *comm = NULL;
    rf_error err = {0};
    RANK_CHECK(!group_try(&backend, test->name, &config, rank, world, &comm, &err), "%s", err.text);
    enum { COUNT = 20000 }; /* more than 64 KiB: no place in the slot but its start */
    float *x = malloc(COUNT * sizeof *x);
    const rf_variant *v = test->variant;
    if (!v)
        v = rfi_variant_by_name(comm, "ar_w3_f32_h0_os_cpu_flag_scalar_u1_ca");
    RANK_CHECK(v, "no such variant");
    for (uint64_t turn = 0; turn < 10; turn++) {
        fill(x, turn, rank, COUNT);
        if (rank == 2)
            usleep(2000);
        OK(rfi_launch(comm, 0, v, 256, x, x, COUNT, RF_F32, NULL));
        check(x, turn, world, COUNT, "slow reader");
    }
    free(x);
    group_close(comm);
}

static void test_a_slow_reader_finds_its_slots_untouched(void **state)
{
    (void)state;
    slow test = {group_name(), NULL};
    RANKS_ASSERT(ranks_run(3, slow_reader, &test, NULL));
}

static void test_one_slot_fewer_is_found(void **state)
{
    (void)state;
    slow test = {group_name(), &one_slot};
    const char *text = ranks_run(3, slow_reader, &test, NULL);
    assert_non_null(text);
    if (!strstr(text, "wrong data"))
        fail_msg("%s", text);
}

/* ---- F17 ---- */

static void two_streams(int rank, int world, void *arg)
{
    rf_config config = group_config();
    config.channels = 2;
    rf_comm *comm = group_create(arg, &config, rank, world);
    rf_cpu_stream *a = new_stream(), *b = new_stream();
    rf_error err = {0};
    float x[64];
    eager(comm, a, 64, 1);
    RANK_CHECK(rf_all_reduce(comm, 0, x, x, 64, RF_F32, b) == RF_E_STREAM, "taken");
    const char *text = rf_comm_error(comm)->text;
    rfi_stream_info ia, ib;
    char id[2][32];
    comm->backend->stream_info(comm->device, a, &ia);
    comm->backend->stream_info(comm->device, b, &ib);
    snprintf(id[0], sizeof id[0], "stream %d", (int)ia.id);
    snprintf(id[1], sizeof id[1], "stream %d", (int)ib.id);
    RANK_CHECK(strstr(text, id[0]) && strstr(text, id[1]), "not both streams: %s", text);
    RANK_CHECK(rf_all_reduce(comm, 0, x, x, 64, RF_F32, NULL) == RF_E_STREAM, "taken");
    eager(comm, a, 64, 2); /* the refusals have changed nothing */
    OK(rf_channel_rebind(comm, 0));
    eager(comm, b, 64, 3);

    int channel;
    RANK_CHECK(rf_channel_open(comm, "other", &channel, &err) == RF_OK, "%s", err.text);
    enum { COUNT = 3000 };
    float y[2][COUNT];
    for (uint64_t turn = 0; turn < 50; turn++) { /* both at once, in either order */
        fill(y[0], turn, rank, COUNT);
        fill(y[1], turn + 7, rank, COUNT);
        for (int k = 0; k < 2; k++) {
            int c = (k + rank) % 2;
            OK(rf_all_reduce(comm, c ? channel : 0, y[c], y[c], COUNT, RF_F32, c ? a : b));
        }
        OK(rf_cpu_stream_synchronize(a));
        OK(rf_cpu_stream_synchronize(b));
        check(y[0], turn, world, COUNT, "channel 0");
        check(y[1], turn + 7, world, COUNT, "the other channel");
    }
    rf_cpu_stream_destroy(a);
    rf_cpu_stream_destroy(b);
    group_close(comm);
}

static void test_a_channel_has_one_stream(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, two_streams, (void *)group_name(), NULL));
}

/* Replays are invisible to the host: two at once on one channel are caught by the busy mark. */
static void overlap(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    rf_cpu_stream *a = new_stream(), *b = new_stream();
    graph g = capture(comm, a, 100, 1);
    rf_result result[2] = {RF_OK, RF_OK};
    fill(g.in, 1, rank, 100);
    rank_barrier(); /* the poison reaches every rank: all have captured */
    if (rank == 0) {
        OK(rf_cpu_graph_launch(g.graph, a));
        const rf_region *own =
            (const rf_region *)(const void *)rfi_region(comm, RFI_TRANSPORT_CPU, 0, 0);
        while (!__atomic_load_n(&own->control.busy, __ATOMIC_ACQUIRE))
            usleep(100);
        OK(rf_cpu_graph_launch(g.graph, b));
        result[1] = rf_cpu_stream_synchronize(b);
        RANK_CHECK(result[1] == RF_E_STREAM, "the second: %d", (int)result[1]);
        result[0] = rf_cpu_stream_synchronize(a);
        RANK_CHECK(result[0] == RF_E_STREAM, "the first: %d", (int)result[0]);
    }
    rank_barrier();
    rf_health h;
    RANK_CHECK(rf_comm_check(comm, &h) == RF_OK && h.code == RF_E_STREAM && h.culprit == 0,
               "health %d, culprit %d", (int)h.code, h.culprit);
    OK(rf_comm_reset(comm, 20000, NULL));
    eager(comm, a, 100, 3);
    drop(&g);
    rf_cpu_stream_destroy(a);
    rf_cpu_stream_destroy(b);
    group_close(comm);
}

static void test_overlapping_replays_poison(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, overlap, (void *)group_name(), NULL));
}

/* ---- F24: graphs from before a reset, and from before the end ---- */

static void old_graphs(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    rf_cpu_stream *s = new_stream();
    graph g = capture(comm, s, 100, 1), later;
    replay(comm, s, &g, 1, 1);
    OK(rf_comm_reset(comm, 20000, NULL));
    OK(rf_cpu_graph_launch(g.graph, s));
    rf_result result = rf_cpu_stream_synchronize(s);
    rf_health h;
    /* whoever comes second finds the channel poisoned by the first */
    RANK_CHECK(result == RF_E_GENERATION || result == RF_E_POISONED, "after a reset: %d",
               (int)result);
    RANK_CHECK(rf_comm_check(comm, &h) == RF_OK && h.code == RF_E_GENERATION, "health: %d",
               (int)h.code);
    rank_barrier();
    OK(rf_comm_reset(comm, 20000, NULL));
    later = capture(comm, s, 100, 1);
    replay(comm, s, &later, 1, 2);
    group_close(comm); /* and destroyed */
    RANK_CHECK(rf_cpu_graph_launch(later.graph, s) == RF_OK, "launch");
    result = rf_cpu_stream_synchronize(s);
    RANK_CHECK(result == RF_E_CLOSED, "after the end: %d", (int)result);
    drop(&g);
    drop(&later);
    rf_cpu_stream_destroy(s);
}

static void test_an_old_graph_is_an_error(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, old_graphs, (void *)group_name(), NULL));
}

/* ---- misuse ---- */

static void test_misuse_of_a_capture(void **state)
{
    (void)state;
    rf_cpu_stream *s;
    rf_cpu_graph *g = NULL;
    assert_int_equal(rf_cpu_stream_create(&s, NULL), RF_OK);
    assert_int_equal(rf_cpu_capture_end(s, &g), RF_E_CAPTURE);
    assert_null(g);
    assert_int_equal(rf_cpu_capture_begin(s), RF_OK);
    assert_int_equal(rf_cpu_capture_begin(s), RF_E_CAPTURE);
    assert_int_equal(rf_cpu_stream_synchronize(s), RF_E_CAPTURE);
    assert_int_equal(rf_cpu_capture_end(s, &g), RF_OK);
    assert_int_equal(rf_cpu_graph_launch(g, s), RF_OK); /* empty */
    assert_int_equal(rf_cpu_capture_begin(s), RF_OK);
    assert_int_equal(rf_cpu_graph_launch(g, s), RF_E_CAPTURE);
    rf_cpu_stream_destroy(s); /* with its capture open */
    rf_cpu_graph_destroy(g);
}

static rf_result wait_for_itself(void *stream)
{
    return rf_cpu_stream_synchronize(stream);
}

static void test_a_function_that_waits_for_its_own_stream(void **state)
{
    (void)state;
    rf_cpu_stream *s;
    assert_int_equal(rf_cpu_stream_create(&s, NULL), RF_OK);
    assert_int_equal(rf_cpu_stream_call(s, wait_for_itself, s), RF_OK);
    assert_int_equal(rf_cpu_stream_synchronize(s), RF_E_STREAM);
    assert_int_equal(rf_cpu_stream_synchronize(s), RF_OK);
    rf_cpu_stream_destroy(s);
}

static void ignore(int signal)
{
    (void)signal;
}

static rf_result take_signals(void *here)
{
    *(pthread_t *)here = pthread_self();
    return RF_OK;
}

static void interrupted(int rank, int world, void *arg)
{
    (void)rank, (void)world, (void)arg;
    rf_cpu_stream *s = new_stream();
    pthread_t thread;
    uint64_t begin = rfi_now_ns();
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = ignore}, NULL);
    rf_cpu_stream_call(s, take_signals, &thread);
    RANK_CHECK(rf_cpu_stream_synchronize(s) == RF_OK, "no thread");
    rf_cpu_stream_delay(s, 100000);
    for (int i = 0; i < 20; i++) {
        pthread_kill(thread, SIGUSR1);
        usleep(1000);
    }
    RANK_CHECK(rf_cpu_stream_synchronize(s) == RF_OK, "no pause");
    RANK_CHECK(rfi_now_ns() - begin >= 100000000u, "a pause was cut short");
    rf_cpu_stream_destroy(s);
}

static void test_signals_do_not_shorten_a_pause(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(1, interrupted, NULL, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_odd_graphs_replayed_between_eager_calls),
        cmocka_unit_test(test_replays_by_threads),
        cmocka_unit_test(test_grid_and_algorithm_change_between_calls),
        cmocka_unit_test(test_an_unprepared_shape_during_capture),
        cmocka_unit_test(test_one_rank_late_in_turn),
        cmocka_unit_test(test_a_slow_reader_finds_its_slots_untouched),
        cmocka_unit_test(test_one_slot_fewer_is_found),
        cmocka_unit_test(test_a_channel_has_one_stream),
        cmocka_unit_test(test_overlapping_replays_poison),
        cmocka_unit_test(test_an_old_graph_is_an_error),
        cmocka_unit_test(test_misuse_of_a_capture),
        cmocka_unit_test(test_a_function_that_waits_for_its_own_stream),
        cmocka_unit_test(test_signals_do_not_shorten_a_pause),
    };
    return cmocka_run_group_tests_name("streams", tests, NULL, NULL);
}
