/* A product on GPUs: ranks as processes and then as threads of one process all-reduce on a GPU each
 * and compare every bit with the oracle, which defines right; so both ways give the same. Built by
 * plain cc with the public header; like any product it brings its own way to the CUDA driver, here
 * dlopen. `gpu [WORLD]`: default one rank for each GPU. */
#include <rankfold.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 8, GUARD = 64 };

/* ---- the product's own CUDA ---- */

#define DRIVER(X)                                                                                  \
    X(cuInit, (unsigned))                                                                          \
    X(cuDeviceGetCount, (int *))                                                                   \
    X(cuDevicePrimaryCtxRetain, (void **, int))                                                    \
    X(cuCtxSetCurrent, (void *))                                                                   \
    X(cuMemAlloc_v2, (unsigned long long *, size_t))                                               \
    X(cuMemFree_v2, (unsigned long long))                                                          \
    X(cuMemcpyHtoD_v2, (unsigned long long, const void *, size_t))                                 \
    X(cuMemcpyDtoH_v2, (void *, unsigned long long, size_t))                                       \
    X(cuStreamCreate, (void **, unsigned))                                                         \
    X(cuStreamSynchronize, (void *))                                                               \
    X(cuStreamDestroy_v2, (void *))
#define DECLARE(name, parameters) static int(*name) parameters;
DRIVER(DECLARE)

/* 0 = there is no driver, or an old one: what the library says of it is better. */
static int open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return 0;
#define FIND(name, parameters) *(void **)&(name) = dlsym(library, #name);
    DRIVER(FIND)
    return cuStreamDestroy_v2 && cuInit(0) == 0;
}

/* Asks in a child: whoever has started the driver can have no ranks by fork. */
static int count_gpus(void)
{
    int n = 0, status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(open_driver() && cuDeviceGetCount(&n) == 0 ? n : 0);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

/* ---- a rank ---- */

#ifndef PACK
#define PACK rf_pack_h200
#endif
extern const rf_pack PACK;
static const rf_pack *const packs[] = {&PACK};

typedef struct job {
    int rank, world, gpus;
    rf_bootstrap boot;
    int failed;
} job;

static const struct {
    rf_dtype dtype;
    uint64_t count;
    int in_place;
} calls[] = {
    {RF_BF16, 1, 0},      {RF_BF16, 4096, 1},  {RF_F16, 4099, 0},    {RF_F32, 7, 1},
    {RF_BF16, 300000, 0}, {RF_F32, 100003, 1}, {RF_F16, 1 << 20, 1}, {RF_BF16, 8192, 0},
};
#define N_CALLS (sizeof calls / sizeof *calls)

/* Any bits: NaNs, infinities and denormals are among them. */
static void fill(unsigned char *bytes, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = (unsigned char)(seed >> 24);
    }
}

static int check_call(rf_comm *comm, const job *j, size_t c, void *stream)
{
    size_t bytes = calls[c].count * rf_dtype_size(calls[c].dtype);
    unsigned char *in[MOST], *expected = malloc(bytes), *found = malloc(bytes + GUARD);
    unsigned long long x = 0, y = 0;
    int bad = cuMemAlloc_v2(&x, bytes + GUARD) || cuMemAlloc_v2(&y, bytes + GUARD);
    for (int r = 0; r < j->world; r++) {
        in[r] = malloc(bytes);
        fill(in[r], bytes, 1000 * (uint32_t)c + (uint32_t)r);
    }
    unsigned long long out = calls[c].in_place ? x : y;
    memset(found, 0x5a, bytes + GUARD);
    bad =
        bad || cuMemcpyHtoD_v2(out, found, bytes + GUARD) || cuMemcpyHtoD_v2(x, in[j->rank], bytes);
    rf_oracle_all_reduce((const void *const *)in, expected, calls[c].count, calls[c].dtype,
                         j->world);
    rf_result result = bad ? RF_E_MEMORY
                           : rf_all_reduce(comm, 0, (void *)x, (void *)out, calls[c].count,
                                           calls[c].dtype, stream);
    bad = result || cuStreamSynchronize(stream) || cuMemcpyDtoH_v2(found, out, bytes + GUARD);
    if (result)
        fprintf(stderr, "rank %d: call %zu: %s\n", j->rank, c, rf_comm_error(comm)->text);
    else if (bad || memcmp(found, expected, bytes) || found[bytes] != 0x5a)
        fprintf(stderr, "rank %d: call %zu differs from the oracle\n", j->rank, c), bad = 1;
    cuMemFree_v2(x);
    cuMemFree_v2(y);
    for (int r = 0; r < j->world; r++)
        free(in[r]);
    free(expected);
    free(found);
    return bad;
}

