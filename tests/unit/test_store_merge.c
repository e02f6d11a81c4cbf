/* Facts that travel: merge, text out and in, check, migrate, and several writers at once. */
#define _GNU_SOURCE
#include <locale.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../ranks.h"
#include "store/maintain.h"
#include "store_facts.h"
#include "store_folder.h"

static rf_error why;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != RF_OK)                                                                       \
            fail_msg("%s: %s", #call, why.text);                                                   \
    } while (0)

typedef struct fixture {
    char folder[FOLDER_PATH];
    /* Two environments of one host, another host, and the first place with dependent launch. */
    facts_place place[4];
} fixture;

static const char *const names[] = {"ar_w2_f32_h0_os", "ar_w2_f32_h0_ts", "ar_w2_f32_h4096_os",
                                    "ar_w2_f32_h0_os_dep"};

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->place[0] = facts_at("r0.cpu=Imaginary\n", "r0.kernel=1\nr0.note='quoted'\n");
    f->place[1] = facts_at("r0.cpu=Imaginary\n", "r0.kernel=2\nr0.note='quoted'\n");
    f->place[2] = facts_at("r0.cpu=Another\n", "r0.kernel=1\nr0.note='quoted'\n");
    f->place[3] = f->place[0];
    f->place[3].admits = RF_VARIANT_DEPENDENT;
    *state = f;
    return folder_make(f->folder) ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    folder_remove(f->folder);
    free(f);
    return 0;
}

static rf_store *open_store(const char *path)
{
    rf_store *store = NULL;
    MUST(rf_store_open(path, NULL, 0, &store, &why));
    return store;
}

static rfi_db open_db(const char *path)
{
    rfi_db db;
    MUST(rfi_db_open(&db, path, RFI_DB_WRITE, 1000, &why));
    return db;
}

/* One campaign with pseudo-random medians, some of them failures, some sweeps unfinished. */
static void campaign(const char *path, const facts_place *place, unsigned seed)
{
    rf_store *store = open_store(path);
    rf_variant variants[4];
    const int n = place->admits ? 4 : 3;
    for (int v = 0; v < n; v++)
        variants[v] = facts_variant(names[v], v == 2 ? 4096 : 0, 1 + (int)(seed % 5 == 4));
    MUST(facts_begin(store, place, &why));
    for (unsigned s = 0; s < 4; s++) {
        rfi_key key = facts_key(place, 1 + s, 4096);
        for (int v = 0; v < n; v++) {
            rfi_measurement m = facts_measurement(&key, &variants[v], 8,
                                                  1000 + (seed * 7919 + s * 131 + v * 37) % 97);
            m.outcome = (seed + s + (unsigned)v) % 11 == 0 ? RFI_WRONG : RFI_OK;
            MUST(store->v->record(store, &m, 1, &why));
        }
        if ((seed + s) % 5)
            MUST(store->v->finish_shape(store, &key, &why));
    }
    if (seed % 3)
        MUST(store->v->end(store, &why));
    rf_store_close(store);
}

/* The decisions as text: what has to be equal byte for byte. */
static char *decisions(const char *path)
{
    rfi_db db = open_db(path);
    sqlite3_stmt *statement;
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    sqlite3_prepare_v2(db.handle, "SELECT * FROM decision ORDER BY 1,2,3,4,5,6,7,8,9,10", -1,
                       &statement, NULL);
    while (sqlite3_step(statement) == SQLITE_ROW) {
        for (int i = 0; i < sqlite3_column_count(statement); i++)
            fprintf(out, "%s|", (const char *)sqlite3_column_text(statement, i));
        fputc('\n', out);
    }
    sqlite3_finalize(statement);
    rfi_db_close(&db);
    fclose(out);
    return text;
}

static char *export(const char *path)
{
    rfi_db db = open_db(path);
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    MUST(rfi_db_export(&db, NULL, out, &why));
    fclose(out);
    rfi_db_close(&db);
    return text;
}

static uint64_t merge(const char *into, const char *from)
{
    uint64_t added = 0;
    MUST(rfi_db_create(into, &why));
    rfi_db a = open_db(into), b = open_db(from);
    MUST(rfi_db_merge(&a, &b, &added, &why));
    rfi_db_close(&a);
    rfi_db_close(&b);
    return added;
}

static rf_result import(const char *into, const char *text, uint64_t *added)
{
    MUST(rfi_db_create(into, &why));
    rfi_db db = open_db(into);
    rf_result result = rfi_db_import(&db, "test.sql", text, strlen(text), added, &why);
    rfi_db_close(&db);
    return result;
}

