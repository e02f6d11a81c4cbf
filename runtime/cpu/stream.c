/* cpu streams: a queue with a thread of its own. Captured launches are kept in a graph and queued
 * again by each replay. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/group.h"
#include "cpu/cpu.h"

/* A launch, or (device NULL) a call, or a pause. */
typedef struct item {
    rf_result (*function)(void *arg);
    void *arg;
    rfi_device *device;
    const rf_variant *variant;
    rf_params params;
    uint32_t pause_us;
} item;

/* Grows by doubling; `first` moves round. */
typedef struct queue {
    item *items;
    size_t room, first, n;
} queue;

struct rf_cpu_graph {
    item *items;
    size_t n, room;
};

struct rf_cpu_stream {
    uint64_t id;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    queue queue;
    int running; /* the thread holds an item that it took */
    int ending;
    rf_cpu_graph *graph; /* being captured; NULL = not capturing */
    rf_result error;     /* first since the last synchronize */
};

/* Ids of streams and of threads (the NULL stream), never reused. */
static uint64_t new_id(void)
{
    static uint64_t last;
    return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

void rfi_cpu_stream_info(void *stream, rfi_stream_info *out)
{
    static _Thread_local uint64_t thread_id;
    if (!stream) {
        if (!thread_id)
            thread_id = new_id();
        *out = (rfi_stream_info){.id = thread_id};
        return;
    }
    rf_cpu_stream *s = stream;
    pthread_mutex_lock(&s->lock);
    *out = (rfi_stream_info){.id = s->id, .capturing = s->graph != NULL};
    pthread_mutex_unlock(&s->lock);
}

/* ---- items ---- */

static int grow(queue *q)
{
    size_t room = q->room ? 2 * q->room : 64;
    item *items = malloc(room * sizeof *items);
    if (!items)
        return 0;
    for (size_t i = 0; i < q->n; i++)
        items[i] = q->items[(q->first + i) % q->room];
    free(q->items);
    *q = (queue){.items = items, .room = room, .n = q->n};
    return 1;
}

static rf_result append(rf_cpu_stream *s, const item *new)
{
    queue *q = &s->queue;
    if (q->n == q->room && !grow(q))
        return RF_E_MEMORY;
    q->items[(q->first + q->n++) % q->room] = *new;
    if (new->device) {
        rfi_cpu_retain(new->device);
        __atomic_add_fetch(&new->device->in_flight, 1, __ATOMIC_SEQ_CST);
    }
    pthread_cond_broadcast(&s->changed);
    return RF_OK;
}

static rf_result keep(rf_cpu_graph *g, const item *new)
{
    if (g->n == g->room) {
        size_t room = g->room ? 2 * g->room : 64;
        item *items = realloc(g->items, room * sizeof *items);
        if (!items)
            return RF_E_MEMORY;
        g->items = items;
        g->room = room;
    }
    g->items[g->n++] = *new;
    if (new->device)
        rfi_cpu_retain(new->device); /* a replay after the comm's end is an error, not a crash */
    return RF_OK;
}

static rf_result add(rf_cpu_stream *s, const item *new)
{
    pthread_mutex_lock(&s->lock);
    rf_result result = s->graph ? keep(s->graph, new) : append(s, new);
    pthread_mutex_unlock(&s->lock);
    return result;
}

/* Signals of the program's that this thread happens to take do not shorten it. */
static rf_result pause_for(uint32_t us)
{
    struct timespec left = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
    return RF_OK;
}

static rf_result run_item(const item *i)
{
    if (i->function)
        return i->function(i->arg);
    if (!i->device)
        return pause_for(i->pause_us);
    rf_result result = RF_E_CLOSED;
    if (!__atomic_load_n(&i->device->ended, __ATOMIC_SEQ_CST))
        result = rfi_cpu_run(i->variant, &i->params);
    __atomic_sub_fetch(&i->device->in_flight, 1, __ATOMIC_SEQ_CST);
    rfi_cpu_release(i->device);
    return result;
}

static void *serve(void *arg)
{
    rf_cpu_stream *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->queue.n && !s->ending)
            pthread_cond_wait(&s->changed, &s->lock);
        if (!s->queue.n)
            break;
        item i = s->queue.items[s->queue.first];
        s->queue.first = (s->queue.first + 1) % s->queue.room;
        s->queue.n--;
        s->running = 1;
        pthread_mutex_unlock(&s->lock);
        rf_result result = run_item(&i);
        pthread_mutex_lock(&s->lock);
        s->running = 0;
        if (result && !s->error)
            s->error = result;
        if (!s->queue.n)
            pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

rf_result rfi_cpu_enqueue(void *stream, rfi_device *d, const rf_variant *variant,
                          const rf_params *params)
{
    item new = {.device = d, .variant = variant, .params = *params};
    return add(stream, &new);
}

/* ---- public ---- */

rf_result rf_cpu_stream_create(rf_cpu_stream **out, rf_error *err)
{
    if (!out)
        return rfi_fail(err, RF_E_ARG, -1, "stream", "out is NULL");
    rf_cpu_stream *s = calloc(1, sizeof *s);
    if (!s || !grow(&s->queue)) {
        free(s);
        return rfi_fail(err, RF_E_MEMORY, -1, "stream", "no memory");
    }
    s->id = new_id();
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    int why = pthread_create(&s->thread, NULL, serve, s);
    if (why) {
        pthread_cond_destroy(&s->changed);
        pthread_mutex_destroy(&s->lock);
        free(s->queue.items);
        free(s);
        return rfi_fail(err, RF_E_SYSTEM, -1, "stream", "cannot start a thread: %s", strerror(why));
    }
    *out = s;
    return RF_OK;
}

rf_result rf_cpu_stream_synchronize(rf_cpu_stream *s)
{
    if (!s)
        return RF_E_ARG;
    if (pthread_equal(pthread_self(), s->thread)) /* it would wait for itself */
        return RF_E_STREAM;
    pthread_mutex_lock(&s->lock);
    rf_result result = RF_E_CAPTURE;
    if (!s->graph) {
        while (s->queue.n || s->running)
            pthread_cond_wait(&s->changed, &s->lock);
        result = s->error;
        s->error = RF_OK;
    }
    pthread_mutex_unlock(&s->lock);
    return result;
}

void rf_cpu_stream_destroy(rf_cpu_stream *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->ending = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    rf_cpu_graph_destroy(s->graph);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s->queue.items);
    free(s);
}

