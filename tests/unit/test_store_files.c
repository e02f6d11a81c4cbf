/* Every kind of bad file (F33): the next rung, one clear line, the file untouched. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/maintain.h"
#include "store/shipped.h"
#include "store_facts.h"
#include "store_folder.h"

static char folder[FOLDER_PATH];
static char good[FOLDER_PATH + 16]; /* a good database with one decision */
static facts_place here;
static rf_variant variant;

static rf_store *open_store(const char *path, const char *shipped, uint32_t flags)
{
    rf_error err = {0};
    rf_store *store = NULL;
    if (rf_store_open(path, shipped, flags, &store, &err))
        fail_msg("%s", err.text);
    return store;
}

static int group_setup(void **state)
{
    (void)state;
    rf_error err = {0};
    here = facts_at("r0.cpu=Imaginary\n", "r0.kernel=1\n");
    variant = facts_variant("ar_w2_f32_h0_os", 0, 1);
    if (!folder_make(folder))
        return -1;
    snprintf(good, sizeof good, "%s/good.db", folder);
    rf_store *store = open_store(good, NULL, 0);
    rfi_key key = facts_key(&here, 4, 4096);
    rfi_measurement m = facts_measurement(&key, &variant, 8, 1000);
    rf_result result = facts_campaign(store, &here, &key, &m, 1, &err);
    rf_store_close(store);
    return result == RF_OK ? 0 : -1;
}

static int group_teardown(void **state)
{
    (void)state;
    umount2(folder_file(folder, "disk"), MNT_DETACH); /* of small_disk, if it was mounted */
    folder_remove(folder);
    return 0;
}

/* A copy of the good database. */
static const char *copy(const char *name)
{
    size_t bytes;
    char *text = file_read(good, &bytes);
    const char *path = folder_file(folder, name);
    assert_non_null(text);
    assert_int_equal(file_write(path, text, bytes), 1);
    free(text);
    assert_int_equal(chmod(path, 0600), 0);
    return path;
}

static void change(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    char *why = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &why))
        fail_msg("%s", why);
    sqlite3_close(db);
}

/* With `path` as the writable file over the good one: it answers from the shipped rung, says
 * `expected` in one line, refuses to be written with `code`, and leaves the file as it was. */
static void refused(const char *path, const char *expected, rf_result code)
{
    rf_error err = {0};
    rfi_decision d;
    size_t before = 0, after = 0;
    struct stat st;
    int regular = !stat(path, &st) && S_ISREG(st.st_mode);
    char *was = regular ? file_read(path, &before) : NULL;
    rf_store *store = open_store(path, good, 0);
    rfi_key key = facts_key(&here, 4, 4096);

    assert_int_equal(store->v->lookup(store, &key, facts_have_all, NULL, &d), 1);
    assert_int_equal(d.rung, RF_RUNG_SHIPPED);
    const char *warning = rf_store_warning(store);
    assert_non_null(warning);
    if (!strstr(warning, expected))
        fail_msg("'%s' does not say '%s'", warning, expected);
    assert_null(strchr(warning, '\n'));
    assert_int_equal(store->v->measured(store, &key, &variant, 8, &(rfi_measurement){0}), 0);
    assert_int_equal(store->v->swept(store, &key), 0);
    rf_result result = facts_begin(store, &here, &err);
    if (result != code)
        fail_msg("begin gave %d (%s), expected %d", (int)result, err.text, (int)code);
    assert_non_null(strstr(err.text, expected));
    rf_store_close(store);

    char *is = regular ? file_read(path, &after) : NULL;
    assert_int_equal(before, after);
    if (was && is)
        assert_memory_equal(was, is, before);
    free(was);
    free(is);
}

/* ---- one kind of bad file each ---- */

static void a_text_file(void **state)
{
    (void)state;
    const char *path = folder_file(folder, "text.db");
    char text[4096];
    memset(text, 'x', sizeof text);
    file_write(path, text, sizeof text);
    refused(path, "not an SQLite file", RF_E_DB_FOREIGN);
}

static void a_short_text_file(void **state)
{
    (void)state;
    const char *path = folder_file(folder, "short.db");
    file_write(path, "hello\n", 6);
    refused(path, "not an SQLite file", RF_E_DB_FOREIGN);
}

