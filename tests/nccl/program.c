/* A program that knows NCCL and nothing of Rankfold.
 *
 *     program SCENARIO RANKS [RANK:NAME=VALUE ...]
 *
 * Starts itself as so many processes, some with a variable of their own (RANK: is a number, or
 * "all"; without "=VALUE" it is unset), and prints what each computed as one number, in rank order.
 * The functions come from what it is linked with, or from PROGRAM_LIBRARY by dlopen. With
 * PROGRAM_ALONE=1 a rank has a network of its own, as on another machine. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nccl.h"

#define LIST(X)                                                                                    \
    X(ncclGetUniqueId)                                                                             \
    X(ncclCommInitRank)                                                                            \
    X(ncclCommInitRankConfig)                                                                      \
    X(ncclCommInitRankScalable)                                                                    \
    X(ncclCommInitAll)                                                                             \
    X(ncclCommSplit)                                                                               \
    X(ncclCommShrink)                                                                              \
    X(ncclCommRevoke)                                                                              \
    X(ncclCommFinalize)                                                                            \
    X(ncclCommDestroy)                                                                             \
    X(ncclCommAbort)                                                                               \
    X(ncclCommGetAsyncError)                                                                       \
    X(ncclCommCount)                                                                               \
    X(ncclGetErrorString)                                                                          \
    X(ncclGetLastError)                                                                            \
    X(ncclAllReduce)                                                                               \
    X(ncclAllGather)                                                                               \
    X(ncclGroupStart)                                                                              \
    X(ncclGroupEnd)                                                                                \
    X(ncclGroupSimulateEnd)

static struct {
#define X(name) __typeof__(name) *name;
    LIST(X)
#undef X
} nccl = {
#define X(name) name,
    LIST(X)
#undef X
};

static int rank, world;
static uint64_t digest = 0xcbf29ce484222325u;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rank %d: line %d: %s: ", rank, __LINE__, #condition);                 \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)
#define NCCL(call)                                                                                 \
    do {                                                                                           \
        ncclResult_t nccl_result = nccl.call;                                                      \
        CHECK(!nccl_result, "%d, %s", nccl_result, nccl.ncclGetErrorString(nccl_result));          \
    } while (0)

#define REFUSED(code, call) CHECK(nccl.call == (code), "not refused")

static void open_library(void)
{
    const char *path = getenv("PROGRAM_LIBRARY");
    if (!path)
        return;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(library, "%s", dlerror());
#define X(name)                                                                                    \
    {                                                                                              \
        void *at = dlsym(library, #name);                                                          \
        CHECK(at, "%s", dlerror());                                                                \
        memcpy(&nccl.name, &at, sizeof at);                                                        \
    }
    LIST(X)
#undef X
}

/* ---- numbers: small integers, exact in every type and order ---- */

static void put(void *to, int type, size_t i, int v)
{
    float f = (float)v;
    double d = v;
    uint32_t bits;
    int32_t n = v;
    memcpy(&bits, &f, sizeof bits);
    uint16_t h = (uint16_t)(bits >> 16);
    if (type == ncclFloat16)
        h = v ? (uint16_t)(((bits >> 23) - 112) << 10 | (bits >> 13 & 1023)) : 0;
    const void *from = type == ncclInt32     ? (void *)&n
                       : type == ncclFloat32 ? (void *)&f
                       : type == ncclFloat64 ? (void *)&d
                                             : (void *)&h;
    memcpy((char *)to + i * nccl_size(type), from, nccl_size(type));
}

static int value(int r, size_t i)
{
    return (int)((i * 7 + (size_t)r * 3) % 5) + 1;
}

static int expected(size_t i, int op, int members, const int *ranks)
{
    int v = value(ranks ? ranks[0] : 0, i);
    for (int r = 1; r < members; r++) {
        int w = value(ranks ? ranks[r] : r, i);
        v = op == ncclProd ? v * w : op == ncclMax ? (v > w ? v : w) : v + w;
    }
    return v;
}

