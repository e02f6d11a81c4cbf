/* What the subcommands of `rankfold` share. They see the library through rankfold.h alone. */
#ifndef RANKFOLD_CLI_H
#define RANKFOLD_CLI_H

#include <stdint.h>

#include "rankfold.h"

/* Exit codes. */
enum { RF_CLI_OK = 0, RF_CLI_FAILURE = 1, RF_CLI_USAGE = 2 };

/* ---- subcommands: argv[0] is the subcommand's name; all return an exit code ---- */

int rf_cli_doctor(int argc, char **argv);
int rf_cli_tune(int argc, char **argv);
int rf_cli_bench(int argc, char **argv);
int rf_cli_explain(int argc, char **argv);
int rf_cli_variants(int argc, char **argv);
int rf_cli_report(int argc, char **argv);
int rf_cli_db(int argc, char **argv);

/* ---- options (options.c) ---- */

#define RF_CLI_MOST_RANKS  8
#define RF_CLI_MOST_ROUNDS 1000

typedef enum rf_cli_kind {
    RF_CLI_FLAG,    /* int *: 1 when given */
    RF_CLI_TEXT,    /* const char ** */
    RF_CLI_NUMBER,  /* uint64_t *: a whole decimal number from 1 */
    RF_CLI_RANKS,   /* uint64_t *: 1 to RF_CLI_MOST_RANKS */
    RF_CLI_ROUNDS,  /* uint32_t *: 1 to RF_CLI_MOST_ROUNDS */
    RF_CLI_TIME,    /* uint32_t *, in milliseconds, from 1: 90, 90s, 500ms, 2m */
    RF_CLI_BACKEND, /* rf_backend_kind *: cpu, cuda */
    RF_CLI_ADMIT    /* uint32_t *: flags of rf_config that admit tactics, a list of their names */
} rf_cli_kind;

typedef struct rf_cli_option {
    const char *name;  /* long name */
    char letter;       /* 0 = none */
    const char *value; /* what stands for the value in the help; NULL for a flag */
    rf_cli_kind kind;
    void *into;
    const char *help;
} rf_cli_option;

typedef struct rf_cli_syntax {
    const char *command;   /* "tune" */
    const char *arguments; /* "[OPTIONS] SHAPE..." */
    const char *text;      /* what it does: paragraphs */
    const rf_cli_option *options;
    size_t n;
    int min_rest, max_rest; /* how many arguments that are no options */
} rf_cli_syntax;

#define RF_CLI_WORLD_OPTION(n)                                                                     \
    {                                                                                              \
        "ranks", 'n', "N", RF_CLI_RANKS, (n),                                                      \
            "start N ranks here, 1 to 8 (default: the launcher's, else 2)"                         \
    }
#define RF_CLI_DB_OPTION(setup)                                                                    \
    {                                                                                              \
        "db", 0, "FILE", RF_CLI_TEXT, &(setup)->db,                                                \
            "tactic database (default $RANKFOLD_DB, else the user's)"                              \
    }

#define RF_CLI_BACKEND_OPTION(setup)                                                               \
    {                                                                                              \
        "backend", 0, "NAME", RF_CLI_BACKEND, &(setup)->backend,                                   \
            "cpu (default) or cuda: rank R takes GPU R"                                            \
    }

#define RF_CLI_ADMIT_OPTION(setup)                                                                 \
    {                                                                                              \
        "admit", 0, "LIST", RF_CLI_ADMIT, &(setup)->admit,                                         \
            "opt-in tactics: reassoc, lossy, dependent (default: none)"                            \
    }

#define RF_CLI_SYNTAX(command, arguments, text, options, min_rest, max_rest)                       \
    {                                                                                              \
        (command), (arguments), (text), (options), sizeof(options) / sizeof *(options),            \
            (min_rest), (max_rest)                                                                 \
    }

/* Fills what the options point to. Returns -1 = go on, argv[*rest ..] are the arguments left; else
 * the exit code (the help was printed, or the error). */
int rf_cli_parse(const rf_cli_syntax *syntax, int argc, char **argv, int *rest);

/* ---- messages (terminal.c) ---- */

/* Makes control characters (in UTF-8 those from 0x80 on too) question marks: what a file says must
 * not drive the terminal. */
void rf_cli_defuse(char *text);
/* One line on stderr, "rankfold: ...", defused. Of ranks that this program started, all but rank 0
 * hand it to the parent, which shows what rank 0 did not say already. */
void rf_cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same for a library error; returns RF_CLI_FAILURE. */
int rf_cli_failed(const char *what, const rf_error *err);

/* What makes a noun plural: "" for 1, else "s". */
const char *rf_cli_s(uint64_t n);

/* At the end of a process: the exit code, or RF_CLI_FAILURE (said) if stdout could not be written.
 */
int rf_cli_finish(int code);

typedef enum rf_cli_style {
    RF_CLI_PLAIN,
    RF_CLI_BOLD,
    RF_CLI_DIM,
    RF_CLI_GOOD,
    RF_CLI_BAD
} rf_cli_style;
/* Escape sequences for stdout; "" unless it is a terminal, NO_COLOR unset and TERM not dumb.
 * RF_CLI_PLAIN ends a style. */
const char *rf_cli_style_of(rf_cli_style style);
/* A check mark or a cross, coloured. */
const char *rf_cli_mark(int good);

/* For rf_tune_options.progress: on a terminal one line that rewrites itself, in a log a plain line
 * per shape. ctx: an rf_cli_progress, zeroed at the start; rf_cli_progress_end clears the line. */
