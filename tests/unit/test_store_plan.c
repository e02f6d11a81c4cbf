/* The lookup path never scans: EXPLAIN QUERY PLAN of every statement on it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "store/db.h"

static sqlite3 *db;

static int setup(void **state)
{
    (void)state;
    return sqlite3_open(":memory:", &db) || sqlite3_exec(db, rfi_schema_sql, NULL, NULL, NULL);
}

static int teardown(void **state)
{
    (void)state;
    return sqlite3_close(db);
}

/* Number of scans in the plan; the last is in `found`. */
static int scans(const char *sql, char *found, size_t size)
{
    sqlite3_stmt *statement = NULL;
    char *explain = sqlite3_mprintf("EXPLAIN QUERY PLAN %s", sql);
    int n = 0, steps = 0;
    if (sqlite3_prepare_v2(db, explain, -1, &statement, NULL))
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    for (; sqlite3_step(statement) == SQLITE_ROW; steps++) {
        const char *detail = (const char *)sqlite3_column_text(statement, 3);
        if (strncmp(detail, "SCAN", 4) || !strcmp(detail, "SCAN CONSTANT ROW"))
            continue;
        snprintf(found, size, "%s", detail);
        n++;
    }
    sqlite3_finalize(statement);
    sqlite3_free(explain);
    assert_true(steps > 0);
    return n;
}

static const rfi_sql on_the_path[] = {
    RFI_SQL_SAME_ENV, RFI_SQL_OTHER_ENV,  RFI_SQL_BELOW,  RFI_SQL_ABOVE,
    RFI_SQL_ENV_TEXT, RFI_SQL_GENERATION, RFI_SQL_SWEPT,  RFI_SQL_TRIALS_HERE,
    RFI_SQL_MEASURED, RFI_SQL_FIND_SHAPE, RFI_SQL_TRIALS, RFI_SQL_CANDIDATES,
    RFI_SQL_DECIDED,
};

static void no_statement_of_the_lookup_path_scans(void **state)
{
    (void)state;
    char found[200];
    for (size_t i = 0; i < sizeof on_the_path / sizeof *on_the_path; i++)
        if (scans(rfi_sql_text(on_the_path[i]), found, sizeof found))
            fail_msg("%s: %s", rfi_sql_text(on_the_path[i]), found);
}

static void statistics_do_not_change_that(void **state)
{
    (void)state;
    /* Statistics of nearly empty tables tempt the planner most. */
    assert_int_equal(sqlite3_exec(db, "ANALYZE", NULL, NULL, NULL), SQLITE_OK);
    no_statement_of_the_lookup_path_scans(state);
}

static void a_scan_is_noticed(void **state)
{
    (void)state;
    char found[200];
    assert_int_equal(scans("SELECT * FROM measurement WHERE grid = ?1", found, sizeof found), 1);
    assert_int_equal(scans("SELECT * FROM decision WHERE bucket_bytes = ?1", found, sizeof found),
                     1);
}

static void every_kept_statement_compiles(void **state)
{
    (void)state;
    for (int i = 0; i < RFI_SQL_COUNT; i++) {
        sqlite3_stmt *statement = NULL;
        if (sqlite3_prepare_v2(db, rfi_sql_text((rfi_sql)i), -1, &statement, NULL))
            fail_msg("%s: %s", rfi_sql_text((rfi_sql)i), sqlite3_errmsg(db));
        sqlite3_finalize(statement);
    }
}

static void every_view_compiles(void **state)
{
    (void)state;
    sqlite3_stmt *views = NULL;
    int n = 0;
    sqlite3_prepare_v2(db, "SELECT name FROM sqlite_schema WHERE type = 'view'", -1, &views, NULL);
    for (; sqlite3_step(views) == SQLITE_ROW; n++) {
        char *sql = sqlite3_mprintf("SELECT * FROM %s", sqlite3_column_text(views, 0));
        if (sqlite3_exec(db, sql, NULL, NULL, NULL))
            fail_msg("%s: %s", sql, sqlite3_errmsg(db));
        sqlite3_free(sql);
    }
    sqlite3_finalize(views);
    assert_true(n > 8);
}

int main(void)
{
#define FACT(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        FACT(no_statement_of_the_lookup_path_scans),
        FACT(statistics_do_not_change_that),
        FACT(a_scan_is_noticed),
        FACT(every_kept_statement_compiles),
        FACT(every_view_compiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