typedef struct tensor {
    char *in, *out, *want;
    size_t count;
    int type;
} tensor;

static tensor make(size_t count, int type, int op, int in_place, int members, const int *ranks)
{
    size_t bytes = count * nccl_size(type);
    tensor t = {malloc(bytes), NULL, malloc(bytes), count, type};
    t.out = in_place ? t.in : malloc(bytes);
    memset(t.out, 0xa5, bytes);
    for (size_t i = 0; i < count; i++) {
        put(t.in, type, i, value(rank, i));
        put(t.want, type, i, expected(i, op, members, ranks));
    }
    return t;
}

static void check(tensor *t, const char *what)
{
    size_t bytes = t->count * nccl_size(t->type);
    for (size_t i = 0; i < bytes; i++)
        digest = (digest ^ (unsigned char)t->out[i]) * 0x100000001b3u;
    CHECK(!memcmp(t->out, t->want, bytes), "%s: %zu of type %d", what, t->count, t->type);
    if (t->out != t->in)
        free(t->out);
    free(t->in);
    free(t->want);
}

/* Of a communicator that does not block: waits until it, or its sum, is there. */
static void wait_for(ncclResult_t made, ncclComm_t comm)
{
    CHECK(made == ncclSuccess || made == ncclInProgress, "%d", made);
    while (made == ncclInProgress)
        NCCL(ncclCommGetAsyncError(comm, &made));
    CHECK(made == ncclSuccess, "%d", made);
}

static void reduce(ncclComm_t comm, size_t count, int type, int op, int in_place, uintptr_t stream)
{
    tensor t = make(count, type, op, in_place, world, NULL);
    wait_for(nccl.ncclAllReduce(t.in, t.out, count, type, op, comm, (void *)stream), comm);
    check(&t, "all-reduce");
}

/* ---- scenarios ---- */

static const size_t counts[] = {1, 7, 255, 1024, 4099, 10000, 16384};
static const int types[] = {ncclFloat32, ncclBfloat16, ncclFloat16, ncclInt32, ncclFloat64};
static const int ops[] = {ncclSum, ncclMax, ncclProd};
#define N(array) (sizeof array / sizeof *array)

static void grid(ncclComm_t comm)
{
    for (size_t c = 0; c < N(counts); c++)
        for (size_t t = 0; t < N(types); t++)
            for (size_t o = 0; o < N(ops); o++)
                for (int in_place = 0; in_place < 2; in_place++)
                    reduce(comm, counts[c], types[t], world > 3 ? ncclSum : ops[o], in_place, 0);
    reduce(comm, 300000, ncclFloat32, ncclSum, 1, 0); /* beyond the capacity */
}

static void dtypes(ncclComm_t comm)
{
    reduce(comm, 256, ncclFloat32, ncclSum, 0, 0);
    reduce(comm, 256, ncclBfloat16, ncclSum, 0, 0);
    reduce(comm, 256, ncclFloat16, ncclSum, 0, 0);
}

static void streams(ncclComm_t comm)
{
    for (uintptr_t i = 0; i < 20; i++)
        reduce(comm, 100 + i, ncclFloat32, ncclSum, 0, 1 + i % 3);
}

static void groups(ncclComm_t comm)
{
    tensor t[3];
    float all[16], one = (float)(rank + 1);
    NCCL(ncclGroupStart());
    NCCL(ncclGroupStart());
    for (size_t i = 0; i < 3; i++) {
        t[i] = make(500 + i, ncclFloat32, ncclSum, 0, world, NULL);
        NCCL(ncclAllReduce(t[i].in, t[i].out, t[i].count, ncclFloat32, ncclSum, comm, NULL));
    }
    NCCL(ncclGroupEnd());
    NCCL(ncclAllGather(&one, all, 1, ncclFloat32, comm, NULL));
    NCCL(ncclGroupEnd());
    for (int i = 0; i < 3; i++)
        check(&t[i], "group");
    for (int r = 0; r < world; r++)
        CHECK(all[r] == (float)(r + 1), "all-gather: %g", (double)all[r]);
    reduce(comm, 700, ncclFloat32, ncclSum, 0, 0);
}