static void check(const char *path)
{
    rfi_db db = open_db(path);
    MUST(rfi_db_check(&db, &why));
    rfi_db_close(&db);
}

static int run_sql(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_open(path, &db);
    int rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
    sqlite3_close(db);
    return rc;
}

static void same_text(char *a, char *b)
{
    assert_non_null(a);
    assert_non_null(b);
    assert_string_equal(a, b);
    free(a);
    free(b);
}

/* ---- merge ---- */

static void any_order_of_merging_gives_the_same(void **state)
{
    fixture *f = *state;
    char parts[6][FOLDER_PATH + 64], forth[FOLDER_PATH + 64], back[FOLDER_PATH + 64];
    snprintf(forth, sizeof forth, "%s/forth.db", f->folder);
    snprintf(back, sizeof back, "%s/back.db", f->folder);
    for (unsigned i = 0; i < 6; i++) {
        snprintf(parts[i], sizeof parts[i], "%s/part%u.db", f->folder, i);
        campaign(parts[i], &f->place[i % 4], 2 * i);
        campaign(parts[i], &f->place[i % 2 ? 3 : 0], 2 * i + 1);
    }
    for (int i = 0; i < 6; i++)
        merge(forth, parts[i]);
    for (int i = 5; i >= 0; i--)
        merge(back, parts[i]);
    char *once = decisions(forth);
    assert_non_null(strstr(once, "|eager||"));
    assert_null(strstr(once, "|0.0|")); /* what was not measured has no time */
    assert_non_null(strstr(once, "|eager|dependent|"));
    same_text(export(forth), export(back));
    same_text(once, decisions(back));

    /* Idempotent: nothing new, and nothing moves. */
    assert_int_equal(merge(forth, back), 0);
    assert_int_equal(merge(forth, parts[3]), 0);
    same_text(decisions(forth), decisions(back));
    check(forth);
    check(back);
}

/* A value of one file's facts differs: in type, in the last column, in a letter, by an end. */
static void files_that_disagree_are_refused(void **state)
{
    static const struct {
        const char *table, *value;
    } rows[] = {
        {"measurement", "median_ns = p90_ns"},   {"measurement", "noise_ns = 5"},
        {"measurement", "p10_ns = NULL"},        {"measurement", "order_index = order_index + 1"},
        {"campaign", "tool = 'rankfold 0.1.1'"}, {"campaign", "tool = 'rankfold 0.1'"},
    };
    fixture *f = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char one[FOLDER_PATH + 64], two[FOLDER_PATH + 64], sql[400], words[64];
        snprintf(one, sizeof one, "%s/one%zu.db", f->folder, i);
        snprintf(two, sizeof two, "%s/two%zu.db", f->folder, i);
        campaign(one, &f->place[0], 1);
        merge(two, one);
        campaign(two, &f->place[2], 2); /* and news, which are not taken either */
        snprintf(sql, sizeof sql,
                 "DROP TRIGGER %s_no_update; UPDATE %s SET %s WHERE campaign = "
                 "(SELECT campaign FROM campaign WHERE hw_fp = (SELECT hw_fp FROM host WHERE "
                 "hw_text LIKE '%%Imaginary%%'));",
                 rows[i].table, rows[i].table, rows[i].value);
        assert_int_equal(run_sql(two, sql), SQLITE_OK);
        snprintf(sql, sizeof sql,
                 "CREATE TRIGGER %s_no_update BEFORE UPDATE ON %s "
                 "BEGIN SELECT RAISE(ABORT, 'facts are append-only'); END",
                 rows[i].table, rows[i].table);
        assert_int_equal(run_sql(two, sql), SQLITE_OK);
        snprintf(words, sizeof words, "disagree about the %s", rows[i].table);
        uint64_t added = 77;
        char *before = export(one);
        rfi_db a = open_db(one), b = open_db(two);
        assert_int_equal(rfi_db_merge(&a, &b, &added, &why), RF_E_DB_CORRUPT);
        if (!strstr(why.text, words))
            fail_msg("no '%s' in '%s'", words, why.text);
        assert_int_equal(added, 77);
        rfi_db_close(&a);
        rfi_db_close(&b);
        same_text(before, export(one));
    }
}