/* The file can be tuned into, though nothing is said of it before, and is sound then. */
static void as_good_as_none(const char *path)
{
    rf_error err = {0};
    rfi_decision d;
    rfi_db db;
    rf_store *store = open_store(path, good, 0);
    rfi_key key = facts_key(&here, 4, 4096);
    assert_int_equal(store->v->lookup(store, &key, facts_have_all, NULL, &d), 1);
    assert_int_equal(d.rung, RF_RUNG_SHIPPED);
    assert_null(rf_store_warning(store));
    if (facts_begin(store, &here, &err))
        fail_msg("%s", err.text);
    rf_store_close(store);
    if (rfi_db_open(&db, path, RFI_DB_WRITE, 0, &err) || rfi_db_check(&db, &err))
        fail_msg("%s", err.text);
    rfi_db_close(&db);
}

/* Empty, and nothing lies beside it. */
static void is_as_good_as_none(const char *path)
{
    char journal[FOLDER_PATH + 64];
    struct stat st;
    snprintf(journal, sizeof journal, "%s-journal", path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(access(journal, F_OK), -1);
}

static const char *empty_file(const char *name)
{
    const char *path = folder_file(folder, name);
    assert_int_equal(file_write(path, "", 0), 1);
    assert_int_equal(chmod(path, 0600), 0);
    return path;
}

static void an_empty_file_is_as_good_as_none(void **state)
{
    (void)state;
    as_good_as_none(empty_file("empty.db"));
}

static void an_empty_file_named_for_reading_is_said(void **state)
{
    (void)state;
    rf_store *store = open_store(empty_file("unread.db"), NULL, RF_STORE_READ);
    assert_non_null(strstr(rf_store_warning(store), "is empty: no database yet"));
    rf_store_close(store);
}

static void a_link_is_followed_to_a_file_only(void **state)
{
    (void)state;
    rf_error err = {0};
    rfi_decision d;
    const char *link = folder_file(folder, "link.db"), *to = folder_file(folder, "afar.db");
    assert_int_equal(symlink(to, link), 0);
    rf_store *store = open_store(link, NULL, 0);
    assert_int_equal(facts_begin(store, &here, &err), RF_E_DB);
    assert_non_null(strstr(err.text, "is a link to nothing"));
    assert_int_equal(access(to, F_OK), -1);
    rf_store_close(store);

    copy("afar.db");
    store = open_store(link, NULL, 0);
    rfi_key key = facts_key(&here, 4, 4096);
    assert_int_equal(store->v->lookup(store, &key, facts_have_all, NULL, &d), 1);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
    assert_int_equal(facts_begin(store, &here, &err), RF_OK);
    rf_store_close(store);
}

static void somebody_elses_database(void **state)
{
    (void)state;
    const char *path = folder_file(folder, "foreign.db");
    change(path, "CREATE TABLE t(a); INSERT INTO t VALUES(1)");
    chmod(path, 0600);
    refused(path, "not a Rankfold database: application_id is 0x00000000", RF_E_DB_FOREIGN);
}

static void a_newer_schema(void **state)
{
    (void)state;
    const char *path = copy("newer.db");
    change(path, "PRAGMA user_version = 7");
    refused(path, "has schema 7 of a newer Rankfold; this one knows 2", RF_E_DB_NEWER);
}

static void a_negative_schema(void **state)
{
    (void)state;
    const char *path = copy("negative.db");
    change(path, "PRAGMA user_version = -3");
    refused(path, "has schema -3", RF_E_DB_CORRUPT);
}

static void an_older_schema(void **state)
{
    (void)state;
    const char *path = copy("older.db");
    change(path, "PRAGMA user_version = 0");
    refused(path, "has schema 0, expected 2; nothing leads there: remove it to have one made",
            RF_E_DB);
}

static void a_truncated_file(void **state)
{
    (void)state;
    const char *path = copy("truncated.db");
    assert_int_equal(truncate(path, 20000), 0);
    refused(path, "damaged", RF_E_DB_CORRUPT);
}

static void a_file_cut_in_its_header(void **state)
{
    (void)state;
    const char *path = copy("header.db");
    assert_int_equal(truncate(path, 60), 0);
    refused(path, "not a Rankfold database", RF_E_DB_FOREIGN);
}

static void a_foreign_trigger(void **state)
{
    (void)state;
    const char *path = copy("trigger.db");
    change(path, "CREATE TRIGGER evil AFTER INSERT ON campaign BEGIN SELECT randomblob(9); END");
    refused(path, "has the trigger evil", RF_E_DB_FOREIGN);
}

static void a_missing_trigger(void **state)
{
    (void)state;
    const char *path = copy("missing.db");
    change(path, "DROP TRIGGER measurement_no_update");
    refused(path, "tables, indexes and triggers of schema 2 are as they were made",
            RF_E_DB_FOREIGN);
}

static void a_folder(void **state)
{
    (void)state;
    const char *path = folder_file(folder, "folder.db");
    assert_int_equal(mkdir(path, 0700), 0);
    refused(path, "is a folder, not a file", RF_E_DB_FOREIGN);
}

static void a_pipe(void **state)
{
    (void)state;
    const char *path = folder_file(folder, "pipe.db");
    assert_int_equal(mkfifo(path, 0600), 0);
    refused(path, "is a pipe, not a file", RF_E_DB_FOREIGN);
}

static void a_device(void **state)
{
    (void)state;
    refused("/dev/null", "is a device, not a file", RF_E_DB_FOREIGN);
}

static void a_huge_path(void **state)
{
    (void)state;
    char path[5000];
    memset(path, 'a', sizeof path);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    refused(path, "path is longer than", RF_E_DB);
}

static void a_file_as_folder(void **state)
{
    (void)state;
    rf_error err = {0};
    char path[FOLDER_PATH + 64];
    snprintf(path, sizeof path, "%s/below/tactics.db", good);
    rf_store *store = open_store(path, NULL, 0);
    assert_int_equal(facts_begin(store, &here, &err), RF_E_DB);
    assert_non_null(strstr(err.text, "folder"));
    rf_store_close(store);
}

static void a_group_writable_file(void **state)
{
    (void)state;
    const char *path = copy("group.db");
    assert_int_equal(chmod(path, 0660), 0);
    refused(path, "can be written by others (mode 0660)", RF_E_DB_FOREIGN);
}

static void somebody_elses_file(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    const char *path = copy("owned.db");
    assert_int_equal(chown(path, 12345, 12345), 0);
    refused(path, "belongs to user 12345; expected user 0 or root", RF_E_DB_FOREIGN);
}

static void a_planted_journal(void **state)
{
    (void)state;
    const char *path = copy("planted.db");
    char journal[FOLDER_PATH + 80];
    snprintf(journal, sizeof journal, "%s-journal", path);
    file_write(journal, "x", 1);
    chmod(journal, 0666);
    refused(path, "its journal can be written by others", RF_E_DB_FOREIGN);
}

static void a_page_of_noise(void **state)
{
    (void)state;
    /* Whatever it hits: an answer from some rung, and never a crash (the fuzzer goes on). */
    for (long page = 1; page < 20; page++) {
        const char *path = copy("noise.db");
        int fd = open(path, O_WRONLY);
        char noise[4096];
        memset(noise, (int)(0x55 + page), sizeof noise);
        assert_int_equal(pwrite(fd, noise, sizeof noise, page * 4096), sizeof noise);
        close(fd);
        rfi_decision d;
        rf_store *store = open_store(path, good, 0);
        rfi_key key = facts_key(&here, 4, 4096);
        assert_int_equal(store->v->lookup(store, &key, facts_have_all, NULL, &d), 1);
        rf_store_close(store);
    }
}

static void a_locked_file_answers_later(void **state)
{
    (void)state;
    const char *path = copy("locked.db");
    sqlite3 *other = NULL;
    assert_int_equal(sqlite3_open(path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
    rfi_decision d;
    rf_store *store = open_store(path, good, RF_STORE_READ);
    rfi_key key = facts_key(&here, 4, 4096);
    assert_int_equal(store->v->lookup(store, &key, facts_have_all, NULL, &d), 1);
    assert_int_equal(d.rung, RF_RUNG_SHIPPED);
    assert_non_null(strstr(rf_store_warning(store), "locked by another process"));

    sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL);
    assert_int_equal(store->v->lookup(store, &key, facts_have_all, NULL, &d), 1);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
    assert_null(rf_store_warning(store));

    /* And once more, now that it is open. */
    assert_int_equal(sqlite3_exec(other, "BEGIN EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
    store->v->lookup(store, &key, facts_have_all, NULL, &d);
    assert_int_equal(d.rung, RF_RUNG_SHIPPED);
    assert_non_null(strstr(rf_store_warning(store), "locked by another process"));
    sqlite3_close(other);
    store->v->lookup(store, &key, facts_have_all, NULL, &d);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
    assert_null(rf_store_warning(store));
    rf_store_close(store);
}

/* Root writes anywhere: these two need another user. */
static void a_read_only_file_is_read(void **state)
{
    (void)state;
    const char *path = copy("readonly.db");
    rf_error err = {0};
    rfi_decision d;
    assert_int_equal(chmod(path, 0444), 0);
    int was_root = geteuid() == 0;
    if (was_root) {
        assert_int_equal(chmod(folder, 0755), 0);
        assert_int_equal(seteuid(65534), 0);
    }
    rf_store *store = open_store(path, NULL, 0);
    rfi_key key = facts_key(&here, 4, 4096);
    int found = store->v->lookup(store, &key, facts_have_all, NULL, &d);
    rf_result result = facts_begin(store, &here, &err);
    rf_store_close(store);
    if (was_root && seteuid(0))
        fail();
    assert_int_equal(found, 1);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
    assert_int_equal(result, RF_E_DB_READONLY);
    assert_non_null(strstr(err.text, "readonly.db"));
}

/* A folder that nobody may write to, and its file, which anybody may. Root, who may all, is nobody
 * from then on: returns whether it was. */
static int lock(const char *below, const char *path)
{
    int was_root = geteuid() == 0;
    if (was_root) {
        assert_int_equal(chmod(folder, 0755), 0);
        assert_int_equal(chown(path, 65534, 65534), 0);
    }
    assert_int_equal(chmod(below, 0555), 0);
    if (was_root)
        assert_int_equal(seteuid(65534), 0);
    return was_root;
}

static void a_read_only_folder_is_read(void **state)
{
    (void)state;
    rf_error err = {0};
    rfi_decision d;
    const char *below = folder_file(folder, "locked-folder");
    assert_int_equal(mkdir(below, 0700), 0);
    const char *path = copy("locked-folder/tactics.db");
    int was_root = lock(below, path);
    rf_store *store = open_store(path, NULL, 0);
    rfi_key key = facts_key(&here, 4, 4096);
    int found = store->v->lookup(store, &key, facts_have_all, NULL, &d);
    rf_result result = facts_begin(store, &here, &err);
    rf_store_close(store);
    if (was_root && seteuid(0))
        fail();
    assert_int_equal(found, 1);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
    if (result != RF_E_DB_READONLY)
        fail_msg("%d: %s", (int)result, err.text);
}

static void a_read_only_folder_without_a_database(void **state)
{
    (void)state;
    rf_error err = {0};
    const char *below = folder_file(folder, "barren-folder");
    assert_int_equal(mkdir(below, 0555), 0);
    int was_root = geteuid() == 0;
    if (was_root) {
        assert_int_equal(chmod(folder, 0755), 0);
        assert_int_equal(seteuid(65534), 0);
    }
    rf_store *store = open_store(folder_file(folder, "barren-folder/tactics.db"), NULL, 0);
    rf_result result = facts_begin(store, &here, &err);
    rf_store_close(store);
    if (was_root && seteuid(0))
        fail();
    if (result != RF_E_DB_READONLY || !strstr(err.text, "Permission denied"))
        fail_msg("%d: %s", (int)result, err.text);
}

/* A WAL needs files beside it. */
static void a_wal_file_in_a_read_only_folder_is_said(void **state)
{
    (void)state;
    rfi_decision d;
    const char *below = folder_file(folder, "dry-folder");
    assert_int_equal(mkdir(below, 0700), 0);
    const char *path = copy("dry-folder/tactics.db");
    change(path, "PRAGMA journal_mode = wal");
    int was_root = lock(below, path);
    rf_store *store = open_store(path, NULL, RF_STORE_READ);
    rfi_key key = facts_key(&here, 4, 4096);
    int found = store->v->lookup(store, &key, facts_have_all, NULL, &d);
    char warning[RF_ERROR_TEXT] = "";
    if (rf_store_warning(store))
        snprintf(warning, sizeof warning, "%s", rf_store_warning(store));
    rf_store_close(store);
    if (was_root && seteuid(0))
        fail();
    assert_int_equal(found, 0);
    if (!strstr(warning, "open its journal, or WAL"))
        fail_msg("%s", warning);
}

/* What a writer leaves that is killed while a connection to `path` has run `sql`: the file and its
 * journal of this suffix, under another name. */
static const char *killed_while(const char *path, const char *suffix, const char *sql)
{
    static char killed[FOLDER_PATH + 80];
    const char *const suffixes[] = {"", suffix};
    sqlite3 *db = NULL;
    char *why = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &why))
        fail_msg("%s", why);
    snprintf(killed, sizeof killed, "%s.killed", path);
    for (int i = 0; i < 2; i++) {
        char from[FOLDER_PATH + 96], to[FOLDER_PATH + 96];
        size_t bytes = 0;
        snprintf(from, sizeof from, "%s%s", path, suffixes[i]);
        snprintf(to, sizeof to, "%s%s", killed, suffixes[i]);
        char *text = file_read(from, &bytes);
        assert_non_null(text);
        assert_true(bytes > 0);
        assert_int_equal(file_write(to, text, bytes), 1);
        assert_int_equal(chmod(to, 0600), 0);
        free(text);
    }
    sqlite3_close(db);
    return killed;
}

/* After it began to change the file: a cache of one page makes it spill into it, behind a synced
 * journal. */
static const char *killed_writer(void)
{
    return killed_while(copy("hot.db"), "-journal",
                        "PRAGMA cache_size = 1; BEGIN IMMEDIATE;"
                        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
                        "WHERE i < 500) INSERT INTO host SELECT "
                        "lower(hex(randomblob(16))), hex(zeroblob(200)) FROM n");
}

static void who_was_killed_while_he_filled_an_empty_file(void **state)
{
    (void)state;
    char sql[128 + (1 << 17)];
    snprintf(sql, sizeof sql, "PRAGMA cache_size = 1; BEGIN EXCLUSIVE; %s", rfi_schema_sql);
    as_good_as_none(killed_while(empty_file("begun.db"), "-journal", sql));

    /* Who makes it, rather than opening it, goes on with it, too. */
    rf_error err = {0};
    rfi_db db;
    const char *path = killed_while(empty_file("begun again.db"), "-journal", sql);
    if (rfi_db_create(path, &err) || rfi_db_open(&db, path, RFI_DB_WRITE, 0, &err))
        fail_msg("%s", err.text);
    rfi_db_close(&db);
}

/* Nor is anybody waited for who is busy with a file that is there. */
static void one_that_is_written_is_left_alone(void **state)
{
    (void)state;
    rf_error err = {0};
    sqlite3 *db = NULL;
    const char *path = copy("busy.db");
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db, "BEGIN IMMEDIATE; UPDATE generation SET generation = 9", NULL, NULL, NULL),
        SQLITE_OK);
    rf_result result = rfi_db_create(path, &err);
    sqlite3_close(db);
    if (result)
        fail_msg("%s", err.text);
}

