/* Opens and creates database files. Files are hostile until shown otherwise; nothing here changes a
 * file that exists. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/env.h"
#include "core/group.h"
#include "store/db.h"
#include "store/maintain.h"

#define WAIT_MS 30000

static const char *const statements[] = {
#define RF_X(name, sql) [RFI_SQL_##name] = (sql),
    RFI_SQL_LIST(RF_X)
#undef RF_X
};

const char *rfi_sql_text(rfi_sql name)
{
    return statements[name];
}

/* ---- errors ---- */

/* SQLite's result codes that mean something to the caller, extended ones first; the rest is E_DB.
 */
static const struct {
    int rc;
    rf_result result;
    const char *text; /* NULL: SQLite's own says it */
} codes[] = {
    {SQLITE_READONLY_ROLLBACK, RF_E_DB_LOCKED,
     "a killed writer left a journal; `rankfold db check` puts it right"},
    {SQLITE_READONLY_DBMOVED, RF_E_DB, "was deleted or replaced while it was in use"},
    {SQLITE_IOERR_WRITE, RF_E_DB, "a quota, a limit to the size of files, or a failing disk"},
    {SQLITE_BUSY, RF_E_DB_LOCKED, "locked by another process"},
    {SQLITE_LOCKED, RF_E_DB_LOCKED, "locked by another process"},
    {SQLITE_CORRUPT, RF_E_DB_CORRUPT, "damaged"},
    {SQLITE_NOTADB, RF_E_DB_FOREIGN, "not an SQLite file"},
    {SQLITE_READONLY, RF_E_DB_READONLY, "cannot be written"},
    {SQLITE_PERM, RF_E_DB_READONLY, NULL},
    {SQLITE_FULL, RF_E_DB_FULL, "no space left"},
    {SQLITE_NOMEM, RF_E_MEMORY, "out of memory"},
};

rf_result rfi_db_fail(sqlite3 *handle, const char *path, int rc, const char *doing, rf_error *err)
{
    rf_result result = RF_E_DB;
    const char *text = NULL;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].rc == rc || codes[i].rc == (rc & 0xff)) {
            result = codes[i].result;
            text = codes[i].text;
            break;
        }
    const char *detail = handle ? sqlite3_errmsg(handle) : sqlite3_errstr(rc);
    if (!text)
        return rfi_fail(err, result, -1, "database", "%.300s: %s: %s", path, doing, detail);
    return rfi_fail(err, result, -1, "database", "%.300s: %s: %s (%s)", path, doing, text, detail);
}

/* ---- a signal for a write that fails ---- */

static sigset_t file_size_signal(void)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGXFSZ);
    return one;
}

static rfi_quiet be_quiet(void)
{
    const sigset_t one = file_size_signal();
    sigset_t before, waiting;
    sigpending(&waiting);
    pthread_sigmask(SIG_BLOCK, &one, &before);
    return (rfi_quiet){.was_blocked = sigismember(&before, SIGXFSZ),
                       .was_pending = sigismember(&waiting, SIGXFSZ)};
}

static void be_loud(const rfi_quiet *q)
{
    const sigset_t one = file_size_signal();
    const struct timespec at_once = {0};
    if (!q->was_pending)
        while (sigtimedwait(&one, NULL, &at_once) < 0 && errno == EINTR)
            ;
    if (!q->was_blocked)
        pthread_sigmask(SIG_UNBLOCK, &one, NULL);
}

/* ---- statements ---- */

sqlite3_stmt *rfi_db_sql(rfi_db *db, rfi_sql name)
{
    sqlite3_stmt *statement = db->kept[name];
    if (statement) {
        sqlite3_reset(statement);
        return statement;
    }
    if (sqlite3_prepare_v3(db->handle, statements[name], -1, SQLITE_PREPARE_PERSISTENT, &statement,
                           NULL))
        return NULL;
    return db->kept[name] = statement;
}

int rfi_db_step(sqlite3_stmt *statement)
{
    rfi_quiet quiet = be_quiet(); /* who only looks plays back what a killed one left */
    int rc = statement ? sqlite3_step(statement) : SQLITE_ERROR;
    be_loud(&quiet);
    return rc;
}

void rfi_db_bind_texts(sqlite3_stmt *statement, int first, int n, const char *const *texts)
{
    for (int i = 0; statement && i < n; i++)
        sqlite3_bind_text(statement, first + i, texts[i], -1, SQLITE_TRANSIENT);
}

