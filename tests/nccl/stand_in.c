/* A stand-in for libnccl.so.2: its meaning on host memory, through memory that the ranks share. It
 * calls its own public functions inside, as a library with interposable names may.
 * STAND_IN_DELAY_US: how long a sum takes at least. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "nccl.h"

#define RANKS  16
#define CHUNK  65536
#define WAIT_S 20

typedef struct room {
    uint32_t arrivals, aborted;
    unsigned char data[RANKS][CHUNK];
} room;

struct ncclComm {
    room *room;
    char name[64];
    int rank, world;
    uint32_t meetings, children;
    int asked; /* how often its state was asked for */
    int revoked;
};

/* A communicator lies where one that has ended lay before. */
static struct ncclComm pool[64];

/* ---- meeting ---- */

static ncclResult_t meet(ncclComm_t c)
{
    struct timespec start, now;
    uint32_t all = (uint32_t)c->world * ++c->meetings;
    __atomic_add_fetch(&c->room->arrivals, 1, __ATOMIC_SEQ_CST);
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (__atomic_load_n(&c->room->arrivals, __ATOMIC_SEQ_CST) < all) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (__atomic_load_n(&c->room->aborted, __ATOMIC_SEQ_CST) ||
            now.tv_sec - start.tv_sec > WAIT_S)
            return ncclSystemError;
        sched_yield();
    }
    return ncclSuccess;
}

/* ---- numbers ---- */

static double half_to_double(uint16_t h)
{
    int exponent = h >> 10 & 31;
    double m = exponent ? ldexp((h & 1023) | 1024, exponent - 25) : ldexp(h & 1023, -24);
    return h >> 15 ? -m : m;
}

static uint16_t double_to_half(double v) /* rounded towards 0 */
{
    int exponent;
    double m = frexp(fabs(v), &exponent);
    int bits = v == 0 || exponent < -13 ? (int)ldexp(fabs(v), 24)
               : exponent > 16          ? 0x7c00
                                        : (exponent + 14) << 10 | (int)ldexp(m - 0.5, 11);
    return (uint16_t)(v < 0 ? bits | 0x8000 : bits);
}

typedef union number {
    int32_t i;
    float f;
    double d;
    uint16_t h;
    uint32_t u;
} number;

static double load(const unsigned char *at, int type)
{
    number x;
    memset(&x, 0, sizeof x);
    memcpy(&x, at, nccl_size(type));
    switch (type) {
    case ncclInt32:
        return x.i;
    case ncclFloat16:
        return half_to_double(x.h);
    case ncclFloat32:
        return x.f;
    case ncclBfloat16:
        x.u <<= 16;
        return x.f;
    default:
        return x.d;
    }
}

static void store(unsigned char *at, int type, double v)
{
    number x;
    memset(&x, 0, sizeof x);
    switch (type) {
    case ncclInt32:
        x.i = (int32_t)v;
        break;
    case ncclFloat16:
        x.h = double_to_half(v);
        break;
    case ncclFloat32:
        x.f = (float)v;
        break;
    case ncclBfloat16:
        x.f = (float)v;
        x.u >>= 16;
        break;
    default:
        x.d = v;
    }
    memcpy(at, &x, nccl_size(type));
}

static double combine(double a, double b, int op)
{
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return a > b ? a : b;
    case ncclMin:
        return a < b ? a : b;
    default:
        return a + b;
    }
}

/* ---- the collectives ---- */

typedef struct call {
    const unsigned char *in;
    unsigned char *out;
    size_t count;
    int type, op; /* op -1: gather */
    ncclComm_t comm;
} call;

static void fold(const call *c, size_t first, size_t n)
{
    size_t size = nccl_size(c->type);
    for (size_t i = 0; i < n; i++) {
        double v = load(c->comm->room->data[0] + i * size, c->type);
        for (int r = 1; r < c->comm->world; r++)
            v = combine(v, load(c->comm->room->data[r] + i * size, c->type), c->op);
        if (c->op == ncclAvg)
            v /= c->comm->world;
        store(c->out + (first + i) * size, c->type, v);
    }
}

static ncclResult_t run(const call *c)
{
    size_t size = nccl_size(c->type), most = CHUNK / size;
    const char *delay = getenv("STAND_IN_DELAY_US");
    if (delay)
        usleep((useconds_t)atoi(delay));
    for (size_t first = 0; first < c->count; first += most) {
        size_t n = c->count - first < most ? c->count - first : most;
        memcpy(c->comm->room->data[c->comm->rank], c->in + first * size, n * size);
        if (meet(c->comm))
            return ncclSystemError;
        if (c->op >= 0)
            fold(c, first, n);
        for (int r = 0; r < c->comm->world && c->op < 0; r++)
            memcpy(c->out + ((size_t)r * c->count + first) * size, c->comm->room->data[r],
                   n * size);
        if (meet(c->comm))
            return ncclSystemError;
    }
    return ncclSuccess;
}

static _Thread_local int depth;
static _Thread_local call queue[64];
static _Thread_local int queued;

/* STAND_IN_LATE: communicators that do not block: they, and their sums, are ready at the third
 * question. */
static ncclResult_t late(ncclResult_t r)
{
    return r == ncclSuccess && getenv("STAND_IN_LATE") ? ncclInProgress : r;
}

