/* What the tuner drives: public queues. Tensors are host memory. */
#define _GNU_SOURCE
#include "core/clock.h"
#include "cpu/cpu.h"

static rf_result open_stream(rfi_device *d, void **stream, rf_error *err)
{
    (void)d;
    rf_cpu_stream *new;
    rf_result rc = rf_cpu_stream_create(&new, err);
    if (rc == RF_OK)
        *stream = new;
    return rc;
}

static rf_result wait_for(rfi_device *d, void *stream)
{
    (void)d;
    return rf_cpu_stream_synchronize(stream);
}

static void close_stream(rfi_device *d, void *stream)
{
    (void)d;
    rf_cpu_stream_destroy(stream);
}

static rf_result begin_capture(rfi_device *d, void *stream)
{
    (void)d;
    return rf_cpu_capture_begin(stream);
}

static rf_result end_capture(rfi_device *d, void *stream, void **graph)
{
    (void)d;
    rf_cpu_graph *new;
    rf_result rc = rf_cpu_capture_end(stream, &new);
    if (rc == RF_OK)
        *graph = new;
    return rc;
}

static rf_result replay(rfi_device *d, void *graph, void *stream, uint32_t times, double *ns)
{
    (void)d;
    rf_result rc = RF_OK;
    uint64_t start = rfi_now_ns();
    for (uint32_t i = 0; i < times && rc == RF_OK; i++)
        rc = rf_cpu_graph_launch(graph, stream);
    rf_result done = rf_cpu_stream_synchronize(stream);
    *ns = (double)(rfi_now_ns() - start);
    return rc != RF_OK ? rc : done;
}

static void close_graph(rfi_device *d, void *graph)
{
    (void)d;
    rf_cpu_graph_destroy(graph);
}

const rfi_workbench rfi_cpu_workbench = {
    .open_stream = open_stream,
    .wait = wait_for,
    .close_stream = close_stream,
    .begin_capture = begin_capture,
    .end_capture = end_capture,
    .replay = replay,
    .close_graph = close_graph,
};
