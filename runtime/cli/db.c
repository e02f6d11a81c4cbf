/* rankfold db ...: looks after database files. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "store/maintain.h"

#define WAIT_MS    30000
#define MAX_IMPORT (UINT64_C(1) << 30)

/* ---- what the subcommands share ---- */

typedef struct db_args {
    const char *db; /* --db; NULL = default */
    char path[RFI_DB_PATH];
    int n; /* arguments left */
    char **rest;
} db_args;

/* Parses the options of a subcommand and resolves the path. -1 = go on; else the exit code. */
static int parse(db_args *a, const char *command, const char *arguments, const char *text,
                 int min_rest, int max_rest, int argc, char **argv)
{
    rf_error err = {0};
    const rf_cli_option options[] = {RF_CLI_DB_OPTION(a)};
    const rf_cli_syntax syntax =
        RF_CLI_SYNTAX(command, arguments, text, options, min_rest, max_rest);
    int rest, code = rf_cli_parse(&syntax, argc, argv, &rest);
    if (code >= 0)
        return code;
    a->n = argc - rest;
    a->rest = argv + rest;
    if (!a->db)
        return rfi_db_default_path(a->path, &err) ? rf_cli_failed("db", &err) : -1;
    if (strlen(a->db) >= sizeof a->path) {
        rf_cli_error("db: the path is longer than %d bytes", RFI_DB_PATH - 1);
        return RF_CLI_USAGE;
    }
    memcpy(a->path, a->db, strlen(a->db) + 1);
    return -1;
}

/* The user's own file opens for writing in all commands: that also puts right what a killed writer
 * left. */
static int open_db(rfi_db *db, const char *path, rfi_access access)
{
    rf_error err = {0};
    return rfi_db_open(db, path, access, WAIT_MS, &err) ? rf_cli_failed("db", &err) : RF_CLI_OK;
}

/* The only host whose fingerprint begins with `prefix`: 1 = found, else it was said. */
static int resolve_host(rfi_db *db, const char *prefix, char out[RFI_HEX])
{
    sqlite3_stmt *statement = NULL;
    int found = 0;
    if (strlen(prefix) < 4 || strspn(prefix, "0123456789abcdef") != strlen(prefix)) {
        rf_cli_error("db: %.40s is no host: at least 4 digits of its hw_fp, please", prefix);
        return 0;
    }
    sqlite3_prepare_v2(db->handle, "SELECT hw_fp FROM host WHERE substr(hw_fp, 1, length(?1)) = ?1",
                       -1, &statement, NULL);
    rfi_db_bind_texts(statement, 1, 1, &prefix);
    while (rfi_db_step(statement) == SQLITE_ROW)
        if (++found == 1)
            snprintf(out, RFI_HEX, "%s", (const char *)sqlite3_column_text(statement, 0));
    sqlite3_finalize(statement);
    if (found != 1)
        rf_cli_error("db: %d hosts begin with %s", found, prefix);
    return found == 1;
}

/* ---- text to stdout, all or nothing ---- */

typedef struct buffer {
    FILE *stream;
    char *text;
    size_t bytes;
} buffer;

static int buffer_open(buffer *b)
{
    b->text = NULL;
    b->stream = open_memstream(&b->text, &b->bytes);
    if (!b->stream)
        rf_cli_error("db: out of memory");
    return b->stream != NULL;
}

/* Shows it if `show`; returns the exit code. */
static int buffer_close(buffer *b, int show)
{
    int bad = fclose(b->stream);
    if (bad)
        rf_cli_error("db: %s", strerror(errno));
    if (!bad && show && (fwrite(b->text, 1, b->bytes, stdout) != b->bytes || fflush(stdout))) {
        rf_cli_error("cannot write the output: %s", strerror(errno));
        clearerr(stdout); /* said, and why */
        bad = 1;
    }
    free(b->text);
    return bad || !show ? RF_CLI_FAILURE : RF_CLI_OK;
}

/* ---- subcommands ---- */

static int db_path(int argc, char **argv)
{
    db_args a = {0};
    int code = parse(&a, "db path", "[OPTIONS]", "Prints the path of the writable database.", 0, 0,
                     argc, argv);
    if (code < 0)
        puts(a.path);
    return code < 0 ? RF_CLI_OK : code;
}

static int db_init(int argc, char **argv)
{
    db_args a = {0};
    rf_error err = {0};
    rfi_db db;
    int code = parse(&a, "db init", "[OPTIONS]",
                     "Makes an empty database (the tuner does that by itself). One that is there "
                     "is left alone.",
                     0, 0, argc, argv);
    if (code >= 0)
        return code;
    if (rfi_db_create(a.path, &err))
        return rf_cli_failed("db init", &err);
    if ((code = open_db(&db, a.path, RFI_DB_WRITE)) == RF_CLI_OK)
        rfi_db_close(&db);
    return code;
}

