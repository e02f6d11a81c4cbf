#define _GNU_SOURCE
#include <string.h>

#include "core/clock.h"
#include "tune/candidates.h"
#include "tune/worker.h"

/* Calls captured in one graph: about as many as a decode step has. */
#define GRAPH_CALLS 64u

/* A candidate hangs when it takes longer than this, plus what a very slow machine would need for
 * its bytes. */
#define DEADLINE_MS  2000u
#define BYTES_PER_MS 50000u

rfi_worker rfi_worker_of(rf_comm *comm, int channel)
{
    rfi_worker w = {.comm = comm, .channel = channel};
    w.bench = rfi_workbench_of(comm, &w.device);
    return w;
}

static int is_graph(const rfi_worker *w)
{
    return w->shape.mode == RF_GRAPH;
}

/* Launches go into a queue; the others are synchronous. */
static int is_queued(const rfi_worker *w)
{
    return is_graph(w) || w->bench->open_tensor;
}

static void close_data(rfi_worker *w)
{
    if (w->tensors)
        w->bench->close_tensor(w->device, w->tensors);
    w->tensors = NULL;
    rfi_data_close(&w->data);
}

rf_result rfi_worker_shape(rfi_worker *w, const rf_shape *shape, rf_error *err)
{
    int rank = rf_comm_rank(w->comm), world = rf_comm_world(w->comm);
    close_data(w);
    w->shape = *shape;
    rf_result rc = rf_channel_rebind(w->comm, w->channel);
    if (rc == RF_OK && is_queued(w) && !w->stream)
        rc = w->bench->open_stream(w->device, &w->stream, err);
    if (rc == RF_OK)
        rc = rfi_data_open(&w->data, shape->dtype, shape->rows * shape->hidden, rank, world, err);
    if (rc == RF_OK && w->bench->open_tensor)
        rc = w->bench->open_tensor(w->device, w->data.bytes, &w->tensors, err);
    return rc;
}

void rfi_worker_hurry(rfi_worker *w)
{
    uint64_t bytes = rfi_shape_bytes(&w->shape) * (uint64_t)rf_comm_world(w->comm);
    rfi_set_deadline(w->comm, w->channel, DEADLINE_MS + (uint32_t)(bytes / BYTES_PER_MS));
}

/* Test data to the device, and back. */
static rf_result push(const rfi_worker *w)
{
    return w->tensors ? w->bench->copy(w->device, w->tensors, w->data.in, w->data.bytes) : RF_OK;
}

static rf_result pull(const rfi_worker *w)
{
    return w->tensors ? w->bench->copy(w->device, w->data.in, w->tensors, w->data.bytes) : RF_OK;
}

/* From `at`, which is data.in or data.out. */
static rf_result launch(rfi_worker *w, const rf_variant *variant, uint32_t grid,
                        const unsigned char *at)
{
    const rfi_data *d = &w->data;
    const unsigned char *in = w->tensors ? w->tensors + (at - d->in) : at;
    unsigned char *out = w->tensors ? w->tensors + (d->out - d->in) : d->out;
    void *stream = is_queued(w) ? w->stream : NULL;
    if (!variant)
        return rf_all_reduce(w->comm, w->channel, in, out, d->count, d->dtype, stream);
    return rfi_launch(w->comm, w->channel, variant, grid, in, out, d->count, d->dtype, stream);
}

/* For the queue; a kernel on a device tells of its failure by the comm's health. */
static rf_result wait_for(const rfi_worker *w)
{
    rf_health health = {.code = RF_OK};
    rf_result rc = is_queued(w) ? w->bench->wait(w->device, w->stream) : RF_OK;
    if (rc == RF_OK && w->tensors)
        rf_comm_check(w->comm, &health);
    return rc != RF_OK ? rc : health.code;
}

/* One call, finished. */
static rf_result call(rfi_worker *w, const rf_variant *variant, uint32_t grid,
                      const unsigned char *in)
{
    rf_result rc = launch(w, variant, grid, in);
    rf_result done = wait_for(w);
    return rc != RF_OK ? rc : done;
}

static const char *name_of(const rf_variant *variant)
{
    return variant ? variant->name : "the plan";
}

