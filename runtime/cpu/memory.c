/* Shared memory without names: sealed memfds that travel over the control plane. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/group.h"
#include "cpu/cpu.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* Every mapping of this process. Ranks that are threads use their peer's mapping itself (so that
 * thread sanitizers see one memory) and any of them may be the last to let go. */
typedef struct mapping {
    struct mapping *next;
    unsigned char *base;
    size_t bytes;
    uint32_t users;
} mapping;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mapping *mappings;

static int add_mapping(unsigned char *base, size_t bytes)
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

static int share_mapping(const unsigned char *base, size_t bytes)
{
    int found = 0;
    pthread_mutex_lock(&lock);
    for (mapping *m = mappings; m && !found; m = m->next)
        if (m->base == base && m->bytes == bytes) {
            m->users++;
            found = 1;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

void rfi_cpu_put_back(unsigned char *base)
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
    if (last)
        munmap(last->base, last->bytes);
    free(last);
}

static int hold(rfi_device *d, unsigned char *base)
{
    for (int i = 0; i < RFI_CPU_HELD; i++)
        if (!d->held[i]) {
            d->held[i] = base;
            return 1;
        }
    return 0;
}

/* Maps `fd`, with all its pages present: no page fault in a call. */
static unsigned char *map(rfi_device *d, int fd, size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED)
        return NULL;
    if (!add_mapping(at, bytes)) {
        munmap(at, bytes);
        errno = ENOMEM;
        return NULL;
    }
    if (!hold(d, at)) {
        rfi_cpu_put_back(at);
        errno = ENOSPC;
        return NULL;
    }
    return at;
}

static rf_result refuse(rfi_device *d, rf_error *err, const char *what, size_t bytes)
{
    rf_result code = errno == ENOMEM || errno == ENOSPC ? RF_E_MEMORY : RF_E_SYSTEM;
    return rfi_fail(err, code, d->rank, "allocate", "%s of %zu bytes of shared memory: %s", what,
                    bytes, strerror(errno));
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

rf_result rfi_cpu_allocate(rfi_device *d, uint8_t transport, size_t bytes, rfi_memory *out,
                           rf_error *err)
{
    (void)transport;
    int fd = memfd_create("rankfold", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return refuse(d, err, "creation", bytes);
    /* fallocate, not ftruncate alone: running out of memory is an error here, not a SIGBUS later.
     */
    const char *what = "size";
    int bad = set_size(fd, bytes);
    if (!bad) {
        what = "reservation";
        do
            bad = fallocate(fd, 0, 0, (off_t)bytes);
        while (bad && errno == EINTR);
    }
    if (!bad) {
        what = "sealing";
        bad = fcntl(fd, F_ADD_SEALS, SEALS);
    }
    unsigned char *base = NULL;
    if (!bad) {
        what = "mapping";
        base = map(d, fd, bytes);
    }
    if (!base) {
        rf_result code = refuse(d, err, what, bytes);
        close(fd);
        return code;
    }
    *out = (rfi_memory){.base = base, .host = base, .bytes = bytes, .fd = fd};
    return RF_OK;
}

static rf_result import_pointer(rfi_device *d, const rfi_memory *theirs, rfi_memory *out,
                                rf_error *err)
{
    if (!share_mapping(theirs->base, theirs->bytes))
        return rfi_fail(err, RF_E_MISMATCH, -1, "map", "no such memory in this process");
    if (!hold(d, theirs->base)) {
        rfi_cpu_put_back(theirs->base);
        return rfi_fail(err, RF_E_MEMORY, -1, "map", "more imports than ranks");
    }
    *out =
        (rfi_memory){.base = theirs->base, .host = theirs->base, .bytes = theirs->bytes, .fd = -1};
    return RF_OK;
}

rf_result rfi_cpu_import(rfi_device *d, uint8_t transport, const rfi_memory *theirs,
                         int same_process, rfi_memory *out, rf_error *err)
{
    (void)transport;
    if (same_process)
        return import_pointer(d, theirs, out, err);
    struct stat s;
    if (theirs->fd < 0 || fstat(theirs->fd, &s))
        return rfi_fail(err, RF_E_MISMATCH, -1, "map",
                        "no file descriptor arrived: is the limit of open files reached?");
    if (s.st_size != (off_t)theirs->bytes)
        return rfi_fail(err, RF_E_MISMATCH, -1, "map",
                        "the shared memory that arrived has %lld bytes, expected %zu",
                        (long long)s.st_size, theirs->bytes);
    int seals = fcntl(theirs->fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS)
        return rfi_fail(err, RF_E_MISMATCH, -1, "map",
                        "the shared memory that arrived is not sealed (seals %d, expected %d)",
                        seals, SEALS);
    unsigned char *base = map(d, theirs->fd, theirs->bytes);
    if (!base)
        return refuse(d, err, "mapping", theirs->bytes);
    *out = (rfi_memory){.base = base, .host = base, .bytes = theirs->bytes, .fd = -1};
    return RF_OK;
}
