/* Questions in SQL, as people ask them: by views. */
#include "store/db.h"

/* The views of this build, before those of the file, which another may have made, or the user. A
 * query finds temporary ones first, and so do they each other. */
static int copy_views(sqlite3 *handle, sqlite3 *model)
{
    static const char create[] = "CREATE VIEW";
    sqlite3_stmt *view = NULL;
    int rc = sqlite3_exec(model, rfi_schema_sql, NULL, NULL, NULL);
    if (!rc)
        rc = sqlite3_prepare_v2(model, "SELECT sql FROM sqlite_schema WHERE type = 'view'", -1,
                                &view, NULL);
    while (!rc && (rc = sqlite3_step(view)) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(view, 0);
        char *sql = text ? sqlite3_mprintf("CREATE TEMP VIEW%s", text + sizeof create - 1) : NULL;
        rc = sql ? sqlite3_exec(handle, sql, NULL, NULL, NULL) : SQLITE_NOMEM;
        sqlite3_free(sql);
    }
    sqlite3_finalize(view);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

/* Once a connection: who only looks decisions up does not pay for them. */
static int add_views(sqlite3 *handle)
{
    sqlite3_stmt *any = NULL;
    int rc = sqlite3_prepare_v2(handle, "SELECT 1 FROM temp.sqlite_schema", -1, &any, NULL);
    if (!rc)
        rc = sqlite3_step(any);
    sqlite3_finalize(any);
    if (rc != SQLITE_DONE)
        return rc == SQLITE_ROW ? SQLITE_OK : rc;
    sqlite3 *model = NULL;
    rc = sqlite3_open(":memory:", &model);
    if (!rc)
        rc = copy_views(handle, model);
    sqlite3_close(model);
    return rc;
}

rf_result rfi_db_query(rfi_db *db, const char *sql, int n, const char *const *texts, rfi_row_fn row,
                       void *ctx, rf_error *err)
{
    sqlite3_stmt *statement = NULL;
    int rc = add_views(db->handle);
    if (!rc)
        rc = sqlite3_prepare_v2(db->handle, sql, -1, &statement, NULL);
    rfi_db_bind_texts(statement, 1, n, texts);
    while (!rc && (rc = sqlite3_step(statement)) == SQLITE_ROW) {
        row(ctx, statement);
        rc = SQLITE_OK;
    }
    rf_result result =
        rc == SQLITE_DONE ? RF_OK : rfi_db_fail(db->handle, db->path, rc, "read", err);
    sqlite3_finalize(statement);
    return result;
}

const char *rfi_column(sqlite3_stmt *row, int column)
{
    const unsigned char *text = sqlite3_column_text(row, column);
    return text ? (const char *)text : "";
}
