#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/database.h"

/* gnuplot executes what it finds in backticks, so nothing from the database ever enters a script:
 * scripts are made of the constants below and of integers; measurements go into data files, as
 * numbers. Text from the database goes into the page, escaped. */

typedef struct report {
    FILE *page;
    rfi_db db;
    char folder[256]; /* temporary, for gnuplot */
    rf_error err;
    unsigned rows;        /* of the table that is being written */
    rf_result rc;         /* first failure */
    sigset_t usual, held; /* signals that are blocked as ever, and that are now */
} report;

/* ---- Ctrl-C: signals that would end us wait until nothing is left to remove ---- */

static const int endings[] = {SIGINT, SIGTERM, SIGHUP};
#define N_ENDINGS (sizeof endings / sizeof *endings)

static void hold_signals(report *r)
{
    struct sigaction now;
    sigemptyset(&r->held);
    for (size_t i = 0; i < N_ENDINGS; i++)
        if (sigaction(endings[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(&r->held, endings[i]);
    sigprocmask(SIG_BLOCK, &r->held, &r->usual);
}

/* Has anything failed? A signal that waits is a failure. */
static int failed(report *r)
{
    sigset_t waiting;
    sigpending(&waiting);
    for (size_t i = 0; i < N_ENDINGS && r->rc == RF_OK; i++)
        if (sigismember(&r->held, endings[i]) && sigismember(&waiting, endings[i])) {
            r->rc = r->err.code = RF_E_SYSTEM;
            snprintf(r->err.text, sizeof r->err.text, "ended by signal %d", endings[i]);
        }
    return r->rc != RF_OK;
}

/* ---- text into the page ---- */

static void escaped(FILE *f, const char *text)
{
    static const struct {
        char c;
        const char *entity;
    } entities[] = {{'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    for (; *text; text++) {
        const char *entity = NULL;
        for (size_t i = 0; i < sizeof entities / sizeof *entities; i++)
            if (*text == entities[i].c)
                entity = entities[i].entity;
        if (entity)
            fputs(entity, f);
        else if ((unsigned char)*text >= 0x20 || *text == '\n')
            fputc(*text, f);
    }
}

static void cell_row(void *ctx, sqlite3_stmt *row)
{
    report *r = ctx;
    r->rows++;
    fputs("<tr>", r->page);
    for (int i = 0; i < sqlite3_column_count(row); i++) {
        int type = sqlite3_column_type(row, i);
        int number = type == SQLITE_INTEGER || type == SQLITE_FLOAT;
        fprintf(r->page, "<td%s>", number ? " class=n" : "");
        escaped(r->page, rfi_column(row, i));
        fputs("</td>", r->page);
    }
    fputs("</tr>\n", r->page);
}

/* A section: heading, column names, and what the query gives. All texts but the rows are ours. */
static void table(report *r, const char *title, const char *columns, const char *sql)
{
    if (failed(r))
        return;
    fprintf(r->page, "<h2>%s</h2>\n<table><tr>", title);
    for (const char *p = columns;; p++) {
        size_t n = strcspn(p, "|");
        fprintf(r->page, "<th>%.*s</th>", (int)n, p);
        p += n;
        if (!*p)
            break;
    }
    fputs("</tr>\n", r->page);
    r->rows = 0;
    r->rc = rfi_db_query(&r->db, sql, 0, NULL, cell_row, r, &r->err);
    fputs(r->rows ? "</table>\n" : "</table>\n<p>None.</p>\n", r->page);
}

/* ---- curves ---- */

typedef struct chart {
    const char *quantity, *label; /* column of the data, axis */
    int logarithmic;
} chart;

static const chart charts[] = {
    {"2", "microseconds a call", 1},
    {"($1/$2/1000)", "GB/s", 0},
};

/* One data file a world: bytes and microseconds. counts[world] = points. */
typedef struct points {
    const report *r;
    FILE *file[RF_CLI_MOST_RANKS + 1];
    unsigned counts[RF_CLI_MOST_RANKS + 1];
    double low[2], high[2]; /* of bytes, and of microseconds */
} points;

/* Half a size beyond the points, so that there is a range around a single one, with a power of two
 * in it. */
#define MARGIN    1.42
#define MOST_TICS 8

static void widen(points *p, int axis, double value)
{
    int first = p->high[axis] <= 0;
    p->low[axis] = first || value < p->low[axis] ? value : p->low[axis];
    p->high[axis] = first || value > p->high[axis] ? value : p->high[axis];
}

static void one_point(void *ctx, sqlite3_stmt *row)
{
    points *p = ctx;
    int world = sqlite3_column_int(row, 0);
    if (world < 1 || world > RF_CLI_MOST_RANKS)
        return;
    char path[300];
    snprintf(path, sizeof path, "%s/world%d", p->r->folder, world);
    if (!p->file[world])
        p->file[world] = fopen(path, "we");
    if (!p->file[world])
        return;
    double bytes = sqlite3_column_double(row, 1), us = sqlite3_column_double(row, 2);
    fprintf(p->file[world], "%.0f %.6f\n", bytes, us);
    widen(p, 0, bytes);
    widen(p, 1, us);
    p->counts[world]++;
}

static rf_result fail(report *r, const char *what)
{
    r->err.code = RF_E_SYSTEM;
    snprintf(r->err.text, sizeof r->err.text, "%.300s: %s", what, strerror(errno));
    return r->rc = RF_E_SYSTEM;
}

/* Powers of two; gnuplot's own prefixes for them begin with "ki". */
static void write_sizes(FILE *f, double low, double high)
{
    char text[24];
    const char *comma = "";
    int step = 1;
    while (step < 64 && ldexp(low, step * MOST_TICS) < high)
        step++;
    fputs("set xtics (", f);
    for (int k = 0; k < 64; k += step)
        if (low <= ldexp(1, k) && ldexp(1, k) <= high) {
            fprintf(f, "%s'%s' %.0f", comma, rf_cli_bytes_text(1ull << k, text), ldexp(1, k));
            comma = ", ";
        }
    fputs(")\n", f);
}

static int write_script(report *r, const chart *c, const points *p, int number)
{
    char path[300];
    double low = p->low[0] / MARGIN, high = p->high[0] * MARGIN;
    snprintf(path, sizeof path, "%s/script", r->folder);
    FILE *f = fopen(path, "we");
    if (!f)
        return 0;
    fprintf(f,
            "set terminal svg size 620,340 font 'sans-serif,12' name 'chart%d' noenhanced\n"
            "set output 'curves.svg'\nset logscale x 2\nset xrange [%.6f:%.6f]\n",
            number, low, high);
    write_sizes(f, low, high);
    if (c->logarithmic)
        fprintf(f, "set logscale y\nset yrange [%.6f:%.6f]\n", p->low[1] / MARGIN,
                p->high[1] * MARGIN);
    else
        fputs("set yrange [0:*]\n", f);
    fprintf(f, "set xlabel 'tensor'\nset ylabel '%s'\nset key top left\nset grid\nplot ", c->label);
    const char *comma = "";
    for (int w = 1; w <= RF_CLI_MOST_RANKS; w++)
        if (p->counts[w]) {
            fprintf(f, "%s'world%d' using 1:%s with linespoints linewidth 2 title '%d rank%s'",
                    comma, w, c->quantity, w, rf_cli_s((uint64_t)w));
            comma = ", ";
        }
    fputc('\n', f);
    return fclose(f) == 0;
}

static int run_gnuplot(report *r)
{
    char *const argv[] = {(char *)"gnuplot", (char *)"-d", (char *)"script", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    pid_t pid;
    int status = 0;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &r->usual);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, r->folder);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    int rc = posix_spawnp(&pid, argv[0], &actions, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (rc == 0)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
    int missing = rc == ENOENT || (WIFEXITED(status) && WEXITSTATUS(status) == 127);
    if (rc == 0 && status == 0)
        return 1;
    r->rc = r->err.code = RF_E_SYSTEM;
    if (missing)
        snprintf(r->err.text, sizeof r->err.text,
                 "gnuplot is not installed (Debian: gnuplot-nox); the report needs it for curves");
    else
        snprintf(r->err.text, sizeof r->err.text, "gnuplot failed: %s",
                 rc ? strerror(rc) : "see its message above");
    return 0;
}

/* Copies the drawing from its <svg> on: a declaration has no place inside a page. */
static void include_drawing(report *r)
{
    char path[300], line[4096];
    snprintf(path, sizeof path, "%s/curves.svg", r->folder);
    FILE *f = fopen(path, "re");
    int inside = 0;
    while (f && fgets(line, sizeof line, f)) {
        const char *start = inside ? line : strstr(line, "<svg");
        if (start) {
            inside = 1;
            fputs(start, r->page);
        }
    }
    if (!f || !inside)
        fail(r, "the drawing that gnuplot made");
    if (f)
        fclose(f);
}

static void draw(report *r, const points *p, int *number)
{
    for (size_t c = 0; c < sizeof charts / sizeof *charts && !failed(r); c++) {
        if (!write_script(r, &charts[c], p, ++*number))
            fail(r, "a script for gnuplot");
        else if (run_gnuplot(r))
            include_drawing(r);
    }
}

typedef struct host_list {
    struct {
        char hw[RFI_HEX], machine[400];
    } at[64];
    size_t n;
} host_list;

/* A fingerprint is of a group of ranks; groups of one machine have the lines of rank 0 in common:
 * "r0.cpus=2" ... becomes "cpus=2, ...". */
static void machine_of(const char *hw_text, char *out, size_t size)
{
    size_t used = 0;
    for (const char *line = hw_text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        size_t n = strcspn(line, "\n");
        if (strncmp(line, "r0.", 3) == 0 && used + n < size)
            used += (size_t)snprintf(out + used, size - used, "%s%.*s", used ? ", " : "",
                                     (int)(n - 3), line + 3);
    }
    out[used < size ? used : size - 1] = 0;
}

static void one_host(void *ctx, sqlite3_stmt *row)
{
    host_list *list = ctx;
    if (list->n == sizeof list->at / sizeof *list->at)
        return;
    snprintf(list->at[list->n].hw, RFI_HEX, "%s", rfi_column(row, 0));
    machine_of(rfi_column(row, 1), list->at[list->n].machine, sizeof list->at->machine);
    list->n++;
}

/* The next group of ranks on the same machine as `first`; n = no more. */
static size_t next_on_machine(const host_list *hosts, size_t first, size_t from)
{
    while (from < hosts->n && strcmp(hosts->at[from].machine, hosts->at[first].machine) != 0)
        from++;
    return from;
}

/* The fastest of one machine, dtype and mode: a curve for each world. */
static void curves(report *r, const host_list *hosts, size_t first, const char *dtype,
                   const char *mode, int *number)
{
    static const char sql[] =
        "SELECT world, rows * hidden * CASE dtype WHEN 'f32' THEN 4 ELSE 2 END AS bytes, "
        "min(median_us) FROM measurements WHERE outcome = 'ok' AND hw_fp = ?1 AND dtype = ?2 AND "
        "mode = ?3 GROUP BY world, bytes ORDER BY world, bytes";
    points p = {.r = r};
    unsigned total = 0;
    for (size_t h = first; h < hosts->n && r->rc == RF_OK;
         h = next_on_machine(hosts, first, h + 1)) {
        const char *const texts[] = {hosts->at[h].hw, dtype, mode};
        r->rc = rfi_db_query(&r->db, sql, 3, texts, one_point, &p, &r->err);
    }
    for (int w = 1; w <= RF_CLI_MOST_RANKS; w++) {
        total += p.counts[w];
        if (p.file[w] && fclose(p.file[w]) != 0)
            fail(r, "data for gnuplot");
    }
    if (r->rc != RF_OK || total == 0)
        return;
    fprintf(r->page, "<h3>%s, %s</h3>\n<div class=charts>\n", dtype, mode);
    draw(r, &p, number);
    fputs("</div>\n", r->page);
}

static void all_curves(report *r)
{
    static const char *const modes[] = {"eager", "graph"};
    host_list hosts = {.n = 0};
    int number = 0;
    if (r->rc == RF_OK)
        r->rc = rfi_db_query(&r->db, "SELECT hw_fp, hw_text FROM host ORDER BY hw_fp", 0, NULL,
                             one_host, &hosts, &r->err);
    for (size_t h = 0; h < hosts.n && r->rc == RF_OK; h++) {
        if (next_on_machine(&hosts, h, 0) != h)
            continue; /* drawn with the first of its machine */
        fputs("<h2>Curves</h2>\n<p>The fastest candidate at each size, on ", r->page);
        escaped(r->page, hosts.at[h].machine);
        fputs("</p>\n", r->page);
        for (int d = 0; rf_dtype_name((rf_dtype)d) && r->rc == RF_OK; d++)
            for (size_t m = 0; m < 2 && r->rc == RF_OK; m++)
                curves(r, &hosts, h, rf_dtype_name((rf_dtype)d), modes[m], &number);
    }
}

/* ---- the page ---- */

static const char head[] =
    "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>\n<title>Rankfold report</title>\n"
    "<style>body{font:15px/1.4 sans-serif;margin:2em auto;max-width:82em;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;font-size:13px}td,th{padding:.2em .7em;border-bottom:1px solid "
    "#ddd;text-align:left;vertical-align:top;white-space:pre-line}td.n{text-align:right}"
    ".charts{display:flex;flex-wrap:wrap}</style></head><body>\n";

static void write_page(report *r)
{
    char now[RFI_UTC];
    rfi_utc_now(now);
    fprintf(r->page, "%s<h1>Rankfold %s: what was measured</h1>\n<p>%s, from ", head,
            rf_version_string(), now);
    escaped(r->page, r->db.path);
    fputs("</p>\n", r->page);
    table(r, "Hosts", "hardware|architecture|sessions|environments|last tuned|decisions|what it is",
          "SELECT hw_fp, architecture, campaigns, environments, last_tuned_utc, decisions, hw_text "
          "FROM hosts ORDER BY hw_fp");
    all_curves(r);
    table(r, "Where one kind takes over from another",
          "transports|op|ranks|dtype|mode|opt-ins|from bytes|to bytes|kind|us at the first|us at "
          "the last|next kind there|us of the next|hardware",
          "SELECT transports, op, world, dtype, mode, admits, from_bytes, to_bytes, kind, from_us, "
          "to_us, rival, rival_us, host FROM takeover");
    table(r, "What runs",
          "architecture|transports|op|ranks|dtype|mode|opt-ins|hidden|up to bytes|variant|grid|us|"
          "+-|tuned|hardware",
          "SELECT architecture, transports, op, world, dtype, mode, admits, hidden, bucket_bytes, "
          "variant, grid, median_us, noise_us, tuned_utc, host FROM runs");
    table(
        r, "Why",
        "transports|op|ranks|dtype|mode|opt-ins|hidden|up to bytes|variant|grid|us|runner-up|grid|"
        "us|margin %|verdict",
        "SELECT transports, op, world, dtype, mode, admits, hidden, bucket_bytes, variant, grid, "
        "median_us, "
        "runner_up, runner_up_grid, runner_up_us, margin_pct, verdict FROM why");
    table(r, "Stale",
          "transports|op|ranks|dtype|mode|opt-ins|hidden|up to bytes|variant|reason|tuned",
          "SELECT transports, op, world, dtype, mode, admits, hidden, bucket_bytes, variant, "
          "reason, tuned_utc "
          "FROM stale");
    table(
        r, "Candidates that did not work", "variant|outcome|ranks|dtype|mode|rows|hidden|grid|when",
        "SELECT variant, outcome, world, dtype, mode, rows, hidden, grid, started_utc FROM failed "
        "WHERE outcome <> 'infeasible' ORDER BY started_utc, variant LIMIT 1000");
    table(r, "Sessions", "session|started|finished|state|shapes|swept|measurements|tool|policy",
          "SELECT substr(campaign, 1, 8), started_utc, finished_utc, state, shapes, swept, "
          "measurements, tool, policy FROM campaigns ORDER BY started_utc");
    fputs("</body></html>\n", r->page);
}

static void remove_folder(const report *r)
{
    static const char *const fixed[] = {"script", "curves.svg"};
    char path[300];
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        snprintf(path, sizeof path, "%s/%s", r->folder, fixed[i]);
        unlink(path);
    }
    for (int w = 1; w <= RF_CLI_MOST_RANKS; w++) {
        snprintf(path, sizeof path, "%s/world%d", r->folder, w);
        unlink(path);
    }
    rmdir(r->folder);
}

static rf_result make_folder(report *r)
{
    const char *tmp = getenv("TMPDIR");
    int n = snprintf(r->folder, sizeof r->folder, "%s/rankfold-report-XXXXXX",
                     tmp && *tmp ? tmp : "/tmp");
    if ((size_t)n >= sizeof r->folder)
        errno = ENAMETOOLONG;
    else if (mkdtemp(r->folder))
        return RF_OK;
    r->folder[0] = 0;
    return fail(r, "a temporary folder");
}

/* A page takes the place of a file, never that of a device, a pipe or a link. */
static int is_taken(const char *target)
{
    struct stat there;
    return lstat(target, &there) == 0 && !S_ISREG(there.st_mode);
}

/* Written beside the target and renamed, so that a failure leaves no half page. */
static rf_result write_report(report *r, const char *target)
{
    char partial[4200];
    snprintf(partial, sizeof partial, "%s.partial", target);
    if (is_taken(target)) {
        r->err.code = RF_E_SYSTEM;
        snprintf(r->err.text, sizeof r->err.text, "%.300s is there, and is no plain file", target);
        return r->rc = r->err.code;
    }
    unlink(partial); /* of a report that was killed */
    r->page = fopen(partial, "wxe");
    if (!r->page)
        return fail(r, partial);
    write_page(r);
    int written = !ferror(r->page);
    if (fclose(r->page) != 0 || !written)
        fail(r, partial);
    if (r->rc == RF_OK && rename(partial, target) != 0)
        fail(r, target);
    if (r->rc != RF_OK)
        unlink(partial);
    return r->rc;
}

int rf_cli_report(int argc, char **argv)
{
    const char *db = NULL, *target = "rankfold-report.html";
    int rest;
    const rf_cli_option options[] = {
        {"db", 0, "FILE", RF_CLI_TEXT, &db,
         "tactic database (default $RANKFOLD_DB, else the user's)"},
        {"output", 'o', "FILE", RF_CLI_TEXT, &target, "the page (default rankfold-report.html)"},
    };
    const rf_cli_syntax syntax =
        RF_CLI_SYNTAX("report", "[OPTIONS]",
                      "Writes one HTML page, with everything in it, about what a tactic database\n"
                      "knows: hosts, curves (drawn by gnuplot), what runs and why.",
                      options, 0, 0);
    int code = rf_cli_parse(&syntax, argc, argv, &rest);
    if (code >= 0)
        return code;
    report r = {.rc = RF_OK};
    hold_signals(&r);
    r.rc = rf_cli_db_open(db, &r.db, &r.err);
    if (r.rc == RF_OK && make_folder(&r) == RF_OK) {
        write_report(&r, target);
        remove_folder(&r);
    }
    rfi_db_close(&r.db);
    sigprocmask(SIG_SETMASK, &r.usual, NULL); /* where one waits, this is the end */
    if (r.rc != RF_OK)
        return rf_cli_failed("report", &r.err);
    printf("%s\n", target);
    return RF_CLI_OK;
}