static ncclResult_t late_sum(ncclComm_t comm, ncclResult_t r)
{
    if (comm->asked < 3)
        return r;
    comm->asked = 0;
    return late(r);
}

static ncclResult_t submit(call c)
{
    if (!c.in || !c.out || !c.comm || !c.comm->room || !nccl_size(c.type) || c.count > 1 << 30)
        return ncclInvalidArgument;
    if (c.comm->revoked)
        return ncclInvalidUsage;
    if (!depth)
        return late_sum(c.comm, run(&c));
    queue[queued++] = c;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t r = depth ? ncclSuccess : ncclInvalidUsage;
    if (r || --depth)
        return r;
    for (int i = 0; i < queued && !r; i++)
        r = run(&queue[i]);
    queued = 0;
    return r;
}

ncclResult_t ncclGroupSimulateEnd(void *info)
{
    (void)info;
    queued = 0;
    return depth-- ? ncclSuccess : (depth = 0, ncclInvalidUsage);
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, int type, int op,
                           ncclComm_t comm, void *stream)
{
    (void)stream;
    return submit((call){in, out, count, type, op, comm});
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, int type, ncclComm_t comm,
                           void *stream)
{
    (void)stream;
    return submit((call){in, out, count, type, -1, comm});
}

/* ---- communicators ---- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = 22809;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    uint64_t random[2];
    memset(id, 0, sizeof *id);
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return ncclSystemError;
    snprintf(id->internal, sizeof id->internal, "/stand-in-nccl-%016llx%016llx",
             (unsigned long long)random[0], (unsigned long long)random[1]);
    return ncclSuccess;
}

static ncclResult_t join(ncclComm_t *out, const char *name, int world, int rank)
{
    ncclComm_t c = pool;
    while (c->room)
        c++;
    if (!out || world < 1 || world > RANKS || rank < 0 || rank >= world)
        return ncclInvalidArgument;
    int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(room)))
        return ncclSystemError;
    room *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shared == MAP_FAILED)
        return ncclSystemError;
    *c = (struct ncclComm){.room = shared, .rank = rank, .world = world};
    snprintf(c->name, sizeof c->name, "%s", name);
    ncclResult_t r = meet(c);
    if (rank == 0)
        shm_unlink(name);
    float x = 1;
    int outside = depth;
    depth = 0;
    if (!r)
        r = ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL); /* by the public name */
    depth = outside;
    if (!r && x != (float)world)
        r = ncclInternalError;
    *out = c;
    return r;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    void *config)
{
    (void)config;
    return late(join(comm, id.internal, nranks, rank));
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(comm, nranks, id, rank, NULL);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int n_ids,
                                      ncclUniqueId *ids, void *config)
{
    (void)config;
    return n_ids > 0 ? late(join(comm, ids[n_ids - 1].internal, nranks, rank))
                     : ncclInvalidArgument;
}

/* Of one only: the others would have to come meanwhile. */
ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices)
{
    ncclUniqueId id;
    (void)devices;
    return n == 1 && !ncclGetUniqueId(&id) ? join(comms, id.internal, 1, 0) : ncclInvalidArgument;
}

/* What is excluded does not call it; flags go into the name. */
ncclResult_t ncclCommShrink(ncclComm_t comm, int *exclude, int n, ncclComm_t *out, void *config,
                            int flags)
{
    char name[128];
    int rank = comm->rank;
    (void)config;
    for (int i = 0; i < n; i++)
        rank -= exclude[i] < comm->rank;
    snprintf(name, sizeof name, "%.48s-%u-without-%d", comm->name, comm->children++, flags);
    return late(join(out, name, comm->world - n, rank));
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, void *config)
{
    int32_t mine[2] = {color, key}, all[RANKS][2] = {{0}};
    (void)config;
    if (!out)
        return ncclInvalidArgument;
    call gather = {(unsigned char *)mine, (unsigned char *)all, 2, ncclInt32, -1, comm};
    ncclResult_t r = run(&gather);
    int rank = 0, world = 0;
    char name[128];
    for (int i = 0; i < comm->world && !r; i++) {
        if (all[i][0] != color)
            continue;
        world++;
        rank += all[i][1] != key ? all[i][1] < key : i < comm->rank;
    }
    snprintf(name, sizeof name, "%.48s-%u-%d", comm->name, comm->children++, color);
    if (r || color < 0)
        return r;
    return late(join(out, name, world, rank));
}

static void leave(ncclComm_t c)
{
    munmap(c->room, sizeof *c->room);
    c->room = NULL;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    return meet(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    leave(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    __atomic_store_n(&comm->room->aborted, 1, __ATOMIC_SEQ_CST);
    leave(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    comm->revoked = 1;
    __atomic_store_n(&comm->room->aborted, 1, __ATOMIC_SEQ_CST);
    return flags ? ncclInvalidArgument : ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    *error = comm->room->aborted ? ncclSystemError : ncclSuccess;
    if (++comm->asked < 3)
        *error = late(*error);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *count)
{
    *count = comm->world;
    return comm->asked < 3 && getenv("STAND_IN_LATE") ? ncclInvalidUsage : ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device)
{
    *device = comm->rank;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result ? "an error of the stand-in" : "no error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "the last error of the stand-in";
}
