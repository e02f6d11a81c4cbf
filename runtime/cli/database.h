/* What doctor, explain and report read from a tactic database: rfi_db_query. The one place besides
 * db.c where the command line knows the store's inside. */
#ifndef RANKFOLD_CLI_DATABASE_H
#define RANKFOLD_CLI_DATABASE_H

#include "store/db.h"

/* Opens for reading what rf_store_open would write: `path`, or the default when NULL. Errors:
 * E_DB*, with the path in the text. Close with rfi_db_close. */
rf_result rf_cli_db_open(const char *path, rfi_db *db, rf_error *err);

#endif
