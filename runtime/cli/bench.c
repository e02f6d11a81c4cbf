#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"

#define SAMPLE_S  3e-3 /* one sample takes about this long */
#define MAX_CALLS 20000u

typedef struct job {
    rf_cli_shapes shapes;
    rf_cli_setup setup;
    uint32_t rounds;
    int json;
} job;

typedef struct result {
    rf_result verdict;       /* FALLBACK: nobody here can run it, and there are no times */
    double median, p10, p90; /* us, of series A */
    double noise;            /* |median of A / median of B - 1|: the same thing timed twice */
    uint32_t calls;
} result;

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, uint64_t n, double q)
{
    return sorted[(uint64_t)(q * (double)(n - 1) + 0.5)];
}

static rf_result time_shape(rf_comm *comm, const rf_shape *shape, uint32_t rounds, result *out,
                            rf_error *err)
{
    static double samples[2 * RF_CLI_MOST_ROUNDS], series[2][RF_CLI_MOST_ROUNDS];
    rf_result rc = rf_time(comm, 0, shape, 3, samples, 2, err); /* warms up */
    if (rc != RF_OK)
        return rc;
    double calls = SAMPLE_S * 1e6 / (samples[1] > 0 ? samples[1] : 1);
    out->calls = calls < 3 ? 3 : calls > MAX_CALLS ? MAX_CALLS : (uint32_t)calls;
    rc = rf_time(comm, 0, shape, out->calls, samples, 2 * rounds, err);
    if (rc != RF_OK)
        return rc;
    for (uint32_t k = 0; k < rounds; k++)
        for (uint64_t half = 0; half < 2; half++) /* A B, B A, A B ... */
            series[(k + half) % 2][k] = samples[2 * k + half];
    for (int s = 0; s < 2; s++)
        qsort(series[s], rounds, sizeof series[s][0], ascending);
    out->p10 = quantile(series[0], rounds, 0.1);
    out->median = quantile(series[0], rounds, 0.5);
    out->p90 = quantile(series[0], rounds, 0.9);
    double ratio = out->median / quantile(series[1], rounds, 0.5) - 1;
    out->noise = ratio < 0 ? -ratio : ratio;
    return RF_OK;
}

/* ---- output ---- */

static double gigabytes_per_second(const rf_shape *s, double us)
{
    return us > 0 ? (double)rf_cli_shape_bytes(s) / us * 1e-3 : 0;
}

static void print_head(int world)
{
    printf("%d rank%s; us per call: median over rounds of the slowest rank; A/A: the same timed "
           "twice\n\n",
           world, rf_cli_s((uint64_t)world));
    printf("%s  %-22s %9s %10s %10s %10s %8s %6s  %s%s\n", rf_cli_style_of(RF_CLI_BOLD), "shape",
           "size", "median", "p10", "p90", "GB/s", "A/A", "variant", rf_cli_style_of(RF_CLI_PLAIN));
}

static void print_row(const rf_comm *comm, const rf_shape *s, const result *r)
{
    char shape[RF_CLI_SHAPE], bytes[24], text[RF_CLI_PLAN];
    rf_plan_info plan = {0};
    rf_plan_query(comm, 0, s->rows * s->hidden, s->dtype, s->mode, &plan);
    if (r->verdict == RF_FALLBACK) {
        printf("- %-22s %9s  left to %s, which is not timed here\n", rf_cli_shape_text(s, shape),
               rf_cli_bytes_text(rf_cli_shape_bytes(s), bytes), rf_cli_plan_text(&plan, text));
        fflush(stdout);
        return;
    }
    printf("%s %-22s %9s %10.2f %10.2f %10.2f %8.2f %5.1f%%  %s%s%s%s%s\n",
           rf_cli_mark(r->verdict == RF_OK), rf_cli_shape_text(s, shape),
           rf_cli_bytes_text(rf_cli_shape_bytes(s), bytes), r->median, r->p10, r->p90,
           gigabytes_per_second(s, r->median), r->noise * 100, rf_cli_plan_text(&plan, text),
           rf_cli_style_of(RF_CLI_DIM), plan.rung == RF_RUNG_EXACT ? "" : ", ",
           plan.rung == RF_RUNG_EXACT ? "" : rf_rung_text(plan.rung),
           rf_cli_style_of(RF_CLI_PLAIN));
    fflush(stdout);
}

