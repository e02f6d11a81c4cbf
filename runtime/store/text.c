/* Facts as text: one INSERT statement a row, tables in order of dependence, rows in order of their
 * keys. What is written here is all that is read back: the reader knows this form and no SQL. */
#define _GNU_SOURCE
#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "core/group.h"
#include "store/maintain.h"

#define HEAD                                                                                       \
    "-- Facts of a Rankfold tactic database, schema %d. Written by `rankfold db export`, read "    \
    "by\n"                                                                                         \
    "-- `rankfold db import`; decisions follow from the facts.\n"

/* ---- write ---- */

static void write_text(const char *text, FILE *out)
{
    putc('\'', out);
    for (; *text; text++) {
        if (*text == '\'')
            putc('\'', out);
        putc(*text, out);
    }
    putc('\'', out);
}

/* The shortest decimal that reads back as the same number. */
static void write_real(double value, FILE *out)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    fputs(text, out);
    if (!strpbrk(text, ".en"))
        fputs(".0", out);
}

static rf_result write_row(rfi_db *db, const rfi_table *table, sqlite3_stmt *row, FILE *out,
                           rf_error *err)
{
    fprintf(out, "INSERT INTO %s VALUES(", table->name);
    for (int i = 0; i < table->columns; i++) {
        if (i)
            putc(',', out);
        const char *text = (const char *)sqlite3_column_text(row, i), *what;
        switch (sqlite3_column_type(row, i)) {
        case SQLITE_NULL:
            fputs("NULL", out);
            break;
        case SQLITE_INTEGER:
            fprintf(out, "%lld", (long long)sqlite3_column_int64(row, i));
            break;
        case SQLITE_FLOAT:
            write_real(sqlite3_column_double(row, i), out);
            break;
        default:
            if (text && (what = rfi_private_part(text)))
                return rfi_fail(err, RF_E_DB, -1, "database",
                                "%.200s: the %s %.40s holds %s, which should not leave the machine",
                                db->path, table->name, (const char *)sqlite3_column_text(row, 0),
                                what);
            write_text(text ? text : "", out);
        }
    }
    fputs(");\n", out);
    return RF_OK;
}

static rf_result write_table(rfi_db *db, const rfi_table *table, const char *hw, FILE *out,
                             rf_error *err)
{
    sqlite3_stmt *statement = NULL;
    rf_result result = RF_OK;
    char *sql = sqlite3_mprintf("SELECT * FROM %s WHERE %s ORDER BY %s", table->name,
                                hw ? table->of_host : "?1 IS NULL", table->key);
    int rc = sql ? sqlite3_prepare_v2(db->handle, sql, -1, &statement, NULL) : SQLITE_NOMEM;
    sqlite3_free(sql);
    if (!rc && hw)
        rfi_db_bind_texts(statement, 1, 1, &hw);
    while (!rc && result == RF_OK && (rc = sqlite3_step(statement)) == SQLITE_ROW) {
        rc = SQLITE_OK;
        result = write_row(db, table, statement, out, err);
    }
    if (result == RF_OK && rc != SQLITE_DONE)
        result = rfi_db_fail(db->handle, db->path, rc, "export", err);
    sqlite3_finalize(statement);
    return result;
}

/* Numbers are written and read as in C, whatever the user's locale. 0 = out of memory. */
static locale_t enter_c_locale(locale_t *before)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c)
        *before = uselocale(c);
    return c;
}

static void leave_c_locale(locale_t c, locale_t before)
{
    uselocale(before);
    freelocale(c);
}

rf_result rfi_db_export(rfi_db *db, const char *hw, FILE *out, rf_error *err)
{
    locale_t before, c = enter_c_locale(&before);
    if (!c)
        return rfi_fail(err, RF_E_MEMORY, -1, "database", "out of memory");
    rf_result result = rfi_db_begin_read(db, err);
    fprintf(out, HEAD, RFI_DB_VERSION);
    for (size_t i = 0; i < RFI_TABLES && result == RF_OK; i++)
        result = write_table(db, &rfi_tables[i], hw, out, err);
    result = rfi_db_end(db, result, err);
    leave_c_locale(c, before);
    if (result == RF_OK && (fflush(out) || ferror(out)))
        result = rfi_fail(err, RF_E_SYSTEM, -1, "database", "export: %s", strerror(errno));
    return result;
}

/* ---- read ---- */

typedef struct reader {
    const char *name, *at, *end;
    unsigned line;
    char *scratch; /* as large as the text: room for any literal */
    rf_error *err;
} reader;

static rf_result unexpected(reader *r, const char *expected)
{
    int found = r->at < r->end ? (unsigned char)*r->at : 0;
    const char *shown = r->at == r->end ? "the end" : "something else";
    char one[4] = {'\'', (char)found, '\'', '\0'};
    return rfi_fail(r->err, RF_E_DB_FOREIGN, -1, "database", "%.200s:%u: expected %s, found %s",
                    r->name, r->line, expected, found > 0x20 && found < 0x7f ? one : shown);
}

static void skip_space(reader *r)
{
    while (r->at < r->end) {
        if (*r->at == '\n')
            r->line++;
        else if (r->end - r->at >= 2 && r->at[0] == '-' && r->at[1] == '-')
            while (r->at + 1 < r->end && r->at[1] != '\n')
                r->at++;
        else if (*r->at != ' ' && *r->at != '\t' && *r->at != '\r')
            return;
        r->at++;
    }
}

static int accept(reader *r, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length))
        return 0;
    r->at += length;
    return 1;
}