static void facts_cannot_be_changed(void **state)
{
    fixture *f = *state;
    const char *path = folder_file(f->folder, "facts.db");
    campaign(path, &f->place[0], 1);
    for (size_t t = 0; t < RFI_TABLES; t++) {
        char sql[200];
        snprintf(sql, sizeof sql, "DELETE FROM %s", rfi_tables[t].name);
        assert_int_equal(run_sql(path, sql), SQLITE_CONSTRAINT);
        snprintf(sql, sizeof sql, "UPDATE %s SET (%s) = (SELECT %s FROM %s LIMIT 1)",
                 rfi_tables[t].name, rfi_tables[t].key, rfi_tables[t].key, rfi_tables[t].name);
        if (rfi_tables[t].key_columns == 1)
            snprintf(sql, sizeof sql, "UPDATE %s SET %s = 'x'", rfi_tables[t].name,
                     rfi_tables[t].key);
        assert_int_equal(run_sql(path, sql), SQLITE_CONSTRAINT);
    }
}

/* Two tuners on one file: the one that began first is slower, and measures what the other has
 * already decided. The facts still give the decisions. */
static void tuners_that_overlap_leave_a_sound_file(void **state)
{
    fixture *f = *state;
    const char *path = folder_file(f->folder, "overlap.db");
    rf_store *slow = open_store(path), *quick = open_store(path);
    rf_variant os = facts_variant(names[0], 0, 1), ts = facts_variant(names[1], 0, 1);
    rfi_key key = facts_key(&f->place[0], 1, 4096);
    rfi_measurement fast = facts_measurement(&key, &os, 8, 1000);
    rfi_measurement faster = facts_measurement(&key, &ts, 8, 500);
    MUST(facts_begin(slow, &f->place[0], &why));
    usleep(2000); /* campaigns are ordered by the millisecond */
    MUST(facts_campaign(quick, &f->place[0], &key, &fast, 1, &why));
    MUST(slow->v->record(slow, &faster, 1, &why));
    check(path);
    MUST(slow->v->finish_shape(slow, &key, &why));
    check(path);
    MUST(slow->v->end(slow, &why));
    rf_store_close(slow);
    rf_store_close(quick);
    check(path);
}

/* ---- check ---- */

static void check_finds_a_decision_that_the_facts_do_not_give(void **state)
{
    fixture *f = *state;
    const char *path = folder_file(f->folder, "check.db");
    uint64_t changed = 0;
    campaign(path, &f->place[0], 1);
    check(path);
    assert_int_equal(run_sql(path, "UPDATE decision SET grid = grid + 1"), SQLITE_OK);
    rfi_db db = open_db(path);
    assert_int_equal(rfi_db_check(&db, &why), RF_E_DB_CORRUPT);
    assert_non_null(strstr(why.text, "rankfold db fold"));
    assert_int_equal(rfi_db_check(&db, &why), RF_E_DB_CORRUPT); /* looking mends nothing */
    MUST(rfi_db_refold(&db, &changed, &why));
    assert_true(changed > 0);
    MUST(rfi_db_check(&db, &why));
    rfi_db_close(&db);
}

static void check_finds_a_text_that_is_not_what_was_hashed(void **state)
{
    fixture *f = *state;
    const char *path = folder_file(f->folder, "hash.db");
    campaign(path, &f->place[0], 1);
    assert_int_equal(
        run_sql(path, "INSERT INTO host VALUES('00112233445566778899aabbccddeeff','x')"),
        SQLITE_OK);
    rfi_db db = open_db(path);
    assert_int_equal(rfi_db_check(&db, &why), RF_E_DB_CORRUPT);
    assert_non_null(strstr(why.text, "not the hash of its text"));
    rfi_db_close(&db);
}

static void check_finds_an_orphan(void **state)
{
    fixture *f = *state;
    const char *path = folder_file(f->folder, "orphan.db");
    campaign(path, &f->place[0], 1);
    assert_int_equal(run_sql(path, "INSERT INTO finish VALUES('00112233445566778899aabbccddeeff',"
                                   "'2026-01-01T00:00:00.000Z')"),
                     SQLITE_OK);
    rfi_db db = open_db(path);
    assert_int_equal(rfi_db_check(&db, &why), RF_E_DB_CORRUPT);
    assert_non_null(strstr(why.text, "without its parent"));
    rfi_db_close(&db);
}

/* ---- text ---- */

static void text_goes_out_and_in_byte_for_byte(void **state)
{
    fixture *f = *state;
    const char *one = folder_file(f->folder, "one.db"), *two = folder_file(f->folder, "two.db");
    uint64_t added = 0;
    for (unsigned i = 0; i < 6; i++)
        campaign(one, &f->place[i % 3], i);
    char *text = export(one);
    MUST(import(two, text, &added));
    assert_true(added > 50);
    same_text(decisions(one), decisions(two));
    MUST(import(two, text, &added));
    assert_int_equal(added, 0);
    same_text(text, export(two));
    check(two);
}