static void print_json(const rf_comm *comm, const rf_shape *s, const result *r, int first)
{
    rf_plan_info plan = {0};
    rf_plan_query(comm, 0, s->rows * s->hidden, s->dtype, s->mode, &plan);
    printf("%s\n  {\"dtype\": \"%s\", \"rows\": %llu, \"hidden\": %llu, \"mode\": \"%s\", "
           "\"bytes\": %llu, \"rung\": %d, \"fallback\": ",
           first ? "" : ",", rf_dtype_name(s->dtype), (unsigned long long)s->rows,
           (unsigned long long)s->hidden, s->mode == RF_GRAPH ? "graph" : "eager",
           (unsigned long long)rf_cli_shape_bytes(s), (int)plan.rung);
    if (r->verdict == RF_FALLBACK) {
        fputs("true}", stdout);
        return;
    }
    printf("false, \"right\": %s, \"median_us\": %.4f, \"p10_us\": %.4f, \"p90_us\": %.4f, "
           "\"gb_per_s\": %.4f, \"noise\": %.4f, \"calls_per_sample\": %u, \"grid\": %u, "
           "\"variant\": ",
           r->verdict == RF_OK ? "true" : "false", r->median, r->p10, r->p90,
           gigabytes_per_second(s, r->median), r->noise, r->calls, plan.grid);
    rf_cli_json_string(plan.variant);
    putchar('}');
}

/* ---- the ranks ---- */

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
        rf_error err = {0};
        result r = {.verdict = rf_verify(comm, 0, s, i, &err)};
        int wrong = r.verdict == RF_E_WRONG, theirs = r.verdict == RF_FALLBACK;
        rf_result rc = wrong || theirs ? RF_OK : r.verdict;
        if (rc == RF_OK && !theirs)
            rc = time_shape(comm, s, j->rounds, &r, &err);
        if (rc != RF_OK)
            return rf_cli_failed("timing", &err);
        code = wrong ? RF_CLI_FAILURE : code;
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
    if (rf_cli_comm_open(&j->setup, boot, &c, &err) != RF_OK)
        return rf_cli_failed("creating the communicator", &err);
    int ready = rf_prepare(c.comm, 0, j->shapes.list, j->shapes.n, &err) == RF_OK;
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
        RF_CLI_BACKEND_OPTION(&j.setup),
        RF_CLI_ADMIT_OPTION(&j.setup),
        RF_CLI_SHAPE_OPTIONS(&j.shapes),
        {"rounds", 0, "N", RF_CLI_ROUNDS, &j.rounds, "samples of each series (default 15)"},
        {"json", 0, NULL, RF_CLI_FLAG, &j.json, "as JSON"},
    };
    const rf_cli_syntax syntax = RF_CLI_SYNTAX(
        "bench", "[OPTIONS]",
        "Times the all-reduce as a program would call it, with the plans that the tactic database\n"
        "gives. Every result is checked against the oracle. Each shape is timed as two series "
        "that\n"
        "take turns; how much they differ is the noise of this machine (A/A). What is left to the\n"
        "caller's own collective is not timed.",
        options, 0, 0);
    int code = rf_cli_parse(&syntax, argc, argv, &rest);
    if (code < 0)
        code = rf_cli_shapes_read(&j.shapes);
    if (code == RF_CLI_OK && j.shapes.n)
        code = rf_cli_world(n, rank, &j);
    rf_cli_shapes_free(&j.shapes);
    return code;
}
