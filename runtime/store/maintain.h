/* Looking after database files: what `rankfold db` does. */
#ifndef RANKFOLD_MAINTAIN_H
#define RANKFOLD_MAINTAIN_H

#include <stdio.h>

#include "store/db.h"

/* ---- tables.c: the facts as data ---- */

typedef struct rfi_table {
    const char *name;
    const char *key; /* its columns, comma-separated; they are the first ones */
    int columns, key_columns;
    const char *of_host; /* condition that selects what belongs to the host ?1 */
} rfi_table;

#define RFI_TABLES 8
extern const rfi_table rfi_tables[RFI_TABLES]; /* parents before children */

/* A row of SELECT * from this table: NULL = plausible, else what is wrong with it. */
const char *rfi_row_fault(const rfi_table *table, sqlite3_stmt *row);
/* NULL, or what in this text should not leave the machine: a UUID, an address, a name. */
const char *rfi_private_part(const char *text);

/* ---- merge.c ---- */

/* Adds the facts of `from` that `into` does not have, and makes the decisions again: one
 * transaction, all or nothing. Commutative and idempotent. *added = new rows. Errors: E_DB_*;
 * E_DB_CORRUPT where the two disagree about a fact, or a fact of `from` cannot be. */
rf_result rfi_db_merge(rfi_db *into, rfi_db *from, uint64_t *added, rf_error *err);

/* ---- text.c ---- */

/* Writes all facts, or those of one host, as sorted INSERT statements; the same facts give the same
 * bytes. Refuses facts that name the machine (rfi_private_part). hw NULL = all hosts. */
rf_result rfi_db_export(rfi_db *db, const char *hw, FILE *out, rf_error *err);
/* Reads such text (not SQL in general: nothing of it is executed) and merges it. `name` is for
 * messages. Errors: E_DB_FOREIGN with the line; as rfi_db_merge. */
rf_result rfi_db_import(rfi_db *into, const char *name, const char *text, size_t bytes,
                        uint64_t *added, rf_error *err);

/* ---- check.c ---- */

/* Is the file sound: pages, foreign keys, facts, and do the facts give the decisions? */
rf_result rfi_db_check(rfi_db *db, rf_error *err);
/* Makes all decisions again from the facts. */
rf_result rfi_db_refold(rfi_db *db, uint64_t *changed, rf_error *err);

/* ---- migrate.c ---- */

/* steps[v]: SQL that makes schema v + 1 of schema v; NULL = no way. */
extern const char *const rfi_migrations[RFI_DB_VERSION];
/* Is there a step for every schema from this one on? */
int rfi_db_can_climb(const char *const steps[RFI_DB_VERSION], int from);
/* Brings an older file to schema RFI_DB_VERSION, on a copy that then takes its name. *from = its
 * version before; if that is current, nothing happens. */
rf_result rfi_db_migrate(const char *path, const char *const steps[RFI_DB_VERSION], int *from,
                         rf_error *err);

/* ---- freeze.c ---- */

/* Writes a C file that defines `const rf_frozen NAME`: the decisions of the hosts in hw[0 .. n-1],
 * of all if n is 0. *rows = how many. */
rf_result rfi_db_freeze(rfi_db *db, const char *name, const char *const *hw, size_t n, FILE *out,
                        uint64_t *rows, rf_error *err);

#endif