/* The comm's own text of a failed call where it has one. */
static rf_result failed(const rfi_worker *w, const rf_variant *variant, rf_result rc, rf_error *err)
{
    const rf_error *last = rf_comm_error(w->comm);
    if (last && last->code == rc && err) {
        *err = *last;
        return rc;
    }
    return rfi_fail(err, rc, rf_comm_rank(w->comm), "tune", "%s: %s", name_of(variant),
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
    rfi_log(w->comm, 1, "tune: %s, grid %u, excluded: %s %llu of %llu", name_of(variant), grid,
            what[verdict], (unsigned long long)index, (unsigned long long)w->data.count);
}

rf_result rfi_worker_check(rfi_worker *w, const rf_variant *variant, uint32_t grid, uint64_t seed,
                           double *ns, int *wrong, rf_error *err)
{
    static const int in_place[] = {0, 1, 1, 0};
    int baseline = variant == &rfi_baseline; /* which has its own order, and its own NaN */
    *wrong = 0;
    *ns = 0;
    for (size_t i = 0; i < sizeof in_place / sizeof *in_place; i++) {
        uint64_t index;
        rfi_data_fill(&w->data, seed + i, !baseline, rfi_sum_order(w->comm, variant));
        const unsigned char *in = w->data.in;
        if (in_place[i]) {
            memcpy(w->data.out, in, w->data.count * rf_dtype_size(w->shape.dtype));
            in = w->data.out;
        }
        rf_result rc = push(w);
        uint64_t start = rfi_now_ns();
        if (rc == RF_OK)
            rc = call(w, variant, grid, in);
        double took = (double)(rfi_now_ns() - start);
        if (rc == RF_OK)
            rc = pull(w);
        if (rc != RF_OK)
            return failed(w, variant, rc, err);
        if (i == 0 || took < *ns)
            *ns = took;
        rfi_verdict verdict = rfi_data_judge(&w->data, in_place[i], baseline, &index);
        if (verdict != RFI_DATA_RIGHT && !*wrong)
            complain(w, variant, grid, verdict, index);
        *wrong |= verdict != RFI_DATA_RIGHT; /* no early way out: the peers make all calls */
    }
    return RF_OK;
}

rf_result rfi_worker_settle(rfi_worker *w, uint64_t seed, rf_error *err)
{
    rfi_data_fill(&w->data, seed, 0, NULL);
    rf_result rc = push(w);
    return rc == RF_OK ? rc
                       : rfi_fail(err, rc, rf_comm_rank(w->comm), "tune", "copying test data: %s",
                                  rf_strerror(rc));
}

static rf_result measure_eager(rfi_worker *w, const rf_variant *variant, uint32_t grid,
                               uint32_t calls, double *ns)
{
    rf_result rc = call(w, variant, grid, w->data.in); /* the ranks meet here */
    uint64_t start = rfi_now_ns();
    for (uint32_t i = 0; i < calls && rc == RF_OK; i++)
        rc = launch(w, variant, grid, w->data.in);
    rf_result done = wait_for(w);
    *ns = (double)(rfi_now_ns() - start) / calls;
    return rc != RF_OK ? rc : done;
}

static rf_result capture(rfi_worker *w, const rf_variant *variant, uint32_t grid, uint32_t calls,
                         void **graph)
{
    rf_result rc = rf_channel_rebind(w->comm, w->channel); /* into capture ... */
    if (rc == RF_OK)
        rc = w->bench->begin_capture(w->device, w->stream);
    if (rc != RF_OK)
        return rc;
    for (uint32_t i = 0; i < calls && rc == RF_OK; i++)
        rc = launch(w, variant, grid, w->data.in);
    rf_result end = w->bench->end_capture(w->device, w->stream, graph);
    rf_result out = rf_channel_rebind(w->comm, w->channel); /* ... and out of it */
    return rc != RF_OK ? rc : end != RF_OK ? end : out;
}

static rf_result measure_graph(rfi_worker *w, const rf_variant *variant, uint32_t grid,
                               uint32_t calls, double *ns)
{
    void *graph = NULL;
    double all = 0;
    uint32_t in_graph = calls < GRAPH_CALLS ? calls : GRAPH_CALLS;
    uint32_t replays = (calls + in_graph - 1) / in_graph;
    rf_result rc = capture(w, variant, grid, in_graph, &graph);
    if (rc == RF_OK)
        rc = call(w, variant, grid, w->data.in);
    if (rc == RF_OK)
        rc = w->bench->replay(w->device, graph, w->stream, replays, &all);
    rf_result done = wait_for(w);
    *ns = all / ((double)replays * in_graph);
    w->bench->close_graph(w->device, graph);
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
    w->bench->close_stream(w->device, w->stream);
    rf_channel_rebind(w->comm, w->channel);
    close_data(w);
    w->stream = NULL;
}
