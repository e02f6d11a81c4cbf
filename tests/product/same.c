/* One program for GPUs that reach each other, GPUs that don't, and CPUs: what it runs on is
 * configuration, what it computes is not. Ranks all-reduce every dtype, sizes that fit no vector,
 * in and out of place, from addresses that are not aligned, on inputs full of NaNs, infinities,
 * zeros of both signs and denormals. Every rank compares every bit with the oracle, and rank 0
 * prints a digest of each sum: the lines of any two runs with the same world are the same.
 *
 *     same [-b cpu|cuda] [-w WORLD] [-n] [-t]
 *
 * -n: no stores between GPUs (RF_NO_PEER); NCCL_P2P_DISABLE=1 in the environment does it too, and
 * RANKFOLD_TACTIC picks tactics, as in any product. -t: ranks are threads, else processes. Lines
 * that begin with # say what it ran on. Built by plain cc with the public header; like any product
 * it brings its own way to the CUDA driver, here dlopen.
 */
#define _GNU_SOURCE
#include <rankfold.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 8, GUARD = 64 };

/* ---- memory and streams of GPUs, and of CPUs ---- */

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
static int gpu_start(void)
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
        _exit(gpu_start() && cuDeviceGetCount(&n) == 0 ? n : 0);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static int gpu_open(int ordinal, void **stream)
{
    void *context;
    return cuDevicePrimaryCtxRetain(&context, ordinal) || cuCtxSetCurrent(context) ||
           cuStreamCreate(stream, 1);
}

static unsigned long long at(const void *pointer)
{
    return (uintptr_t)pointer;
}

static void *gpu_allocate(size_t bytes)
{
    unsigned long long address;
    return cuMemAlloc_v2(&address, bytes) ? NULL : (void *)(uintptr_t)address;
}

static void gpu_release(void *memory)
{
    if (memory)
        cuMemFree_v2(at(memory));
}

static int gpu_write(void *to, const void *from, size_t bytes)
{
    /* it comes back while the last bytes are on their way, and a stream does not wait for them */
    return cuMemcpyHtoD_v2(at(to), from, bytes) || cuStreamSynchronize(NULL);
}

static int gpu_read(void *to, const void *from, size_t bytes)
{
    return cuMemcpyDtoH_v2(to, at(from), bytes);
}

static int gpu_wait(void *stream)
{
    return cuStreamSynchronize(stream);
}

static void gpu_close(void *stream)
{
    if (stream)
        cuStreamDestroy_v2(stream);
}

static int cpu_start(void)
{
    return 1;
}

static int cpu_open(int ordinal, void **stream)
{
    (void)ordinal;
    *stream = NULL; /* the calling thread */
    return 0;
}

static int cpu_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return 0;
}

static int cpu_wait(void *stream)
{
    (void)stream;
    return 0;
}

static void cpu_close(void *stream)
{
    (void)stream;
}

static const struct machine {
    const char *name;
    rf_backend_kind backend;
    int (*start)(void); /* in a process that will be ranks */
    int (*open)(int ordinal, void **stream);
    void *(*allocate)(size_t bytes);
    void (*release)(void *memory);
    int (*write)(void *to, const void *from, size_t bytes);
    int (*read)(void *to, const void *from, size_t bytes);
    int (*wait)(void *stream);
    void (*close)(void *stream);
} machines[] = {
    {"cpu", RF_BACKEND_CPU, cpu_start, cpu_open, malloc, free, cpu_copy, cpu_copy, cpu_wait,
     cpu_close},
    {"cuda", RF_BACKEND_CUDA, gpu_start, gpu_open, gpu_allocate, gpu_release, gpu_write, gpu_read,
     gpu_wait, gpu_close},
};

/* ---- configuration ---- */

RF_DECLARE_PACK(cpu);
#ifdef PACK
extern const rf_pack PACK;
#endif
static const rf_pack *const packs[] = {
    &rf_pack_cpu,
#ifdef PACK
    &PACK,
#endif
};

static struct options {
    const struct machine *machine;
    int world, gpus, threads;
    uint32_t flags;
} options = {.machine = machines};

static rf_config configure(int rank)
{
    rf_config config = RF_CONFIG_INIT;
    config.backend = options.machine->backend;
    config.device = options.gpus ? rank % options.gpus : rank;
    config.packs = packs, config.n_packs = sizeof packs / sizeof *packs;
    config.capacity_bytes = 8 << 20;
    config.deadline_ms = 20000;
    config.flags = options.flags;
    if (options.gpus && options.world > options.gpus)
        config.flags |= RF_SHARE_DEVICE;
    return config;
}

/* ---- inputs ---- */

/* Both zeros, infinities, quiet and signalling NaNs of several payloads (all ones among them, which
 * is a wire's "nothing here yet"), the smallest and the largest denormal, the largest number, one.
 */
