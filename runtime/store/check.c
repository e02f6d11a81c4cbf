#include <string.h>

#include "core/group.h"
#include "store/maintain.h"

#define WAIT_MS 30000

/* A query that has no row, or one that says "ok", when all is well. */
static rf_result expect_quiet(rfi_db *db, const char *sql, const char *what, rf_error *err)
{
    sqlite3_stmt *statement = NULL;
    rf_result result = RF_OK;
    int rc = sqlite3_prepare_v2(db->handle, sql, -1, &statement, NULL);
    if (!rc)
        rc = sqlite3_step(statement);
    if (rc == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(statement, 0);
        if (!text || strcmp(text, "ok"))
            result = rfi_fail(err, RF_E_DB_CORRUPT, -1, "database", "%.200s: %s: %.200s", db->path,
                              what, text ? text : "?");
    } else if (rc != SQLITE_DONE) {
        result = rfi_db_fail(db->handle, db->path, rc, what, err);
    }
    sqlite3_finalize(statement);
    return result;
}

static rf_result check_table(rfi_db *db, const rfi_table *table, rf_error *err)
{
    sqlite3_stmt *statement = NULL;
    rf_result result = RF_OK;
    char *sql = sqlite3_mprintf("SELECT * FROM %s ORDER BY %s", table->name, table->key);
    int rc = sql ? sqlite3_prepare_v2(db->handle, sql, -1, &statement, NULL) : SQLITE_NOMEM;
    sqlite3_free(sql);
    while (!rc && result == RF_OK && (rc = sqlite3_step(statement)) == SQLITE_ROW) {
        rc = SQLITE_OK;
        const char *fault = rfi_row_fault(table, statement);
        if (fault)
            result =
                rfi_fail(err, RF_E_DB_CORRUPT, -1, "database", "%.200s: the %s %.40s %s", db->path,
                         table->name, (const char *)sqlite3_column_text(statement, 0), fault);
    }
    if (result == RF_OK && rc != SQLITE_DONE)
        result = rfi_db_fail(db->handle, db->path, rc, "read", err);
    sqlite3_finalize(statement);
    return result;
}

static rf_result check_decisions(rfi_db *db, rf_error *err)
{
    uint64_t changed = 0, rows = 0;
    rf_result result = rfi_decide_all(db, 0, &changed, &rows, err);
    if (result)
        return result;
    sqlite3_stmt *statement = NULL;
    sqlite3_int64 stored = -1;
    int rc = sqlite3_prepare_v2(db->handle, "SELECT count(*) FROM decision", -1, &statement, NULL);
    if (!rc && (rc = sqlite3_step(statement)) == SQLITE_ROW)
        stored = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    if (stored < 0)
        return rfi_db_fail(db->handle, db->path, rc, "read", err);
    if (changed || (uint64_t)stored != rows)
        return rfi_fail(err, RF_E_DB_CORRUPT, -1, "database",
                        "%.200s: of decisions the facts give %llu, the file has %lld, and %llu "
                        "differ; run `rankfold db fold`",
                        db->path, (unsigned long long)rows, (long long)stored,
                        (unsigned long long)changed);
    return RF_OK;
}

rf_result rfi_db_check(rfi_db *db, rf_error *err)
{
    rf_result result = rfi_db_begin_read(db, err);
    if (result)
        return result;
    result = expect_quiet(db, "PRAGMA quick_check(1)", "damaged", err);
    if (result == RF_OK)
        result = expect_quiet(db, "SELECT \"table\" FROM pragma_foreign_key_check LIMIT 1",
                              "a row without its parent, in", err);
    for (size_t i = 0; i < RFI_TABLES && result == RF_OK; i++)
        result = check_table(db, &rfi_tables[i], err);
    if (result == RF_OK)
        result = check_decisions(db, err);
    return rfi_db_end(db, result, err);
}

rf_result rfi_db_refold(rfi_db *db, uint64_t *changed, rf_error *err)
{
    uint64_t rows = 0;
    rf_result result = rfi_db_begin(db, WAIT_MS, err);
    if (result)
        return result;
    int rc = sqlite3_exec(db->handle, "DELETE FROM decision", NULL, NULL, NULL);
    result = rc ? rfi_db_fail(db->handle, db->path, rc, "fold", err)
                : rfi_decide_all(db, 1, changed, &rows, err);
    return rfi_db_end(db, result, err);
}
