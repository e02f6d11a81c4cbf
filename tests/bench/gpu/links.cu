/* What the links of this machine give, as the floor of tables.py needs it: lines of
 * "name,gpus,value" on stdout. One process, all GPUs.
 *
 *   node       us of an empty kernel in a graph
 *   trip-peer  us from GPU 0 to GPU 1 and back, each polling its own memory
 *   trip-host  us likewise through pinned host memory
 *   both-host  GB/s that every GPU reads from host memory while it writes as much, all at once
 *   both-llc   likewise within a window of 2 MiB a GPU
 *   peer       GB/s that every GPU writes to the next one, all at once
 */
#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>

#define MUST(call)                                                                                 \
    do {                                                                                           \
        cudaError_t e = call;                                                                      \
        if (e != cudaSuccess) {                                                                    \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e));                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { MOST_GPUS = 8, TURNS = 4000, BLOCKS = 64, THREADS = 512 };
static const size_t LARGE = (size_t)128 << 20, WINDOW = (size_t)2 << 20;

__global__ void nothing() {}

/* Waits for each turn's number at `mine` and writes it to `theirs`; `first` serves. */
__global__ void ping_pong(volatile unsigned *mine, volatile unsigned *theirs, int first)
{
    for (unsigned turn = 1; turn <= TURNS; turn++) {
        if (first)
            *theirs = turn;
        while (*mine != turn)
            ;
        if (!first)
            *theirs = turn;
    }
}

/* Even blocks write `bytes`, odd ones read as many, over and over the same window. */
__global__ void both_ways(uint4 *to, const uint4 *from, size_t window, size_t bytes, uint4 *sink)
{
    size_t lane = (blockIdx.x / 2) * blockDim.x + threadIdx.x, step = gridDim.x / 2 * blockDim.x;
    size_t mask = window / 16 - 1;
    uint4 sum = make_uint4(1, 2, 3, 4);
    if (blockIdx.x % 2 == 0) {
        for (size_t i = lane; i < bytes / 16; i += step)
            asm volatile(
                "st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to + (i & mask)),
                "r"(sum.x), "r"(sum.y), "r"(sum.z), "r"(sum.w)
                : "memory");
        return;
    }
    for (size_t i = lane; i + 3 * step < bytes / 16; i += 4 * step) {
        uint4 v[4];
        for (int k = 0; k < 4; k++)
            asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v[k].x), "=r"(v[k].y), "=r"(v[k].z), "=r"(v[k].w)
                         : "l"(from + ((i + k * step) & mask)));
        for (int k = 0; k < 4; k++)
            sum.x ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (sum.x == 0x12345678u)
        *sink = sum;
}

__global__ void write_all(uint4 *to, size_t bytes)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < bytes / 16;
         i += gridDim.x * (size_t)blockDim.x)
        to[i] = make_uint4(1, 2, 3, 4);
}

static int n_gpus;
static cudaStream_t streams[MOST_GPUS];
static cudaEvent_t begins[MOST_GPUS], ends[MOST_GPUS];
static uint4 *memory[MOST_GPUS]; /* LARGE */

static float ms_of(int gpu)
{
    float ms;
    MUST(cudaSetDevice(gpu));
    MUST(cudaEventSynchronize(ends[gpu]));
    MUST(cudaEventElapsedTime(&ms, begins[gpu], ends[gpu]));
    return ms;
}