static const uint32_t special_f32[16] = {
    0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xffffffff,
    0x7fffffff, 0x7fbfffff, 0x00000001, 0x807fffff, 0x7f7fffff, 0xff7fffff, 0x3f800000, 0xbf800000};
static const uint16_t special_bf16[16] = {0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffc0,
                                          0x7f81, 0xffff, 0x7fff, 0x7fbf, 0x0001, 0x807f,
                                          0x7f7f, 0xff7f, 0x3f80, 0xbf80};
static const uint16_t special_f16[16] = {0x0000, 0x8000, 0x7c00, 0xfc00, 0x7e00, 0xfe00,
                                         0x7c01, 0xffff, 0x7fff, 0x7dff, 0x0001, 0x83ff,
                                         0x7bff, 0xfbff, 0x3c00, 0xbc00};

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 32);
}

/* First every combination of special values over the first two ranks (and more of them, as far as
 * there are elements), then any bits with special pairs among them. */
static void fill(void *to, rf_dtype dtype, uint64_t count, int rank, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t random = mix(seed << 40 ^ (uint64_t)rank << 32 ^ (i / 2 + 1));
        uint64_t which = i < 4096 ? i >> 4 * rank & 15 : random >> 60;
        int special = i < 4096 || (random >> 50 & 3) == 0;
        if (dtype == RF_F32)
            ((uint32_t *)to)[i] = special ? special_f32[which] : (uint32_t)mix(random + i);
        else
            ((uint16_t *)to)[i] = !special           ? (uint16_t)mix(random + i)
                                  : dtype == RF_BF16 ? special_bf16[which]
                                                     : special_f16[which];
    }
}

/* FNV-1a */
static uint64_t digest(const unsigned char *bytes, size_t n)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

/* ---- a rank ---- */

typedef struct job {
    int rank;
    rf_bootstrap boot;
    int failed;
} job;

typedef struct buffers {
    unsigned char *in, *out; /* of the machine */
    unsigned char *inputs[MOST], *expected, *found;
} buffers;

static const rf_dtype dtypes[] = {RF_F32, RF_BF16, RF_F16};
static const uint64_t counts[] = {1, 7, 256, 4099, 65536, 300001};
#define N(array) (sizeof(array) / sizeof *(array))
#define BYTES    (300001 * 4 + 16 + GUARD)

static int check(const char *what, int failed)
{
    if (failed)
        fprintf(stderr, "%s gives %d\n", what, failed);
    return failed;
}
#define TRY(call) check(#call, call)

static int sum(rf_comm *comm, int rank, buffers *b, rf_dtype dtype, uint64_t count, int in_place,
               void *stream)
{
    const struct machine *m = options.machine;
    size_t size = rf_dtype_size(dtype), bytes = count * size;
    size_t offset = count % 2 ? size : 0; /* odd sizes lie at odd addresses too */
    unsigned char *out = b->out + offset, *in = in_place ? out : b->in + offset;
    memset(b->found, 0x5a, bytes + GUARD);
    if (TRY(m->write(out, b->found, bytes + GUARD)) || TRY(m->write(in, b->inputs[rank], bytes)))
        return 1;
    if (rf_all_reduce(comm, 0, in, out, count, dtype, stream)) {
        fprintf(stderr, "rank %d: %s\n", rank, rf_comm_error(comm)->text);
        return 1;
    }
    if (TRY(m->wait(stream)) || TRY(m->read(b->found, out, bytes + GUARD)))
        return 1;
    size_t i = 0;
    while (i < bytes + GUARD && b->found[i] == (i < bytes ? b->expected[i] : 0x5a))
        i++;
    if (i < bytes + GUARD)
        fprintf(stderr, "rank %d: %s x %llu%s: byte %zu is %02x, the oracle says %02x\n", rank,
                rf_dtype_name(dtype), (unsigned long long)count, in_place ? " in place" : "", i,
                b->found[i], i < bytes ? b->expected[i] : 0x5a);
    if (rank == 0)
        printf("%-4s %7llu %-12s %016llx\n", rf_dtype_name(dtype), (unsigned long long)count,
               in_place ? "in place" : "out of place", (unsigned long long)digest(b->found, bytes));
    return i < bytes + GUARD;
}

static void say_plan(const rf_comm *comm, rf_dtype dtype, uint64_t count)
{
    rf_plan_info plan;
    if (!rf_plan_query(comm, 0, count, dtype, RF_EAGER, &plan))
        printf("# %s, %u: %s\n", plan.variant, plan.grid, plan.reason);
}