static void one_host_can_be_exported_alone(void **state)
{
    fixture *f = *state;
    const char *one = folder_file(f->folder, "one.db"), *two = folder_file(f->folder, "two.db");
    char hw[RFI_HEX], *text = NULL;
    size_t bytes;
    uint64_t added = 0;
    campaign(one, &f->place[0], 1);
    campaign(one, &f->place[2], 2);
    rfi_hex(f->place[2].hw.hash, hw);
    rfi_db db = open_db(one);
    FILE *out = open_memstream(&text, &bytes);
    MUST(rfi_db_export(&db, hw, out, &why));
    fclose(out);
    rfi_db_close(&db);
    assert_null(strstr(text, "Imaginary"));
    assert_non_null(strstr(text, "Another"));
    MUST(import(two, text, &added));
    check(two);
    free(text);
}

static void hostile_text_is_refused_with_its_line(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"DROP TABLE host;\n", "test.sql:1: expected INSERT INTO, found 'D'"},
        {"\n\nINSERT INTO decision VALUES(1);", "test.sql:3: expected a table of facts"},
        {"INSERT INTO sqlite_schema VALUES(1);", "expected a table of facts"},
        {"INSERT INTO host VALUES('a');", "expected a comma, found ')'"},
        {"INSERT INTO host VALUES('a','b','c');", "expected ');' after the last column"},
        {"INSERT INTO host VALUES('a',load_extension('x'));", "expected a number, a text or NULL"},
        {"INSERT INTO host VALUES('a',(SELECT 1));", "expected a number, a text or NULL"},
        {"INSERT INTO host VALUES('a','b", "expected a closing quote, found the end"},
        {"INSERT INTO host VALUES('a',1);", "test.sql:1:"},
        {"INSERT INTO host VALUES('a','b');", "test.sql:1: CHECK constraint failed"},
        {"INSERT INTO host VALUES('00112233445566778899aabbccddeeff','b');",
         "not the hash of its text"},
        {"INSERT INTO finish VALUES('00112233445566778899aabbccddeeff','x');", "FOREIGN KEY"},
        {"INSERT INTO host VALUES('a','b'); ATTACH 'x' AS y;", "test.sql:1:"},
        {"INSERT INTO host VALUES(1e999,'b');", "expected a number"},
    };
    const char *path = folder_file(f->folder, "target.db");
    campaign(path, &f->place[0], 1);
    char *before = export(path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t added = 0;
        rf_result result = import(path, cases[i].text, &added);
        if (result != RF_E_DB_FOREIGN && result != RF_E_DB_CORRUPT && result != RF_E_DB)
            fail_msg("%s: %d", cases[i].text, (int)result);
        if (!strstr(why.text, cases[i].expected))
            fail_msg("'%s' does not say '%s'", why.text, cases[i].expected);
    }
    same_text(before, export(path));
}

/* A copy of the file in memory, changed by `sql` in spite of the triggers. */
static rfi_db changed_copy(const char *path, const char *table, const char *set)
{
    rfi_db file = open_db(path), copy = {.path = "copy"};
    char sql[400];
    assert_int_equal(sqlite3_open(":memory:", &copy.handle), SQLITE_OK);
    sqlite3_backup *backup = sqlite3_backup_init(copy.handle, "main", file.handle, "main");
    assert_int_equal(sqlite3_backup_step(backup, -1), SQLITE_DONE);
    sqlite3_backup_finish(backup);
    rfi_db_close(&file);
    snprintf(sql, sizeof sql, "DROP TRIGGER %s_no_update; UPDATE %s SET %s", table, table, set);
    assert_int_equal(sqlite3_exec(copy.handle, sql, NULL, NULL, NULL), SQLITE_OK);
    return copy;
}