static void node(void)
{
    enum { CALLS = 1000 };
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    MUST(cudaSetDevice(0));
    MUST(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < CALLS; i++)
        nothing<<<1, 32, 0, streams[0]>>>();
    MUST(cudaStreamEndCapture(streams[0], &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    float best = 1e9f;
    for (int i = 0; i < 5; i++) {
        MUST(cudaGraphLaunch(exec, streams[0]));
        MUST(cudaEventRecord(begins[0], streams[0]));
        MUST(cudaGraphLaunch(exec, streams[0]));
        MUST(cudaEventRecord(ends[0], streams[0]));
        float ms = ms_of(0);
        best = ms < best ? ms : best;
    }
    printf("node,1,%.3f\n", best * 1e3 / CALLS);
}

static void trip(const char *name, volatile unsigned *at0, volatile unsigned *at1)
{
    volatile unsigned *at[2] = {at0, at1};
    for (int gpu = 1; gpu >= 0; gpu--) {
        MUST(cudaSetDevice(gpu));
        MUST(cudaEventRecord(begins[gpu], streams[gpu]));
        ping_pong<<<1, 1, 0, streams[gpu]>>>(at[gpu], at[1 - gpu], gpu == 0);
        MUST(cudaGetLastError());
        MUST(cudaEventRecord(ends[gpu], streams[gpu]));
    }
    ms_of(1);
    printf("%s,2,%.3f\n", name, ms_of(0) * 1e3 / TURNS);
    fflush(stdout);
}

/* host: n buffers to write and n to read. */
static void both(const char *name, int gpus, uint4 *const *host, size_t window)
{
    size_t bytes = (size_t)512 << 20;
    for (int gpu = 0; gpu < gpus; gpu++) {
        MUST(cudaSetDevice(gpu));
        MUST(cudaEventRecord(begins[gpu], streams[gpu]));
        both_ways<<<2 * BLOCKS, THREADS, 0, streams[gpu]>>>(
            host[gpu], host[(gpu + 1) % gpus] + (gpus == 1 ? LARGE / 16 : 0), window, bytes,
            memory[gpu]);
        MUST(cudaGetLastError());
        MUST(cudaEventRecord(ends[gpu], streams[gpu]));
    }
    double slowest = 0;
    for (int gpu = 0; gpu < gpus; gpu++)
        slowest = ms_of(gpu) > slowest ? ms_of(gpu) : slowest;
    printf("%s,%d,%.2f\n", name, gpus, bytes / slowest / 1e6);
    fflush(stdout);
}

static void peer_writes(int gpus)
{
    enum { TIMES = 16 };
    for (int gpu = 0; gpu < gpus; gpu++) {
        MUST(cudaSetDevice(gpu));
        MUST(cudaEventRecord(begins[gpu], streams[gpu]));
        for (int i = 0; i < TIMES; i++)
            write_all<<<132, 1024, 0, streams[gpu]>>>(memory[(gpu + 1) % gpus], LARGE);
        MUST(cudaGetLastError());
        MUST(cudaEventRecord(ends[gpu], streams[gpu]));
    }
    double slowest = 0;
    for (int gpu = 0; gpu < gpus; gpu++)
        slowest = ms_of(gpu) > slowest ? ms_of(gpu) : slowest;
    printf("peer,%d,%.1f\n", gpus, TIMES * LARGE / slowest / 1e6);
    fflush(stdout);
}

int main(void)
{
    uint4 *host[MOST_GPUS];
    unsigned *words;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1); /* no loading beside a kernel that waits */
    MUST(cudaGetDeviceCount(&n_gpus));
    n_gpus = n_gpus < MOST_GPUS ? n_gpus : MOST_GPUS;
    int peers = n_gpus > 1;
    for (int gpu = 0; gpu < n_gpus; gpu++) {
        MUST(cudaSetDevice(gpu));
        MUST(cudaStreamCreateWithFlags(&streams[gpu], cudaStreamNonBlocking));
        MUST(cudaEventCreate(&begins[gpu]));
        MUST(cudaEventCreate(&ends[gpu]));
        MUST(cudaMalloc(&memory[gpu], LARGE));
        MUST(cudaMemset(memory[gpu], 0, LARGE));
        MUST(cudaHostAlloc(&host[gpu], 2 * LARGE, cudaHostAllocPortable | cudaHostAllocMapped));
        for (size_t i = 0; i < 2 * LARGE / sizeof(uint4); i += 256) /* pages exist */
            host[gpu][i] = make_uint4(0, 0, 0, 0);
        for (int other = 0; other < n_gpus; other++)
            if (other != gpu && cudaDeviceEnablePeerAccess(other, 0) != cudaSuccess)
                peers = 0;
    }
    MUST(cudaHostAlloc(&words, 4096, cudaHostAllocPortable | cudaHostAllocMapped));
    words[0] = words[512] = 0;
    node();
    if (n_gpus > 1)
        trip("trip-host", words, words + 512);
    if (peers)
        trip("trip-peer", (unsigned *)memory[0], (unsigned *)memory[1]);
    for (int gpus = 1; gpus <= n_gpus; gpus++)
        for (int again = 0; again < 2; again++) { /* the first is for pages and clocks */
            both("both-host", gpus, host, LARGE);
            both("both-llc", gpus, host, WINDOW);
        }
    for (int gpus = 2; peers && gpus <= n_gpus; gpus++)
        peer_writes(gpus);
    return 0;
}
