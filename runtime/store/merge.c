/* Union of two files by natural key. Rows travel from one connection to the other, value by value:
 * the other file's schema is only ever read from. */
#include <string.h>
#include <sys/stat.h>

#include "core/group.h"
#include "store/maintain.h"

#define WAIT_MS 30000

typedef struct mover {
    rfi_db *into, *from;
    const rfi_table *table;
    sqlite3_stmt *read, *add, *find;
} mover;

static sqlite3_stmt *prepare(rfi_db *db, int *rc, const char *format, const rfi_table *table)
{
    sqlite3_stmt *statement = NULL;
    char *sql = sqlite3_mprintf(format, table->name, table->key);
    if (!*rc)
        *rc = sql ? sqlite3_prepare_v2(db->handle, sql, -1, &statement, NULL) : SQLITE_NOMEM;
    sqlite3_free(sql);
    return statement;
}

/* "INSERT INTO t VALUES(?,?)" and "SELECT * FROM t WHERE (a, b) = (?, ?)" */
static int prepare_with_marks(rfi_db *db, const char *head, const rfi_table *table, int marks,
                              const char *tail, sqlite3_stmt **out)
{
    char *sql = sqlite3_mprintf(head, table->name, table->key);
    for (int i = 0; sql && i < marks; i++)
        sql = sqlite3_mprintf("%z%s?", sql, i ? "," : "");
    if (sql)
        sql = sqlite3_mprintf("%z%s", sql, tail);
    int rc = sql ? sqlite3_prepare_v2(db->handle, sql, -1, out, NULL) : SQLITE_NOMEM;
    sqlite3_free(sql);
    return rc;
}

static int open_mover(mover *m)
{
    const rfi_table *t = m->table;
    int rc = 0;
    m->read = prepare(m->from, &rc, "SELECT * FROM %s ORDER BY %s", t);
    if (!rc)
        rc = prepare_with_marks(m->into, "INSERT INTO %s VALUES(", t, t->columns,
                                ") ON CONFLICT DO NOTHING", &m->add);
    if (!rc)
        rc = prepare_with_marks(m->into, "SELECT * FROM %s WHERE (%s) = (", t, t->key_columns, ")",
                                &m->find);
    return rc;
}

static void close_mover(mover *m)
{
    sqlite3_finalize(m->read);
    sqlite3_finalize(m->add);
    sqlite3_finalize(m->find);
}

static void bind_row(sqlite3_stmt *statement, sqlite3_stmt *row, int columns)
{
    sqlite3_reset(statement);
    for (int i = 0; i < columns; i++)
        sqlite3_bind_value(statement, i + 1, sqlite3_column_value(row, i));
}

static int same_value(sqlite3_stmt *a, sqlite3_stmt *b, int column)
{
    int type = sqlite3_column_type(a, column);
    if (type != sqlite3_column_type(b, column))
        return 0;
    switch (type) {
    case SQLITE_INTEGER:
        return sqlite3_column_int64(a, column) == sqlite3_column_int64(b, column);
    case SQLITE_FLOAT: {
        double x = sqlite3_column_double(a, column), y = sqlite3_column_double(b, column);
        return !memcmp(&x, &y, sizeof x);
    }
    case SQLITE_NULL:
        return 1;
    default: {
        size_t n = (size_t)sqlite3_column_bytes(a, column);
        return n == (size_t)sqlite3_column_bytes(b, column) &&
               (!n || !memcmp(sqlite3_column_blob(a, column), sqlite3_column_blob(b, column), n));
    }
    }
}

/* Do both files say the same about a fact that is in both? */
static int agrees(mover *m)
{
    bind_row(m->find, m->read, m->table->key_columns);
    if (sqlite3_step(m->find) != SQLITE_ROW)
        return 0;
    for (int i = 0; i < m->table->columns; i++)
        if (!same_value(m->read, m->find, i))
            return 0;
    return 1;
}

static rf_result move_row(mover *m, uint64_t *added, rf_error *err)
{
    const char *fault = rfi_row_fault(m->table, m->read);
    if (fault)
        return rfi_fail(err, RF_E_DB_CORRUPT, -1, "database", "%.200s: the %s %.40s %s",
                        m->from->path, m->table->name,
                        (const char *)sqlite3_column_text(m->read, 0), fault);
    bind_row(m->add, m->read, m->table->columns);
    int rc = sqlite3_step(m->add);
    if (rc != SQLITE_DONE)
        return rfi_db_fail(m->into->handle, m->into->path, rc, "merge", err);
    if (sqlite3_changes(m->into->handle)) {
        ++*added;
        return RF_OK;
    }
    if (agrees(m))
        return RF_OK;
    return rfi_fail(err, RF_E_DB_CORRUPT, -1, "database",
                    "%.150s and %.150s disagree about the %s %.40s", m->into->path, m->from->path,
                    m->table->name, (const char *)sqlite3_column_text(m->read, 0));
}

static rf_result move_table(rfi_db *into, rfi_db *from, const rfi_table *table, uint64_t *added,
                            rf_error *err)
{
    mover m = {.into = into, .from = from, .table = table};
    rf_result result = RF_OK;
    if (open_mover(&m))
        result = rfi_fail(err, RF_E_DB, -1, "database", "merge of %s: %s, %s", table->name,
                          sqlite3_errmsg(into->handle), sqlite3_errmsg(from->handle));
    int rc = SQLITE_DONE;
    while (result == RF_OK && (rc = sqlite3_step(m.read)) == SQLITE_ROW)
        result = move_row(&m, added, err);
    if (result == RF_OK && rc != SQLITE_DONE)
        result = rfi_db_fail(from->handle, from->path, rc, "read", err);
    close_mover(&m);
    return result;
}

static int is_same_file(const rfi_db *a, const rfi_db *b)
{
    struct stat of_a, of_b;
    return !stat(a->path, &of_a) && !stat(b->path, &of_b) && of_a.st_dev == of_b.st_dev &&
           of_a.st_ino == of_b.st_ino;
}

rf_result rfi_db_merge(rfi_db *into, rfi_db *from, uint64_t *added, rf_error *err)
{
    uint64_t changed = 0, rows = 0, new_rows = 0;
    if (is_same_file(into, from)) { /* nothing new, and one of the two would wait for the other */
        *added = 0;
        return RF_OK;
    }
    rf_result result = rfi_db_begin_read(from, err);
    if (result)
        return result;
    result = rfi_db_begin(into, WAIT_MS, err);
    if (result == RF_OK) {
        for (size_t i = 0; i < RFI_TABLES && result == RF_OK; i++)
            result = move_table(into, from, &rfi_tables[i], &new_rows, err);
        if (result == RF_OK && new_rows)
            result = rfi_decide_all(into, 1, &changed, &rows, err);
        result = rfi_db_end(into, result, err);
    }
    result = rfi_db_end(from, result, err);
    if (result == RF_OK)
        *added = new_rows;
    return result;
}