static int sum_all(rf_comm *comm, int rank, buffers *b, void *stream)
{
    int done = 0, bad = 0;
    for (size_t d = 0; d < N(dtypes); d++)
        for (size_t c = 0; c < N(counts) && !bad; c++) {
            rf_shape shape = {RF_ALL_REDUCE, dtypes[d], RF_EAGER, 1, counts[c]};
            rf_error err = {0};
            if (!rf_supports(comm, &shape))
                continue; /* a small pack */
            if (rf_prepare(comm, 0, &shape, 1, &err)) {
                fprintf(stderr, "rank %d: %s\n", rank, err.text);
                return 1;
            }
            if (rank == 0)
                say_plan(comm, dtypes[d], counts[c]);
            for (int r = 0; r < options.world; r++)
                fill(b->inputs[r], dtypes[d], counts[c], r, d * N(counts) + c);
            rf_oracle_all_reduce((const void *const *)b->inputs, b->expected, counts[c], dtypes[d],
                                 options.world);
            for (int in_place = 0; in_place < 2 && !bad; in_place++, done++)
                bad = sum(comm, rank, b, dtypes[d], counts[c], in_place, stream);
        }
    return bad || !done;
}

static int use(rf_comm *comm, int rank)
{
    const struct machine *m = options.machine;
    void *stream = NULL;
    rf_transport_info t;
    for (size_t i = 0; rank == 0 && !rf_transport_query(comm, i, &t); i++)
        printf("# %s: %s\n", t.name, t.on ? "on" : t.reason);
    if (TRY(m->open(options.gpus ? rank % options.gpus : rank, &stream)))
        return 1;
    buffers b = {m->allocate(BYTES), m->allocate(BYTES), {NULL}, malloc(BYTES), malloc(BYTES)};
    int bad = !b.in || !b.out || !b.expected || !b.found;
    for (int r = 0; r < options.world; r++)
        bad |= !(b.inputs[r] = malloc(BYTES));
    bad = bad ? check("memory", 1) : sum_all(comm, rank, &b, stream);
    m->release(b.in);
    m->release(b.out);
    m->close(stream);
    for (int r = 0; r < options.world; r++)
        free(b.inputs[r]);
    free(b.expected);
    free(b.found);
    return bad;
}

static int be_rank(job *j)
{
    rf_error err = {0};
    rf_comm *comm = NULL;
    rf_config config = configure(j->rank);
    rf_result result = rf_comm_create(&config, &j->boot, &comm, &err);
    rf_bootstrap_free(&j->boot);
    if (result) {
        fprintf(stderr, "rank %d: %s\n", j->rank, err.text);
        return 1;
    }
    int bad = use(comm, j->rank);
    if (rf_comm_close(comm, 10000, &err)) {
        fprintf(stderr, "rank %d: close: %s\n", j->rank, err.text);
        bad = 1;
    }
    rf_comm_destroy(comm);
    fflush(stdout);
    return bad;
}

/* ---- ranks as processes, ranks as threads ---- */

static int processes(void)
{
    int failed = 0, status;
    char name[64];
    rf_error err = {0};
    snprintf(name, sizeof name, "rankfold-same-%d", (int)getpid());
    for (int r = 0; r < options.world; r++) {
        if (fork() == 0) {
            job j = {.rank = r};
            options.machine->start();
            _exit(rf_bootstrap_socket(name, r, options.world, &j.boot, &err) || be_rank(&j));
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

static int threads(void)
{
    job jobs[MOST] = {{0}};
    pthread_t ids[MOST];
    rf_bootstrap boots[MOST];
    rf_error err = {0};
    options.machine->start();
    int failed = rf_bootstrap_threads(options.world, boots, &err) != RF_OK;
    for (int r = 0; r < options.world && !failed; r++) {
        jobs[r] = (job){.rank = r, .boot = boots[r]};
        failed = pthread_create(&ids[r], NULL, thread, &jobs[r]) != 0;
    }
    for (int r = 0; r < options.world && !failed; r++)
        pthread_join(ids[r], NULL);
    for (int r = 0; r < options.world; r++)
        failed |= jobs[r].failed;
    return failed;
}

static const struct machine *machine_named(const char *name)
{
    for (size_t i = 0; i < N(machines); i++)
        if (strcmp(name, machines[i].name) == 0)
            return &machines[i];
    return NULL;
}

int main(int argc, char **argv)
{
    int option, wrong = 0;
    while ((option = getopt(argc, argv, "b:w:nt")) != -1) {
        if (option == 'b')
            wrong |= !(options.machine = machine_named(optarg));
        else if (option == 'w')
            options.world = atoi(optarg);
        else if (option == 'n')
            options.flags |= RF_NO_PEER;
        else if (option == 't')
            options.threads = 1;
        else
            wrong = 1;
    }
    if (wrong || optind < argc || options.world < 0 || options.world > MOST) {
        fputs("same [-b cpu|cuda] [-w WORLD, 1 to 8] [-n] [-t]\n", stderr);
        return 2;
    }
    if (options.machine->backend == RF_BACKEND_CUDA)
        options.gpus = count_gpus();
    if (options.world == 0)
        options.world = options.gpus > 2 ? options.gpus : 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("# %d ranks as %s, %s\n", options.world, options.threads ? "threads" : "processes",
           options.machine->name);
    int failed = options.threads ? threads() : processes();
    puts(failed ? "failed" : "every bit equals the oracle's");
    return failed;
}