static void a_wal_that_a_killed_writer_left_is_read(void **state)
{
    (void)state;
    const char *path = killed_while(copy("logged.db"), "-wal",
                                    "PRAGMA journal_mode = wal; PRAGMA wal_autocheckpoint = 0;"
                                    "UPDATE decision SET grid = 99");
    rfi_decision d;
    rfi_key key = facts_key(&here, 4, 4096);
    for (uint32_t flags = 0; flags <= RF_STORE_READ; flags += RF_STORE_READ) {
        rf_store *store = open_store(path, NULL, flags);
        assert_int_equal(store->v->lookup(store, &key, facts_have_all, NULL, &d), 1);
        assert_int_equal(d.rung, RF_RUNG_EXACT);
        assert_int_equal(d.grid, 99);
        assert_null(rf_store_warning(store));
        rf_store_close(store);
    }
}

static void what_a_killed_writer_left_is_put_right(void **state)
{
    (void)state;
    const char *path = killed_writer();
    rf_error err = {0};
    rfi_decision d;
    rfi_db db;
    rfi_key key = facts_key(&here, 4, 4096);
    rf_store *reader = open_store(path, NULL, RF_STORE_READ);
    assert_int_equal(reader->v->lookup(reader, &key, facts_have_all, NULL, &d), 0);
    assert_non_null(rf_store_warning(reader));
    assert_non_null(strstr(rf_store_warning(reader), "a killed writer left a journal"));

    /* Who may write puts it right, and then the reader sees it too. */
    assert_int_equal(rfi_db_open(&db, path, RFI_DB_WRITE, 0, &err), RF_OK);
    if (rfi_db_check(&db, &err))
        fail_msg("%s", err.text);
    rfi_db_close(&db);
    assert_int_equal(reader->v->lookup(reader, &key, facts_have_all, NULL, &d), 1);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
    assert_null(rf_store_warning(reader));
    rf_store_close(reader);
}

