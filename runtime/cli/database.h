/* What explain and report read from a tactic database, by its views. The one place besides db.c
 * where the command line knows the store's inside. */
#ifndef RANKFOLD_CLI_DATABASE_H
#define RANKFOLD_CLI_DATABASE_H

#include <sqlite3.h>

#include "store/db.h"

/* Opens for reading what rf_store_open would write: `path`, or the default when NULL. Errors:
 * E_DB*, with the path in the text. Close with rfi_db_close. Queries see the views of this build,
 * whatever those in the file are. */
rf_result rf_cli_db_open(const char *path, rfi_db *db, rf_error *err);

typedef void (*rf_cli_row_fn)(void *ctx, sqlite3_stmt *row);

/* Calls row for each row of a query; ?1, ?2 ... are bound to texts. Errors: E_DB*. */
rf_result rf_cli_db_query(rfi_db *db, const char *sql, int n, const char *const *texts,
                          rf_cli_row_fn row, void *ctx, rf_error *err);

/* A column as text, "" for NULL; valid until the next step. */
const char *rf_cli_column(sqlite3_stmt *row, int column);

#endif