/* Facts of somebody else's file that no tuner has recorded. */
static void impossible_numbers_are_refused(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *table, *set, *expected;
    } cases[] = {
        {"variant", "world = -1", "impossible world"},
        {"variant", "hidden = 1 << 40", "impossible hidden size"},
        {"variant", "threads = -256", "impossible number of threads"},
        {"variant", "unroll = 70000", "impossible unroll"},
        {"variant", "flags = -1", "impossible flags"},
        {"shape", "shape_no = shape_no + (1 << 32)", "impossible number"},
        {"measurement", "measurement_no = measurement_no + (1 << 32)", "impossible number"},
        {"measurement", "grid = -1", "impossible grid"},
        {"measurement", "grid = 0", "impossible grid"},
        {"measurement", "samples = -7", "impossible number of samples"},
        {"measurement", "samples = 1 << 32", "impossible number of samples"},
        {"measurement", "order_index = -1", "impossible order_index"},
        {"measurement", "noise_ns = -0.5", "impossible noise"},
        {"measurement", "max_ns = 9e999", "impossible times"},
        {"measurement", "max_ns = 2e12", "impossible times"},
        {"measurement", "min_ns = -1", "impossible times"},
        {"measurement", "p10_ns = median_ns + 1", "impossible times"},
        {"measurement", "p90_ns = p10_ns", "impossible times"},
        {"measurement", "median_ns = NULL", "nothing that was measured"},
        {"measurement", "samples = 0", "nothing that was measured"},
        {"measurement", "outcome = 'wrong'", "a time, though it failed"},
    };
    const char *path = folder_file(f->folder, "possible.db");
    campaign(path, &f->place[0], 1);
    rfi_db into = open_db(path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t added = 77;
        rfi_db from = changed_copy(path, cases[i].table, cases[i].set);
        assert_int_equal(rfi_db_merge(&into, &from, &added, &why), RF_E_DB_CORRUPT);
        if (!strstr(why.text, cases[i].expected))
            fail_msg("%s: '%s' does not say '%s'", cases[i].set, why.text, cases[i].expected);
        assert_int_equal(added, 77);
        rfi_db_close(&from);
    }
    rfi_db_close(&into);
}

static void control_characters_are_refused(void **state)
{
    fixture *f = *state;
    const char *path = folder_file(f->folder, "control.db");
    facts_place place = facts_at("r0.cpu=\033[2J\n", "r0.kernel=1\n");
    campaign(path, &place, 1);
    rfi_db db = open_db(path);
    assert_int_equal(rfi_db_check(&db, &why), RF_E_DB_CORRUPT);
    assert_non_null(strstr(why.text, "control character"));
    rfi_db_close(&db);
}

static void numbers_are_written_alike_in_every_locale(void **state)
{
    fixture *f = *state;
    const char *one = folder_file(f->folder, "one.db"), *two = folder_file(f->folder, "two.db");
    uint64_t added = 0;
    campaign(one, &f->place[0], 1);
    char *text = export(one);
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8") && !setlocale(LC_NUMERIC, "fr_FR.UTF-8")) {
        free(text);
        skip(); /* no locale with a decimal comma here */
    }
    char *again = export(one);
    rf_result result = import(two, text, &added);
    setlocale(LC_NUMERIC, "C");
    assert_int_equal(result, RF_OK);
    same_text(text, again);
    same_text(export(one), export(two));
}

/* ---- privacy ---- */

static void what_names_the_machine_does_not_leave_it(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"r0.gpu=GPU-8f6bd0a2-1234-5678-9abc-def012345678\n", "a UUID"},
        {"r0.pci=0000:3b:00.0\n", "a bus address"},
        {"r0.nic=52:54:00:12:34:56\n", "a network address"},
        {"r0.hostname=alpha\n", "hostname"},
        {"0.board.serial=7\n", "serial"},
        {"r0.boot_id=7\n", "boot_id"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32], *text = NULL;
        size_t bytes;
        snprintf(name, sizeof name, "private%zu.db", i);
        const char *path = folder_file(f->folder, name);
        facts_place place = facts_at(cases[i].text, "r0.kernel=1\n");
        campaign(path, &place, 1);
        rfi_db db = open_db(path);
        FILE *out = open_memstream(&text, &bytes);
        assert_int_equal(rfi_db_export(&db, NULL, out, &why), RF_E_DB);
        fclose(out);
        free(text);
        rfi_db_close(&db);
        if (!strstr(why.text, cases[i].expected))
            fail_msg("'%s' does not say '%s'", why.text, cases[i].expected);
    }
    assert_null(rfi_private_part("r0.cpu=AMD EPYC 7763\nr0.kernel=6.1.0-18-amd64\n"
                                 "r0.driver=580.95.05\nr0.bios=1.2.3.4\nr0.serialise=yes\n"));
}

/* ---- migrate ---- */

static pthread_barrier_t begun;

#define EARLIER (RFI_DB_VERSION - 1)

/* Of a schema that never was: finish was called done. */
static const char *const steps[RFI_DB_VERSION] = {[EARLIER] = "ALTER TABLE done RENAME TO finish"};

static const char *old_file(fixture *f)
{
    const char *path = folder_file(f->folder, "old.db");
    char sql[40];
    snprintf(sql, sizeof sql, "PRAGMA user_version = %d", EARLIER);
    campaign(path, &f->place[0], 1);
    assert_int_equal(run_sql(path, sql), SQLITE_OK);
    return path;
}

