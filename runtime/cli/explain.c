#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/database.h"

#define FEW 3 /* samples, below which noise and median say little */

typedef struct job {
    rf_cli_setup setup;
    rf_shape shape;
    int all; /* show failed and dropped candidates too */
} job;

/* The latest measurement of each candidate at this very shape, whatever the host. */
static const char candidates_sql[] =
    "SELECT variant, grid, outcome, samples, median_us, noise_us, hw_fp, max(started_utc || "
    "printf('%09d', measurement_no)) "
    "FROM measurements WHERE world = CAST(?1 AS INTEGER) AND dtype = ?2 AND mode = ?3 "
    "AND rows = CAST(?4 AS INTEGER) AND hidden = CAST(?5 AS INTEGER) "
    "GROUP BY hw_fp, variant, grid "
    "ORDER BY hw_fp, outcome <> 'ok', median_us IS NULL, median_us, variant, grid";

typedef struct listing {
    char hw[RFI_HEX];
    unsigned shown, hidden;
    double best;
    int all;
} listing;

static void copy(sqlite3_stmt *row, int column, char *out, size_t size)
{
    snprintf(out, size, "%s", rfi_column(row, column));
    rf_cli_defuse(out);
}

static void print_candidate(void *ctx, sqlite3_stmt *row)
{
    listing *l = ctx;
    char hw[RFI_HEX], outcome[24], variant[128];
    double median = sqlite3_column_double(row, 4);
    copy(row, 6, hw, sizeof hw);
    copy(row, 2, outcome, sizeof outcome);
    copy(row, 0, variant, sizeof variant);
    if (strcmp(l->hw, hw) != 0) {
        snprintf(l->hw, sizeof l->hw, "%s", hw);
        printf("\ncandidates, measured on hardware %.8s:\n", hw);
        l->best = median;
    }
    if (!l->all && strcmp(outcome, "ok") != 0) {
        l->hidden++;
        return;
    }
    uint32_t grid = (uint32_t)sqlite3_column_int(row, 1);
    int samples = sqlite3_column_int(row, 3);
    printf("  %-48s ", variant);
    if (grid)
        printf("%5u %-9s ", grid, rf_cli_grid_unit(variant, grid));
    else
        printf("%16s", ""); /* the caller's own collective has none */
    if (median > 0)
        printf("%10.2f us  +-%-8.2f %5.2fx", median, sqlite3_column_double(row, 5),
               l->best > 0 ? median / l->best : 1);
    if (strcmp(outcome, "ok") != 0)
        printf("  %s", outcome);
    else if (samples < FEW)
        printf("  (%d sample%s only)", samples, rf_cli_s((uint64_t)samples));
    putchar('\n');
    l->shown++;
}

static int print_candidates(const job *j, int world)
{
    rfi_db db;
    rf_error err = {0};
    char numbers[3][24];
    snprintf(numbers[0], sizeof numbers[0], "%d", world);
    snprintf(numbers[1], sizeof numbers[1], "%llu", (unsigned long long)j->shape.rows);
    snprintf(numbers[2], sizeof numbers[2], "%llu", (unsigned long long)j->shape.hidden);
    const char *const texts[] = {numbers[0], rf_dtype_name(j->shape.dtype),
                                 j->shape.mode == RF_GRAPH ? "graph" : "eager", numbers[1],
                                 numbers[2]};
    listing l = {.all = j->all};
    rf_result rc = rf_cli_db_open(j->setup.db, &db, &err);
    if (rc == RF_OK) {
        rc = rfi_db_query(&db, candidates_sql, 5, texts, print_candidate, &l, &err);
        rfi_db_close(&db);
    }
    if (rc == RF_E_DB_ABSENT) {
        printf("\nno candidates: there is no tactic database yet; run %s%s`\n",
               rf_cli_advice(&j->setup, "`rankfold tune"),
               j->setup.backend == RF_BACKEND_CUDA ? " --backend cuda" : "");
        return RF_CLI_OK;
    }
    if (rc != RF_OK)
        return rf_cli_failed("the tactic database", &err);
    if (l.shown + l.hidden == 0)
        puts("\nno candidate was measured at exactly this shape");
    if (l.hidden)
        printf("  and %u more, dropped or failed (--all shows them)\n", l.hidden);
    return RF_CLI_OK;
}