static rf_result record_until_it_fails(rf_store *store, rf_error *err)
{
    rfi_key key = facts_key(&here, 4, 4096);
    rfi_measurement m[64];
    for (int i = 0; i < 64; i++)
        m[i] = facts_measurement(&key, &variant, 8, 1000 + i);
    rf_result result = facts_begin(store, &here, err);
    for (int i = 0; i < 200 && result == RF_OK; i++)
        result = store->v->record(store, m, 64, err);
    return result;
}

/* A file system of 256 KiB, seen by this process only; 0 = not possible here. */
static int small_disk(const char *path)
{
    return mkdir(path, 0700) == 0 && unshare(CLONE_NEWNS) == 0 &&
           mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", path, "tmpfs", 0, "size=256k") == 0;
}

static void a_tuner_on_a_full_disk_keeps_what_it_recorded(void **state)
{
    (void)state;
    char disk[FOLDER_PATH + 16], path[FOLDER_PATH + 32];
    snprintf(disk, sizeof disk, "%s/disk", folder);
    snprintf(path, sizeof path, "%s/tactics.db", disk);
    if (geteuid() != 0 || !small_disk(disk))
        skip();
    rf_error err = {0};
    rf_store *store = open_store(path, NULL, 0);
    rfi_key key = facts_key(&here, 4, 4096);
    rfi_measurement m = facts_measurement(&key, &variant, 8, 1000);
    assert_int_equal(facts_campaign(store, &here, &key, &m, 1, &err), RF_OK);
    assert_int_equal(record_until_it_fails(store, &err), RF_E_DB_FULL);
    assert_non_null(strstr(err.text, "no space left"));
    rf_store_close(store);

    rfi_db db;
    rfi_decision d;
    assert_int_equal(rfi_db_open(&db, path, RFI_DB_WRITE, 0, &err), RF_OK);
    if (rfi_db_check(&db, &err))
        fail_msg("%s", err.text);
    rfi_db_close(&db);
    store = open_store(path, NULL, RF_STORE_READ);
    assert_int_equal(store->v->lookup(store, &key, facts_have_all, NULL, &d), 1);
    rf_store_close(store);

    /* A second database has no room at all: nothing half-made is there. */
    snprintf(path, sizeof path, "%s/second.db", disk);
    assert_int_equal(rfi_db_create(path, &err), RF_E_DB_FULL);
    is_as_good_as_none(path);
}

