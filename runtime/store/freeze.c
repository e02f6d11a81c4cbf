/* Decisions as C: needs rankfold.h only, so that a product compiles it against an installed prefix.
 */
#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "core/group.h"
#include "store/ladder.h"
#include "store/maintain.h"
#include "store/names.h"

/* The same as in store/store.h: rf_store_frozen checks the ABI and the size of a row. */
#define STR(x)  #x
#define XSTR(x) STR(x)
static const char head[] =
    "/* Tactic decisions, written by `rankfold db freeze`. Link it and call\n"
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
static const char rows_sql[] =
    "WITH found AS (SELECT env_fp, env_text, instr(char(10) || env_text, char(10) || "
    "'transports=') AS at FROM environment), "
    "value AS (SELECT env_fp, CASE at WHEN 0 THEN '' ELSE substr(env_text, at + 11) END AS text "
    "FROM found), "
    "ranked AS (SELECT d.*, v.name, substr(e.text, 1, instr(e.text || char(10), char(10)) - 1) AS "
    "transports, row_number() OVER (PARTITION BY d.hw_fp, d.architecture, d.op, d.world, d.dtype, "
    "d.mode, d.admits, d.hidden, d.bucket_bytes, "
    "substr(e.text, 1, instr(e.text || char(10), char(10)) - 1) "
    "ORDER BY c.started_utc DESC, c.campaign DESC) AS newest "
    "FROM decision d JOIN variant v ON v.variant_hash = d.variant_hash "
    "JOIN campaign c ON c.campaign = d.campaign JOIN value e ON e.env_fp = d.env_fp) "
    "SELECT hw_fp, env_fp, architecture, op, world, dtype, mode, grid, hidden, bucket_bytes, "
    "variant_hash, name, median_ns, admits, transports FROM ranked WHERE newest = 1 "
    "ORDER BY hw_fp, architecture, CASE op" RF_OP_LIST(
        RF_X) " END, world, CASE dtype" RF_DTYPE_LIST(RF_X) " END, mode = 'graph', CASE "
                                                            "admits" RFI_ADMITS_LIST(SET) " END, "
                                                                                          "transpor"
                                                                                          "ts, "
                                                                                          "hidden, "
                                                                                          "bucket_"
                                                                                          "bytes";
#undef SET
#undef RF_X

static const char *text_at(sqlite3_stmt *row, int column)
{
    const char *text = (const char *)sqlite3_column_text(row, column);
    return text ? text : "";
}

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

static int wanted(const char *hex, const char *const *hw, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(hex, hw[i]))
            return 1;
    return n == 0;
}

/* One static text per environment, so that rows share it. */
static int write_environments(rfi_db *db, FILE *out)
{
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(db->handle,
                                "SELECT env_fp, env_text FROM environment WHERE env_fp IN "
                                "(SELECT env_fp FROM decision) ORDER BY env_fp",
                                -1, &statement, NULL);
    while (!rc && (rc = sqlite3_step(statement)) == SQLITE_ROW) {
        rc = SQLITE_OK;
        fprintf(out, "#define ENV_%s ", text_at(statement, 0));
        write_string(text_at(statement, 1), out);
        fputs("\n", out);
    }
    sqlite3_finalize(statement);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

/* Is it of an op, dtype and mode that this runtime has? */
static int known(sqlite3_stmt *row)
{
    unsigned char bytes[16];
    return rfi_name_code(RFI_OPS, text_at(row, 3)) >= 0 &&
           rfi_name_code(RFI_DTYPES, text_at(row, 5)) >= 0 &&
           rfi_name_code(RFI_MODES, text_at(row, 6)) >= 0 &&
           rfi_name_code(RFI_ADMITS, text_at(row, 13)) >= 0 && rfi_unhex(text_at(row, 0), bytes) &&
           rfi_unhex(text_at(row, 1), bytes) && rfi_unhex(text_at(row, 10), bytes);
}

static void write_row(sqlite3_stmt *row, FILE *out)
{
    const char *name = text_at(row, 11);
    fputs("    {", out);
    write_bytes(text_at(row, 0), out);
    putc(',', out);
    write_bytes(text_at(row, 1), out);
    fprintf(out, ",ENV_%s,", text_at(row, 1));
    write_string(text_at(row, 2), out);
    putc(',', out);
    write_string(text_at(row, 14), out);
    fprintf(out, ",%d,%lld,%d,%d,%d,%lldu,%lld,%lld,", rfi_name_code(RFI_OPS, text_at(row, 3)),
            (long long)sqlite3_column_int64(row, 4), rfi_name_code(RFI_DTYPES, text_at(row, 5)),
            rfi_name_code(RFI_MODES, text_at(row, 6)), rfi_name_code(RFI_ADMITS, text_at(row, 13)),
            (long long)sqlite3_column_int64(row, 7), (long long)sqlite3_column_int64(row, 8),
            (long long)sqlite3_column_int64(row, 9));
    write_bytes(text_at(row, 10), out);
    putc(',', out);
    write_string(strcmp(name, RFI_BASELINE) ? name : "", out);
    /* Picoseconds: an integer reads the same in every locale. */
    fprintf(out, ",%lld / 1e3},\n", (long long)(sqlite3_column_double(row, 12) * 1000 + 0.5));
}

static int is_identifier(const char *name)
{
    if (!isalpha((unsigned char)*name) && *name != '_')
        return 0;
    for (; *name; name++)
        if (!isalnum((unsigned char)*name) && *name != '_')
            return 0;
    return 1;
}

rf_result rfi_db_freeze(rfi_db *db, const char *name, const char *const *hw, size_t n, FILE *out,
                        uint64_t *rows, rf_error *err)
{
    if (!is_identifier(name))
        return rfi_fail(err, RF_E_ARG, -1, "database", "%.60s is no C identifier", name);
    sqlite3_stmt *statement = NULL;
    sqlite3_stmt *generation = rfi_db_sql(db, RFI_SQL_GENERATION);
    uint64_t number = 1;
    if (rfi_db_step(generation) == SQLITE_ROW)
        number = (uint64_t)sqlite3_column_int64(generation, 0);
    if (generation)
        sqlite3_reset(generation);

    fprintf(out, head, name, name);
    int rc = write_environments(db, out);
    if (!rc)
        rc = sqlite3_prepare_v2(db->handle, rows_sql, -1, &statement, NULL);
    *rows = 0;
    while (!rc && (rc = sqlite3_step(statement)) == SQLITE_ROW) {
        rc = SQLITE_OK;
        if (!wanted(text_at(statement, 0), hw, n) || !known(statement))
            continue;
        if (++*rows == 1)
            fputs("\nstatic const row rows[] = {\n", out);
        write_row(statement, out);
    }
    sqlite3_finalize(statement);
    if (rc != SQLITE_DONE)
        return rfi_db_fail(db->handle, db->path, rc, "freeze", err);
    if (*rows)
        fputs("};\n\n", out);
    fprintf(out, tail, name, number, *rows, *rows ? "rows" : "0");
    return ferror(out) ? rfi_fail(err, RF_E_SYSTEM, -1, "database", "freeze: write failed") : RF_OK;
}
