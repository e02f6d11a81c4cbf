#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

#define MAX_ROUNDS 1000u
#define SAMPLE_S   3e-3 /* one sample takes about this long */
#define MAX_CALLS  20000u
#define IN_GRAPH   64u

/* Channel 0 is timed; the ranks agree on figures over channel 1. */
enum { TIMED = 0, CONTROL = 1 };

typedef struct job {
    rf_cli_shapes shapes;
    rf_cli_setup setup;
    uint64_t rounds;
    int json;
} job;

/* One shape being timed on this rank. */
typedef struct timing {
    rf_comm *comm;
    rf_shape shape;
    void *in, *out;
    rf_cpu_stream *stream; /* graph shapes only */
    rf_cpu_graph *graph;
    uint32_t in_graph; /* calls in it */
} timing;

typedef struct result {
    rf_result verdict;
    double median, p10, p90; /* us, of series A */
    double noise;            /* |median of A / median of B - 1|: the same thing timed twice */
    uint32_t calls;
} result;

static rf_result one_call(const timing *t, void *stream)
{
    return rf_all_reduce(t->comm, TIMED, t->in, t->out, t->shape.rows * t->shape.hidden,
                         t->shape.dtype, stream);
}

/* Microseconds a call, in a row of `calls`, on this rank. */
static rf_result sample(const timing *t, uint32_t calls, double *us)
{
    rf_result rc = RF_OK;
    uint32_t each = t->graph ? t->in_graph : 1, n = (calls + each - 1) / each;
    double start = rf_cli_seconds();
    for (uint32_t i = 0; i < n && rc == RF_OK; i++)
        rc = t->graph ? rf_cpu_graph_launch(t->graph, t->stream) : one_call(t, NULL);
    if (t->graph && rc == RF_OK)
        rc = rf_cpu_stream_synchronize(t->stream);
    *us = (rf_cli_seconds() - start) * 1e6 / ((double)n * each);
    return rc;
}

/* The slowest rank's; the exchange also brings the ranks together for the next sample. */
static rf_result slowest(const timing *t, double mine, double *all_us)
{
    float all[8];
    rf_result rc = rf_cli_exchange(t->comm, CONTROL, (float)mine, all);
    *all_us = 0;
    for (int r = 0; r < rf_comm_world(t->comm) && rc == RF_OK; r++)
        *all_us = all[r] > *all_us ? all[r] : *all_us;
    return rc;
}

static rf_result one_sample(const timing *t, uint32_t calls, double *us)
{
    double mine;
    rf_result rc = sample(t, calls, &mine);
    return rc == RF_OK ? slowest(t, mine, us) : rc;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, uint64_t n, double q)
{
    return sorted[(uint64_t)(q * (double)(n - 1) + 0.5)];
}

static rf_result time_shape(const timing *t, uint64_t rounds, result *out)
{
    static double series[2][MAX_ROUNDS];
    double us;
    rf_result rc = one_sample(t, 3, &us); /* warms up */
    if (rc == RF_OK)
        rc = one_sample(t, 3, &us);
    if (rc != RF_OK)
        return rc;
    double calls = SAMPLE_S * 1e6 / (us > 0 ? us : 1);
    out->calls = calls < 3 ? 3 : calls > MAX_CALLS ? MAX_CALLS : (uint32_t)calls;
    for (uint64_t k = 0; k < rounds; k++)
        for (int half = 0; half < 2; half++) { /* A B, B A, A B ... */
            rc = one_sample(t, out->calls, &series[(k + (uint64_t)half) % 2][k]);
            if (rc != RF_OK)
                return rc;
        }
    for (int s = 0; s < 2; s++)
        qsort(series[s], rounds, sizeof series[s][0], ascending);
    out->p10 = quantile(series[0], rounds, 0.1);
    out->median = quantile(series[0], rounds, 0.5);
    out->p90 = quantile(series[0], rounds, 0.9);
    double ratio = out->median / quantile(series[1], rounds, 0.5) - 1;
    out->noise = ratio < 0 ? -ratio : ratio;
    return RF_OK;
}