/* Nor does it end a process that has no handler, which keeps what it had. */
static void a_limit_to_the_size_of_files_is_an_error_like_others(void **state)
{
    (void)state;
    sigset_t blocked, pending;
    const char *path = copy("limited.db"), *second = folder_file(folder, "unlimited.db");
    rf_error err = {0}, other = {0};
    struct rlimit usual, limit;
    rf_store *store = open_store(path, NULL, 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual), 0);
    limit = usual;
    limit.rlim_cur = 160 << 10;
    setrlimit(RLIMIT_FSIZE, &limit);
    rf_result result = record_until_it_fails(store, &err);
    limit.rlim_cur = 16 << 10;
    setrlimit(RLIMIT_FSIZE, &limit);
    rf_result made = rfi_db_create(second, &other);
    setrlimit(RLIMIT_FSIZE, &usual);
    rf_store_close(store);

    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    sigpending(&pending);
    assert_false(sigismember(&blocked, SIGXFSZ) || sigismember(&pending, SIGXFSZ));
    assert_int_equal(result, RF_E_DB);
    if (!strstr(err.text, "a limit to the size of files"))
        fail_msg("%s", err.text);
    assert_int_equal(made, RF_E_DB);
    assert_non_null(strstr(other.text, "a limit to the size of files"));
    is_as_good_as_none(second);
    rfi_db db;
    if (rfi_db_open(&db, path, RFI_DB_WRITE, 0, &err) || rfi_db_check(&db, &err))
        fail_msg("%s", err.text);
    rfi_db_close(&db);
}

