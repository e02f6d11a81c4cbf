/* The public interface on GPUs, as processes and as threads. Run by hand where there are GPUs:
 *
 *     generated/host/test/test_gpu [-w WORLD] [-n REPLAYS] [-t] [name ...]
 *
 * WORLD defaults to 2; more ranks than GPUs share them: then MPS has to run, but not for `killed`,
 * since it ends with any of its clients. -n: of `relay` (default 100000, where GPUs are shared
 * 2000) and `mixed` (a tenth of that). -t: ranks are threads. With NCCL_P2P_DISABLE=1 in the
 * environment all go through host memory.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/codes.h"
#include "gpu/gpu.h"

#define CAPACITY (4u << 20)

static const rf_dtype dtypes[] = {RF_F32, RF_BF16, RF_F16};
static const uint64_t counts[] = {1, 2, 7, 8, 9, 31, 64, 1000, 4096, 4099, 65541, 300001, 1000003};
#define N(array) (sizeof(array) / sizeof *(array))

static void call(gpu *g, rf_comm *comm, int in_place, rf_dtype dtype, uint64_t count,
                 uint64_t offset)
{
    size_t size = rf_dtype_size(dtype);
    CUdeviceptr out = g->out + offset * size, in = in_place ? out : g->in + offset * size;
    rf_result result = rf_all_reduce(comm, 0, (void *)(uintptr_t)in, (void *)(uintptr_t)out, count,
                                     dtype, g->stream);
    RANK_CHECK(result == RF_OK, "%s", rf_comm_error(comm)->text);
}

static rf_result launch(gpu *g, rf_comm *comm, const rf_variant *v, uint32_t grid, uint64_t count,
                        uint64_t offset, int in_place)
{
    CUdeviceptr at = offset * rf_dtype_size((rf_dtype)v->dtype);
    void *out = (void *)(uintptr_t)(g->out + at), *in = (void *)(uintptr_t)(g->in + at);
    return rfi_launch(comm, 0, v, grid, in_place ? out : in, out, count, (rf_dtype)v->dtype,
                      g->stream);
}

/* The channel changes hands on the way into and out of a capture. */
static void capture_begin(gpu *g, rf_comm *comm)
{
    rf_channel_rebind(comm, 0);
    DRIVER(g, cuStreamBeginCapture(g->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
}

static CUgraphExec capture_end(gpu *g, rf_comm *comm)
{
    CUgraph graph;
    CUgraphExec exec;
    DRIVER(g, cuStreamEndCapture(g->stream, &graph));
    DRIVER(g, cuGraphInstantiateWithFlags(&exec, graph, 0));
    DRIVER(g, cuGraphDestroy(graph));
    rf_channel_rebind(comm, 0);
    return exec;
}

/* ---- what the plans give, eager and replayed ---- */

static void sums(int rank, int world, void *arg)
{
    (void)arg;
    gpu g;
    gpu_open(&g, rank, world, CAPACITY);
    rf_config config = gpu_config(&g, CAPACITY);
    rf_comm *comm = gpu_comm(&g, "sums", &config);
    rf_error err = {0};
    uint64_t seed = 1;
    for (size_t d = 0; d < N(dtypes); d++) {
        if (!rf_supports(comm, &(rf_shape){.dtype = dtypes[d], .rows = 1, .hidden = 8}))
            continue;
        for (size_t c = 0; c < N(counts); c++) {
            rf_shape shape = {.dtype = dtypes[d], .mode = RF_GRAPH, .rows = 1, .hidden = counts[c]};
            if (c % 2)
                RANK_CHECK(rf_prepare(comm, 0, &shape, 1, &err) == RF_OK, "%s", err.text);
            for (int in_place = 0; in_place < 2; in_place++)
                for (uint64_t offset = 0; offset < 4; offset += 3) {
                    gpu_fill(&g, dtypes[d], counts[c], offset, seed++);
                    if (in_place)
                        gpu_in_place(&g, dtypes[d], counts[c], offset);
                    call(&g, comm, in_place, dtypes[d], counts[c], offset);
                    gpu_wait(&g, comm);
                    gpu_check(&g, dtypes[d], counts[c], offset, in_place ? "in place" : "eager");
                }
        }
    }
    RANK_CHECK(rf_comm_close(comm, 10000, &err) == RF_OK, "%s", err.text);
    rf_comm_destroy(comm);
    gpu_close(&g);
}

/* ---- every variant of the pack, with several grids, out of place and in place ---- */

static void variants(int rank, int world, void *arg)
{
    (void)arg;
    gpu g;
    gpu_open(&g, rank, world, CAPACITY);
    rf_config config = gpu_config(&g, CAPACITY);
    config.flags |= RF_DEPENDENT | RF_REASSOC;
    rf_comm *comm = gpu_comm(&g, "variants", &config);
    rf_error err = {0};
    uint64_t seed = 1, done = 0;
    for (size_t i = 0; i < rfi_variant_count(comm); i++) {
        const rf_variant *v = rfi_variant_at(comm, i);
        for (size_t c = i % 3; c < N(counts); c += 3) {
            rf_shape shape = {.dtype = (rf_dtype)v->dtype, .rows = 1, .hidden = counts[c]};
            if (rfi_refusal(comm, v, &shape))
                continue;
            uint64_t bytes = counts[c] * rf_dtype_size(shape.dtype);
            uint32_t grids[] = {1, 3, rfi_usual_grid(comm, v, bytes)};
            uint32_t grid =
                grids[(i + c) % 3] < comm->max_grid ? grids[(i + c) % 3] : comm->max_grid;
            uint64_t offset = (i + c) % 2;
            gpu_fill(&g, shape.dtype, counts[c], offset, seed++);
            gpu_expect(&g, shape.dtype, counts[c], rfi_sum_order(comm, v));
            int in_place = (i + c) / 3 % 2;
            if (in_place)
                gpu_in_place(&g, shape.dtype, counts[c], offset);
            rf_result result = launch(&g, comm, v, grid, counts[c], offset, in_place);
            RANK_CHECK(result == RF_OK, "%s: %s", v->name, rf_comm_error(comm)->text);
            gpu_wait(&g, comm);
            gpu_check(&g, shape.dtype, counts[c], offset, v->name);
            done++;
        }
    }
    if (rank == 0)
        printf("  %zu variants, %llu calls\n", rfi_variant_count(comm), (unsigned long long)done);
    RANK_CHECK(rf_comm_close(comm, 10000, &err) == RF_OK, "%s", err.text);
    rf_comm_destroy(comm);
    gpu_close(&g);
}

/* ---- which memory the ranks meet in ---- */

static int is_on(const rf_comm *comm, int transport)
{
    return comm->transport[transport].on;
}

/* As it is, by the config's flag, and by the environment of the last rank alone (of all, where
 * ranks are threads). */
static void transports(int rank, int world, void *arg)
{
    (void)arg;
    static const char *const reasons[] = {NULL, "RF_NO_PEER", "NCCL_P2P_DISABLE"};
    gpu g;
    gpu_open(&g, rank, world, CAPACITY);
    int forced = getenv("NCCL_P2P_DISABLE") != NULL;
    for (int i = 0; i < (int)N(reasons); i++) {
        rf_config config = gpu_config(&g, CAPACITY);
        rf_error err = {0};
        char name[32], status[32768];
        snprintf(name, sizeof name, "transports%d", i);
        config.flags |= i == 1 ? RF_NO_PEER : 0;
        rank_barrier();
        if (i == 2 && rank == world - 1)
            setenv("NCCL_P2P_DISABLE", "1", 1);
        rank_barrier();
        rf_comm *comm = gpu_comm(&g, name, &config);
        RANK_CHECK(is_on(comm, RFI_TRANSPORT_HOST), "%s",
                   comm->transport[RFI_TRANSPORT_HOST].why.text);
        rf_status_json(comm, status, sizeof status);
        RANK_CHECK(is_on(comm, RFI_TRANSPORT_PEER) == (!reasons[i] && !forced), "%s", status);
        RANK_CHECK(!reasons[i] || strstr(status, reasons[i]), "%s", status);
        RANK_CHECK(!reasons[i] || strstr(comm->env.text, "\ntransports=host\n"), "%s",
                   comm->env.text);
        if (rank == 0)
            printf("  %s\n",
                   reasons[i] ? comm->transport[RFI_TRANSPORT_PEER].why.text : comm->hw.text);
        gpu_fill(&g, RF_BF16, 4099, 0, (uint64_t)i);
        call(&g, comm, 0, RF_BF16, 4099, 0);
        gpu_wait(&g, comm);
        gpu_check(&g, RF_BF16, 4099, 0, "over host memory");
        RANK_CHECK(rf_comm_close(comm, 10000, &err) == RF_OK, "%s", err.text);
        rf_comm_destroy(comm);
    }
    if (!forced)
        unsetenv("NCCL_P2P_DISABLE");
    gpu_close(&g);
}

/* ---- graphs of an odd number of calls, replayed, with eager calls between ---- */

#define CALLS   7
#define REPLAYS 300

static void replays(int rank, int world, void *arg)
{
    (void)arg;
    gpu g;
    gpu_open(&g, rank, world, CAPACITY);
    rf_config config = gpu_config(&g, CAPACITY);
    rf_comm *comm = gpu_comm(&g, "replays", &config);
    rf_error err = {0};
    for (size_t c = 6; c < N(counts); c++) {
        rf_shape shape = {.dtype = RF_BF16, .mode = RF_GRAPH, .rows = 1, .hidden = counts[c]};
        RANK_CHECK(rf_prepare(comm, 0, &shape, 1, &err) == RF_OK, "%s", err.text);
        gpu_fill(&g, RF_BF16, counts[c], 0, c);
        capture_begin(&g, comm);
        for (int i = 0; i < CALLS; i++)
            call(&g, comm, 0, RF_BF16, counts[c], 0);
        CUgraphExec exec = capture_end(&g, comm);
        for (int i = 0; i < REPLAYS; i++) {
            DRIVER(&g, cuGraphLaunch(exec, g.stream));
            if (i % 3 == 1)
                call(&g, comm, 0, RF_BF16, counts[c], 0);
        }
        gpu_wait(&g, comm);
        gpu_check(&g, RF_BF16, counts[c], 0, "replayed");
        DRIVER(&g, cuGraphExecDestroy(exec));
    }
    RANK_CHECK(rf_comm_close(comm, 10000, &err) == RF_OK, "%s", err.text);
    rf_comm_destroy(comm);
    gpu_close(&g);
}

/* States that every call hands over: the carrier gives its copy, the others zeros, so that all hold
 * the state again, bit for bit, and a wrong word on the next carrier stays for good. Three states
 * of three sizes against two slots: what an earlier call left in a slot is always something else.
 */
#define STATES  3
#define LEGS    21
#define MOST_US 200
static int relay_replays; /* 0: the default */

static uint32_t next_random(uint32_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 17;
    return *x ^= *x << 5;
}

static void spin(void *us)
{
    double until = gpu_seconds() + (double)(uintptr_t)us * 1e-6;
    while (gpu_seconds() < until)
        ;
}

/* What serves the call: the plan, or any variant that can, with any grid, over any transport. */
static const rf_variant *pick(const rf_comm *comm, uint64_t count, uint32_t dice)
{
    rf_shape shape = {.dtype = RF_BF16, .rows = 1, .hidden = count};
    size_t n = rfi_variant_count(comm);
    for (size_t i = 0; i < n; i++) {
        const rf_variant *v = rfi_variant_at(comm, (dice + i) % n);
        if (!rfi_refusal(comm, v, &shape))
            return v;
    }
    return NULL;
}

static void hand_over(gpu *g, rf_comm *comm, CUdeviceptr state, uint64_t count, uint32_t carrier,
                      int mixed)
{
    CUdeviceptr from =
        carrier % (uint32_t)g->world == (uint32_t)g->rank ? state : g->in; /* zeros */
    void *in = (void *)(uintptr_t)from, *out = (void *)(uintptr_t)state;
    rf_result result = mixed
                           ? rfi_launch(comm, 0, pick(comm, count, carrier >> 8),
                                        1 + (carrier >> 4) % 12, in, out, count, RF_BF16, g->stream)
                           : rf_all_reduce(comm, 0, in, out, count, RF_BF16, g->stream);
    RANK_CHECK(result == RF_OK, "%s", rf_comm_error(comm)->text);
}

static void hand_around(int rank, int world, int mixed)
{
    enum { EACH = 100 }; /* replays between two waits */
    static const uint64_t sizes[STATES] = {1000, 65541, 4099};
    int usual = world > gpu_count() ? 2000 : 100000;
    int replayed = (relay_replays ? relay_replays : usual) / (mixed ? 10 : 1);
    gpu g;
    gpu_open(&g, rank, world, CAPACITY);
    rf_config config = gpu_config(&g, CAPACITY);
    config.flags |= RF_REASSOC; /* one rank's numbers are the sum in any order */
    rf_comm *comm = gpu_comm(&g, mixed ? "mixed" : "relay", &config);
    rf_error err = {0};
    for (size_t i = 0; mixed && i < rfi_variant_count(comm); i++)
        RANK_CHECK(!comm->transport[rfi_variant_at(comm, i)->transport].on ||
                       !rfi_variant_ready(comm, rfi_variant_at(comm, i), &err),
                   "%s", err.text);
    uint32_t random = 12345, eager = 0, late = 0;
    CUdeviceptr state[STATES];
    uint16_t *word = (uint16_t *)(void *)g.expected, *found = (uint16_t *)(void *)g.found;
    DRIVER(&g, cuMemsetD8Async(g.in, 0, g.bytes, g.stream));
    for (int s = 0, at = 0; s < STATES; at += (int)sizes[s++] * 2 + 64) {
        rf_shape shape = {.dtype = RF_BF16, .mode = RF_GRAPH, .rows = 1, .hidden = sizes[s]};
        RANK_CHECK(rf_prepare(comm, 0, &shape, 1, &err) == RF_OK, "%s", err.text);
        state[s] = g.out + (CUdeviceptr)at;
        for (uint64_t i = 0; i < sizes[s]; i++) /* finite, not 0 */
            word[at / 2 + (int)i] = (uint16_t)(0x3f80 ^ (next_random(&random) & 0x807f));
        DRIVER(&g, cuMemcpyHtoDAsync(state[s], word + at / 2, sizes[s] * 2, g.stream));
    }
    DRIVER(&g, cuStreamSynchronize(g.stream));
    capture_begin(&g, comm);
    for (int i = 0; i < LEGS; i++)
        hand_over(&g, comm, state[i % STATES], sizes[i % STATES], next_random(&random), mixed);
    CUgraphExec exec = capture_end(&g, comm);
    for (int i = 0; i < replayed; i++) {
        uint32_t dice = next_random(&random); /* alike on all ranks */
        void *us = (void *)(uintptr_t)((dice >> 16) % (MOST_US + 1));
        if (dice % 8 == 0 && (int)(dice >> 8 & 0xff) % world == rank)
            DRIVER(&g, cuLaunchHostFunc(g.stream, spin, us));
        late += dice % 8 == 0;
        DRIVER(&g, cuGraphLaunch(exec, g.stream));
        if (dice >> 4 & 1) {
            eager++;
            int which = (dice >> 5 & 7) % STATES;
            hand_over(&g, comm, state[which], sizes[which], dice >> 9, mixed);
        }
        if (i % EACH == EACH - 1)
            gpu_wait(&g, comm);
    }
    gpu_wait(&g, comm);
    DRIVER(&g, cuMemcpyDtoHAsync(found, g.out, (state[STATES - 1] - g.out) + sizes[STATES - 1] * 2,
                                 g.stream));
    DRIVER(&g, cuStreamSynchronize(g.stream));
    for (int s = 0; s < STATES; s++)
        for (uint64_t i = (state[s] - g.out) / 2, end = i + sizes[s]; i < end; i++)
            RANK_CHECK(found[i] == word[i], "state %d, word %llu: %04x, expected %04x", s,
                       (unsigned long long)i, found[i], word[i]);
    rf_plan_info info;
    rf_plan_query(comm, 0, sizes[0], RF_BF16, RF_GRAPH, &info);
    if (rank == 0)
        printf("  %d replays of %d calls, %u eager calls, %u ranks late by up to %d us; %s\n",
               replayed, LEGS, eager, late, MOST_US, mixed ? "any variant" : info.variant);
    DRIVER(&g, cuGraphExecDestroy(exec));
    RANK_CHECK(rf_comm_close(comm, 10000, &err) == RF_OK, "%s", err.text);
    rf_comm_destroy(comm);
    gpu_close(&g);
}

static void relay(int rank, int world, void *arg)
{
    (void)arg;
    hand_around(rank, world, 0);
}

/* Every call by another variant with another grid: neither families nor transports of one channel
 * disturb each other. */
static void mixed(int rank, int world, void *arg)
{
    (void)arg;
    hand_around(rank, world, 1);
}

/* ---- tags that come round ---- */

/* A large call, so many small ones that the next large one has its tag, and a rank late for that
 * one: what it left in its vectors the first time must not be taken for its new tensor. */
static void tags(int rank, int world, void *arg)
{
    (void)arg;
    enum { LARGE_BYTES = 1000004, SMALL = 64, NODES = 257, LAPS = 255 };
    _Static_assert(NODES * LAPS + 1 == 1 << 16, "from one large call to the next");
    gpu g;
    gpu_open(&g, rank, world, CAPACITY);
    rf_config config = gpu_config(&g, CAPACITY);
    rf_comm *comm = gpu_comm(&g, "tags", &config);
    rf_error err = {0};
    for (size_t i = 0; i < rfi_variant_count(comm); i++) {
        const rf_variant *v = rfi_variant_at(comm, i);
        rf_dtype dtype = (rf_dtype)v->dtype;
        uint64_t large = LARGE_BYTES / rf_dtype_size(dtype);
        rf_shape shape = {.dtype = dtype, .rows = 1, .hidden = large};
        if (v->wire != RFI_WIRE_TAG || v->by_rank || rfi_refusal(comm, v, &shape))
            continue;
        RANK_CHECK(!rfi_variant_ready(comm, v, &err), "%s", err.text);
        capture_begin(&g, comm);
        for (int c = 0; c < NODES; c++)
            RANK_CHECK(launch(&g, comm, v, 1, SMALL, 0, 0) == RF_OK, "%s",
                       rf_comm_error(comm)->text);
        CUgraphExec exec = capture_end(&g, comm);
        for (uint64_t seed = 1; seed <= 2; seed++) {
            gpu_fill(&g, dtype, large, 0, seed);
            rank_barrier();
            if (seed == 2 && rank == 0)
                DRIVER(&g, cuLaunchHostFunc(g.stream, spin, (void *)(uintptr_t)5000));
            RANK_CHECK(launch(&g, comm, v, 16, large, 0, 0) == RF_OK, "%s",
                       rf_comm_error(comm)->text);
            gpu_check(&g, dtype, large, 0, v->name);
            for (int r = 0; r < LAPS && seed == 1; r++)
                DRIVER(&g, cuGraphLaunch(exec, g.stream));
            gpu_wait(&g, comm);
        }
        DRIVER(&g, cuGraphExecDestroy(exec));
        if (rank == 0)
            printf("  %s\n", v->name);
    }
    RANK_CHECK(rf_comm_close(comm, 10000, &err) == RF_OK, "%s", err.text);
    rf_comm_destroy(comm);
    gpu_close(&g);
}

/* ---- tensors that are not the device's ---- */

static void refuse_tensor(gpu *g, rf_comm *comm, const void *in, void *out, const char *text)
{
    rf_result result = rf_all_reduce(comm, 0, in, out, 1000, RF_BF16, g->stream);
    RANK_CHECK(result == RF_E_ARG && strstr(rf_comm_error(comm)->text, text), "%s: %s",
               rf_strerror(result), rf_comm_error(comm)->text);
}

static void tensors(int rank, int world, void *arg)
{
    (void)arg;
    gpu g;
    gpu_open(&g, rank, world, CAPACITY);
    rf_config config = gpu_config(&g, CAPACITY);
    rf_comm *comm = gpu_comm(&g, "tensors", &config);
    rf_error err = {0};
    void *in = (void *)(uintptr_t)g.in, *out = (void *)(uintptr_t)g.out;
    refuse_tensor(&g, comm, g.inputs[0], out, "in is memory of the host");
    refuse_tensor(&g, comm, in, g.expected, "out is memory of the host");
    if (gpu_count() > 1) {
        CUdevice device = (g.ordinal + 1) % gpu_count();
        CUcontext context;
        CUdeviceptr at;
        char text[64];
        DRIVER(&g, cuDevicePrimaryCtxRetain(&context, device));
        DRIVER(&g, cuCtxPushCurrent(context));
        DRIVER(&g, cuMemAlloc(&at, CAPACITY));
        DRIVER(&g, cuCtxPopCurrent(&context));
        snprintf(text, sizeof text, "out is memory of GPU %d, expected is memory of GPU %d", device,
                 g.ordinal);
        refuse_tensor(&g, comm, in, (void *)(uintptr_t)at, text);
        if (rank == 0)
            printf("  %s\n", rf_comm_error(comm)->text);
    }
    gpu_fill(&g, RF_BF16, 1000, 0, 1);
    call(&g, comm, 0, RF_BF16, 1000, 0);
    gpu_wait(&g, comm);
    gpu_check(&g, RF_BF16, 1000, 0, "after the refusals");
    RANK_CHECK(rf_comm_close(comm, 10000, &err) == RF_OK, "%s", err.text);
    rf_comm_destroy(comm);
    gpu_close(&g);
}

/* ---- captures that go wrong ---- */

static void captures(int rank, int world, void *arg)
{
    (void)arg;
    gpu g;
    gpu_open(&g, rank, world, CAPACITY);
    rf_config config = gpu_config(&g, CAPACITY);
    rf_comm *comm = gpu_comm(&g, "captures", &config);
    rf_error err = {0};
    void *in = (void *)(uintptr_t)g.in, *out = (void *)(uintptr_t)g.out;
    CUgraph graph = NULL;
    call(&g, comm, 0, RF_BF16, 1000, 0);

    /* without a rebind: refused, and the capture stays whole */
    DRIVER(&g, cuStreamBeginCapture(g.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    rf_result result = rf_all_reduce(comm, 0, in, out, 1000, RF_BF16, g.stream);
    RANK_CHECK(result == RF_E_STREAM && strstr(rf_comm_error(comm)->text, "capturing"), "%s: %s",
               rf_strerror(result), rf_comm_error(comm)->text);
    DRIVER(&g, cuStreamEndCapture(g.stream, &graph));
    DRIVER(&g, cuGraphDestroy(graph));

    /* in every mode, without a call before; another stream of the same capture mode is refused */
    CUstream other;
    DRIVER(&g, cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    for (int mode = 0; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++) {
        rf_channel_rebind(comm, 0);
        DRIVER(&g, cuStreamBeginCapture(g.stream, mode));
        call(&g, comm, 0, RF_BF16, 1000, 0);
        result = rf_all_reduce(comm, 0, in, out, 1000, RF_BF16, other);
        RANK_CHECK(result == RF_E_STREAM, "mode %d: %s", mode, rf_strerror(result));
        call(&g, comm, 0, RF_BF16, 1000, 0);
        DRIVER(&g, cuStreamEndCapture(g.stream, &graph));
        DRIVER(&g, cuGraphDestroy(graph));
    }

    /* one that something else has broken: the driver's error is named */
    rf_channel_rebind(comm, 0);
    DRIVER(&g, cuStreamBeginCapture(g.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUresult query = g.driver->cuStreamQuery(g.stream);
    result = rf_all_reduce(comm, 0, in, out, 1000, RF_BF16, g.stream);
    RANK_CHECK(result == RF_E_BACKEND && strstr(rf_comm_error(comm)->text, "cuLaunchKernelEx") &&
                   strstr(rf_comm_error(comm)->text, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"),
               "after a query that gives %d: %s: %s", query, rf_strerror(result),
               rf_comm_error(comm)->text);
    g.driver->cuStreamEndCapture(g.stream, &graph);

    rf_channel_rebind(comm, 0);
    gpu_fill(&g, RF_BF16, 1000, 0, 1);
    call(&g, comm, 0, RF_BF16, 1000, 0);
    gpu_wait(&g, comm);
    gpu_check(&g, RF_BF16, 1000, 0, "after the captures");
    DRIVER(&g, cuStreamDestroy(other));
    RANK_CHECK(rf_comm_close(comm, 10000, &err) == RF_OK, "%s", err.text);
    rf_comm_destroy(comm);
    gpu_close(&g);
}

/* ---- bad luck ---- */

static rf_health wait_ill(const rf_comm *comm, double seconds)
{
    rf_health health = {0};
    double until = gpu_seconds() + seconds;
    while (health.code == RF_OK && gpu_seconds() < until)
        rf_comm_check(comm, &health);
    return health;
}

static void faults(int rank, int world, void *arg)
{
    (void)arg;
    gpu g;
    gpu_open(&g, rank, world, CAPACITY);
    rf_config config = gpu_config(&g, CAPACITY);
    config.deadline_ms = 100;
    rf_comm *comm = gpu_comm(&g, "faults", &config);
    rf_error err = {0};
    rf_health health;

    /* the last rank stays away */
    gpu_fill(&g, RF_BF16, 4096, 0, 1);
    rank_barrier();
    double start = gpu_seconds();
    if (rank != world - 1) {
        call(&g, comm, 0, RF_BF16, 4096, 0);
        health = wait_ill(comm, 5);
        RANK_CHECK(health.code == RF_E_TIMEOUT && health.culprit == world - 1, "%s, culprit %d",
                   rf_strerror(health.code), health.culprit);
        DRIVER(&g, cuStreamSynchronize(g.stream));
        if (rank == 0)
            printf("  deadline of 100 ms: idle after %.0f ms\n", (gpu_seconds() - start) * 1e3);
        rf_result result = rf_all_reduce(comm, 0, (void *)(uintptr_t)g.in, (void *)(uintptr_t)g.out,
                                         4096, RF_BF16, g.stream);
        RANK_CHECK(result == RF_E_TIMEOUT || result == RF_E_POISONED, "%s", rf_strerror(result));
    }
    rank_barrier();
    RANK_CHECK(rf_comm_reset(comm, 5000, &err) == RF_OK, "%s", err.text);
    gpu_fill(&g, RF_BF16, 4096, 0, 2);
    call(&g, comm, 0, RF_BF16, 4096, 0);
    gpu_wait(&g, comm);
    gpu_check(&g, RF_BF16, 4096, 0, "after the reset");

    /* abort frees a kernel that waits */
    rank_barrier();
    if (rank == 0) {
        call(&g, comm, 0, RF_BF16, 4096, 0);
        rf_comm_abort(comm);
        DRIVER(&g, cuStreamSynchronize(g.stream));
    } else {
        usleep(50000);
        rf_result result = rf_all_reduce(comm, 0, (void *)(uintptr_t)g.in, (void *)(uintptr_t)g.out,
                                         4096, RF_BF16, g.stream);
        DRIVER(&g, cuStreamSynchronize(g.stream));
        (void)result;
    }
    health = wait_ill(comm, 1);
    RANK_CHECK(health.code == RF_E_ABORTED && health.culprit == 0, "%s, culprit %d",
               rf_strerror(health.code), health.culprit);
    rank_barrier();
    RANK_CHECK(rf_comm_reset(comm, 5000, &err) == RF_OK, "%s", err.text);
    gpu_fill(&g, RF_BF16, 1000, 0, 3);
    call(&g, comm, 0, RF_BF16, 1000, 0);
    gpu_wait(&g, comm);
    gpu_check(&g, RF_BF16, 1000, 0, "after the second reset");

    /* a graph from before a reset is refused */
    capture_begin(&g, comm);
    call(&g, comm, 0, RF_BF16, 1000, 0);
    CUgraphExec exec = capture_end(&g, comm);
    RANK_CHECK(rf_comm_reset(comm, 5000, &err) == RF_OK, "%s", err.text);
    rank_barrier();
    DRIVER(&g, cuGraphLaunch(exec, g.stream));
    DRIVER(&g, cuStreamSynchronize(g.stream));
    health = wait_ill(comm, 1);
    RANK_CHECK(health.code == RF_E_GENERATION, "%s", rf_strerror(health.code));
    rank_barrier();

    /* destroyed without close, with a kernel that still waits on rank 0 */
    RANK_CHECK(rf_comm_reset(comm, 5000, &err) == RF_OK, "%s", err.text);
    rank_barrier();
    if (rank == 0)
        call(&g, comm, 0, RF_BF16, 1000, 0);
    rank_barrier(); /* who comes after another's end is told of it instead */
    start = gpu_seconds();
    rf_comm_destroy(comm);
    double took = gpu_seconds() - start;
    RANK_CHECK(took < 1, "destroy took %.0f ms", took * 1e3);
    DRIVER(&g, cuStreamSynchronize(g.stream));
    rank_barrier();
}

static double *killed_at; /* shared by the ranks, as all clocks are */

/* The last rank dies amid replays; the others are told of it, and go on as a smaller world. Where
 * they share GPUs without MPS every round trip takes milliseconds, so there are few. */
static void killed(int rank, int world, void *arg)
{
    (void)arg;
    const int last = world > gpu_count() ? 40 : 3000; /* replays of the rank that dies */
    gpu g;
    gpu_open(&g, rank, world, CAPACITY);
    rf_config config = gpu_config(&g, CAPACITY);
    config.deadline_ms = 300;
    rf_comm *comm = gpu_comm(&g, "killed", &config);
    rf_error err = {0};
    gpu_fill(&g, RF_BF16, 4096, 0, 1);
    capture_begin(&g, comm);
    for (int i = 0; i < CALLS; i++)
        call(&g, comm, 0, RF_BF16, 4096, 0);
    CUgraphExec exec = capture_end(&g, comm);
    rank_barrier();
    rf_health health = {0};
    for (int i = 0; i < 100000 && health.code == RF_OK; i++) {
        if (rank == world - 1 && i == last) {
            *killed_at = gpu_seconds();
            raise(SIGKILL);
        }
        DRIVER(&g, cuGraphLaunch(exec, g.stream));
        if (i == last / 2) /* so many are over, whatever the queue holds */
            DRIVER(&g, cuStreamSynchronize(g.stream));
        rf_comm_check(comm, &health);
    }
    health = wait_ill(comm, 5);
    double told = gpu_seconds() - *killed_at;
    double until = gpu_seconds() + 5; /* its end takes the system a while */
    while (health.code == RF_E_TIMEOUT && gpu_seconds() < until)
        rf_comm_check(comm, &health);
    RANK_CHECK(health.code == RF_E_PEER, "%s", rf_strerror(health.code));
    RANK_CHECK(health.culprit == world - 1, "culprit %d", health.culprit);
    double named = gpu_seconds() - *killed_at;
    DRIVER(&g, cuStreamSynchronize(g.stream));
    printf(
        "  rank %d: ill %.0f ms after the kill (deadline %u ms), rank %d named after %.0f ms, idle "
        "after %.0f ms\n",
        rank, told * 1e3, config.deadline_ms, health.culprit, named * 1e3,
        (gpu_seconds() - *killed_at) * 1e3);
    RANK_CHECK(rf_comm_close(comm, 2000, &err) != RF_OK, "closed with a dead rank");
    rf_comm_destroy(comm);
    /* the survivors go on without it */
    g.world = world - 1;
    rf_comm *rest = gpu_comm(&g, "survivors", &config);
    gpu_fill(&g, RF_BF16, 4096, 0, 2);
    call(&g, rest, 0, RF_BF16, 4096, 0);
    gpu_wait(&g, rest);
    gpu_check(&g, RF_BF16, 4096, 0, "survivors");
    if (rank == 0)
        printf("  %d of %d went on\n", g.world, world);
    RANK_CHECK(rf_comm_close(rest, 2000, &err) == RF_OK, "%s", err.text);
    rf_comm_destroy(rest);
}

static void refusals(int rank, int world, void *arg)
{
    (void)arg;
    gpu g;
    gpu_open(&g, rank, world, CAPACITY);
    rf_bootstrap boot;
    rf_error err = {0};
    rf_comm *comm = NULL;
    rf_config config = gpu_config(&g, CAPACITY);
    config.flags = 0;
    config.device = 0; /* all on one */
    char name[64];
    snprintf(name, sizeof name, "gpu-refusals-%d", gpu_session);
    rf_bootstrap_socket(name, rank, world, &boot, &err);
    rf_result result = rf_comm_create(&config, &boot, &comm, &err);
    rf_bootstrap_free(&boot);
    RANK_CHECK(result == RF_E_MISMATCH && strstr(err.text, "same device"), "%s: %s",
               rf_strerror(result), err.text);
    config.device = rank == 0 ? 99 : 0;
    snprintf(name, sizeof name, "gpu-refusals2-%d", gpu_session);
    rf_bootstrap_socket(name, rank, world, &boot, &err);
    result = rf_comm_create(&config, &boot, &comm, &err);
    rf_bootstrap_free(&boot);
    RANK_CHECK(result != RF_OK && strstr(err.text, "config.device is 99"), "%s: %s",
               rf_strerror(result), err.text);
    if (rank == 0)
        printf("  %s\n", err.text);
    gpu_close(&g);
}

/* ---- islands: every such variant at every size, in and out of place; then with a rank that stays
 * away. RANKFOLD_TOPOLOGY may say which ---- */

static void all_but_the_last(gpu *g, rf_comm *comm, const rf_variant *v)
{
    rf_error err = {0};
    rf_dtype dtype = (rf_dtype)v->dtype;
    rfi_set_deadline(comm, 0, 200);
    for (uint64_t count = 4; count < 5000; count += 4095) { /* a pack, which the first places own */
        gpu_fill(g, dtype, count, 0, count);
        rank_barrier();
        if (g->rank != g->world - 1) {
            RANK_CHECK(launch(g, comm, v, 2, count, 0, 0) == RF_OK, "%s",
                       rf_comm_error(comm)->text);
            rf_health health = wait_ill(comm, 5);
            RANK_CHECK(health.code == RF_E_TIMEOUT && health.culprit == g->world - 1,
                       "%s, culprit %d", rf_strerror(health.code), health.culprit);
            DRIVER(g, cuStreamSynchronize(g->stream));
        }
        rank_barrier();
        RANK_CHECK(rf_comm_reset(comm, 5000, &err) == RF_OK, "%s", err.text);
        gpu_fill(g, dtype, count, 0, count);
        gpu_expect(g, dtype, count, comm->islands.order);
        RANK_CHECK(launch(g, comm, v, 2, count, 0, 0) == RF_OK, "%s", rf_comm_error(comm)->text);
        gpu_wait(g, comm);
        gpu_check(g, dtype, count, 0, "after the reset");
    }
    rfi_set_deadline(comm, 0, 0);
}

static void islands(int rank, int world, void *arg)
{
    (void)arg;
    gpu g;
    gpu_open(&g, rank, world, CAPACITY);
    rf_config config = gpu_config(&g, CAPACITY);
    config.flags |= RF_DEPENDENT | RF_REASSOC;
    rf_comm *comm = gpu_comm(&g, "islands", &config);
    rf_error err = {0};
    uint64_t seed = 1, done = 0, other = 0;
    const rf_variant *last = NULL;
    char text[RFI_ISLANDS_TEXT];
    rfi_islands_text(&comm->islands, world, text);
    for (size_t i = 0; i < rfi_variant_count(comm); i++) {
        const rf_variant *v = rfi_variant_at(comm, i);
        rf_shape shape = {.dtype = (rf_dtype)v->dtype, .rows = 1, .hidden = 8};
        if (v->algo != RFI_ALGO_ISLANDS || rfi_refusal(comm, v, &shape))
            continue;
        last = v;
        for (size_t k = 0; k < 2 * N(counts); k++) {
            uint64_t count = counts[k / 2], offset = seed % 3 ? 0 : 3;
            uint64_t bytes = count * rf_dtype_size(shape.dtype);
            uint32_t grids[] = {rfi_usual_grid(comm, v, bytes), 1, 5};
            if (count > 100000 && (k + i) % 2)
                continue;
            gpu_fill(&g, shape.dtype, count, offset, seed++);
            other += (uint64_t)gpu_expect(&g, shape.dtype, count, comm->islands.order);
            if (k % 2)
                gpu_in_place(&g, shape.dtype, count, offset);
            RANK_CHECK(launch(&g, comm, v, grids[seed % 3], count, offset, k % 2) == RF_OK, "%s",
                       rf_comm_error(comm)->text);
            gpu_wait(&g, comm);
            gpu_check(&g, shape.dtype, count, offset, v->name);
            done++;
        }
    }
    if (last)
        all_but_the_last(&g, comm, last);
    if (rank == 0)
        printf("  %s (%s): %llu calls, of which %llu would give other bits in rank order\n",
               last ? text : "none", comm->islands.reason, (unsigned long long)done,
               (unsigned long long)other);
    RANK_CHECK(!last || other, "no sum shows the order");
    RANK_CHECK(rf_comm_close(comm, 10000, &err) == RF_OK, "%s", err.text);
    rf_comm_destroy(comm);
    gpu_close(&g);
}

/* ---- time ---- */

static double graph_us(gpu *g, rf_comm *comm, uint64_t count, int calls, int rounds)
{
    CUevent start, end;
    double best = 1e9;
    DRIVER(g, cuEventCreate(&start, 0));
    DRIVER(g, cuEventCreate(&end, 0));
    capture_begin(g, comm);
    for (int i = 0; i < calls; i++)
        call(g, comm, 0, RF_BF16, count, 0);
    CUgraphExec exec = capture_end(g, comm);
    for (int i = 0; i < rounds; i++) {
        float ms = 0;
        rank_barrier();
        DRIVER(g, cuGraphLaunch(exec, g->stream));
        DRIVER(g, cuEventRecord(start, g->stream));
        DRIVER(g, cuGraphLaunch(exec, g->stream));
        DRIVER(g, cuEventRecord(end, g->stream));
        gpu_wait(g, comm);
        DRIVER(g, cuEventElapsedTime(&ms, start, end));
        best = ms * 1e3 / calls < best ? ms * 1e3 / calls : best;
    }
    DRIVER(g, cuGraphExecDestroy(exec));
    return best;
}

static void times(int rank, int world, void *arg)
{
    (void)arg;
    double begin = gpu_seconds();
    gpu g;
    gpu_open(&g, rank, world, 64u << 20);
    rank_barrier();
    double opened = gpu_seconds();
    rf_config config = gpu_config(&g, 64u << 20);
    rf_comm *comm = gpu_comm(&g, "times", &config);
    double created = gpu_seconds();
    rf_error err = {0};
    rf_shape shapes[16];
    size_t n = 0;
    for (uint64_t bytes = 2048; bytes <= 64u << 20; bytes *= 2)
        shapes[n++] =
            (rf_shape){.dtype = RF_BF16, .mode = RF_GRAPH, .rows = 1, .hidden = bytes / 2};
    RANK_CHECK(rf_prepare(comm, 0, shapes, n, &err) == RF_OK, "%s", err.text);
    double prepared = gpu_seconds();
    call(&g, comm, 0, RF_BF16, 4096, 0);
    gpu_wait(&g, comm);
    double first = gpu_seconds();
    if (rank == 0)
        printf("  context %.1f ms, create %.1f ms, prepare %.1f ms, first call %.2f ms\n",
               (opened - begin) * 1e3, (created - opened) * 1e3, (prepared - created) * 1e3,
               (first - prepared) * 1e3);

    /* the host's part of a call, against the driver's */
    enum { BURST = 400 };
    double ours = 1e9, bare = 1e9;
    rf_plan_info info;
    rf_plan_query(comm, 0, 4096, RF_BF16, RF_EAGER, &info);
    const rf_variant *v = rfi_variant_by_name(comm, info.variant);
    rf_params p = comm->channels[0].params[v->transport];
    p.in = (void *)(uintptr_t)g.in, p.out = (void *)(uintptr_t)g.out, p.count = 4096;
    for (int k = 0; k < 20; k++) {
        rank_barrier();
        double t = gpu_seconds();
        for (int i = 0; i < BURST; i++)
            call(&g, comm, 0, RF_BF16, 4096, 0);
        double took = gpu_seconds() - t;
        ours = took < ours ? took : ours;
        gpu_wait(&g, comm);
        rank_barrier();
        t = gpu_seconds();
        for (int i = 0; i < BURST; i++) {
            p.grid = info.grid;
            comm->backend->launch(comm->device, v, &p, g.stream, &err);
        }
        took = gpu_seconds() - t;
        bare = took < bare ? took : bare;
        gpu_wait(&g, comm);
    }
    if (rank == 0)
        printf("  host: rf_all_reduce %.2f us, the launch alone %.2f us\n", ours / BURST * 1e6,
               bare / BURST * 1e6);
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes = shapes[i].hidden * 2;
        double us = graph_us(&g, comm, shapes[i].hidden, bytes > 1u << 20 ? 20 : 100, 5);
        rf_plan_query(comm, 0, shapes[i].hidden, RF_BF16, RF_GRAPH, &info);
        if (rank == 0)
            printf("  %9llu bytes %8.2f us  %s, %u blocks, rung %d\n", (unsigned long long)bytes,
                   us, info.variant, info.grid, (int)info.rung);
    }
    RANK_CHECK(rf_comm_close(comm, 10000, &err) == RF_OK, "%s", err.text);
    rf_comm_destroy(comm);
    gpu_close(&g);
}

static const struct {
    const char *name;
    rank_fn run;
    int processes_only;
} tests[] = {
    {"refusals", refusals, 0}, {"transports", transports, 0}, {"sums", sums, 0},
    {"variants", variants, 0}, {"islands", islands, 0},       {"tensors", tensors, 0},
    {"replays", replays, 0},   {"relay", relay, 0},           {"mixed", mixed, 0},
    {"tags", tags, 0},         {"captures", captures, 0},     {"faults", faults, 0},
    {"killed", killed, 1},     {"times", times, 1},
};

int main(int argc, char **argv)
{
    int world = 2, threads = 0, option, failed = 0;
    while ((option = getopt(argc, argv, "w:n:t")) != -1)
        if (option == 'w')
            world = atoi(optarg);
        else if (option == 'n')
            relay_replays = atoi(optarg);
        else if (option == 't')
            threads = 1;
        else
            return 2;
    gpu_session = getpid();
    killed_at = ranks_shared(sizeof *killed_at);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < N(tests); i++) {
        int wanted = optind == argc;
        for (int a = optind; a < argc; a++)
            wanted |= strcmp(argv[a], tests[i].name) == 0;
        if (!wanted || (threads && tests[i].processes_only))
            continue;
        ranks_options options = {.deadline_ms = 60000};
        if (tests[i].run == killed)
            options.may_die = 1u << (world - 1);
        double start = gpu_seconds();
        printf("%s, %d %s\n", tests[i].name, world, threads ? "threads" : "processes");
        const char *text = threads ? ranks_run_threads(world, tests[i].run, NULL, &options)
                                   : ranks_run(world, tests[i].run, NULL, &options);
        printf("%s %s (%.1f s)\n", text ? "FAILED" : "passed", tests[i].name,
               gpu_seconds() - start);
        if (text)
            printf("%s\n", text);
        failed += text != NULL;
    }
    return failed != 0;
}
