#include <stdio.h>

#include "cli/cli.h"

typedef struct job {
    rf_cli_shapes shapes;
    rf_cli_setup setup;
    rf_tune_options options;
} job;

static void print_plan(const rf_comm *comm, const rf_shape *s, rf_result verdict)
{
    char shape[RF_CLI_SHAPE], bytes[24], text[RF_CLI_PLAN];
    rf_plan_info plan = {0};
    rf_plan_query(comm, 0, s->rows * s->hidden, s->dtype, s->mode, &plan);
    printf("%s %-22s %9s  ", rf_cli_mark(verdict == RF_OK), rf_cli_shape_text(s, shape),
           rf_cli_bytes_text(rf_cli_shape_bytes(s), bytes));
    if (plan.median_us > 0 && plan.rung < RF_RUNG_NEAREST)
        printf("%9.2f us", plan.median_us);
    else
        printf("%12s", "-");
    printf("  %s", rf_cli_plan_text(&plan, text));
    if (verdict != RF_OK)
        printf("  %s%s%s", rf_cli_style_of(RF_CLI_BAD), rf_strerror(verdict),
               rf_cli_style_of(RF_CLI_PLAIN));
    else if (plan.rung != RF_RUNG_EXACT)
        printf("  %s(%s)%s", rf_cli_style_of(RF_CLI_DIM), rf_rung_text(plan.rung),
               rf_cli_style_of(RF_CLI_PLAIN));
    else if (rf_cli_plan_of_other_shape(&plan, s))
        printf("  %s(measured at %llu x %llu)%s", rf_cli_style_of(RF_CLI_DIM),
               (unsigned long long)plan.measured_rows, (unsigned long long)plan.measured_hidden,
               rf_cli_style_of(RF_CLI_PLAIN));
    putchar('\n');
    fflush(stdout);
}

/* Every shape once more, as a program calls it, against the oracle. */
static int verify(const rf_cli_comm *c, const rf_cli_shapes *shapes)
{
    rf_error err = {0};
    int code = RF_CLI_OK;
    for (size_t i = 0; i < shapes->n; i++) {
        rf_result rc = rf_verify(c->comm, 0, &shapes->list[i], 1000 + i, &err);
        if (rc == RF_FALLBACK)
            rc = RF_OK;
        if (rf_comm_rank(c->comm) == 0)
            print_plan(c->comm, &shapes->list[i], rc);
        if (rc != RF_OK && rc != RF_E_WRONG)
            return rf_cli_failed("verifying", &err);
        if (rc != RF_OK)
            code = RF_CLI_FAILURE;
    }
    return code;
}

static void print_summary(const rf_tune_summary *s, int world, int force)
{
    printf("%u shape%s for %d rank%s in %.1f s: ", s->shapes, rf_cli_s(s->shapes), world,
           rf_cli_s((uint64_t)world), s->seconds);
    if (s->warm == s->shapes)
        printf("all known, nothing measured");
    else
        printf("%u known, %u candidate%s measured", s->warm, s->measured, rf_cli_s(s->measured));
    if (s->wrong || s->timeout)
        printf(", %u wrong, %u timed out twice", s->wrong, s->timeout);
    if (s->timeout)
        fputs(" (--force tries them again)", stdout);
    puts("");
    if (s->unfinished)
        printf("the budget ran out: %u shape%s not measured to the end, and not decided; %s\n",
               s->unfinished, rf_cli_s(s->unfinished),
               force ? "--force begins anew: give it a larger --budget" : "run again to go on");
}

/* Of the shapes that had to be measured there was none to which --variants left anything. */
static int is_in_vain(const rf_tune_summary *s)
{
    return s->unmatched && s->unmatched == s->shapes - s->warm;
}