/* The writer was killed after this store had opened the file. */
static void nor_does_it_end_who_only_looks(void **state)
{
    (void)state;
    char path[FOLDER_PATH + 16], at_rest[FOLDER_PATH + 32], journal[FOLDER_PATH + 32];
    struct rlimit usual, limit;
    rfi_decision d;
    rfi_key key = facts_key(&here, 4, 4096);
    snprintf(path, sizeof path, "%s", copy("looked at.db"));
    rf_store *store = open_store(path, NULL, 0);
    const char *killed = killed_writer();
    snprintf(at_rest, sizeof at_rest, "%s-journal", killed);
    snprintf(journal, sizeof journal, "%s-journal", path);
    size_t bytes;
    char *text = file_read(killed, &bytes);
    assert_int_equal(file_write(path, text, bytes), 1);
    free(text);
    assert_int_equal(rename(at_rest, journal), 0);

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual), 0);
    limit = usual;
    limit.rlim_cur = 0;
    setrlimit(RLIMIT_FSIZE, &limit);
    int found = store->v->lookup(store, &key, facts_have_all, NULL, &d);
    setrlimit(RLIMIT_FSIZE, &usual);
    assert_int_equal(found, 0);
    assert_non_null(strstr(rf_store_warning(store), "a limit to the size of files"));
    rf_store_close(store);
}