static rf_result read_text(reader *r, sqlite3_stmt *add, int column)
{
    size_t n = 0;
    for (r->at++; r->at < r->end; r->at++) {
        if (*r->at == '\'' && !(r->at + 1 < r->end && r->at[1] == '\''))
            break;
        r->at += *r->at == '\'';
        r->line += *r->at == '\n';
        r->scratch[n++] = *r->at;
    }
    if (r->at == r->end)
        return unexpected(r, "a closing quote");
    r->at++;
    sqlite3_bind_text64(add, column, r->scratch, n, SQLITE_TRANSIENT, SQLITE_UTF8);
    return RF_OK;
}

static rf_result read_number(reader *r, sqlite3_stmt *add, int column)
{
    char text[48];
    size_t n = 0;
    while (r->at < r->end && n + 1 < sizeof text && *r->at && strchr("+-.0123456789e", *r->at))
        text[n++] = *r->at++;
    text[n] = '\0';
    char *end = text;
    errno = 0;
    if (strpbrk(text, ".e"))
        sqlite3_bind_double(add, column, strtod(text, &end));
    else
        sqlite3_bind_int64(add, column, strtoll(text, &end, 10));
    return n == 0 || *end || errno ? unexpected(r, "a number, a text or NULL") : RF_OK;
}

static rf_result read_value(reader *r, sqlite3_stmt *add, int column)
{
    if (r->at < r->end && *r->at == '\'')
        return read_text(r, add, column);
    if (accept(r, "NULL")) {
        sqlite3_bind_null(add, column);
        return RF_OK;
    }
    return read_number(r, add, column);
}

static const rfi_table *read_table_name(reader *r)
{
    for (size_t i = 0; i < RFI_TABLES; i++) {
        const char *before = r->at;
        if (accept(r, rfi_tables[i].name) && accept(r, " VALUES("))
            return &rfi_tables[i];
        r->at = before;
    }
    return NULL;
}

static rf_result read_row(reader *r, rfi_db *aside, sqlite3_stmt *const adds[RFI_TABLES])
{
    if (!accept(r, "INSERT INTO "))
        return unexpected(r, "INSERT INTO");
    const rfi_table *table = read_table_name(r);
    if (!table)
        return unexpected(r, "a table of facts and VALUES(");
    sqlite3_stmt *add = adds[table - rfi_tables];
    unsigned line = r->line;
    sqlite3_reset(add);
    for (int i = 0; i < table->columns; i++) {
        if (i && !accept(r, ","))
            return unexpected(r, "a comma");
        rf_result result = read_value(r, add, i + 1);
        if (result)
            return result;
    }
    if (!accept(r, ");"))
        return unexpected(r, "');' after the last column");
    if (sqlite3_step(add) != SQLITE_DONE)
        return rfi_fail(r->err, RF_E_DB_FOREIGN, -1, "database", "%.200s:%u: %s", r->name, line,
                        sqlite3_errmsg(aside->handle));
    return RF_OK;
}

static int prepare_adds(rfi_db *aside, sqlite3_stmt *adds[RFI_TABLES])
{
    for (size_t i = 0; i < RFI_TABLES; i++) {
        char *sql = sqlite3_mprintf("INSERT INTO %s VALUES(?", rfi_tables[i].name);
        for (int c = 1; sql && c < rfi_tables[i].columns; c++)
            sql = sqlite3_mprintf("%z,?", sql);
        if (sql)
            sql = sqlite3_mprintf("%z)", sql);
        int rc = sql ? sqlite3_prepare_v2(aside->handle, sql, -1, &adds[i], NULL) : SQLITE_NOMEM;
        sqlite3_free(sql);
        if (rc)
            return rc;
    }
    return SQLITE_OK;
}

/* Fills a temporary database, which then is merged like any other. */
static rf_result read_all(reader *r, rfi_db *aside)
{
    sqlite3_stmt *adds[RFI_TABLES] = {NULL};
    rf_result result = RF_OK;
    int rc = sqlite3_exec(aside->handle, rfi_schema_sql, NULL, NULL, NULL);
    if (!rc)
        rc = sqlite3_exec(aside->handle, "BEGIN", NULL, NULL, NULL);
    if (!rc)
        rc = prepare_adds(aside, adds);
    if (rc)
        result = rfi_db_fail(aside->handle, r->name, rc, "import", r->err);
    for (skip_space(r); result == RF_OK && r->at < r->end; skip_space(r))
        result = read_row(r, aside, adds);
    for (size_t i = 0; i < RFI_TABLES; i++)
        sqlite3_finalize(adds[i]);
    if (result == RF_OK && (rc = sqlite3_exec(aside->handle, "COMMIT", NULL, NULL, NULL)))
        result = rfi_db_fail(aside->handle, r->name, rc, "import", r->err);
    return result;
}

rf_result rfi_db_import(rfi_db *into, const char *name, const char *text, size_t bytes,
                        uint64_t *added, rf_error *err)
{
    rfi_db aside = {0};
    locale_t before, c = enter_c_locale(&before);
    reader r = {name, text, text + bytes, 1, malloc(bytes + 1), err};
    if (!c || !r.scratch) {
        free(r.scratch);
        if (c)
            leave_c_locale(c, before);
        return rfi_fail(err, RF_E_MEMORY, -1, "database", "out of memory");
    }
    snprintf(aside.path, sizeof aside.path, "%s", name);
    int rc = sqlite3_open_v2(
        "", &aside.handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    rfi_db_protect(aside.handle);
    rf_result result =
        rc ? rfi_db_fail(aside.handle, name, rc, "import", err) : read_all(&r, &aside);
    if (result == RF_OK)
        result = rfi_db_merge(into, &aside, added, err);
    rfi_db_close(&aside);
    free(r.scratch);
    leave_c_locale(c, before);
    return result;
}