static int run(rfi_db *db, rfi_sql name)
{
    sqlite3_stmt *statement = rfi_db_sql(db, name);
    int rc = statement ? sqlite3_step(statement) : sqlite3_errcode(db->handle);
    if (statement)
        sqlite3_reset(statement);
    return rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : rc;
}

int rfi_db_moved(rfi_db *db)
{
    int moved = 0;
    return !sqlite3_file_control(db->handle, "main", SQLITE_FCNTL_HAS_MOVED, &moved) && moved;
}

static rf_result begin(rfi_db *db, rfi_sql how, rf_error *err)
{
    db->quiet = be_quiet();
    int rc = run(db, how);
    if (!rc)
        return RF_OK;
    be_loud(&db->quiet);
    return rfi_db_fail(db->handle, db->path, rc, "begin", err);
}

rf_result rfi_db_begin(rfi_db *db, int wait_ms, rf_error *err)
{
    sqlite3_busy_timeout(db->handle, wait_ms);
    return begin(db, RFI_SQL_BEGIN, err);
}

rf_result rfi_db_begin_read(rfi_db *db, rf_error *err)
{
    return begin(db, RFI_SQL_BEGIN_READ, err);
}

rf_result rfi_db_end(rfi_db *db, rf_result result, rf_error *err)
{
    if (result == RF_OK) {
        int rc = run(db, RFI_SQL_COMMIT);
        if (rc)
            result = rfi_db_fail(db->handle, db->path, rc, "commit", err);
    }
    if (!sqlite3_get_autocommit(db->handle))
        run(db, RFI_SQL_ROLLBACK);
    be_loud(&db->quiet);
    return result;
}

/* ---- small things ---- */

void rfi_utc_now(char out[RFI_UTC])
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    unsigned year = (unsigned)(utc.tm_year + 1900) % 10000;
    snprintf(out, RFI_UTC, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ", year,
             (unsigned)(utc.tm_mon + 1) % 100, (unsigned)utc.tm_mday % 100,
             (unsigned)utc.tm_hour % 100, (unsigned)utc.tm_min % 100, (unsigned)utc.tm_sec % 100,
             (unsigned)(now.tv_nsec / 1000000) % 1000);
}

int rfi_unhex(const char *text, unsigned char out[16])
{
    static const char digits[] = "0123456789abcdef";
    if (!text || strlen(text) != 32)
        return 0;
    for (int i = 0; i < 16; i++) {
        const char *high = strchr(digits, text[2 * i]), *low = strchr(digits, text[2 * i + 1]);
        if (!high || !low)
            return 0;
        out[i] = (unsigned char)((high - digits) << 4 | (low - digits));
    }
    return 1;
}

rf_result rfi_db_default_path(char out[RFI_DB_PATH], rf_error *err)
{
    const struct {
        const char *base, *rest;
    } places[] = {
        {rfi_env_get(RFI_RANKFOLD_DB), ""},
        {getenv("XDG_STATE_HOME"), "/rankfold/tactics.db"},
        {getenv("HOME"), "/.local/state/rankfold/tactics.db"},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (!places[i].base || !*places[i].base || (i == 1 && *places[i].base != '/'))
            continue; /* a relative XDG path is to be ignored, says its specification */
        if ((size_t)snprintf(out, RFI_DB_PATH, "%s%s", places[i].base, places[i].rest) >=
            RFI_DB_PATH) {
            out[0] = '\0';
            return rfi_fail(err, RF_E_DB, -1, "database", "path is longer than %d bytes: %.60s...",
                            RFI_DB_PATH - 1, places[i].base);
        }
        return RF_OK;
    }
    out[0] = '\0';
    return rfi_fail(err, RF_E_DB_ABSENT, -1, "database",
                    "no place for a database: neither RANKFOLD_DB nor HOME is set");
}

/* ---- who else could have written it ---- */

/* `what` says which file in the message. 0 = it is as it has to be. */
static rf_result check_owner(const char *path, const char *what, const struct stat *st,
                             rf_error *err)
{
    if (!S_ISREG(st->st_mode))
        return rfi_fail(err, RF_E_DB_FOREIGN, -1, "database", "%.300s: %sis %s, not a file", path,
                        what,
                        S_ISDIR(st->st_mode)    ? "a folder"
                        : S_ISFIFO(st->st_mode) ? "a pipe"
                        : S_ISCHR(st->st_mode)  ? "a device"
                                                : "something special");
    if (st->st_uid != geteuid() && st->st_uid != 0)
        return rfi_fail(err, RF_E_DB_FOREIGN, -1, "database",
                        "%.300s: %sbelongs to user %u; expected user %u or root", path, what,
                        (unsigned)st->st_uid, (unsigned)geteuid());
    if (st->st_mode & (S_IWGRP | S_IWOTH))
        return rfi_fail(err, RF_E_DB_FOREIGN, -1, "database",
                        "%.300s: %scan be written by others (mode %04o); run chmod go-w", path,
                        what, (unsigned)st->st_mode & 07777u);
    return RF_OK;
}