typedef struct rf_cli_progress {
    double last;  /* seconds, when something was shown */
    size_t shape; /* shown last, plus one */
    int dirty;    /* the line on the terminal has to be cleared */
} rf_cli_progress;
void rf_cli_progress_show(void *ctx, const rf_tune_progress *p);
void rf_cli_progress_end(rf_cli_progress *progress);

/* Writes `text` as a JSON string, with quotes. */
void rf_cli_json_string(const char *text);

double rf_cli_seconds(void); /* monotonic */

/* ---- shapes (shapes.c) ---- */

typedef struct rf_cli_shapes {
    const char *shapes, *hidden, *rows, *dtype, *bytes, *mode; /* as given; NULL = default */
    rf_shape *list;                                            /* freed by rf_cli_shapes_free */
    size_t n;
} rf_cli_shapes;

#define RF_CLI_SHAPE_OPTIONS(s)                                                                    \
    {"shapes",     0,                                                                              \
     "LIST",       RF_CLI_TEXT,                                                                    \
     &(s)->shapes, "such as bf16:16x4096,f32:65536:graph (dtype:rows x hidden:mode)"},             \
        {"hidden", 0, "LIST", RF_CLI_TEXT, &(s)->hidden, "hidden sizes (default 4096)"},           \
        {"rows", 0, "LIST", RF_CLI_TEXT, &(s)->rows, "rows (default 1,4,16,64,256)"},              \
        {"dtype", 0, "LIST", RF_CLI_TEXT, &(s)->dtype, "f32, bf16, f16 (default bf16,f32)"},       \
        {"bytes",     0,           "LIST",                                                         \
         RF_CLI_TEXT, &(s)->bytes, "flat shapes of so many bytes, such as 2K,64K,1M"},             \
    {                                                                                              \
        "mode", 0, "MODE", RF_CLI_TEXT, &(s)->mode, "eager (default), graph or both"               \
    }

/* Reads the texts into the list. 0, or RF_CLI_USAGE (the error was printed). */
int rf_cli_shapes_read(rf_cli_shapes *s);
void rf_cli_shapes_free(rf_cli_shapes *s);
/* One shape, "bf16:16x4096" or "f32:4096", with ":graph" or ":eager" behind it if wanted: 1 = read.
 */
int rf_cli_shape_parse(const char *text, rf_shape *out);
/* May a tensor be so large? 0 = no, which was said. All that follows may multiply rows by hidden.
 */
int rf_cli_shape_fits(const rf_shape *shape);
/* The same text back, at most RF_CLI_SHAPE characters. */
#define RF_CLI_SHAPE 64
const char *rf_cli_shape_text(const rf_shape *shape, char out[RF_CLI_SHAPE]);
uint64_t rf_cli_shape_bytes(const rf_shape *shape);
uint64_t rf_cli_shapes_largest(const rf_cli_shapes *s); /* bytes */
/* "64 KiB" */
const char *rf_cli_bytes_text(uint64_t bytes, char out[24]);

/* ---- worlds (world.c) and comms (comm.c) ---- */

/* What one rank does; returns an exit code. */
typedef int (*rf_cli_rank_fn)(const rf_bootstrap *boot, void *ctx);

/* Runs fn as `n` ranks: by fork (n > 0), as one rank of a launcher's world (n = 0 and RANK and
 * WORLD_SIZE, or what mpirun sets, are there), else as 2 by fork. Returns the exit code: 0 when
 * every rank returned 0. If one fails or dies, the others get a grace period to say so, then end
 * too; no process is left behind, Ctrl-C and kill -9 of the parent included. */
int rf_cli_world(uint64_t n, rf_cli_rank_fn fn, void *ctx);
/* Is it this process that speaks for that world: not one of a launcher's other ranks? */
int rf_cli_world_speaks(uint64_t n);

typedef struct rf_cli_setup {
    rf_backend_kind backend;
    const char *db;          /* NULL = the user's */
    uint32_t store_flags;    /* RF_STORE_READ or 0 */
    uint32_t admit;          /* RF_REASSOC, RF_LOSSY, RF_DEPENDENT */
    uint64_t capacity_bytes; /* largest tensor */
    uint32_t channels;
    uint32_t deadline_ms;
} rf_cli_setup;

typedef struct rf_cli_comm {
    rf_comm *comm;
    rf_store *store; /* rank 0 only */
} rf_cli_comm;

/* Creates this rank's comm with this program's packs for the backend; errors as rf_comm_create. */
rf_result rf_cli_comm_open(const rf_cli_setup *setup, const rf_bootstrap *boot, rf_cli_comm *out,
                           rf_error *err);
/* Closes (collective) when `orderly`, and destroys. */
void rf_cli_comm_close(rf_cli_comm *c, int orderly);

/* Packs that this program is linked with (packs.c). */
typedef struct rf_cli_pack {
    rf_backend_kind backend;
    const rf_pack *pack;
} rf_cli_pack;
extern const rf_cli_pack rf_cli_packs[];
extern const size_t rf_cli_n_packs;

/* What a grid counts, by the variant's name: "KiB steps" or "blocks". */
const char *rf_cli_grid_unit(const char *variant, uint32_t grid);
/* The library's line, in which a command that it advises gets this program's name and database,
 * which only we know. Static storage, until the next call. */
const char *rf_cli_advice(const rf_cli_setup *setup, const char *line);
/* Are the plan's times known to be of another shape than this one? */
int rf_cli_plan_of_other_shape(const rf_plan_info *plan, const rf_shape *shape);
/* "VARIANT, 16 KiB steps", or that it is the caller's own collective. */
#define RF_CLI_PLAN 128
const char *rf_cli_plan_text(const rf_plan_info *plan, char out[RF_CLI_PLAN]);

#endif