static void print_plan(const job *j, const rf_comm *comm)
{
    const rf_shape *s = &j->shape;
    char shape[RF_CLI_SHAPE], bytes[24], text[RF_CLI_PLAN];
    rf_plan_info plan = {0};
    rf_plan_query(comm, 0, s->rows * s->hidden, s->dtype, s->mode, &plan);
    int world = rf_comm_world(comm);
    printf("%s, %s, %d rank%s\n", rf_cli_shape_text(s, shape),
           rf_cli_bytes_text(rf_cli_shape_bytes(s), bytes), world, rf_cli_s((uint64_t)world));
    printf("  plan    %s%s%s\n", rf_cli_style_of(RF_CLI_BOLD), rf_cli_plan_text(&plan, text),
           rf_cli_style_of(RF_CLI_PLAIN));
    printf("  rung    %d: %s\n", (int)plan.rung, rf_rung_text(plan.rung));
    rf_cli_defuse(plan.reason);
    printf("  reason  %s\n", rf_cli_advice(&j->setup, plan.reason));
    if (plan.median_us > 0 && rf_cli_plan_of_other_shape(&plan, s))
        printf("  median  %.2f us, of %llu x %llu\n", plan.median_us,
               (unsigned long long)plan.measured_rows, (unsigned long long)plan.measured_hidden);
    else if (plan.median_us > 0)
        printf("  median  %.2f us\n", plan.median_us);
}

static int rank(const rf_bootstrap *boot, void *ctx)
{
    job *j = ctx;
    rf_cli_comm c;
    rf_error err = {0};
    j->setup.capacity_bytes = rf_cli_shape_bytes(&j->shape);
    j->setup.store_flags = RF_STORE_READ;
    if (rf_cli_comm_open(&j->setup, boot, &c, &err) != RF_OK)
        return rf_cli_failed("creating the communicator", &err);
    int code = RF_CLI_OK;
    if (rf_prepare(c.comm, 0, &j->shape, 1, &err) != RF_OK)
        code = rf_cli_failed("preparing", &err);
    else if (boot->rank == 0) {
        print_plan(j, c.comm);
        code = print_candidates(j, boot->world);
    }
    rf_cli_comm_close(&c, code == RF_CLI_OK);
    return code;
}

int rf_cli_explain(int argc, char **argv)
{
    job j = {0};
    uint64_t n = 0;
    int rest;
    const rf_cli_option options[] = {
        RF_CLI_WORLD_OPTION(&n),
        RF_CLI_DB_OPTION(&j.setup),
        RF_CLI_BACKEND_OPTION(&j.setup),
        RF_CLI_ADMIT_OPTION(&j.setup),
        {"all", 'a', NULL, RF_CLI_FLAG, &j.all, "show dropped and failed candidates too"},
    };
    const rf_cli_syntax syntax = RF_CLI_SYNTAX(
        "explain", "[OPTIONS] SHAPE",
        "Shows what a call of this shape would run, by which rung of the look-up ladder, and how\n"
        "all candidates did. SHAPE is dtype:rows x hidden, such as bf16:16x4096, with :graph\n"
        "behind it for a captured call.",
        options, 1, 1);
    int code = rf_cli_parse(&syntax, argc, argv, &rest);
    if (code >= 0)
        return code;
    if (!rf_cli_shape_parse(argv[rest], &j.shape)) {
        rf_cli_error("explain: found '%s', expected a shape such as bf16:16x4096", argv[rest]);
        return RF_CLI_USAGE;
    }
    if (!rf_cli_shape_fits(&j.shape))
        return RF_CLI_USAGE;
    return rf_cli_world(n, rank, &j);
}