/* By name only: opening and closing the file here would drop the locks that another connection of
 * this process holds on it. */
static rf_result check_file(const char *path, rf_error *err)
{
    struct stat st;
    if (strlen(path) >= RFI_DB_PATH)
        return rfi_fail(err, RF_E_DB, -1, "database", "path is longer than %d bytes: %.60s...",
                        RFI_DB_PATH - 1, path);
    if (stat(path, &st)) {
        if (errno == ENOENT || errno == ENOTDIR)
            return rfi_fail(err, RF_E_DB_ABSENT, -1, "database", "%.300s: there is no such file",
                            path);
        return rfi_fail(err, RF_E_DB, -1, "database", "%.300s: %s", path, strerror(errno));
    }
    rf_result result = check_owner(path, "", &st, err);
    if (result)
        return result;

    /* A journal is played back into the database. */
    static const char *const companions[] = {"-journal", "-wal"};
    for (size_t i = 0; i < 2; i++) {
        char name[RFI_DB_PATH + 16];
        snprintf(name, sizeof name, "%s%s", path, companions[i]);
        if (!lstat(name, &st) && (result = check_owner(path, "its journal ", &st, err)))
            return result;
    }
    return RF_OK;
}

/* ---- what is in it ---- */

static int pragma_int(sqlite3 *handle, const char *sql, int *out)
{
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(handle, sql, -1, &statement, NULL);
    if (!rc && (rc = sqlite3_step(statement)) == SQLITE_ROW) {
        *out = sqlite3_column_int(statement, 0);
        rc = SQLITE_OK;
    }
    sqlite3_finalize(statement);
    return rc;
}

static int is_empty(const char *path)
{
    struct stat st;
    return !stat(path, &st) && st.st_size == 0;
}

static rf_result identify(sqlite3 *handle, const char *path, int *version, rf_error *err)
{
    /* Looked at before it is read, lest it is filled in between; and after, which takes back what a
     * killed writer had begun. */
    int application = 0, was_empty = is_empty(path);
    int rc = pragma_int(handle, "PRAGMA application_id", &application);
    if (!rc)
        rc = pragma_int(handle, "PRAGMA user_version", version);
    if (rc) {
        /* The file itself was opened before, and is only read here. */
        int aside = (rc & 0xff) == SQLITE_CANTOPEN ||
                    ((rc & 0xff) == SQLITE_READONLY && rc != SQLITE_READONLY_ROLLBACK);
        return rfi_db_fail(handle, path, rc, aside ? "open its journal, or WAL" : "open", err);
    }
    if (!application && (was_empty || is_empty(path)))
        return rfi_fail(err, RF_E_DB_ABSENT, -1, "database", "%.300s: is empty: no database yet",
                        path);
    if (application != RFI_DB_APPLICATION)
        return rfi_fail(err, RF_E_DB_FOREIGN, -1, "database",
                        "%.300s: not a Rankfold database: application_id is 0x%08x, expected "
                        "0x%08x (RKFD)",
                        path, (unsigned)application, (unsigned)RFI_DB_APPLICATION);
    if (*version < 0)
        return rfi_fail(err, RF_E_DB_CORRUPT, -1, "database", "%.300s: has schema %d", path,
                        *version);
    if (*version > RFI_DB_VERSION)
        return rfi_fail(err, RF_E_DB_NEWER, -1, "database",
                        "%.300s: has schema %d of a newer Rankfold; this one knows %d", path,
                        *version, RFI_DB_VERSION);
    return RF_OK;
}

/* Tables, indexes and triggers are word for word those of db/schema.sql; whoever works at the
 * prompt may add tables, indexes and views, but no trigger. */
