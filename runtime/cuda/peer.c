/* Device memory that peers map: physical allocations behind file descriptors, counted by the
 * driver, so that a rank may give its own back while a peer still maps it. Between threads of one
 * process the owner's mapping is opened to the peer's device. */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "core/group.h"
#include "cuda/cuda.h"

#define CLEAR_MS 10000u

static CUmemProperties properties(const rfi_device *d)
{
    CUmemProperties p;
    memset(&p, 0, sizeof p);
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    p.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, d->ordinal};
    return p;
}

static size_t whole(const rfi_device *d, size_t bytes)
{
    return (bytes + d->caps.granularity - 1) / d->caps.granularity * d->caps.granularity;
}

static CUresult open_to_device(const rfi_device *d, CUdeviceptr at, size_t bytes)
{
    CUmemAccess access = {{CU_MEM_LOCATION_TYPE_DEVICE, d->ordinal},
                          CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return d->driver->cuMemSetAccess(at, bytes, &access, 1);
}

static void unmap(const rfi_device *d, rfi_cuda_mapping *m)
{
    if (m->at) {
        d->driver->cuMemUnmap(m->at, m->bytes);
        d->driver->cuMemAddressFree(m->at, m->bytes);
        d->driver->cuMemRelease(m->handle);
    }
    *m = (rfi_cuda_mapping){0};
}

/* Gives `handle` an address and keeps both; takes the handle over, failing too. */
static CUresult map(rfi_device *d, CUmemHandle handle, size_t bytes, rfi_cuda_mapping **out)
{
    const rfi_driver *v = d->driver;
    rfi_cuda_mapping *place = d->maps;
    while (place->at)
        place++;
    CUdeviceptr at = 0;
    CUresult r = v->cuMemAddressReserve(&at, bytes, 0, 0, 0);
    if (!r && (r = v->cuMemMap(at, bytes, 0, handle, 0)))
        v->cuMemAddressFree(at, bytes);
    if (r) {
        v->cuMemRelease(handle);
        return r;
    }
    *place = (rfi_cuda_mapping){at, bytes, handle};
    r = open_to_device(d, at, bytes);
    if (r)
        unmap(d, place);
    *out = place;
    return r;
}

rf_result rfi_cuda_peer_allocate(rfi_device *d, size_t bytes, rfi_memory *out, rf_error *err)
{
    const rfi_driver *v = d->driver;
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    CUmemProperties p = properties(d);
    CUmemHandle handle;
    rfi_cuda_mapping *m = NULL;
    int fd = -1;
    const char *what = "allocation of device memory";
    CUresult r = v->cuMemCreate(&handle, whole(d, bytes), &p, 0);
    if (!r)
        r = map(d, handle, whole(d, bytes), &m);
    if (!r) {
        what = "export of device memory";
        r = v->cuMemExportToShareableHandle(&fd, m->handle,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    }
    if (!r) {
        what = "clearing of device memory";
        r = v->cuMemsetD8Async(m->at, 0, m->bytes, d->stream);
    }
    if (!r)
        r = rfi_cuda_wait(d, CLEAR_MS);
    if (r) {
        if (fd >= 0)
            close(fd);
        if (m)
            unmap(d, m);
    } else {
        *out = (rfi_memory){.base = (unsigned char *)(uintptr_t)m->at, .bytes = bytes, .fd = fd};
    }
    rfi_cuda_leave(d, scope);
    return r ? rfi_cuda_fail(d, err, "allocate", what, r) : RF_OK;
}

rf_result rfi_cuda_peer_import(rfi_device *d, const rfi_memory *theirs, int same_process,
                               rfi_memory *out, rf_error *err)
{
    const rfi_driver *v = d->driver;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)theirs->base;
    if (!same_process && theirs->fd < 0)
        return rfi_fail(err, RF_E_MISMATCH, -1, "map", "no file descriptor arrived");
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    const char *what = "access to the device of that rank";
    CUresult r;
    if (same_process) {
        r = open_to_device(d, at, whole(d, theirs->bytes));
    } else {
        CUmemHandle handle;
        rfi_cuda_mapping *m = NULL;
        what = "import of device memory";
        r = v->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)theirs->fd,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        if (!r) {
            what = "mapping of device memory (no peer access?)";
            r = map(d, handle, whole(d, theirs->bytes), &m);
        }
        at = r ? 0 : m->at;
    }
    rfi_cuda_leave(d, scope);
    if (r)
        return rfi_cuda_fail(d, err, "map", what, r);
    *out = (rfi_memory){.base = (unsigned char *)(uintptr_t)at, .bytes = theirs->bytes, .fd = -1};
    return RF_OK;
}

void rfi_cuda_peer_forget(rfi_device *d, const rfi_memory *m)
{
    for (int i = 0; i < RF_MAX_WORLD; i++)
        if (d->maps[i].at && d->maps[i].at == (CUdeviceptr)(uintptr_t)m->base)
            unmap(d, &d->maps[i]);
}

void rfi_cuda_peer_forget_all(rfi_device *d)
{
    for (int i = 0; i < RF_MAX_WORLD; i++)
        unmap(d, &d->maps[i]);
}