static void split(ncclComm_t comm)
{
    for (int round = 0; round < 2; round++) {
        ncclComm_t child = NULL;
        int color = rank % 2, members = 0, ranks[16], count = 0;
        for (int r = 0; r < world; r++)
            if (r % 2 == color)
                ranks[members++] = r;
        if (round == 1 && color == 1)
            color = -1;
        ncclResult_t made = nccl.ncclCommSplit(comm, color, -rank, &child, NULL);
        if (child)
            wait_for(made, child);
        CHECK((child == NULL) == (color < 0), "split");
        if (child) {
            NCCL(ncclCommCount(child, &count));
            CHECK(count == members, "%d ranks of %d", count, members);
            for (int i = 0; i < 5; i++) {
                tensor t = make(1000, ncclFloat32, ncclSum, i % 2, members, ranks);
                wait_for(nccl.ncclAllReduce(t.in, t.out, 1000, ncclFloat32, ncclSum, child, NULL),
                         child);
                check(&t, "child");
                reduce(comm, 600, ncclFloat32, ncclSum, 0, 0);
            }
            NCCL(ncclCommFinalize(child));
            NCCL(ncclCommDestroy(child));
        } else {
            for (int i = 0; i < 5; i++)
                reduce(comm, 600, ncclFloat32, ncclSum, 0, 0);
        }
    }
}

/* A child that copies the communicator and ends leaves it alone. */
static void forks(ncclComm_t comm)
{
    for (int i = 0; i < 3; i++) {
        int status = 0;
        reduce(comm, 1000, ncclFloat32, ncclSum, 0, 0);
        pid_t pid = fork();
        if (pid == 0)
            exit(0);
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && !status, "status 0x%x", status);
    }
}

/* Rank 0 gives up; nobody hangs, and nobody is told that all is well. */
static void give_up(ncclComm_t comm)
{
    float x[1000] = {1};
    ncclResult_t error = ncclSuccess;
    reduce(comm, 1000, ncclFloat32, ncclSum, 0, 0);
    if (rank != 0) {
        ncclResult_t r = nccl.ncclAllReduce(x, x, 1000, ncclFloat32, ncclSum, comm, NULL);
        CHECK(r, "a sum without rank 0");
        NCCL(ncclCommGetAsyncError(comm, &error));
        CHECK(error, "no error to ask for");
    } else {
        usleep(100000);
    }
    NCCL(ncclCommAbort(comm));
}

/* All ranks are here, and none still reads what the sum before needs. */
static void meet(ncclComm_t comm)
{
    int32_t mine = rank, all[16];
    NCCL(ncclAllGather(&mine, all, 1, ncclInt32, comm, NULL));
}

static ncclUniqueId new_id(ncclComm_t comm)
{
    ncclUniqueId mine, all[16];
    NCCL(ncclGetUniqueId(&mine));
    NCCL(ncclAllGather(&mine, all, sizeof mine / sizeof(int32_t), ncclInt32, comm, NULL));
    return all[0];
}

/* One sum; ranks: NULL = the first ones. */
static void use(ncclComm_t comm, int members, const int *ranks)
{
    tensor t = make(800, ncclFloat32, ncclSum, 0, members, ranks);
    wait_for(nccl.ncclAllReduce(t.in, t.out, 800, ncclFloat32, ncclSum, comm, NULL), comm);
    check(&t, "a new one");
}

