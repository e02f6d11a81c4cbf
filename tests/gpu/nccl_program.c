/* A program on GPUs that knows NCCL and nothing of Rankfold: run it with the shim and without.
 *
 *     nccl_program [check] [times]        2 processes; prints one digest a rank, and times
 *
 *     nvcc -o nccl_program nccl_program.c -lnccl
 */
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORLD 2
#define MOST  (32u << 20)

static int rank;
static int failures;
static uint64_t digest = 0xcbf29ce484222325u;
static ncclComm_t comm;
static cudaStream_t streams[3];
static unsigned char *in, *out, *host;

#define TRY(call)                                                                                  \
    do {                                                                                           \
        int try_result = (int)(call);                                                              \
        if (try_result) {                                                                          \
            fprintf(stderr, "rank %d: line %d: %s: %d\n", rank, __LINE__, #call, try_result);      \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* ---- small integers: exact in every type and order ---- */

static size_t size_of(ncclDataType_t type)
{
    return type == ncclInt64 || type == ncclFloat64      ? 8
           : type == ncclFloat16 || type == ncclBfloat16 ? 2
                                                         : 4;
}

static void put(unsigned char *to, ncclDataType_t type, size_t i, int v)
{
    float f = (float)v;
    double d = v;
    int64_t n = v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t h = (uint16_t)(bits >> 16);
    if (type == ncclFloat16)
        h = (uint16_t)(v ? ((bits >> 23) - 112) << 10 | (bits >> 13 & 1023) : 0);
    const void *from = type == ncclInt64     ? (void *)&n
                       : type == ncclFloat64 ? (void *)&d
                       : type == ncclFloat32 ? (void *)&f
                                             : (void *)&h;
    memcpy(to + i * size_of(type), from, size_of(type));
}

static int value(int r, size_t i, int seed)
{
    return (int)((i * 7 + (size_t)r * 3 + (size_t)seed) % 5) + 1;
}

static int expected(size_t i, int seed, ncclRedOp_t op)
{
    int a = value(0, i, seed), b = value(1, i, seed);
    return op == ncclProd ? a * b : op == ncclMax ? (a > b ? a : b) : a + b;
}

static void fill(size_t count, ncclDataType_t type, int seed)
{
    for (size_t i = 0; i < count; i++)
        put(host, type, i, value(rank, i, seed));
    TRY(cudaMemcpy(in, host, count * size_of(type), cudaMemcpyHostToDevice));
}

static void check(const unsigned char *at, size_t count, ncclDataType_t type, int seed,
                  ncclRedOp_t op, const char *what)
{
    unsigned char want[8];
    size_t size = size_of(type), wrong = 0;
    TRY(cudaDeviceSynchronize());
    TRY(cudaMemcpy(host, at, count * size, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; i++) {
        put(want, type, 0, expected(i, seed, op));
        wrong += memcmp(want, host + i * size, size) != 0;
        for (size_t b = 0; b < size; b++)
            digest = (digest ^ host[i * size + b]) * 0x100000001b3u;
    }
    if (wrong) {
        failures++;
        printf("FAILED on rank %d: %s, %zu of type %d: %zu wrong\n", rank, what, count, (int)type,
               wrong);
    }
}

static void reduce(ncclComm_t c, size_t count, ncclDataType_t type, ncclRedOp_t op, int in_place,
                   cudaStream_t stream)
{
    static int seed;
    fill(count, type, ++seed);
    TRY(cudaDeviceSynchronize());
    TRY(ncclAllReduce(in, in_place ? in : out, count, type, op, c, stream));
    check(in_place ? in : out, count, type, seed, op, "all-reduce");
}

/* ---- what is checked ---- */

static void grid(void)
{
    static const size_t counts[] = {1,     3,     1000,   1024,     4097,
                                    16384, 65535, 262144, 1u << 20, 5u << 20};
    static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat16, ncclInt64};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            if (counts[c] * size_of(types[t]) > MOST)
                continue;
            for (int k = 0; k < 4; k++)
                reduce(comm, counts[c], types[t], k == 3 ? ncclMax : ncclSum, k & 1,
                       streams[k % 3]);
        }
    reduce(comm, 4096, ncclFloat32, ncclProd, 0, streams[0]);
}

/* One tensor, reduced again and again on changing streams, with nothing between but the order that
 * NCCL gives: after k sums in place both ranks hold 2^(k-1) times the first sum. */
static void chains(void)
{
    fill(8192, ncclFloat32, 1);
    TRY(cudaDeviceSynchronize());
    for (int k = 0; k < 12; k++)
        TRY(ncclAllReduce(in, in, 8192, ncclFloat32, ncclSum, comm, streams[k % 2]));
    TRY(cudaDeviceSynchronize());
    TRY(cudaMemcpy(host, in, 4 * 8192, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < 8192; i++) {
        float x;
        memcpy(&x, host + 4 * i, 4);
        failures += x != (float)expected(i, 1, ncclSum) * 2048;
    }
    if (failures)
        printf("FAILED on rank %d: chains\n", rank);
}

static void graphs(void)
{
    static const size_t counts[] = {512, 8192, 100000};
    cudaGraphExec_t execs[3];
    for (int g = 0; g < 3; g++) {
        cudaGraph_t graph;
        TRY(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal));
        for (int k = 0; k < 3; k++)
            TRY(ncclAllReduce(in, out, counts[g], ncclBfloat16, ncclSum, comm, streams[0]));
        TRY(cudaStreamEndCapture(streams[0], &graph));
        TRY(cudaGraphInstantiateWithFlags(&execs[g], graph, 0));
        TRY(cudaGraphDestroy(graph));
    }
    for (int i = 0; i < 60; i++) {
        int g = i % 3;
        fill(counts[g], ncclBfloat16, i);
        TRY(cudaMemset(out, 0xff, counts[g] * 2));
        TRY(cudaDeviceSynchronize());
        TRY(cudaGraphLaunch(execs[g], streams[i % 2]));
        check(out, counts[g], ncclBfloat16, i, ncclSum, "replay");
        if (i % 4 == 0)
            reduce(comm, counts[g] + 1, ncclBfloat16, ncclSum, 0, streams[1]);
    }
    for (int g = 0; g < 3; g++)
        TRY(cudaGraphExecDestroy(execs[g]));
}

static void groups(void)
{
    fill(5000, ncclFloat32, 3);
    TRY(cudaDeviceSynchronize());
    TRY(ncclGroupStart());
    TRY(ncclAllReduce(in, out, 5000, ncclFloat32, ncclSum, comm, streams[0]));
    TRY(ncclAllReduce(in, out + 65536, 3000, ncclFloat32, ncclSum, comm, streams[0]));
    TRY(ncclGroupEnd());
    check(out, 5000, ncclFloat32, 3, ncclSum, "group");
    check(out + 65536, 3000, ncclFloat32, 3, ncclSum, "group");
}

static void splits(void)
{
    ncclComm_t both, alone;
    TRY(ncclCommSplit(comm, 0, rank, &both, NULL));
    TRY(ncclCommSplit(comm, rank, 0, &alone, NULL));
    for (int i = 0; i < 5; i++) {
        reduce(both, 3000, ncclFloat32, ncclSum, i % 2, streams[0]);
        reduce(comm, 2000, ncclFloat32, ncclSum, i % 2, streams[1]);
    }
    fill(100, ncclFloat32, 9);
    TRY(ncclAllReduce(in, out, 100, ncclFloat32, ncclSum, alone, streams[0]));
    TRY(cudaDeviceSynchronize());
    TRY(ncclCommFinalize(both));
    TRY(ncclCommDestroy(both));
    TRY(ncclCommDestroy(alone));
    reduce(comm, 2000, ncclFloat32, ncclSum, 0, streams[1]);
}

/* ---- times ---- */

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Of one call: in a graph, eager, and what issuing it takes the host. */
static void times(void)
{
    for (size_t bytes = 2048; bytes <= 16u << 20; bytes *= 4) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        float ms = 0, best = 1e9f;
        cudaEvent_t events[2];
        double issue = 1e9, eager = 1e9;
        TRY(cudaEventCreate(&events[0]));
        TRY(cudaEventCreate(&events[1]));
        for (int i = 0; i < 3; i++)
            TRY(ncclAllReduce(in, in, bytes / 2, ncclBfloat16, ncclSum, comm, streams[0]));
        TRY(cudaDeviceSynchronize());
        TRY(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal));
        for (int k = 0; k < 50; k++)
            TRY(ncclAllReduce(in, in, bytes / 2, ncclBfloat16, ncclSum, comm, streams[0]));
        TRY(cudaStreamEndCapture(streams[0], &graph));
        TRY(cudaGraphInstantiateWithFlags(&exec, graph, 0));
        for (int i = 0; i < 7; i++) {
            TRY(cudaGraphLaunch(exec, streams[0]));
            TRY(cudaEventRecord(events[0], streams[0]));
            TRY(cudaGraphLaunch(exec, streams[0]));
            TRY(cudaEventRecord(events[1], streams[0]));
            TRY(cudaStreamSynchronize(streams[0]));
            TRY(cudaEventElapsedTime(&ms, events[0], events[1]));
            best = ms < best ? ms : best;
            double start = now_us();
            for (int k = 0; k < 50; k++)
                TRY(ncclAllReduce(in, in, bytes / 2, ncclBfloat16, ncclSum, comm, streams[0]));
            double issued = (now_us() - start) / 50;
            TRY(cudaStreamSynchronize(streams[0]));
            double done = (now_us() - start) / 50;
            issue = issued < issue ? issued : issue;
            eager = done < eager ? done : eager;
        }
        if (rank == 0)
            printf("%9zu bytes: graph %8.2f us, eager %8.2f us, issue %6.2f us\n", bytes,
                   (double)best * 1000 / 50, eager, issue);
        TRY(cudaGraphExecDestroy(exec));
        TRY(cudaGraphDestroy(graph));
        TRY(cudaMemset(in, 0, MOST));
    }
}