rf_result rf_cpu_capture_begin(rf_cpu_stream *s)
{
    if (!s)
        return RF_E_ARG;
    rf_cpu_graph *g = calloc(1, sizeof *g);
    if (!g)
        return RF_E_MEMORY;
    pthread_mutex_lock(&s->lock);
    int nested = s->graph != NULL;
    if (!nested)
        s->graph = g;
    pthread_mutex_unlock(&s->lock);
    if (nested)
        free(g);
    return nested ? RF_E_CAPTURE : RF_OK;
}

rf_result rf_cpu_capture_end(rf_cpu_stream *s, rf_cpu_graph **out)
{
    if (!s || !out)
        return RF_E_ARG;
    pthread_mutex_lock(&s->lock);
    rf_cpu_graph *g = s->graph;
    s->graph = NULL;
    pthread_mutex_unlock(&s->lock);
    if (!g)
        return RF_E_CAPTURE;
    *out = g;
    return RF_OK;
}

/* All of the graph or nothing: room is made first. */
rf_result rf_cpu_graph_launch(const rf_cpu_graph *g, rf_cpu_stream *s)
{
    if (!g || !s)
        return RF_E_ARG;
    pthread_mutex_lock(&s->lock);
    rf_result result = s->graph ? RF_E_CAPTURE : RF_OK;
    while (!result && s->queue.room - s->queue.n < g->n)
        result = grow(&s->queue) ? RF_OK : RF_E_MEMORY;
    for (size_t i = 0; i < g->n && !result; i++)
        result = append(s, &g->items[i]);
    pthread_mutex_unlock(&s->lock);
    return result;
}

void rf_cpu_graph_destroy(rf_cpu_graph *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n; i++)
        if (g->items[i].device)
            rfi_cpu_release(g->items[i].device);
    free(g->items);
    free(g);
}

rf_result rf_cpu_stream_delay(rf_cpu_stream *s, uint32_t microseconds)
{
    item pause = {.pause_us = microseconds};
    return s ? add(s, &pause) : RF_E_ARG;
}

rf_result rf_cpu_stream_call(rf_cpu_stream *s, rf_result (*function)(void *arg), void *arg)
{
    item call = {.function = function, .arg = arg};
    return s && function ? add(s, &call) : RF_E_ARG;
}