/* Every way to a communicator; several are there at once. */
static void makes(ncclComm_t comm)
{
    enum { CONFIG, SCALABLE, SCALABLE_TOO, SPLIT, SPLIT_TOO, GROUP, N_ALL };
    ncclComm_t c[N_ALL], one, fewer;
    ncclUniqueId ids[] = {new_id(comm), new_id(comm)}, others[] = {ids[0], new_id(comm)};
    int last = world - 1;
    wait_for(nccl.ncclCommInitRankConfig(&c[CONFIG], world, ids[0], rank, NULL), c[CONFIG]);
    wait_for(nccl.ncclCommInitRankScalable(&c[SCALABLE], world, rank, 2, ids, NULL), c[SCALABLE]);
    wait_for(nccl.ncclCommInitRankScalable(&c[SCALABLE_TOO], world, rank, 2, others, NULL),
             c[SCALABLE_TOO]);
    wait_for(nccl.ncclCommSplit(comm, 0, rank, &c[SPLIT], NULL), c[SPLIT]);
    wait_for(nccl.ncclCommSplit(comm, 0, rank, &c[SPLIT_TOO], NULL), c[SPLIT_TOO]);
    ids[0] = new_id(comm);
    NCCL(ncclGroupStart());
    ncclResult_t made = nccl.ncclCommInitRank(&c[GROUP], world, ids[0], rank);
    NCCL(ncclGroupEnd());
    wait_for(made, c[GROUP]);
    for (int i = 0; i < N_ALL; i++)
        use(c[i], world, NULL);
    for (int i = 0; i < N_ALL; i++) {
        NCCL(ncclCommFinalize(c[i]));
        NCCL(ncclCommDestroy(c[i]));
    }
    if (rank != last) {
        wait_for(nccl.ncclCommShrink(comm, &last, 1, &fewer, NULL, 0), fewer);
        use(fewer, last, NULL);
        NCCL(ncclCommDestroy(fewer));
    }
    NCCL(ncclCommInitAll(&one, 1, NULL));
    NCCL(ncclCommDestroy(one));
}

/* Two communicators that are made at once, and have one of their identifiers in common. */
static void halves(ncclComm_t comm)
{
    ncclUniqueId common = new_id(comm), own[] = {new_id(comm), new_id(comm)};
    for (int i = 0; i < 3; i++) {
        ncclComm_t c;
        int ranks[] = {rank / 2 * 2, rank / 2 * 2 + 1};
        ncclUniqueId ids[] = {common, own[rank / 2]};
        meet(comm);
        wait_for(nccl.ncclCommInitRankScalable(&c, 2, rank % 2, 2, ids, NULL), c);
        use(c, 2, ranks);
        NCCL(ncclCommDestroy(c));
    }
}

/* Where a communicator lay that was given up there may be another. */
static void remakes(ncclComm_t comm)
{
    for (int i = 0; i < 3; i++) {
        ncclComm_t c;
        wait_for(nccl.ncclCommInitRank(&c, world, new_id(comm), rank), c);
        use(c, world, NULL);
        meet(comm);
        if (i == 1) {
            float x = 1;
            NCCL(ncclCommRevoke(c, 0));
            REFUSED(ncclInvalidUsage, ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, c, NULL));
        }
        if (i == 2)
            NCCL(ncclCommDestroy(c));
        else
            NCCL(ncclCommAbort(c));
    }
}

