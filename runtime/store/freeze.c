/* Decisions as C: needs rankfold.h only, so that a product compiles it against an installed prefix.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/group.h"
#include "core/hash.h"
#include "store/ladder.h"
#include "store/maintain.h"
#include "store/names.h"

/* The same as in store/store.h: rf_store_frozen checks the ABI and the size of a row. */
#define STR(x)  #x
#define XSTR(x) STR(x)
static const char head[] =
    "/* Tactic decisions, written by `rankfold db freeze`. A program that links it has these "
    "lines:\n"
    " *     extern const rf_frozen %s;\n"
    " *     rf_store_frozen(&%s, &store, &err);\n"
    " * Made for another runtime, it fails to link (rfi_abi_N) or is refused. */\n"
    "#include <rankfold.h>\n"
    "\n"
    "extern const int rfi_abi_" XSTR(RF_ABI) ";\n"
                                             "\n"
                                             "typedef struct row {\n"
                                             "    unsigned char hw[16], env[16];\n"
                                             "    const char *env_text, *arch, *transports;\n"
                                             "    uint8_t op, world, dtype, mode, admits;\n"
                                             "    uint32_t grid;\n"
                                             "    uint64_t hidden, bucket;\n"
                                             "    unsigned char hash[16];\n"
                                             "    const char *variant;\n"
                                             "    double median_ns;\n"
                                             "} row;\n"
                                             "\n"
                                             "struct rf_frozen {\n"
                                             "    uint32_t abi, row_size;\n"
                                             "    const int *abi_witness;\n"
                                             "    uint64_t generation;\n"
                                             "    size_t n;\n"
                                             "    const row *rows;\n"
                                             "};\n"
                                             "\n"
                                             "extern const rf_frozen %s;\n"
                                             "\n";

static const char tail[] = "const rf_frozen %s = {" XSTR(RF_ABI) ", sizeof(row), &rfi_abi_" XSTR(
    RF_ABI) ", UINT64_C(%" PRIu64 "), %" PRIu64 ", %s};\n";

/* In the order of a frozen table: by bytes of the fingerprint, then as the codes are numbered. */
#define RF_X(code, text, number) " WHEN '" text "' THEN " #number
#define SET(number, text)        " WHEN '" text "' THEN " #number
#define OPS                      RF_OP_LIST(RF_X)
#define DTYPES                   RF_DTYPE_LIST(RF_X)
#define ADMITS                   RFI_ADMITS_LIST(SET)
static const char rows_sql[] =
    "SELECT hw_fp, env_fp, architecture, op, world, dtype, mode, grid, hidden, bucket_bytes, "
    "variant_hash, variant, median_ns, admits, transports || iif(islands <> '' AND "
    "instr(admits, 'reassoc'), ' islands=' || islands, '') AS met FROM decisions "
    "ORDER BY hw_fp, architecture, CASE op" OPS " END, world, CASE dtype" DTYPES " END, "
    "mode = 'graph', CASE admits" ADMITS " END, met, hidden, bucket_bytes, newest";

static void write_bytes(const char *hex, FILE *out)
{
    for (int i = 0; i < 32; i += 2)
        fprintf(out, "%s0x%.2s", i ? "," : "{", hex + i);
    putc('}', out);
}

static void write_string(const char *text, FILE *out)
{
    putc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '\n')
            fputs("\\n", out);
        else if (c == '"' || c == '\\' || c == '?' || c < 0x20 || c >= 0x7f)
            fprintf(out, "\\%03o", c);
        else
            putc(c, out);
    }
    putc('"', out);
}

/* Is it of an op, dtype and mode that this runtime has? */
static int known(sqlite3_stmt *row)
{
    unsigned char bytes[16];
    return rfi_name_code(RFI_OPS, rfi_column(row, 3)) >= 0 &&
           rfi_name_code(RFI_DTYPES, rfi_column(row, 5)) >= 0 &&
           rfi_name_code(RFI_MODES, rfi_column(row, 6)) >= 0 &&
           rfi_name_code(RFI_ADMITS, rfi_column(row, 13)) >= 0 &&
           rfi_unhex(rfi_column(row, 0), bytes) && rfi_unhex(rfi_column(row, 1), bytes) &&
           rfi_unhex(rfi_column(row, 10), bytes);
}

typedef struct table {
    const char *const *hw; /* the hosts that are wanted; n = 0: all */
    size_t n;
    FILE *out;
    char *text; /* the rows, once they are written */
    uint64_t rows;
} table;

static int wanted(const table *t, const char *hw)
{
    for (size_t i = 0; i < t->n; i++)
        if (!strcmp(hw, t->hw[i]))
            return 1;
    return t->n == 0;
}