static rf_result check_schema(sqlite3 *handle, const char *path, rf_error *err)
{
    static const char *const kinds[] = {"\nCREATE TABLE ", "\nCREATE INDEX ",
                                        "\nCREATE UNIQUE INDEX ", "\nCREATE TRIGGER "};
    int expected = 0, found = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (const char *at = rfi_schema_sql; (at = strstr(at, kinds[k])); at++)
            expected++;

    sqlite3_stmt *statement = NULL;
    rf_result result = RF_OK;
    int rc = sqlite3_prepare_v2(handle,
                                "SELECT type, name, sql FROM sqlite_schema "
                                "WHERE type <> 'view' AND sql IS NOT NULL",
                                -1, &statement, NULL);
    while (!rc && result == RF_OK && (rc = sqlite3_step(statement)) == SQLITE_ROW) {
        rc = SQLITE_OK;
        const char *type = (const char *)sqlite3_column_text(statement, 0);
        const char *name = (const char *)sqlite3_column_text(statement, 1);
        const char *sql = (const char *)sqlite3_column_text(statement, 2);
        if (type && name && sql && strstr(rfi_schema_sql, sql))
            found++;
        else if (!type || !strcmp(type, "trigger"))
            result = rfi_fail(err, RF_E_DB_FOREIGN, -1, "database",
                              "%.300s: has the trigger %.60s, which is none of schema %d", path,
                              name ? name : "?", RFI_DB_VERSION);
    }
    if (result == RF_OK && rc != SQLITE_DONE)
        result = rfi_db_fail(handle, path, rc, "read the schema", err);
    sqlite3_finalize(statement);
    if (result == RF_OK && found != expected)
        result = rfi_fail(err, RF_E_DB_FOREIGN, -1, "database",
                          "%.300s: %d of the %d tables, indexes and triggers of schema %d are as "
                          "they were made",
                          path, found, expected, RFI_DB_VERSION);
    return result;
}

void rfi_db_protect(sqlite3 *handle)
{
    static const struct {
        int option, value;
    } options[] = {
        {SQLITE_DBCONFIG_DEFENSIVE, 1},       {SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0},
        {SQLITE_DBCONFIG_ENABLE_FKEY, 1},     {SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0},
        {SQLITE_DBCONFIG_WRITABLE_SCHEMA, 0}, {SQLITE_DBCONFIG_DQS_DML, 0},
    };
    static const struct {
        int limit, value;
    } limits[] = {
        {SQLITE_LIMIT_LENGTH, 4 << 20},    {SQLITE_LIMIT_SQL_LENGTH, 1 << 18},
        {SQLITE_LIMIT_COLUMN, 100},        {SQLITE_LIMIT_EXPR_DEPTH, 100},
        {SQLITE_LIMIT_COMPOUND_SELECT, 8}, {SQLITE_LIMIT_VDBE_OP, 25000},
        {SQLITE_LIMIT_FUNCTION_ARG, 16},   {SQLITE_LIMIT_ATTACHED, 0},
        {SQLITE_LIMIT_TRIGGER_DEPTH, 8},   {SQLITE_LIMIT_WORKER_THREADS, 0},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        sqlite3_db_config(handle, options[i].option, options[i].value, NULL);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        sqlite3_limit(handle, limits[i].limit, limits[i].value);
    sqlite3_exec(handle, "PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0", NULL, NULL, NULL);
}

/* ---- open ---- */

/* A name that SQLite takes for a file whatever it looks like; shipped: a URI, for immutable. */
static void file_name(const char *path, rfi_access access, char *out, size_t size)
{
    const char *folder = *path == '/' ? "" : "./";
    if (access != RFI_DB_SHIPPED) {
        snprintf(out, size, "%s%s", folder, path);
        return;
    }
    size_t used = (size_t)snprintf(out, size, "file:%s", folder);
    for (; *path && used + 32 < size; path++)
        used += (size_t)snprintf(out + used, size - used, strchr("?#%", *path) ? "%%%02X" : "%c",
                                 (unsigned char)*path);
    snprintf(out + used, size - used, "?immutable=1");
}

/* Whatever is in it. On failure too the handle is the caller's to close. */
static int open_handle(sqlite3 **handle, const char *path, rfi_access access, int wait_ms)
{
    char name[3 * RFI_DB_PATH + 64];
    file_name(path, access, name, sizeof name);
    int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
    flags |= access == RFI_DB_WRITE ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY;
    flags |= access == RFI_DB_SHIPPED ? SQLITE_OPEN_URI : 0;
    int rc = sqlite3_open_v2(name, handle, flags, NULL);
    if (rc)
        return rc;
    sqlite3_busy_timeout(*handle, wait_ms);
    rfi_db_protect(*handle);
    return SQLITE_OK;
}

rf_result rfi_db_open_any_version(rfi_db *db, const char *path, rfi_access access, int wait_ms,
                                  int *version, rf_error *err)
{
    memset(db, 0, sizeof *db);
    rf_result result = check_file(path, err);
    if (result)
        return result;
    snprintf(db->path, sizeof db->path, "%s", path);
    rfi_quiet quiet = be_quiet(); /* the first look plays a journal back */
    int rc = open_handle(&db->handle, path, access, wait_ms);
    result = rc ? rfi_db_fail(db->handle, path, rc, "open", err)
                : identify(db->handle, path, version, err);
    be_loud(&quiet);
    if (result)
        rfi_db_close(db);
    return result;
}

rf_result rfi_db_open(rfi_db *db, const char *path, rfi_access access, int wait_ms, rf_error *err)
{
    int version = 0;
    rf_result result = rfi_db_open_any_version(db, path, access, wait_ms, &version, err);
    if (result)
        return result;
    if (version < RFI_DB_VERSION)
        result = rfi_fail(err, RF_E_DB, -1, "database", "%.300s: has schema %d, expected %d; %s",
                          path, version, RFI_DB_VERSION,
                          rfi_db_can_climb(rfi_migrations, version)
                              ? "run `rankfold db migrate`"
                              : "nothing leads there: remove it to have one made");
    else
        result = check_schema(db->handle, path, err);
    if (result)
        rfi_db_close(db);
    return result;
}

void rfi_db_close(rfi_db *db)
{
    for (size_t i = 0; i < RFI_SQL_COUNT; i++)
        sqlite3_finalize(db->kept[i]);
    sqlite3_close(db->handle);
    memset(db->kept, 0, sizeof db->kept);
    db->handle = NULL;
}

/* ---- create ---- */

static rf_result system_fail(const char *path, const char *doing, rf_error *err)
{
    rf_result result = errno == ENOSPC || errno == EDQUOT                    ? RF_E_DB_FULL
                       : errno == EACCES || errno == EROFS || errno == EPERM ? RF_E_DB_READONLY
                                                                             : RF_E_DB;
    return rfi_fail(err, result, -1, "database", "%.300s: %s: %s", path, doing, strerror(errno));
}

/* The folders above path: those that are missing get mode 0700. */
static rf_result make_folders(const char *path, rf_error *err)
{
    char folder[RFI_DB_PATH];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = folder + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        if (mkdir(folder, 0700) && errno != EEXIST)
            return system_fail(folder, "make the folder", err);
        *slash = '/';
    }
    return RF_OK;
}