static int db_check(int argc, char **argv)
{
    db_args a = {0};
    rf_error err = {0};
    rfi_db db;
    int code = parse(&a, "db check", "[OPTIONS]",
                     "Checks pages, keys between tables, fingerprints, and that the facts give the "
                     "decisions.",
                     0, 0, argc, argv);
    if (code >= 0 || (code = open_db(&db, a.path, RFI_DB_WRITE)))
        return code;
    rf_result result = rfi_db_check(&db, &err);
    rfi_db_close(&db);
    if (result)
        return rf_cli_failed("db check", &err);
    printf("%s: sound\n", a.path);
    return RF_CLI_OK;
}

static int db_fold(int argc, char **argv)
{
    db_args a = {0};
    rf_error err = {0};
    rfi_db db;
    uint64_t changed = 0;
    int code = parse(&a, "db fold", "[OPTIONS]", "Makes all decisions again from the facts.", 0, 0,
                     argc, argv);
    if (code >= 0 || (code = open_db(&db, a.path, RFI_DB_WRITE)))
        return code;
    rf_result result = rfi_db_refold(&db, &changed, &err);
    rfi_db_close(&db);
    return result ? rf_cli_failed("db fold", &err) : RF_CLI_OK;
}

static int db_merge(int argc, char **argv)
{
    db_args a = {0};
    rf_error err = {0};
    rfi_db into, from;
    int code = parse(&a, "db merge", "[OPTIONS] OTHER...",
                     "Adds what other databases know, and decides again. Any order and any "
                     "repetition gives the same.",
                     1, 1000, argc, argv);
    if (code >= 0)
        return code;
    if (rfi_db_create(a.path, &err))
        return rf_cli_failed("db merge", &err);
    if ((code = open_db(&into, a.path, RFI_DB_WRITE)))
        return code;
    for (int i = 0; i < a.n && code == RF_CLI_OK; i++) {
        uint64_t added = 0;
        if ((code = open_db(&from, a.rest[i], RFI_DB_READ)))
            break;
        rf_result result = rfi_db_merge(&into, &from, &added, &err);
        rfi_db_close(&from);
        if (result)
            code = rf_cli_failed("db merge", &err);
        else
            printf("%s: %llu new fact%s\n", a.rest[i], (unsigned long long)added, rf_cli_s(added));
    }
    rfi_db_close(&into);
    return code;
}

static int db_export(int argc, char **argv)
{
    db_args a = {0};
    rf_error err = {0};
    rfi_db db;
    buffer out;
    char host[RFI_HEX];
    int code =
        parse(&a, "db export", "[OPTIONS] [HOST]",
              "Writes the facts, of one host or of all, as sorted text to stdout: for version "
              "control, and for\nshipping in db/hosts/. The same facts give the same bytes. "
              "Facts that name the machine are refused.",
              0, 1, argc, argv);
    if (code >= 0 || (code = open_db(&db, a.path, RFI_DB_WRITE)))
        return code;
    code = RF_CLI_FAILURE;
    if ((!a.n || resolve_host(&db, a.rest[0], host)) && buffer_open(&out)) {
        rf_result result = rfi_db_export(&db, a.n ? host : NULL, out.stream, &err);
        code = buffer_close(&out, result == RF_OK);
        if (result)
            rf_cli_failed("db export", &err);
    }
    rfi_db_close(&db);
    return code;
}

/* A whole regular file; NULL = it was said. */
static char *slurp(const char *path, size_t *bytes)
{
    struct stat st;
    FILE *file = NULL;
    char *text = NULL;
    errno = 0;
    if (!stat(path, &st) && !S_ISREG(st.st_mode)) {
        rf_cli_error("db import: %s is not a file", path);
        return NULL;
    }
    if (errno || !(file = fopen(path, "rb"))) {
        rf_cli_error("db import: %s: %s", path, strerror(errno));
        return NULL;
    }
    if ((uint64_t)st.st_size > MAX_IMPORT)
        rf_cli_error("db import: %s is larger than 1 GiB", path);
    else if (!(text = malloc((size_t)st.st_size + 1)))
        rf_cli_error("db import: out of memory");
    else
        *bytes = fread(text, 1, (size_t)st.st_size, file);
    fclose(file);
    return text;
}

static int db_import(int argc, char **argv)
{
    db_args a = {0};
    rf_error err = {0};
    rfi_db db;
    int code = parse(&a, "db import", "[OPTIONS] FILE...",
                     "Reads files that `rankfold db export` wrote and merges them. Nothing in them "
                     "is executed.",
                     1, 10000, argc, argv);
    if (code >= 0)
        return code;
    if (rfi_db_create(a.path, &err))
        return rf_cli_failed("db import", &err);
    if ((code = open_db(&db, a.path, RFI_DB_WRITE)))
        return code;
    for (int i = 0; i < a.n && code == RF_CLI_OK; i++) {
        size_t bytes = 0;
        uint64_t added = 0;
        char *text = slurp(a.rest[i], &bytes);
        if (!text)
            code = RF_CLI_FAILURE;
        else if (rfi_db_import(&db, a.rest[i], text, bytes, &added, &err))
            code = rf_cli_failed("db import", &err);
        else
            printf("%s: %llu new fact%s\n", a.rest[i], (unsigned long long)added, rf_cli_s(added));
        free(text);
    }
    rfi_db_close(&db);
    return code;
}