static rf_result capture(timing *t)
{
    rf_error err;
    rf_result rc = rf_cpu_stream_create(&t->stream, &err);
    t->in_graph = IN_GRAPH;
    if (rc == RF_OK)
        rc = rf_channel_rebind(t->comm, TIMED);
    if (rc == RF_OK)
        rc = rf_cpu_capture_begin(t->stream);
    for (uint32_t i = 0; i < t->in_graph && rc == RF_OK; i++)
        rc = one_call(t, t->stream);
    if (rc == RF_OK)
        rc = rf_cpu_capture_end(t->stream, &t->graph);
    return rc == RF_OK ? rf_channel_rebind(t->comm, TIMED) : rc;
}

static rf_result measure(rf_comm *comm, const rf_shape *shape, uint64_t rounds, result *out)
{
    timing t = {.comm = comm, .shape = *shape};
    size_t bytes = rf_cli_shape_bytes(shape);
    t.in = malloc(bytes);
    t.out = malloc(bytes);
    rf_result rc = t.in && t.out ? RF_OK : RF_E_MEMORY;
    if (rc == RF_OK) { /* ordinary numbers in every dtype, and pages of our own */
        memset(t.in, 0x3C, bytes);
        memset(t.out, 0x3C, bytes);
    }
    if (rc == RF_OK && shape->mode == RF_GRAPH)
        rc = capture(&t);
    if (rc == RF_OK)
        rc = time_shape(&t, rounds, out);
    rf_cpu_stream_destroy(t.stream);
    rf_cpu_graph_destroy(t.graph);
    if (rc == RF_OK)
        rc = rf_channel_rebind(comm, TIMED);
    free(t.in);
    free(t.out);
    return rc;
}

/* ---- output ---- */

static double gigabytes_per_second(const rf_shape *s, double us)
{
    return us > 0 ? (double)rf_cli_shape_bytes(s) / us * 1e-3 : 0;
}

static void print_head(int world)
{
    printf("%d ranks; us per call: median over rounds of the slowest rank; A/A: the same timed "
           "twice\n\n",
           world);
    printf("%s  %-22s %9s %10s %10s %10s %8s %6s  %s%s\n", rf_cli_style_of(RF_CLI_BOLD), "shape",
           "size", "median", "p10", "p90", "GB/s", "A/A", "variant", rf_cli_style_of(RF_CLI_PLAIN));
}

static void print_row(const rf_comm *comm, const rf_shape *s, const result *r)
{
    char shape[RF_CLI_SHAPE], bytes[24];
    rf_plan_info plan = {0};
    rf_plan_query(comm, TIMED, s->rows * s->hidden, s->dtype, s->mode, &plan);
    printf("%s %-22s %9s %10.2f %10.2f %10.2f %8.2f %5.1f%%  %s, %u KiB steps%s%s%s\n",
           rf_cli_mark(r->verdict == RF_OK), rf_cli_shape_text(s, shape),
           rf_cli_bytes_text(rf_cli_shape_bytes(s), bytes), r->median, r->p10, r->p90,
           gigabytes_per_second(s, r->median), r->noise * 100, plan.variant, plan.grid,
           rf_cli_style_of(RF_CLI_DIM), plan.rung == RF_RUNG_EXACT ? "" : ", not measured here",
           rf_cli_style_of(RF_CLI_PLAIN));
    fflush(stdout);
}

static void print_json(const rf_comm *comm, const rf_shape *s, const result *r, int first)
{
    rf_plan_info plan = {0};
    rf_plan_query(comm, TIMED, s->rows * s->hidden, s->dtype, s->mode, &plan);
    printf("%s\n  {\"dtype\": \"%s\", \"rows\": %llu, \"hidden\": %llu, \"mode\": \"%s\", "
           "\"bytes\": %llu, \"right\": %s, \"median_us\": %.4f, \"p10_us\": %.4f, "
           "\"p90_us\": %.4f, \"gb_per_s\": %.4f, \"noise\": %.4f, \"calls_per_sample\": %u, "
           "\"rung\": %d, \"grid\": %u, \"variant\": ",
           first ? "" : ",", rf_dtype_name(s->dtype), (unsigned long long)s->rows,
           (unsigned long long)s->hidden, s->mode == RF_GRAPH ? "graph" : "eager",
           (unsigned long long)rf_cli_shape_bytes(s), r->verdict == RF_OK ? "true" : "false",
           r->median, r->p10, r->p90, gigabytes_per_second(s, r->median), r->noise, r->calls,
           (int)plan.rung, plan.grid);
    rf_cli_json_string(plan.variant);
    putchar('}');
}