static void an_older_file_climbs_on_a_copy(void **state)
{
    fixture *f = *state;
    static const char *const no_op[RFI_DB_VERSION] = {[EARLIER] = "SELECT 1"};
    const char *path = old_file(f), *left = folder_file(f->folder, "old.db-migrate");
    int from = -1;
    struct stat st;
    assert_int_equal(file_write(left, "left by a killed one", 20), 1);
    MUST(rfi_db_migrate(path, no_op, &from, &why));
    assert_int_equal(from, EARLIER);
    check(path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(access(left, F_OK), -1);
    MUST(rfi_db_migrate(path, no_op, &from, &why)); /* and stays */
    assert_int_equal(from, RFI_DB_VERSION);
}

/* Gives the file another's name and lets go of it, once somebody waits for it: most likely now. */
static void *replace_file(void *paths)
{
    const char *const *from_to = paths;
    sqlite3 *db = NULL;
    int ok =
        !sqlite3_open(from_to[1], &db) && !sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    pthread_barrier_wait(&begun);
    usleep(100000);
    ok = ok && !rename(from_to[0], from_to[1]);
    sqlite3_close(db);
    return ok ? paths : NULL;
}

/* What somebody else had made of it meanwhile may have been written to. */
static void a_file_that_was_replaced_meanwhile_stays(void **state)
{
    fixture *f = *state;
    static const char *const no_op[RFI_DB_VERSION] = {[EARLIER] = "SELECT 1"};
    const char *const paths[] = {folder_file(f->folder, "climbed.db"), old_file(f)};
    struct stat climbed, there;
    pthread_t other;
    void *done = NULL;
    int from = -1;
    campaign(paths[0], &f->place[0], 2);
    assert_int_equal(stat(paths[0], &climbed), 0);
    pthread_barrier_init(&begun, NULL, 2);
    assert_int_equal(pthread_create(&other, NULL, replace_file, (void *)(uintptr_t)paths), 0);
    pthread_barrier_wait(&begun);
    rfi_db_migrate(paths[1], no_op, &from, &why);
    pthread_join(other, &done);
    pthread_barrier_destroy(&begun);
    assert_non_null(done);
    assert_int_equal(stat(paths[1], &there), 0);
    assert_int_equal(there.st_ino, climbed.st_ino);
}

static void a_failed_step_leaves_the_file_and_nothing_else(void **state)
{
    fixture *f = *state;
    const char *path = old_file(f);
    size_t before, after;
    char *was = file_read(path, &before);
    int from = -1;
    assert_int_not_equal(rfi_db_migrate(path, steps, &from, &why), RF_OK);
    assert_non_null(strstr(why.text, "no such table: done"));
    char *is = file_read(path, &after);
    assert_int_equal(before, after);
    assert_memory_equal(was, is, before);
    free(was);
    free(is);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(f->folder), 0); /* no copy is left */
}

static void without_a_step_there_is_no_way(void **state)
{
    fixture *f = *state;
    int from = -1;
    static const char *const none[RFI_DB_VERSION] = {NULL};
    assert_int_equal(rfi_db_migrate(old_file(f), none, &from, &why), RF_E_DB);
    assert_non_null(strstr(why.text, "no way from schema"));
}

/* ---- several processes ---- */

#define WRITERS      8
#define TRANSACTIONS 50

/* Rows of a table, counted through a connection of its own. */
static int64_t count(const char *path, const char *table)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    char sql[100];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s", table);
    sqlite3_open(path, &db);
    sqlite3_prepare_v2(db, sql, -1, &statement, NULL);
    int64_t n = sqlite3_step(statement) == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : -1;
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return n;
}

static void write_many(int rank, int world, void *path)
{
    (void)world;
    rf_error err = {0};
    rf_store *store = NULL;
    facts_place place = facts_at("r0.cpu=Imaginary\n", "r0.kernel=1\n");
    rf_variant variant = facts_variant(names[0], 0, 1);
    rfi_key key = facts_key(&place, 1 + (uint64_t)rank % 2, 4096);
    rank_barrier();
    RANK_CHECK(rf_store_open(path, NULL, 0, &store, &err) == RF_OK, "%s", err.text);
    RANK_CHECK(facts_begin(store, &place, &err) == RF_OK, "%s", err.text);
    for (int i = 0; i < TRANSACTIONS; i++) {
        rfi_measurement m = facts_measurement(&key, &variant, 8, 1000 + rank + i);
        RANK_CHECK(store->v->record(store, &m, 1, &err) == RF_OK, "%s", err.text);
    }
    RANK_CHECK(store->v->finish_shape(store, &key, &err) == RF_OK, "%s", err.text);
    RANK_CHECK(store->v->end(store, &err) == RF_OK, "%s", err.text);
    RANK_CHECK(!rf_store_warning(store), "%s", rf_store_warning(store));
    rf_store_close(store);
}