static int db_migrate(int argc, char **argv)
{
    db_args a = {0};
    rf_error err = {0};
    int from = 0;
    int code = parse(&a, "db migrate", "[OPTIONS]",
                     "Brings a database of an older Rankfold to this schema, on a copy that then "
                     "takes its place.",
                     0, 0, argc, argv);
    if (code >= 0)
        return code;
    if (rfi_db_migrate(a.path, rfi_migrations, &from, &err))
        return rf_cli_failed("db migrate", &err);
    if (from == RFI_DB_VERSION)
        printf("%s: has schema %d already\n", a.path, RFI_DB_VERSION);
    else
        printf("%s: schema %d -> %d\n", a.path, from, RFI_DB_VERSION);
    return RF_CLI_OK;
}

#define MAX_HOSTS 64

static int db_freeze(int argc, char **argv)
{
    db_args a = {0};
    rf_error err = {0};
    rfi_db db;
    buffer out;
    char hosts[MAX_HOSTS][RFI_HEX];
    const char *names[MAX_HOSTS];
    uint64_t rows = 0;
    int n = 0;
    int code =
        parse(&a, "db freeze", "[OPTIONS] NAME [HOST...]",
              "Writes a C file to stdout that defines `const rf_frozen NAME`: the decisions "
              "of these hosts (first\ndigits of hw_fp), or of all. A product that links it needs "
              "no SQLite; the file's first lines say\nwhat the product declares and calls.",
              1, 1 + MAX_HOSTS, argc, argv);
    if (code >= 0 || (code = open_db(&db, a.path, RFI_DB_WRITE)))
        return code;
    for (; n + 1 < a.n && resolve_host(&db, a.rest[n + 1], hosts[n]); n++)
        names[n] = hosts[n];
    code = RF_CLI_FAILURE;
    if (n + 1 == a.n && buffer_open(&out)) {
        rf_result result = rfi_db_freeze(&db, a.rest[0], names, (size_t)n, out.stream, &rows, &err);
        if (result == RF_OK && !rows) {
            const rf_cli_setup setup = {.db = a.db};
            rf_cli_error(
                "%s",
                rf_cli_advice(&setup, "db freeze: no decision to freeze; run `rankfold tune`"));
            result = RF_E_DB_ABSENT;
        } else if (result) {
            rf_cli_failed("db freeze", &err);
        }
        code = buffer_close(&out, result == RF_OK);
    }
    rfi_db_close(&db);
    return code;
}

static void print_count(void *ctx, sqlite3_stmt *row)
{
    (void)ctx;
    printf("%-14s %lld\n", rfi_column(row, 0), (long long)sqlite3_column_int64(row, 1));
}

static int db_stats(int argc, char **argv)
{
    static const char sql[] = "SELECT 'hosts', count(*) FROM host UNION ALL "
                              "SELECT 'environments', count(*) FROM environment UNION ALL "
                              "SELECT 'variants', count(*) FROM variant UNION ALL "
                              "SELECT 'campaigns', count(*) FROM campaign UNION ALL "
                              "SELECT 'finished', count(*) FROM finish UNION ALL "
                              "SELECT 'sweeps', count(*) FROM sweep UNION ALL "
                              "SELECT 'measurements', count(*) FROM measurement UNION ALL "
                              "SELECT 'decisions', count(*) FROM decision";
    db_args a = {0};
    rfi_db db;
    rf_error err = {0};
    int code =
        parse(&a, "db stats", "[OPTIONS]", "Counts what is in the database.", 0, 0, argc, argv);
    if (code >= 0 || (code = open_db(&db, a.path, RFI_DB_WRITE)))
        return code;
    if (rfi_db_query(&db, sql, 0, NULL, print_count, NULL, &err))
        code = rf_cli_failed("db stats", &err);
    rfi_db_close(&db);
    return code;
}

static const struct {
    const char *name, *text;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"path", "where the writable database is", db_path},
    {"init", "make an empty one", db_init},
    {"stats", "count what is in it", db_stats},
    {"check", "is it sound, and do its facts give its decisions", db_check},
    {"fold", "make the decisions again from the facts", db_fold},
    {"merge", "add what other databases know", db_merge},
    {"export", "facts as sorted text", db_export},
    {"import", "read such text", db_import},
    {"migrate", "bring an older file to this schema", db_migrate},
    {"freeze", "decisions as a C table", db_freeze},
};

static void help(FILE *out)
{
    fputs(
        "Usage: rankfold db COMMAND [OPTIONS]\n\n"
        "Looks after tactic databases. All commands take --db FILE and --help. The file is plain\n"
        "SQLite: db/README.md has the questions that people ask, as SQL.\n\nCommands:\n",
        out);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(out, "  %-8s  %s\n", commands[i].name, commands[i].text);
}

int rf_cli_db(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return RF_CLI_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        help(stdout);
        return RF_CLI_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    rf_cli_error("db: no command %.40s; try 'rankfold db --help'", argv[1]);
    return RF_CLI_USAGE;
}