static void run(const ncclUniqueId *id, int checks, int timed)
{
    double start = now_us();
    TRY(cudaSetDevice(rank));
    TRY(cudaFree(NULL));
    double context = now_us();
    TRY(ncclCommInitRank(&comm, WORLD, *id, rank));
    if (rank == 0)
        printf("context %.2f s, communicator %.2f s\n", (context - start) / 1e6,
               (now_us() - context) / 1e6);
    for (int s = 0; s < 3; s++)
        TRY(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
    TRY(cudaMalloc((void **)&in, MOST));
    TRY(cudaMalloc((void **)&out, MOST));
    host = malloc(MOST);
    if (checks) {
        grid();
        chains();
        graphs();
        groups();
        splits();
    }
    if (timed)
        times();
    TRY(ncclCommFinalize(comm));
    TRY(ncclCommDestroy(comm));
    printf("rank %d: digest %016llx, %d failures\n", rank, (unsigned long long)digest, failures);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int ends[2], checks = argc < 2, timed = argc < 2;
    for (int i = 1; i < argc; i++) {
        checks |= !strcmp(argv[i], "check");
        timed |= !strcmp(argv[i], "times");
    }
    if (pipe(ends))
        return 1;
    pid_t other = fork(); /* before anything of CUDA */
    ncclUniqueId id;
    rank = other ? 0 : 1;
    if (rank == 0) {
        TRY(ncclGetUniqueId(&id));
        if (write(ends[1], &id, sizeof id) != sizeof id)
            return 1;
    } else if (read(ends[0], &id, sizeof id) != sizeof id) {
        return 1;
    }
    run(&id, checks, timed);
    int status = 0;
    if (rank == 0)
        waitpid(other, &status, 0);
    return failures || status;
}