static void writers_lose_no_row_and_see_no_lock(void **state)
{
    fixture *f = *state;
    char path[FOLDER_PATH + 64];
    const ranks_options patience = {.deadline_ms = 120000};
    snprintf(path, sizeof path, "%s/new/tactics.db", f->folder); /* made by all of them at once */
    RANKS_ASSERT(ranks_run(WRITERS, write_many, path, &patience));
    assert_int_equal(count(path, "measurement"), WRITERS * TRANSACTIONS);
    assert_int_equal(count(path, "sweep"), WRITERS);
    assert_int_equal(count(path, "finish"), WRITERS);
    check(path);
}

static void begin_one(int rank, int world, void *path)
{
    (void)rank, (void)world;
    rf_error err = {0};
    rf_store *store = NULL;
    facts_place place = facts_at("r0.cpu=Imaginary\n", "r0.kernel=1\n");
    rank_barrier();
    RANK_CHECK(rf_store_open(path, NULL, 0, &store, &err) == RF_OK, "%s", err.text);
    RANK_CHECK(!rf_store_warning(store), "%s", rf_store_warning(store));
    RANK_CHECK(facts_begin(store, &place, &err) == RF_OK, "%s", err.text);
    RANK_CHECK(store->v->end(store, &err) == RF_OK, "%s", err.text);
    rf_store_close(store);
}

static void an_empty_file_is_filled_by_one_of_many(void **state)
{
    fixture *f = *state;
    char path[FOLDER_PATH + 64];
    const ranks_options patience = {.deadline_ms = 120000};
    snprintf(path, sizeof path, "%s/empty.db", f->folder);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(file_write(path, "", 0), 1);
        assert_int_equal(chmod(path, 0600), 0);
        RANKS_ASSERT(ranks_run(WRITERS, begin_one, path, &patience));
        assert_int_equal(count(path, "campaign"), WRITERS);
        check(path);
    }
}

/* When a statement begins that begins so, another connection runs `sql`, if it may. */
typedef struct meddler {
    const char *path, *when, *sql;
} meddler;

static int meddle(unsigned kind, void *ctx, void *statement, void *text)
{
    (void)kind, (void)text;
    const meddler *m = ctx;
    if (!strncmp(sqlite3_sql(statement), m->when, strlen(m->when)))
        run_sql(m->path, m->sql);
    return 0;
}

static void a_check_is_of_one_state_of_the_file(void **state)
{
    fixture *f = *state;
    char path[FOLDER_PATH + 64];
    meddler other = {path, "SELECT count(*) FROM decision", "DELETE FROM decision"};
    snprintf(path, sizeof path, "%s/checked.db", f->folder);
    campaign(path, &f->place[0], 1);
    rfi_db db = open_db(path);
    sqlite3_trace_v2(db.handle, SQLITE_TRACE_STMT, meddle, &other);
    MUST(rfi_db_check(&db, &why));
    rfi_db_close(&db);
}

static void a_table_is_of_one_state_of_the_file(void **state)
{
    fixture *f = *state;
    char path[FOLDER_PATH + 64], *text = NULL;
    size_t bytes;
    uint64_t rows = 0;
    meddler other = {path, "SELECT hw_fp",
                     "BEGIN; INSERT INTO environment VALUES(printf('%032x', 7), 'x');"
                     "UPDATE decision SET env_fp = printf('%032x', 7); COMMIT"};
    snprintf(path, sizeof path, "%s/frozen.db", f->folder);
    campaign(path, &f->place[0], 1);
    rfi_db db = open_db(path);
    sqlite3_trace_v2(db.handle, SQLITE_TRACE_STMT, meddle, &other);
    FILE *out = open_memstream(&text, &bytes);
    MUST(rfi_db_freeze(&db, "frozen", NULL, 0, out, &rows, &why));
    fclose(out);
    assert_true(rows > 0);
    for (const char *row = text; (row = strstr(row, ",ENV_")); row++) {
        char define[64];
        snprintf(define, sizeof define, "#define %.36s ", row + 1);
        assert_non_null(strstr(text, define));
    }
    free(text);
    rfi_db_close(&db);
}