/* ---- the ranks ---- */

static rf_result prepare(rf_comm *comm, const rf_cli_shapes *s, rf_error *err)
{
    int control;
    rf_shape word = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, (uint64_t)rf_comm_world(comm)};
    rf_result rc = rf_channel_open(comm, "control", &control, err);
    if (rc == RF_OK)
        rc = rf_prepare(comm, control, &word, 1, err);
    return rc == RF_OK ? rf_prepare(comm, TIMED, s->list, s->n, err) : rc;
}

static int bench_all(const job *j, rf_comm *comm)
{
    int code = RF_CLI_OK, speaks = rf_comm_rank(comm) == 0;
    if (speaks && !j->json)
        print_head(rf_comm_world(comm));
    if (speaks && j->json)
        printf("{\"version\": \"%s\", \"world\": %d, \"results\": [", rf_version_string(),
               rf_comm_world(comm));
    for (size_t i = 0; i < j->shapes.n; i++) {
        const rf_shape *s = &j->shapes.list[i];
        result r = {.verdict = rf_cli_verify(comm, TIMED, s, i)};
        rf_result rc = r.verdict == RF_E_WRONG ? RF_OK : r.verdict;
        if (rc == RF_OK)
            rc = measure(comm, s, j->rounds, &r);
        if (rc != RF_OK) {
            rf_error err = {.code = rc};
            const rf_error *last = rf_comm_error(comm);
            return rf_cli_failed("timing", last && last->code == rc ? last : &err);
        }
        code = r.verdict == RF_OK ? code : RF_CLI_FAILURE;
        if (speaks && j->json)
            print_json(comm, s, &r, i == 0);
        else if (speaks)
            print_row(comm, s, &r);
    }
    if (speaks && j->json)
        puts("\n]}");
    return code;
}

static int rank(const rf_bootstrap *boot, void *ctx)
{
    job *j = ctx;
    rf_cli_comm c;
    rf_error err = {0};
    j->setup.capacity_bytes = rf_cli_shapes_largest(&j->shapes);
    j->setup.store_flags = RF_STORE_READ;
    j->setup.channels = 2;
    if (rf_cli_comm_open(&j->setup, boot, &c))
        return RF_CLI_FAILURE;
    int ready = prepare(c.comm, &j->shapes, &err) == RF_OK;
    int code = ready ? bench_all(j, c.comm) : rf_cli_failed("preparing", &err);
    rf_cli_comm_close(&c, code == RF_CLI_OK);
    return code;
}

int rf_cli_bench(int argc, char **argv)
{
    job j = {.rounds = 15};
    uint64_t n = 0;
    int rest;
    const rf_cli_option options[] = {
        RF_CLI_WORLD_OPTION(&n),
        RF_CLI_DB_OPTION(&j.setup),
        RF_CLI_SHAPE_OPTIONS(&j.shapes),
        {"rounds", 0, "N", RF_CLI_NUMBER, &j.rounds, "samples of each series (default 15)"},
        {"json", 0, NULL, RF_CLI_FLAG, &j.json, "as JSON"},
    };
    const rf_cli_syntax syntax = RF_CLI_SYNTAX(
        "bench", "[OPTIONS]",
        "Times the all-reduce as a program would call it, with the plans that the tactic database\n"
        "gives. Every result is checked against the oracle. Each shape is timed as two series "
        "that\n"
        "take turns; how much they differ is the noise of this machine (A/A).",
        options, 0, 0);
    int code = rf_cli_parse(&syntax, argc, argv, &rest);
    if (code < 0 && (j.rounds < 1 || j.rounds > MAX_ROUNDS)) {
        rf_cli_error("--rounds %llu: expected 1 to %u", (unsigned long long)j.rounds, MAX_ROUNDS);
        code = RF_CLI_USAGE;
    }
    if (code < 0)
        code = rf_cli_shapes_read(&j.shapes);
    if (code == RF_CLI_OK && j.shapes.n)
        code = rf_cli_world(n, rank, &j);
    rf_cli_shapes_free(&j.shapes);
    return code;
}
