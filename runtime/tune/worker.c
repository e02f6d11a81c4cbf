#define _GNU_SOURCE
#include <string.h>

#include "core/clock.h"
#include "tune/worker.h"

/* Calls captured in one graph: about as many as a decode step has. */
#define GRAPH_CALLS 64u

/* A candidate hangs when it takes longer than this, plus what a very slow machine would need for
 * its bytes. */
#define DEADLINE_MS  2000u
#define BYTES_PER_MS 50000u

static int is_graph(const rfi_worker *w)
{
    return w->shape.mode == RF_GRAPH;
}

rf_result rfi_worker_shape(rfi_worker *w, const rf_shape *shape, rf_error *err)
{
    int rank = rf_comm_rank(w->comm), world = rf_comm_world(w->comm);
    rfi_data_close(&w->data);
    w->shape = *shape;
    rf_result rc = rf_channel_rebind(w->comm, w->channel);
    if (rc == RF_OK && is_graph(w) && !w->stream)
        rc = rf_cpu_stream_create(&w->stream, err);
    if (rc == RF_OK)
        rc = rfi_data_open(&w->data, shape->dtype, shape->rows * shape->hidden, rank, world, err);
    if (rc != RF_OK)
        return rc;
    uint64_t bytes = w->data.count * rf_dtype_size(shape->dtype) * (uint64_t)world;
    rfi_set_deadline(w->comm, w->channel, DEADLINE_MS + (uint32_t)(bytes / BYTES_PER_MS));
    return RF_OK;
}

static rf_result launch(rfi_worker *w, const rf_variant *variant, uint32_t grid, const void *in)
{
    return rfi_launch(w->comm, w->channel, variant, grid, in, w->data.out, w->data.count,
                      w->shape.dtype, is_graph(w) ? w->stream : NULL);
}

/* One call, finished. */
static rf_result call(rfi_worker *w, const rf_variant *variant, uint32_t grid, const void *in)
{
    rf_result rc = launch(w, variant, grid, in);
    rf_result done = is_graph(w) ? rf_cpu_stream_synchronize(w->stream) : RF_OK;
    return rc != RF_OK ? rc : done;
}

/* The comm's own text of a failed call where it has one. */
static rf_result failed(const rfi_worker *w, const rf_variant *variant, rf_result rc, rf_error *err)
{
    const rf_error *last = rf_comm_error(w->comm);
    if (last && last->code == rc && err) {
        *err = *last;
        return rc;
    }
    return rfi_fail(err, rc, rf_comm_rank(w->comm), "tune", "%s: %s", variant->name,
                    rf_strerror(rc));
}

static void complain(const rfi_worker *w, const rf_variant *variant, uint32_t grid,
                     rfi_verdict verdict, uint64_t index)
{
    static const char *const what[] = {
        [RFI_DATA_WRONG] = "differs from the oracle at element",
        [RFI_DATA_BEYOND] = "wrote behind the output, element",
        [RFI_DATA_INPUT] = "changed its input at element",
    };
    rfi_log(w->comm, 1, "tune: %s, %u KiB steps, excluded: %s %llu of %llu", variant->name, grid,
            what[verdict], (unsigned long long)index, (unsigned long long)w->data.count);
}

rf_result rfi_worker_check(rfi_worker *w, const rf_variant *variant, uint32_t grid, uint64_t seed,
                           double *ns, int *wrong, rf_error *err)
{
    static const int in_place[] = {0, 1, 1, 0};
    *wrong = 0;
    *ns = 0;
    for (size_t i = 0; i < sizeof in_place / sizeof *in_place; i++) {
        uint64_t index;
        rfi_data_fill(&w->data, seed + i, 1);
        const void *in = w->data.in;
        if (in_place[i]) {
            memcpy(w->data.out, in, w->data.count * rf_dtype_size(w->shape.dtype));
            in = w->data.out;
        }
        uint64_t start = rfi_now_ns();
        rf_result rc = call(w, variant, grid, in);
        double took = (double)(rfi_now_ns() - start);
        if (rc != RF_OK)
            return failed(w, variant, rc, err);
        if (i == 0 || took < *ns)
            *ns = took;
        rfi_verdict verdict = rfi_data_judge(&w->data, in_place[i], &index);
        if (verdict != RFI_DATA_RIGHT && !*wrong)
            complain(w, variant, grid, verdict, index);
        *wrong |= verdict != RFI_DATA_RIGHT; /* no early way out: the peers make all calls */
    }
    return RF_OK;
}

void rfi_worker_settle(rfi_worker *w, uint64_t seed)
{
    rfi_data_fill(&w->data, seed, 0);
}

static rf_result measure_eager(rfi_worker *w, const rf_variant *variant, uint32_t grid,
                               uint32_t calls, double *ns)
{
    rf_result rc = launch(w, variant, grid, w->data.in); /* the ranks meet here */
    uint64_t start = rfi_now_ns();
    for (uint32_t i = 0; i < calls && rc == RF_OK; i++)
        rc = launch(w, variant, grid, w->data.in);
    *ns = (double)(rfi_now_ns() - start) / calls;
    return rc;
}

static rf_result capture(rfi_worker *w, const rf_variant *variant, uint32_t grid, uint32_t calls,
                         rf_cpu_graph **graph)
{
    rf_result rc = rf_channel_rebind(w->comm, w->channel); /* into capture ... */
    if (rc == RF_OK)
        rc = rf_cpu_capture_begin(w->stream);
    if (rc != RF_OK)
        return rc;
    for (uint32_t i = 0; i < calls && rc == RF_OK; i++)
        rc = launch(w, variant, grid, w->data.in);
    rf_result end = rf_cpu_capture_end(w->stream, graph);
    rf_result out = rf_channel_rebind(w->comm, w->channel); /* ... and out of it */
    return rc != RF_OK ? rc : end != RF_OK ? end : out;
}

static rf_result measure_graph(rfi_worker *w, const rf_variant *variant, uint32_t grid,
                               uint32_t calls, double *ns)
{
    rf_cpu_graph *graph = NULL;
    uint32_t in_graph = calls < GRAPH_CALLS ? calls : GRAPH_CALLS;
    uint32_t replays = (calls + in_graph - 1) / in_graph;
    rf_result rc = capture(w, variant, grid, in_graph, &graph);
    if (rc == RF_OK)
        rc = call(w, variant, grid, w->data.in);
    uint64_t start = rfi_now_ns();
    for (uint32_t i = 0; i < replays && rc == RF_OK; i++)
        rc = rf_cpu_graph_launch(graph, w->stream);
    rf_result done = rf_cpu_stream_synchronize(w->stream);
    *ns = (double)(rfi_now_ns() - start) / ((double)replays * in_graph);
    rf_cpu_graph_destroy(graph);
    return rc != RF_OK ? rc : done;
}

rf_result rfi_worker_measure(rfi_worker *w, const rf_variant *variant, uint32_t grid,
                             uint32_t calls, double *ns, rf_error *err)
{
    rf_result rc = is_graph(w) ? measure_graph(w, variant, grid, calls, ns)
                               : measure_eager(w, variant, grid, calls, ns);
    return rc == RF_OK ? rc : failed(w, variant, rc, err);
}

void rfi_worker_close(rfi_worker *w)
{
    rfi_set_deadline(w->comm, w->channel, 0);
    rf_cpu_stream_destroy(w->stream);
    rf_channel_rebind(w->comm, w->channel);
    rfi_data_close(&w->data);
    w->stream = NULL;
}