/* What NCCL refuses, and that all is well behind it. */
static void refused(ncclComm_t comm)
{
    float x[10] = {1};
    ncclComm_t nowhere = (ncclComm_t)64; /* nobody may look there */
    ncclUniqueId id = new_id(comm);
    REFUSED(ncclInvalidArgument, ncclCommInitRank(&nowhere, world, id, world));
    REFUSED(ncclInvalidArgument, ncclCommInitRank(NULL, world, id, rank));
    REFUSED(ncclInvalidArgument, ncclCommInitRankScalable(&nowhere, world, rank, 0, NULL, NULL));
    REFUSED(ncclInvalidArgument, ncclCommInitAll(&nowhere, 2, NULL));
    REFUSED(ncclInvalidArgument, ncclCommSplit(comm, 0, 0, NULL, NULL));
    REFUSED(ncclInvalidArgument, ncclCommShrink(comm, NULL, 0, NULL, NULL, 0));
    REFUSED(ncclInvalidUsage, ncclGroupEnd());
    REFUSED(ncclInvalidUsage, ncclGroupSimulateEnd(NULL));
    REFUSED(ncclInvalidArgument, ncclAllReduce(NULL, x, 10, ncclFloat32, ncclSum, comm, NULL));
    REFUSED(ncclInvalidArgument,
            ncclAllReduce(x, x, (size_t)1 << 62, ncclFloat32, ncclSum, comm, NULL));
    ncclResult_t (*lacking)(void *memory); /* in the stand-in, not in the shim */
    void *at = dlsym(RTLD_DEFAULT, "ncclMemFree");
    memcpy(&lacking, &at, sizeof at);
    CHECK(!at || lacking(x) == ncclSystemError, "not refused");
    CHECK(!strcmp(nccl.ncclGetErrorString(1), "an error of the stand-in"), "text");
    CHECK(!strcmp(nccl.ncclGetLastError(comm), "the last error of the stand-in"), "text");
    reduce(comm, 1000, ncclFloat32, ncclSum, 0, 0);
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(x, x, 10, ncclFloat32, ncclSum, comm, NULL));
    NCCL(ncclGroupSimulateEnd(NULL)); /* which forgets it */
    reduce(comm, 1000, ncclFloat32, ncclSum, 0, 0);
}

/* Rank 0 is gone all of a sudden, and NCCL does not know it yet. */
static void lost(ncclComm_t comm)
{
    float x[1000] = {1};
    ncclResult_t error = ncclSuccess;
    reduce(comm, 1000, ncclFloat32, ncclSum, 0, 0);
    meet(comm);
    if (rank == 0)
        _exit(0);
    ncclResult_t r = nccl.ncclAllReduce(x, x, 1000, ncclFloat32, ncclSum, comm, NULL);
    CHECK(r == ncclRemoteError, "%d", r);
    NCCL(ncclCommGetAsyncError(comm, &error));
    CHECK(error == ncclRemoteError, "%d", error);
    NCCL(ncclCommAbort(comm));
    _exit(0);
}

static void *sum_alone(void *comm)
{
    static float x[1000];
    return (void *)(intptr_t)nccl.ncclAllReduce(x, x, 1000, ncclFloat32, ncclSum, comm, NULL);
}

/* An abort brings a thread back that waits for the others. */
static void stuck(ncclComm_t comm)
{
    pthread_t thread;
    void *result = NULL;
    ncclResult_t error = ncclSuccess;
    reduce(comm, 1000, ncclFloat32, ncclSum, 0, 0);
    meet(comm);
    if (rank == 0) {
        CHECK(!pthread_create(&thread, NULL, sum_alone, comm), "thread");
        usleep(50000);
        NCCL(ncclCommAbort(comm));
        pthread_join(thread, &result);
        CHECK(result, "a sum alone");
        return;
    }
    while (!error)
        NCCL(ncclCommGetAsyncError(comm, &error));
    NCCL(ncclCommAbort(comm));
}

static const struct scenario {
    const char *name;
    void (*run)(ncclComm_t comm);
    int ends; /* it ends the communicator itself */
} scenarios[] = {
    {"grid", grid, 0},     {"streams", streams, 0}, {"groups", groups, 0},
    {"split", split, 0},   {"forks", forks, 0},     {"abort", give_up, 1},
    {"makes", makes, 0},   {"remakes", remakes, 0}, {"refused", refused, 0},
    {"lost", lost, 1},     {"stuck", stuck, 1},     {"dtypes", dtypes, 0},
    {"halves", halves, 0},
};

