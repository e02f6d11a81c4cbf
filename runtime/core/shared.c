#define _GNU_SOURCE
#include "core/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/group.h"
#include "core/socket.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* Of linux/mempolicy.h, which not every system has: the node is a wish. */
#define PREFERRED 1
#define NODES_MAX 1024

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* ---- mappings of this process ---- */

typedef struct mapping {
    struct mapping *next;
    unsigned char *base;
    size_t bytes;
    uint32_t users;
    void (*end)(void *ctx, unsigned char *base);
    void *ctx;
} mapping;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mapping *mappings;

static mapping *find(const unsigned char *base)
{
    mapping *m = mappings;
    while (m && m->base != base)
        m = m->next;
    return m;
}

static int add(unsigned char *base, size_t bytes)
{
    mapping *m = malloc(sizeof *m);
    if (!m)
        return 0;
    pthread_mutex_lock(&lock);
    *m = (mapping){.next = mappings, .base = base, .bytes = bytes, .users = 1};
    mappings = m;
    pthread_mutex_unlock(&lock);
    return 1;
}

rf_result rfi_shared_join(unsigned char *base, size_t bytes, rf_error *err)
{
    pthread_mutex_lock(&lock);
    mapping *m = find(base);
    int fits = m && m->bytes == bytes;
    if (fits)
        m->users++;
    pthread_mutex_unlock(&lock);
    return fits ? RF_OK : rfi_fail(err, RF_E_MISMATCH, -1, "map", "no such memory in this process");
}

void rfi_shared_at_end(unsigned char *base, void (*end)(void *ctx, unsigned char *base), void *ctx)
{
    pthread_mutex_lock(&lock);
    mapping *m = find(base);
    if (m) {
        m->end = end;
        m->ctx = ctx;
    }
    pthread_mutex_unlock(&lock);
}

void rfi_shared_leave(unsigned char *base)
{
    mapping *last = NULL;
    pthread_mutex_lock(&lock);
    for (mapping **at = &mappings; *at; at = &(*at)->next)
        if ((*at)->base == base) {
            if (--(*at)->users == 0) {
                last = *at;
                *at = last->next;
            }
            break;
        }
    pthread_mutex_unlock(&lock);
    if (!last)
        return;
    if (last->end)
        last->end(last->ctx, last->base);
    munmap(last->base, last->bytes);
    free(last);
}

/* ---- memory ---- */

static rf_result refuse(rf_error *err, const char *what, size_t bytes)
{
    rf_result code = errno == ENOMEM || errno == ENOSPC ? RF_E_MEMORY : RF_E_SYSTEM;
    return rfi_fail(err, code, -1, "allocate", "%s of %zu bytes of shared memory: %s", what, bytes,
                    strerror(errno));
}

/* The limit on the size of files counts here too, and would be a signal. */
static int set_size(int fd, size_t bytes)
{
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && bytes > limit.rlim_cur) {
        errno = EFBIG;
        return -1;
    }
    return ftruncate(fd, (off_t)bytes);
}

/* Running out of memory is an error here, not a SIGBUS later. */
static int reserve(int fd, size_t bytes)
{
    int bad;
    do
        bad = fallocate(fd, 0, 0, (off_t)bytes);
    while (bad && errno == EINTR);
    return bad;
}

static unsigned char *map(int fd, size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return NULL;
    if (!add(at, bytes)) {
        munmap(at, bytes);
        errno = ENOMEM;
        return NULL;
    }
    return at;
}

/* Wishes, before there are pages: huge ones, and on which node. */
static void wish(unsigned char *base, size_t bytes, int node)
{
    unsigned long nodes[NODES_MAX / 8 / sizeof(unsigned long)] = {0};
    const int bits = 8 * (int)sizeof *nodes;
    (void)madvise(base, bytes, MADV_HUGEPAGE);
    if (node < 0 || node >= NODES_MAX)
        return;
    nodes[node / bits] = 1ul << node % bits;
    (void)syscall(SYS_mbind, base, bytes, PREFERRED, nodes, (unsigned long)NODES_MAX, 0ul);
}

/* No page fault in a call. Reserving alone would never give huge pages; a kernel before 5.14 does
 * not know this, and is served below. */
static int populate(unsigned char *base, size_t bytes)
{
    return madvise(base, bytes, MADV_POPULATE_WRITE);
}

static void touch(const unsigned char *base, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 4096)
        (void)*(const volatile unsigned char *)(base + i);
}

static unsigned char *create(int fd, size_t bytes, int node, const char **what)
{
    *what = "size";
    if (set_size(fd, bytes))
        return NULL;
    *what = "mapping";
    unsigned char *base = map(fd, bytes);
    if (!base)
        return NULL;
    wish(base, bytes, node);
    *what = "reservation";
    int old = populate(base, bytes), bad = reserve(fd, bytes);
    if (!bad) {
        *what = "sealing";
        bad = fcntl(fd, F_ADD_SEALS, SEALS);
    }
    if (!bad) {
        if (old)
            touch(base, bytes);
        return base;
    }
    int why = errno;
    rfi_shared_leave(base);
    errno = why;
    return NULL;
}

rf_result rfi_shared_create(size_t bytes, int node, unsigned char **base, int *fd, rf_error *err)
{
    const char *what = "creation";
    unsigned char *at = NULL;
    int new = rfi_fd_aside(memfd_create("rankfold", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (new >= 0)
        at = create(new, bytes, node, &what);
    if (!at) {
        rf_result bad = refuse(err, what, bytes);
        if (new >= 0)
            close(new);
        return bad;
    }
    *base = at;
    *fd = new;
    return RF_OK;
}

rf_result rfi_shared_map(int fd, size_t bytes, unsigned char **base, rf_error *err)
{
    struct stat s;
    if (fd < 0 || fstat(fd, &s))
        return rfi_fail(err, RF_E_MISMATCH, -1, "map",
                        "no file descriptor arrived: is the limit of open files reached?");
    if (s.st_size != (off_t)bytes)
        return rfi_fail(err, RF_E_MISMATCH, -1, "map",
                        "the shared memory that arrived has %lld bytes, expected %zu",
                        (long long)s.st_size, bytes);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS)
        return rfi_fail(err, RF_E_MISMATCH, -1, "map",
                        "the shared memory that arrived is not sealed (seals %d, expected %d)",
                        seals, SEALS);
    unsigned char *at = map(fd, bytes);
    if (!at)
        return refuse(err, "mapping", bytes);
    if (populate(at, bytes))
        touch(at, bytes);
    *base = at;
    return RF_OK;
}
