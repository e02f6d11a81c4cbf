/* What the tuner drives: a stream of its own, graphs timed by events, tensors on the device. */
#include "core/group.h"
#include "cuda/cuda.h"

static rf_result open_stream(rfi_device *d, void **stream, rf_error *err)
{
    CUstream new = NULL;
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    CUresult r = d->driver->cuStreamCreate(&new, CU_STREAM_NON_BLOCKING);
    rfi_cuda_leave(d, scope);
    if (r)
        return rfi_cuda_fail(d, err, "tune", "cuStreamCreate", r);
    *stream = new;
    return RF_OK;
}

static rf_result wait_for(rfi_device *d, void *stream)
{
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    CUresult r = d->driver->cuStreamSynchronize(stream);
    rfi_cuda_leave(d, scope);
    return r ? RF_E_BACKEND : RF_OK;
}

static void close_stream(rfi_device *d, void *stream)
{
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    if (stream)
        d->driver->cuStreamDestroy(stream);
    rfi_cuda_leave(d, scope);
}

static rf_result begin_capture(rfi_device *d, void *stream)
{
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    CUresult r = d->driver->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    rfi_cuda_leave(d, scope);
    return r ? RF_E_BACKEND : RF_OK;
}

static rf_result end_capture(rfi_device *d, void *stream, void **graph)
{
    CUgraph captured = NULL;
    CUgraphExec exec = NULL;
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    CUresult r = d->driver->cuStreamEndCapture(stream, &captured);
    if (!r)
        r = d->driver->cuGraphInstantiateWithFlags(&exec, captured, 0);
    if (captured)
        d->driver->cuGraphDestroy(captured);
    rfi_cuda_leave(d, scope);
    if (r)
        return RF_E_BACKEND;
    *graph = exec;
    return RF_OK;
}

/* Once more in front: there the ranks meet, while the launches that are timed queue up. */
static CUresult timed(const rfi_driver *v, CUgraphExec graph, CUstream stream, uint32_t times,
                      CUevent start, CUevent end, float *ms)
{
    CUresult r = v->cuGraphLaunch(graph, stream);
    if (!r)
        r = v->cuEventRecord(start, stream);
    for (uint32_t i = 0; i < times && !r; i++)
        r = v->cuGraphLaunch(graph, stream);
    if (!r)
        r = v->cuEventRecord(end, stream);
    CUresult done = v->cuStreamSynchronize(stream);
    if (!r)
        r = done;
    return r ? r : v->cuEventElapsedTime(ms, start, end);
}

static rf_result replay(rfi_device *d, void *graph, void *stream, uint32_t times, double *ns)
{
    const rfi_driver *v = d->driver;
    CUevent start = NULL, end = NULL;
    float ms = 0;
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    CUresult r = v->cuEventCreate(&start, 0);
    if (!r)
        r = v->cuEventCreate(&end, 0);
    if (!r)
        r = timed(v, graph, stream, times, start, end, &ms);
    if (start)
        v->cuEventDestroy(start);
    if (end)
        v->cuEventDestroy(end);
    rfi_cuda_leave(d, scope);
    *ns = (double)ms * 1e6;
    return r ? RF_E_BACKEND : RF_OK;
}

static void close_graph(rfi_device *d, void *graph)
{
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    if (graph)
        d->driver->cuGraphExecDestroy(graph);
    rfi_cuda_leave(d, scope);
}

static rf_result open_tensor(rfi_device *d, size_t bytes, unsigned char **tensor, rf_error *err)
{
    CUdeviceptr at = 0;
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    CUresult r = d->driver->cuMemAlloc(&at, bytes);
    rfi_cuda_leave(d, scope);
    if (r)
        return rfi_cuda_fail(d, err, "tune", "memory for tensors", r);
    *tensor = (unsigned char *)(uintptr_t)at;
    return RF_OK;
}

static rf_result copy(rfi_device *d, void *to, const void *from, size_t bytes)
{
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    CUresult r = d->driver->cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from,
                                          bytes, d->stream);
    if (!r)
        r = d->driver->cuStreamSynchronize(d->stream);
    rfi_cuda_leave(d, scope);
    return r ? RF_E_BACKEND : RF_OK;
}

static void close_tensor(rfi_device *d, unsigned char *tensor)
{
    rfi_cuda_scope scope = rfi_cuda_enter(d);
    if (tensor)
        d->driver->cuMemFree((CUdeviceptr)(uintptr_t)tensor);
    rfi_cuda_leave(d, scope);
}

const rfi_workbench rfi_cuda_workbench = {
    .open_stream = open_stream,
    .wait = wait_for,
    .close_stream = close_stream,
    .begin_capture = begin_capture,
    .end_capture = end_capture,
    .replay = replay,
    .close_graph = close_graph,
    .open_tensor = open_tensor,
    .copy = copy,
    .close_tensor = close_tensor,
};