static void a_full_disk_loses_nothing_that_was_there(void **state)
{
    (void)state;
    const char *path = copy("full.db");
    rf_error err = {0};
    rfi_db db;
    assert_int_equal(rfi_db_open(&db, path, RFI_DB_WRITE, 0, &err), RF_OK);
    assert_int_equal(sqlite3_exec(db.handle, "PRAGMA max_page_count = 1", NULL, NULL, NULL), 0);
    assert_int_equal(rfi_db_begin(&db, 0, &err), RF_OK);
    int rc = SQLITE_OK;
    for (int i = 0; i < 1000 && !rc; i++)
        rc = sqlite3_exec(db.handle,
                          "INSERT INTO host SELECT lower(hex(randomblob(16))), "
                          "hex(zeroblob(500))",
                          NULL, NULL, NULL);
    rf_result result = rfi_db_fail(db.handle, path, rc, "fill", &err);
    assert_int_equal(result, RF_E_DB_FULL);
    assert_non_null(strstr(err.text, "no space left"));
    assert_int_equal(rfi_db_end(&db, result, &err), RF_E_DB_FULL);
    rfi_db_close(&db);

    rfi_decision d;
    rf_store *store = open_store(path, NULL, 0);
    rfi_key key = facts_key(&here, 4, 4096);
    assert_int_equal(store->v->lookup(store, &key, facts_have_all, NULL, &d), 1);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
    rf_store_close(store);
}

static void a_bad_shipped_file_is_said(void **state)
{
    (void)state;
    const char *path = folder_file(folder, "shipped.db");
    file_write(path, "hello\n", 6);
    rfi_decision d;
    rf_store *store = open_store(folder_file(folder, "none.db"), path, 0);
    rfi_key key = facts_key(&here, 4, 4096);
    assert_int_equal(store->v->lookup(store, &key, facts_have_all, NULL, &d), 0);
    assert_non_null(strstr(rf_store_warning(store), "not an SQLite file"));
    rf_store_close(store);
}

/* An empty file in a tree of its own, and the folders above it. */
static const char *plant(size_t tree, const char *name)
{
    char text[128];
    snprintf(text, sizeof text, "trees/%zu/%s", tree, name);
    for (char *slash = text; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(folder_file(folder, text), 0700);
        *slash = '/';
    }
    const char *path = folder_file(folder, text);
    assert_int_equal(file_write(path, "", 0), 1);
    return path;
}

static void what_ships_is_found_beside_who_it_came_with(void **state)
{
    (void)state;
    static const struct {
        const char *file, *shipped;
    } places[] = {
        {"bin/rankfold", "share/rankfold/shipped.db"},
        {"lib/librankfold_nccl.so", "share/rankfold/shipped.db"},
        {"lib/rankfold/libnccl.so.2", "share/rankfold/shipped.db"},
        {"generated/bin/rankfold", "generated/shipped.db"},
        {"generated/h200/librankfold.so.0", "generated/shipped.db"},
        {"generated/h200/nccl/libnccl.so.2", "generated/shipped.db"},
        {"engine/libnccl.so.2", "engine/shipped.db"},
    };
    char link[FOLDER_PATH + 16], found[PATH_MAX];
    snprintf(link, sizeof link, "%s/link", folder);
    assert_null(rfi_shipped_beside(link, found));
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        assert_int_equal(symlink(plant(i, places[i].file), link), 0);
        assert_null(rfi_shipped_beside(link, found));
        const char *shipped = plant(i, places[i].shipped);
        assert_ptr_equal(rfi_shipped_beside(link, found), found);
        struct stat want, got;
        assert_int_equal(stat(shipped, &want), 0);
        assert_int_equal(stat(found, &got), 0);
        assert_int_equal(got.st_ino, want.st_ino);
        assert_int_equal(unlink(link), 0);
    }
}

static void a_shipped_file_with_an_odd_name(void **state)
{
    (void)state;
    const char *path = copy("100% ? #1.db");
    rfi_decision d;
    rf_store *store = open_store(folder_file(folder, "none.db"), path, 0);
    rfi_key key = facts_key(&here, 4, 4096);
    assert_int_equal(store->v->lookup(store, &key, facts_have_all, NULL, &d), 1);
    assert_null(rf_store_warning(store));
    rf_store_close(store);
}

static void a_wal_file_in_a_read_only_folder_ships(void **state)
{
    (void)state;
    const char *path = copy("wal.db");
    change(path, "PRAGMA journal_mode = wal");
    rfi_decision d;
    rf_store *store = open_store(folder_file(folder, "none.db"), path, 0);
    rfi_key key = facts_key(&here, 4, 4096);
    assert_int_equal(store->v->lookup(store, &key, facts_have_all, NULL, &d), 1);
    rf_store_close(store);
}

