/* What the programs that time an all-reduce have in common, so that they time it alike: every rank
 * on a core of its own, batches of calls behind a barrier, a batch's time is the maximum over
 * ranks, a size's time the median over batches, every size checked. Prints "bytes ns" lines. */
#ifndef RANKFOLD_BENCH_ALLREDUCE_H
#define RANKFOLD_BENCH_ALLREDUCE_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCHES 31

/* An implementation, on one rank. `max` replaces values by their maxima over the ranks, which all
 * get. element: how a small integer looks in this dtype. */
typedef struct side {
    int rank, world;
    size_t size; /* of an element */
    void (*all_reduce)(const void *in, void *out, size_t count);
    void (*barrier)(void);
    void (*max)(double *values, int n);
    unsigned (*element)(int value);
} side;

static inline int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Rank r on the r-th core that this process may use; launchers that bind already leave one. */
static inline void bind_rank(int rank)
{
    cpu_set_t may, one;
    if (sched_getaffinity(0, sizeof may, &may) || CPU_COUNT(&may) < 2)
        return;
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &may) && seen++ == rank % CPU_COUNT(&may)) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
        }
}

/* Small integers: their sums are exact in every dtype and order. */
static inline int value(int rank, size_t i)
{
    return (int)((i * 7 + (size_t)rank * 13) % 13) - 6;
}

static inline void fill(const side *s, unsigned char *to, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++) {
        int sum = 0;
        for (int r = 0; r < s->world; r++)
            sum += rank < 0 || rank == r ? value(r, i) : 0;
        unsigned e = s->element(sum);
        memcpy(to + i * s->size, &e, s->size);
    }
}

static inline double batch(const side *s, const void *in, void *out, size_t count, int calls)
{
    s->barrier();
    double start = now_ns();
    for (int i = 0; i < calls; i++)
        s->all_reduce(in, out, count);
    return (now_ns() - start) / calls;
}

/* One size. Returns 0, or 1 when a sum is wrong on some rank. */
static inline int time_size(const side *s, size_t bytes, double budget_ns)
{
    size_t room = (bytes + 4095) / 4096 * 4096, count = bytes / s->size;
    unsigned char *in = aligned_alloc(4096, room), *out = aligned_alloc(4096, room),
                  *want = aligned_alloc(4096, room);
    if (!in || !out || !want)
        return 1;
    fill(s, in, count, s->rank);
    fill(s, want, count, -1);
    memset(out, 0, room);
    batch(s, in, out, count, 2);
    double once = batch(s, in, out, count, 5), ns[BATCHES];
    s->max(&once, 1);
    int calls = (int)(budget_ns / BATCHES / once);
    calls = calls < 1 ? 1 : calls > 20000 ? 20000 : calls;
    for (int b = 0; b < BATCHES; b++)
        ns[b] = batch(s, in, out, count, calls);
    s->max(ns, BATCHES);
    double wrong = memcmp(out, want, bytes) != 0;
    s->max(&wrong, 1);
    if (s->rank == 0) {
        qsort(ns, BATCHES, sizeof *ns, ascending);
        printf("%zu %.1f\n", bytes, ns[BATCHES / 2]);
        fflush(stdout);
    }
    free(in);
    free(out);
    free(want);
    return wrong > 0;
}

#endif