/* An empty file becomes a database where it is, by one transaction: others may do so too, and of
 * one that was killed nothing is left but an empty file. */
static rf_result fill(const char *path, rf_error *err)
{
    sqlite3 *handle = NULL;
    int rc = open_handle(&handle, path, RFI_DB_WRITE, WAIT_MS);
    if (!rc)
        rc = sqlite3_exec(handle, "BEGIN EXCLUSIVE", NULL, NULL, NULL);
    if (!rc && is_empty(path)) { /* else nothing is written, whatever it is */
        rc = sqlite3_exec(handle, rfi_schema_sql, NULL, NULL, NULL);
        if (!rc)
            rc = sqlite3_exec(handle, "COMMIT", NULL, NULL, NULL);
    }
    rf_result result = rc ? rfi_db_fail(handle, path, rc, "create", err) : RF_OK;
    sqlite3_close(handle);
    return result;
}

static rf_result create(const char *path, rf_error *err)
{
    struct stat st;
    if (strlen(path) >= RFI_DB_PATH)
        return rfi_fail(err, RF_E_DB, -1, "database", "path is longer than %d bytes: %.60s...",
                        RFI_DB_PATH - 1, path);
    if (lstat(path, &st)) {
        rf_result result = make_folders(path, err);
        if (result)
            return result;
        /* To open and close it would drop the locks that this process may have on it by then. */
        if (mknod(path, S_IFREG | 0600, 0) && errno != EEXIST)
            return system_fail(path, "create", err);
    }
    rfi_db db;
    rf_error why = {0};
    int version = 0;
    rf_result found = rfi_db_open_any_version(&db, path, RFI_DB_WRITE, WAIT_MS, &version, &why);
    if (found == RF_OK)
        rfi_db_close(&db);
    if (found == RF_E_DB_LOCKED) /* whoever opens it would wait as long again */
        return rfi_fail(err, found, -1, "database", "%s", why.text);
    if (found != RF_E_DB_ABSENT)
        return RF_OK; /* whoever opens it is told what is wrong */
    if (stat(path, &st))
        return rfi_fail(err, RF_E_DB, -1, "database",
                        "%.300s: is a link to nothing; make what it leads to, or remove it", path);
    return fill(path, err);
}

rf_result rfi_db_create(const char *path, rf_error *err)
{
    rfi_quiet quiet = be_quiet();
    rf_result result = create(path, err);
    be_loud(&quiet);
    return result;
}
