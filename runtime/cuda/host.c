/* Host memory that all devices map: shared memory that every process which uses it registers with
 * the driver, for all its devices at once. What a rank keeps of the protocol for itself lies in its
 * device's memory: control lines. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/group.h"
#include "core/shared.h"
#include "cuda/cuda.h"

#define CLEAR_MS       10000u
#define CONTROLS_BYTES (RFI_CHANNELS * RF_CONTROLS * sizeof(rf_control))

/* ---- registration ---- */

/* By whom: its context has to live as long as the mapping, which ranks of the same process may use
 * after this one has gone. */
typedef struct registration {
    const rfi_driver *driver;
    CUdevice ordinal;
    CUcontext context;
} registration;

static void unregister(void *ctx, unsigned char *base)
{
    registration *r = ctx;
    CUcontext ours;
    r->driver->cuCtxPushCurrent(r->context);
    r->driver->cuMemHostUnregister(base);
    r->driver->cuCtxPopCurrent(&ours);
    r->driver->cuDevicePrimaryCtxRelease(r->ordinal);
    free(r);
}

static rf_result refused(const rfi_device *d, rf_error *err, size_t bytes, CUresult why)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    char what[240], most[48] = "unlimited";
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur != RLIM_INFINITY)
        snprintf(most, sizeof most, "%llu bytes", (unsigned long long)limit.rlim_cur);
    snprintf(what, sizeof what,
             "pinning of %zu bytes of host memory (locked memory: %s; raise it by ulimit -l, in a "
             "container by --ulimit memlock=-1 or the capability IPC_LOCK)",
             bytes, most);
    return rfi_cuda_fail(d, err, "allocate", what, why);
}

/* One at a time in a process: drivers have been seen to mix them up. */
static CUresult pin(const rfi_driver *v, unsigned char *base, size_t bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    CUresult r = v->cuMemHostRegister(base, bytes,
                                      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    pthread_mutex_unlock(&lock);
    return r;
}

/* Registers a new mapping of this process; lets go of it where that fails. */
static rf_result register_mapping(const rfi_device *d, unsigned char *base, size_t bytes,
                                  rf_error *err)
{
    registration *r = malloc(sizeof *r);
    rf_result bad = r ? RF_OK : rfi_fail(err, RF_E_MEMORY, d->rank, "allocate", "no memory");
    if (!bad) {
        *r = (registration){d->driver, d->ordinal, NULL};
        CUresult why = d->driver->cuDevicePrimaryCtxRetain(&r->context, d->ordinal);
        if (!why && (why = pin(d->driver, base, bytes)))
            d->driver->cuDevicePrimaryCtxRelease(d->ordinal);
        bad = why ? refused(d, err, bytes, why) : RF_OK;
    }
    if (bad) {
        free(r);
        rfi_shared_leave(base);
        return bad;
    }
    rfi_shared_at_end(base, unregister, r);
    return RF_OK;
}

/* ---- what this device maps ---- */

unsigned char *rfi_cuda_host_of(const rfi_device *d, const unsigned char *at)
{
    for (int i = 0; i < RF_MAX_WORLD; i++) {
        const rfi_memory *m = &d->hosts[i];
        if (m->host && at >= m->base && at < m->base + m->bytes)
            return m->host + (at - m->base);
    }
    return NULL;
}

static void let_go(rfi_device *d, rfi_memory *place)
{
    if (place == d->own_host) {
        if (d->controls)
            d->driver->cuMemFree(d->controls);
        d->controls = 0;
        d->own_host = NULL;
    }
    rfi_shared_leave(place->host);
    *place = (rfi_memory){.fd = -1};
}

/* Takes the mapping over, failing too. */
static rf_result keep(rfi_device *d, unsigned char *host, size_t bytes, rfi_memory **out,
                      rf_error *err)
{
    CUdeviceptr at = 0;
    rfi_memory *place = d->hosts;
    while (place->host)
        place++;
    CUresult r = d->driver->cuMemHostGetDevicePointer(&at, host, 0);
    if (r) {
        rfi_shared_leave(host);
        return rfi_cuda_fail(d, err, "map", "address of pinned host memory", r);
    }
    *place = (rfi_memory){
        .base = (unsigned char *)(uintptr_t)at, .host = host, .bytes = bytes, .fd = -1};
    *out = place;
    return RF_OK;
}

static CUresult make_controls(rfi_device *d)
{
    CUresult r = d->driver->cuMemAlloc(&d->controls, CONTROLS_BYTES);
    if (!r)
        r = d->driver->cuMemsetD8Async(d->controls, 0, CONTROLS_BYTES, d->stream);
    return r ? r : rfi_cuda_wait(d, CLEAR_MS);
}

static rf_result allocate(rfi_device *d, size_t bytes, rfi_memory *out, rf_error *err)
{
    unsigned char *host;
    int fd;
    rf_result bad = rfi_shared_create(bytes, rfi_cuda_node(d->place[d->rank]), &host, &fd, err);
    if (bad)
        return bad;
    bad = register_mapping(d, host, bytes, err);
    if (!bad)
        bad = keep(d, host, bytes, &d->own_host, err);
    CUresult r = bad ? CUDA_SUCCESS : make_controls(d);
    if (r) {
        bad = rfi_cuda_fail(d, err, "allocate", "memory for control lines", r);
        let_go(d, d->own_host);
    }
    if (bad) {
        close(fd);
        return bad;
    }
    *out = *d->own_host;
    out->fd = fd;
    return RF_OK;
}

rf_result rfi_cuda_host_allocate(rfi_device *d, size_t bytes, rfi_memory *out, rf_error *err)
{
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    rf_result bad = allocate(d, bytes, out, err);
    rfi_cuda_leave(d, scope);
    return bad;
}

rf_result rfi_cuda_host_import(rfi_device *d, const rfi_memory *theirs, int same_process,
                               rfi_memory *out, rf_error *err)
{
    unsigned char *host = theirs->host;
    rfi_memory *place = NULL;
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    rf_result bad = same_process ? rfi_shared_join(host, theirs->bytes, err)
                                 : rfi_shared_map(theirs->fd, theirs->bytes, &host, err);
    if (!bad && !same_process)
        bad = register_mapping(d, host, theirs->bytes, err);
    if (!bad)
        bad = keep(d, host, theirs->bytes, &place, err);
    rfi_cuda_leave(d, scope);
    if (!bad)
        *out = *place;
    return bad;
}

void rfi_cuda_host_forget(rfi_device *d, const rfi_memory *m)
{
    for (int i = 0; i < RF_MAX_WORLD; i++)
        if (d->hosts[i].host && d->hosts[i].host == m->host)
            let_go(d, &d->hosts[i]);
}

void rfi_cuda_host_forget_all(rfi_device *d)
{
    for (int i = 0; i < RF_MAX_WORLD; i++)
        if (d->hosts[i].host)
            let_go(d, &d->hosts[i]);
}