static void names_that_sqlite_would_take_for_something_else(void **state)
{
    (void)state;
    static const char *const names[] = {":memory:", "file:x?mode=memory", "file::memory:"};
    char *before = getcwd(NULL, 0);
    assert_int_equal(chdir(folder), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        rf_error err = {0};
        rf_store *store = open_store(names[i], NULL, 0);
        if (facts_begin(store, &here, &err))
            fail_msg("%s", err.text);
        rf_store_close(store);
        struct stat st;
        assert_int_equal(stat(names[i], &st), 0);
        assert_true(st.st_size > 0);
    }
    assert_int_equal(chdir(before), 0);
    free(before);
}

static void a_missing_file_that_was_named_for_reading(void **state)
{
    (void)state;
    rf_store *store = open_store(folder_file(folder, "none.db"), NULL, RF_STORE_READ);
    assert_non_null(strstr(rf_store_warning(store), "there is no such file"));
    rf_store_close(store);
}

static void a_file_that_is_deleted_while_a_tuner_writes(void **state)
{
    (void)state;
    const char *path = folder_file(folder, "deleted.db");
    rf_error err = {0};
    rf_store *store = open_store(path, NULL, 0);
    rfi_key key = facts_key(&here, 4, 4096);
    rfi_measurement m = facts_measurement(&key, &variant, 8, 1000);
    assert_int_equal(facts_begin(store, &here, &err), RF_OK);
    assert_int_equal(store->v->record(store, &m, 1, &err), RF_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(store->v->record(store, &m, 1, &err), RF_E_DB);
    assert_non_null(strstr(err.text, "deleted"));
    assert_int_equal(store->v->end(store, &err), RF_E_DB);

    /* The next session makes another. */
    if (facts_begin(store, &here, &err) || store->v->record(store, &m, 1, &err))
        fail_msg("%s", err.text);
    assert_int_equal(access(path, F_OK), 0);
    rf_store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_file),
        cmocka_unit_test(a_short_text_file),
        cmocka_unit_test(an_empty_file_is_as_good_as_none),
        cmocka_unit_test(an_empty_file_named_for_reading_is_said),
        cmocka_unit_test(a_link_is_followed_to_a_file_only),
        cmocka_unit_test(somebody_elses_database),
        cmocka_unit_test(a_newer_schema),
        cmocka_unit_test(a_negative_schema),
        cmocka_unit_test(an_older_schema),
        cmocka_unit_test(a_truncated_file),
        cmocka_unit_test(a_file_cut_in_its_header),
        cmocka_unit_test(a_foreign_trigger),
        cmocka_unit_test(a_missing_trigger),
        cmocka_unit_test(a_folder),
        cmocka_unit_test(a_pipe),
        cmocka_unit_test(a_device),
        cmocka_unit_test(a_huge_path),
        cmocka_unit_test(a_file_as_folder),
        cmocka_unit_test(a_group_writable_file),
        cmocka_unit_test(somebody_elses_file),
        cmocka_unit_test(a_planted_journal),
        cmocka_unit_test(a_page_of_noise),
        cmocka_unit_test(a_locked_file_answers_later),
        cmocka_unit_test(a_read_only_file_is_read),
        cmocka_unit_test(a_read_only_folder_is_read),
        cmocka_unit_test(a_read_only_folder_without_a_database),
        cmocka_unit_test(a_wal_file_in_a_read_only_folder_is_said),
        cmocka_unit_test(what_a_killed_writer_left_is_put_right),
        cmocka_unit_test(who_was_killed_while_he_filled_an_empty_file),
        cmocka_unit_test(one_that_is_written_is_left_alone),
        cmocka_unit_test(a_wal_that_a_killed_writer_left_is_read),
        cmocka_unit_test(a_file_that_is_deleted_while_a_tuner_writes),
        cmocka_unit_test(a_tuner_on_a_full_disk_keeps_what_it_recorded),
        cmocka_unit_test(a_limit_to_the_size_of_files_is_an_error_like_others),
        cmocka_unit_test(nor_does_it_end_who_only_looks),
        cmocka_unit_test(a_full_disk_loses_nothing_that_was_there),
        cmocka_unit_test(a_bad_shipped_file_is_said),
        cmocka_unit_test(what_ships_is_found_beside_who_it_came_with),
        cmocka_unit_test(a_shipped_file_with_an_odd_name),
        cmocka_unit_test(a_wal_file_in_a_read_only_folder_ships),
        cmocka_unit_test(names_that_sqlite_would_take_for_something_else),
        cmocka_unit_test(a_missing_file_that_was_named_for_reading),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