static int use(rf_comm *comm, const job *j, rf_error *err)
{
    rf_shape shapes[N_CALLS];
    rf_plan_info plan;
    void *context = NULL, *stream = NULL;
    int checked = 0, bad = 0;
    for (size_t c = 0; c < N_CALLS; c++)
        shapes[c] = (rf_shape){RF_ALL_REDUCE, calls[c].dtype, RF_EAGER, 1, calls[c].count};
    for (size_t c = 0; c < N_CALLS; c++)
        if (rf_supports(comm, &shapes[c]) && rf_prepare(comm, 0, &shapes[c], 1, err)) {
            fprintf(stderr, "rank %d: %s\n", j->rank, err->text);
            return 1;
        }
    if (cuDevicePrimaryCtxRetain(&context, j->rank % j->gpus) || cuCtxSetCurrent(context) ||
        cuStreamCreate(&stream, 1))
        return 1;
    for (size_t c = 0; c < N_CALLS; c++) {
        if (!rf_supports(comm, &shapes[c]))
            continue; /* a small pack */
        bad |= check_call(comm, j, c, stream);
        checked++;
        if (j->rank == 0 &&
            !rf_plan_query(comm, 0, calls[c].count, calls[c].dtype, RF_EAGER, &plan))
            printf("  %-5s %8llu %-12s %s\n", rf_dtype_name(calls[c].dtype),
                   (unsigned long long)calls[c].count, calls[c].in_place ? "in place" : "",
                   plan.variant);
    }
    cuStreamDestroy_v2(stream);
    return bad || !checked;
}

static int be_rank(job *j)
{
    rf_error err = {0};
    rf_comm *comm = NULL;
    rf_config config = RF_CONFIG_INIT;
    config.backend = RF_BACKEND_CUDA;
    config.device = j->gpus ? j->rank % j->gpus : j->rank;
    config.packs = packs, config.n_packs = 1;
    config.capacity_bytes = 8 << 20;
    config.deadline_ms = 10000;
    config.flags = j->gpus && j->world > j->gpus ? RF_SHARE_DEVICE : 0;
    if (rf_comm_create(&config, &j->boot, &comm, &err)) {
        fprintf(stderr, "rank %d: %s\n", j->rank, err.text);
        return 1;
    }
    int bad = use(comm, j, &err);
    if (rf_comm_close(comm, 10000, &err)) {
        fprintf(stderr, "rank %d: close: %s\n", j->rank, err.text);
        bad = 1;
    }
    rf_comm_destroy(comm);
    fflush(stdout);
    return bad;
}

/* ---- ranks as processes, ranks as threads ---- */

static int processes(int world, int gpus)
{
    int failed = 0, status;
    char name[64];
    rf_error err = {0};
    snprintf(name, sizeof name, "rankfold-gpu-product-%d", (int)getpid());
    for (int r = 0; r < world; r++) {
        if (fork() == 0) {
            job j = {.rank = r, .world = world, .gpus = gpus};
            open_driver();
            if (rf_bootstrap_socket(name, r, world, &j.boot, &err))
                _exit(1);
            _exit(be_rank(&j));
        }
    }
    while (wait(&status) > 0)
        failed |= status != 0;
    return failed;
}

static void *thread(void *arg)
{
    job *j = arg;
    j->failed = be_rank(j);
    return NULL;
}

static int threads(int world, int gpus)
{
    job jobs[MOST] = {{0}};
    pthread_t ids[MOST];
    rf_bootstrap boots[MOST];
    rf_error err = {0};
    open_driver();
    int failed = rf_bootstrap_threads(world, boots, &err) != RF_OK;
    for (int r = 0; r < world && !failed; r++) {
        jobs[r] = (job){.rank = r, .world = world, .gpus = gpus, .boot = boots[r]};
        failed = pthread_create(&ids[r], NULL, thread, &jobs[r]) != 0;
    }
    for (int r = 0; r < world && !failed; r++)
        pthread_join(ids[r], NULL);
    for (int r = 0; r < world; r++)
        failed |= jobs[r].failed;
    return failed;
}

int main(int argc, char **argv)
{
    int gpus = count_gpus(), world = argc == 2 ? atoi(argv[1]) : gpus < 2 ? 2 : gpus;
    world = world < 1 ? 1 : world > MOST ? MOST : world;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%d ranks on %d GPUs, as processes\n", world, gpus);
    int failed = processes(world, gpus);
    printf("%d ranks on %d GPUs, as threads\n", world, gpus);
    failed |= threads(world, gpus);
    puts(failed ? "failed" : "ok: the sums of processes and of threads equal the oracle's");
    return failed;
}