static void write_row(void *ctx, sqlite3_stmt *row)
{
    table *t = ctx;
    FILE *out = t->out;
    if (!wanted(t, rfi_column(row, 0)) || !known(row))
        return;
    t->rows++;
    const char *name = rfi_column(row, 11);
    fputs("    {", out);
    write_bytes(rfi_column(row, 0), out);
    putc(',', out);
    write_bytes(rfi_column(row, 1), out);
    fprintf(out, ",ENV_%s,", rfi_column(row, 1));
    write_string(rfi_column(row, 2), out);
    putc(',', out);
    write_string(rfi_column(row, 14), out);
    fprintf(out, ",%d,%lld,%d,%d,%d,%lldu,%lld,%lld,", rfi_name_code(RFI_OPS, rfi_column(row, 3)),
            (long long)sqlite3_column_int64(row, 4), rfi_name_code(RFI_DTYPES, rfi_column(row, 5)),
            rfi_name_code(RFI_MODES, rfi_column(row, 6)),
            rfi_name_code(RFI_ADMITS, rfi_column(row, 13)), (long long)sqlite3_column_int64(row, 7),
            (long long)sqlite3_column_int64(row, 8), (long long)sqlite3_column_int64(row, 9));
    write_bytes(rfi_column(row, 10), out);
    putc(',', out);
    write_string(strcmp(name, RFI_BASELINE) ? name : "", out);
    /* Picoseconds: an integer reads the same in every locale. */
    fprintf(out, ",%lld / 1e3},\n", (long long)(sqlite3_column_double(row, 12) * 1000 + 0.5));
}

/* One static text per environment, so that rows share it. */
static const char environments_sql[] = "SELECT env_fp, env_text FROM environment WHERE env_fp IN "
                                       "(SELECT env_fp FROM decision) ORDER BY env_fp";

static void write_environment(void *ctx, sqlite3_stmt *row)
{
    const table *t = ctx;
    unsigned char bytes[16];
    if (!rfi_unhex(rfi_column(row, 0), bytes) || !strstr(t->text, rfi_column(row, 0)))
        return; /* no row refers to it: of another host, or unknown */
    fprintf(t->out, "#define ENV_%s ", rfi_column(row, 0));
    write_string(rfi_column(row, 1), t->out);
    putc('\n', t->out);
}

/* One that a program may declare outside of functions: what begins with _ is the compiler's. */
static int is_identifier(const char *name)
{
    static const char *const keywords[] = {
        "auto",    "break",  "case",     "char",   "const",    "continue", "default",
        "do",      "double", "else",     "enum",   "extern",   "float",    "for",
        "goto",    "if",     "inline",   "int",    "long",     "register", "restrict",
        "return",  "short",  "signed",   "sizeof", "static",   "struct",   "switch",
        "typedef", "union",  "unsigned", "void",   "volatile", "while",
    };
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (!strcmp(name, keywords[i]))
            return 0;
    if (!isalpha((unsigned char)*name))
        return 0;
    for (; *name; name++)
        if (!isalnum((unsigned char)*name) && *name != '_')
            return 0;
    return 1;
}

static rf_result write_all(rfi_db *db, const char *name, table *t, FILE *out, rf_error *err)
{
    size_t bytes = 0;
    t->out = open_memstream(&t->text, &bytes);
    if (!t->out)
        return rfi_fail(err, RF_E_MEMORY, -1, "database", "out of memory");
    rf_result result = rfi_db_query(db, rows_sql, 0, NULL, write_row, t, err);
    int lost = ferror(t->out);
    if ((fclose(t->out) || lost) && result == RF_OK)
        result = rfi_fail(err, RF_E_MEMORY, -1, "database", "out of memory");
    t->out = out;
    fprintf(out, head, name, name, name);
    if (result == RF_OK)
        result = rfi_db_query(db, environments_sql, 0, NULL, write_environment, t, err);
    if (result == RF_OK) {
        if (t->rows)
            fprintf(out, "\nstatic const row rows[] = {\n%s};\n\n", t->text);
        /* Follows from the rows, so that the same decisions give the same file, however they came
         * together; as many bits as every reader of JSON takes. */
        uint64_t generation = rfi_hash64(t->text, bytes) >> 12;
        fprintf(out, tail, name, generation, t->rows, t->rows ? "rows" : "0");
    }
    free(t->text);
    return result;
}

rf_result rfi_db_freeze(rfi_db *db, const char *name, const char *const *hw, size_t n, FILE *out,
                        uint64_t *rows, rf_error *err)
{
    if (!is_identifier(name))
        return rfi_fail(err, RF_E_ARG, -1, "database",
                        "%.60s is no C identifier that a program may have", name);
    table t = {.hw = hw, .n = n};
    rf_result result = rfi_db_begin_read(db, err);
    if (result == RF_OK)
        result = rfi_db_end(db, write_all(db, name, &t, out, err), err);
    *rows = t.rows;
    if (result == RF_OK && ferror(out))
        result = rfi_fail(err, RF_E_SYSTEM, -1, "database", "freeze: write failed");
    return result;
}