static int open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void run(const char *name, const ncclUniqueId ids[2])
{
    int before = open_files();
    const struct scenario *s = scenarios;
    while (s < scenarios + N(scenarios) && strcmp(s->name, name))
        s++;
    CHECK(s < scenarios + N(scenarios), "no scenario %s", name);
    ncclComm_t comms[2];
    for (int i = 0; i < 2; i++) {
        ncclResult_t made = nccl.ncclCommInitRank(&comms[i], world, ids[i], rank);
        wait_for(made, comms[i]);
    }
    s->run(comms[0]);
    reduce(comms[1], 4096, ncclFloat32, ncclSum, 0, 0);
    if (!s->ends) {
        reduce(comms[0], 4096, ncclFloat32, ncclSum, 0, 0);
        NCCL(ncclCommFinalize(comms[0]));
        NCCL(ncclCommDestroy(comms[0]));
    }
    reduce(comms[1], 4096, ncclBfloat16, ncclSum, 0, 0);
    NCCL(ncclCommDestroy(comms[1])); /* without finalize, too */
    CHECK(open_files() == before, "%d, and %d before", open_files(), before);
}

/* ---- processes ---- */

static void set_variables(int r, char **settings)
{
    for (; *settings; settings++) {
        char *text = strchr(*settings, ':');
        if (!text || (strncmp(*settings, "all:", 4) && atoi(*settings) != r))
            continue;
        char *name = strdup(text + 1), *is = strchr(name, '=');
        if (is)
            *is = 0, setenv(name, is + 1, 1);
        else
            unsetenv(name);
        free(name);
    }
}

static pid_t start(char *program, const char *scenario, int r, int n, const char *ids,
                   char **settings, int *from)
{
    int ends[2];
    char numbers[2][16];
    if (pipe(ends))
        _exit(1);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        set_variables(r, settings);
        snprintf(numbers[0], sizeof numbers[0], "%d", r);
        snprintf(numbers[1], sizeof numbers[1], "%d", n);
        execl(program, program, scenario, numbers[1], "--rank", numbers[0], ids, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    *from = ends[0];
    return pid;
}

static int start_all(char **argv, int n)
{
    ncclUniqueId ids[2];
    char hex[4 * sizeof *ids + 1];
    pid_t pids[16];
    int from[16], failed = 0;
    for (int i = 0; i < 2; i++)
        NCCL(ncclGetUniqueId(&ids[i]));
    for (size_t i = 0; i < sizeof ids; i++)
        snprintf(hex + 2 * i, 3, "%02x", ((unsigned char *)ids)[i]);
    for (int r = 0; r < n; r++)
        pids[r] = start(argv[0], argv[1], r, n, hex, argv + 3, &from[r]);
    for (int r = 0; r < n; r++) {
        char line[256];
        ssize_t got = read(from[r], line, sizeof line);
        int status = 0;
        if (got > 0)
            fwrite(line, 1, (size_t)got, stdout);
        waitpid(pids[r], &status, 0);
        if (status)
            fprintf(stderr, "rank %d: status 0x%x\n", r, status);
        failed |= status;
    }
    return failed != 0;
}

int main(int argc, char **argv)
{
    open_library();
    if (argc < 3)
        return 2;
    if (argc < 6 || strcmp(argv[3], "--rank"))
        return start_all(argv, atoi(argv[2]));
    ncclUniqueId ids[2];
    world = atoi(argv[2]);
    rank = atoi(argv[4]);
    for (size_t i = 0; i < sizeof ids; i++) {
        char pair[3] = {argv[5][2 * i], argv[5][2 * i + 1], 0};
        ((unsigned char *)ids)[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    alarm(60);
    if (getenv("PROGRAM_ALONE"))
        CHECK(!unshare(CLONE_NEWNET) || !unshare(CLONE_NEWUSER | CLONE_NEWNET), "not permitted");
    run(argv[1], ids);
    printf("%s, rank %d of %d: %016llx\n", argv[1], rank, world, (unsigned long long)digest);
    return 0;
}