static int rank(const rf_bootstrap *boot, void *ctx)
{
    job *j = ctx;
    rf_cli_comm c;
    rf_error err = {0};
    rf_tune_summary summary = {0};
    rf_cli_progress progress = {0};
    j->setup.capacity_bytes = rf_cli_shapes_largest(&j->shapes);
    if (rf_cli_comm_open(&j->setup, boot, &c, &err) != RF_OK)
        return rf_cli_failed("creating the communicator", &err);
    if (boot->rank == 0) {
        j->options.progress = rf_cli_progress_show;
        j->options.progress_ctx = &progress;
    }
    rf_result rc = rf_tune(c.comm, 0, j->shapes.list, j->shapes.n, &j->options, &summary, &err);
    rf_cli_progress_end(&progress);
    int code = rc == RF_OK ? RF_CLI_OK : rf_cli_failed("tuning", &err);
    int db_lost = rc >= RF_E_DB && rc <= RF_E_DB_ABSENT;
    if (rc == RF_OK && boot->rank == 0)
        print_summary(&summary, boot->world, j->options.flags & RF_TUNE_FORCE);
    if (rc == RF_OK || db_lost) {
        int wrong = verify(&c, &j->shapes);
        code = wrong ? wrong : code;
    }
    rf_cli_comm_close(&c, code == RF_CLI_OK || db_lost);
    if (!is_in_vain(&summary))
        return code;
    if (boot->rank == 0)
        rf_cli_error("tune: nothing was measured: --variants '%s' leaves nothing that may run; "
                     "`rankfold variants` lists the names",
                     j->options.variant_filter);
    return RF_CLI_FAILURE;
}

int rf_cli_tune(int argc, char **argv)
{
    job j = {.options = RF_TUNE_OPTIONS_INIT};
    uint64_t n = 0;
    int force = 0, rest;
    const rf_cli_option options[] = {
        RF_CLI_WORLD_OPTION(&n),
        RF_CLI_DB_OPTION(&j.setup),
        RF_CLI_BACKEND_OPTION(&j.setup),
        RF_CLI_ADMIT_OPTION(&j.setup),
        RF_CLI_SHAPE_OPTIONS(&j.shapes),
        {"budget", 'b', "TIME", RF_CLI_TIME, &j.options.budget_ms,
         "for the whole session: 90, 500ms, 2m (default 60)"},
        {"rounds", 0, "N", RF_CLI_ROUNDS, &j.options.rounds,
         "interleaved rounds (default 7); below 3, medians say little"},
        {"variants", 0, "GLOB", RF_CLI_TEXT, &j.options.variant_filter,
         "only variants whose names match (* and ?)"},
        {"seed", 0, "N", RF_CLI_NUMBER, &j.options.seed, "order and data (default: random)"},
        {"force", 'f', NULL, RF_CLI_FLAG, &force, "measure again what is known already"},
    };
    const rf_cli_syntax syntax = RF_CLI_SYNTAX(
        "tune", "[OPTIONS]",
        "Measures every tactic for each shape across several ranks on this machine, each checked\n"
        "against the oracle first, and records all measurements in the tactic database. What is\n"
        "known already is not measured again; a session that was cut short goes on where it was.\n"
        "Afterwards each shape is run with its winner and verified.\n\n"
        "When the budget runs out, what was measured is kept, it is said of how many shapes a "
        "part\n"
        "is missing (the database does not decide by them yet), and the exit code is 0 all the\n"
        "same: run it again, and it goes on. Every run gets on with one candidate at least. It is\n"
        "1 where something has to be measured, and --variants leaves nothing of it that may run.",
        options, 0, 0);
    int code = rf_cli_parse(&syntax, argc, argv, &rest);
    if (code < 0)
        code = rf_cli_shapes_read(&j.shapes);
    if (code == RF_CLI_OK && j.shapes.n) {
        j.options.flags = force ? RF_TUNE_FORCE : 0;
        code = rf_cli_world(n, rank, &j);
    }
    rf_cli_shapes_free(&j.shapes);
    return code;
}
