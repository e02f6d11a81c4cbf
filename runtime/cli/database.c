#include "cli/database.h"

#define WAIT_MS 3000

rf_result rf_cli_db_open(const char *path, rfi_db *db, rf_error *err)
{
    char standard[RFI_DB_PATH];
    rf_result rc = path ? RF_OK : rfi_db_default_path(standard, err);
    return rc == RF_OK ? rfi_db_open(db, path ? path : standard, RFI_DB_READ, WAIT_MS, err) : rc;
}

rf_result rf_cli_db_query(rfi_db *db, const char *sql, int n, const char *const *texts,
                          rf_cli_row_fn row, void *ctx, rf_error *err)
{
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(db->handle, sql, -1, &statement, NULL);
    rfi_db_bind_texts(statement, 1, n, texts);
    while (rc == SQLITE_OK) {
        rc = sqlite3_step(statement);
        if (rc == SQLITE_ROW) {
            row(ctx, statement);
            rc = SQLITE_OK;
        }
    }
    rf_result result =
        rc == SQLITE_DONE ? RF_OK : rfi_db_fail(db->handle, db->path, rc, "read", err);
    sqlite3_finalize(statement);
    return result;
}

const char *rf_cli_column(sqlite3_stmt *row, int column)
{
    const unsigned char *text = sqlite3_column_text(row, column);
    return text ? (const char *)text : "";
}