/* Records for ever, and counts what it was told is recorded, until it is killed. */
static void record_for_ever(const char *path, const facts_place *place, volatile unsigned *told)
{
    rf_variant variant = facts_variant(names[0], 0, 1);
    rfi_key key = facts_key(place, 1, 4096);
    rfi_measurement m = facts_measurement(&key, &variant, 8, 1000);
    rf_store *store = NULL;
    if (rf_store_open(path, NULL, 0, &store, NULL) || facts_begin(store, place, NULL))
        _exit(1);
    while (store->v->record(store, &m, 1, NULL) == RF_OK)
        ++*told;
    _exit(1);
}

/* Of two that write at once one is killed. */
static void what_a_killed_tuner_was_told_is_there(void **state)
{
    fixture *f = *state;
    char path[FOLDER_PATH + 64];
    snprintf(path, sizeof path, "%s/killed.db", f->folder);
    volatile unsigned *told =
        mmap(NULL, 2 * sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(told, MAP_FAILED);
    for (unsigned i = 0; i < 12; i++) {
        pid_t child[2];
        unlink(path);
        for (int c = 0; c < 2; c++) {
            told[c] = 0;
            if ((child[c] = fork()) == 0)
                record_for_ever(path, &f->place[c], &told[c]);
        }
        for (int c = 0; c < 2; c++) {
            int status;
            usleep(4000 + 2500 * i);
            kill(child[c], SIGKILL);
            assert_int_equal(waitpid(child[c], &status, 0), child[c]);
            assert_true(WIFSIGNALED(status));
        }
        MUST(rfi_db_create(path, &why));
        check(path);
        int64_t there = count(path, "measurement"), said = (int64_t)told[0] + told[1];
        assert_in_range(there, said, said + 2); /* done, but killed before it could say so */
    }
    munmap((void *)(uintptr_t)told, 2 * sizeof *told);
}

/* Merges for ever, until it is killed. */
static void merge_for_ever(const char *into, const char *from)
{
    for (;;) {
        rfi_db a, b;
        uint64_t added;
        if (rfi_db_open(&a, into, RFI_DB_WRITE, 1000, NULL))
            _exit(1);
        if (rfi_db_open(&b, from, RFI_DB_READ, 1000, NULL))
            _exit(1);
        if (rfi_db_merge(&a, &b, &added, NULL))
            _exit(1);
        rfi_db_close(&a);
        rfi_db_close(&b);
    }
}

static void a_killed_merge_leaves_the_old_file_or_the_new(void **state)
{
    fixture *f = *state;
    char from[FOLDER_PATH + 64], into[FOLDER_PATH + 64];
    int olds = 0, news = 0;
    snprintf(from, sizeof from, "%s/from.db", f->folder);
    snprintf(into, sizeof into, "%s/into.db", f->folder);
    for (unsigned i = 0; i < 8; i++)
        campaign(from, &f->place[0], i + 1);
    const int64_t whole = count(from, "measurement");
    for (unsigned i = 0; i < 12; i++) {
        unlink(into);
        MUST(rfi_db_create(into, &why));
        pid_t child = fork();
        if (child == 0)
            merge_for_ever(into, from);
        usleep(500 + 1500 * i);
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        int64_t n = count(into, "measurement");
        assert_true(n == 0 || n == whole);
        check(into);
        olds += n == 0;
        news += n == whole;
    }
    assert_true(olds + news == 12);
}

int main(void)
{
#define FACT(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        FACT(any_order_of_merging_gives_the_same),
        FACT(files_that_disagree_are_refused),
        FACT(facts_cannot_be_changed),
        FACT(tuners_that_overlap_leave_a_sound_file),
        FACT(check_finds_a_decision_that_the_facts_do_not_give),
        FACT(check_finds_a_text_that_is_not_what_was_hashed),
        FACT(check_finds_an_orphan),
        FACT(text_goes_out_and_in_byte_for_byte),
        FACT(one_host_can_be_exported_alone),
        FACT(hostile_text_is_refused_with_its_line),
        FACT(impossible_numbers_are_refused),
        FACT(control_characters_are_refused),
        FACT(numbers_are_written_alike_in_every_locale),
        FACT(what_names_the_machine_does_not_leave_it),
        FACT(an_older_file_climbs_on_a_copy),
        FACT(a_file_that_was_replaced_meanwhile_stays),
        FACT(a_failed_step_leaves_the_file_and_nothing_else),
        FACT(without_a_step_there_is_no_way),
        FACT(writers_lose_no_row_and_see_no_lock),
        FACT(an_empty_file_is_filled_by_one_of_many),
        FACT(a_check_is_of_one_state_of_the_file),
        FACT(a_table_is_of_one_state_of_the_file),
        FACT(what_a_killed_tuner_was_told_is_there),
        FACT(a_killed_merge_leaves_the_old_file_or_the_new),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
