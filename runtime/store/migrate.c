#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "core/group.h"
#include "store/maintain.h"

#define WAIT_MS 5000

/* Before the first release nothing is kept: its schema will be the first that others climb from. */
const char *const rfi_migrations[RFI_DB_VERSION] = {NULL};

int rfi_db_can_climb(const char *const steps[RFI_DB_VERSION], int from)
{
    while (from < RFI_DB_VERSION && steps[from])
        from++;
    return from >= RFI_DB_VERSION;
}

static rf_result climb(sqlite3 *copy, const char *path, const char *const *steps, int version,
                       rf_error *err)
{
    int rc = sqlite3_exec(copy, "BEGIN", NULL, NULL, NULL);
    for (; !rc && version < RFI_DB_VERSION; version++)
        rc = sqlite3_exec(copy, steps[version], NULL, NULL, NULL);
    char set[48];
    snprintf(set, sizeof set, "PRAGMA user_version = %d", RFI_DB_VERSION);
    if (!rc)
        rc = sqlite3_exec(copy, set, NULL, NULL, NULL);
    if (!rc)
        rc = sqlite3_exec(copy, "COMMIT", NULL, NULL, NULL);
    return rc ? rfi_db_fail(copy, path, rc, "migrate", err) : RF_OK;
}

static rf_result copy_all(sqlite3 *from, sqlite3 *to, const char *path, rf_error *err)
{
    sqlite3_backup *backup = sqlite3_backup_init(to, "main", from, "main");
    int rc = backup ? sqlite3_backup_step(backup, -1) : sqlite3_errcode(to);
    sqlite3_backup_finish(backup);
    return rc == SQLITE_DONE ? RF_OK : rfi_db_fail(to, path, rc, "copy", err);
}

/* The copy at `aside`, climbed and sound. */
static rf_result make_copy(sqlite3 *from, const char *aside, const char *const *steps, int version,
                           rf_error *err)
{
    sqlite3 *copy = NULL;
    int fd = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return rfi_fail(err, RF_E_DB_READONLY, -1, "database", "%.300s: %s", aside,
                        strerror(errno));
    close(fd);
    /* A relative name that begins with "file:" is no URI with this. */
    char name[RFI_DB_PATH + 32];
    snprintf(name, sizeof name, "%s%s", *aside == '/' ? "" : "./", aside);
    int rc = sqlite3_open_v2(name, &copy, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    rf_result result = rc ? rfi_db_fail(copy, aside, rc, "open", err) : RF_OK;
    rfi_db_protect(copy);
    if (result == RF_OK)
        result = copy_all(from, copy, aside, err);
    if (result == RF_OK)
        result = climb(copy, aside, steps, version, err);
    sqlite3_close(copy);
    if (result)
        return result;
    rfi_db db;
    result = rfi_db_open(&db, aside, RFI_DB_WRITE, 0, err);
    if (result == RF_OK) {
        result = rfi_db_check(&db, err);
        rfi_db_close(&db);
    }
    return result;
}

/* Climbs on a copy beside the file and gives it the file's name. The copy is read through a
 * connection of its own: SQLite does not back up a connection that is writing. */
static rf_result replace(const char *path, const char *const *steps, int version, rf_error *err)
{
    rfi_db from;
    char aside[RFI_DB_PATH + 16];
    rf_result result = rfi_db_open_any_version(&from, path, RFI_DB_READ, WAIT_MS, &version, err);
    if (result)
        return result;
    snprintf(aside, sizeof aside, "%s-migrate", path);
    unlink(aside); /* of somebody who was killed: this one has the lock */
    result = make_copy(from.handle, aside, steps, version, err);
    rfi_db_close(&from);
    if (result == RF_OK && rename(aside, path))
        result = rfi_fail(err, RF_E_DB, -1, "database", "%.300s: %s", path, strerror(errno));
    if (result)
        unlink(aside);
    return result;
}

rf_result rfi_db_migrate(const char *path, const char *const steps[RFI_DB_VERSION], int *from,
                         rf_error *err)
{
    rfi_db db;
    rf_result result = rfi_db_open_any_version(&db, path, RFI_DB_WRITE, WAIT_MS, from, err);
    if (result)
        return result;
    if (!rfi_db_can_climb(steps, *from))
        result = rfi_fail(
            err, RF_E_DB, -1, "database",
            "%.300s: there is no way from schema %d to schema %d; remove it to have one made", path,
            *from, RFI_DB_VERSION);
    if (result == RF_OK && *from < RFI_DB_VERSION) {
        result = rfi_db_begin(&db, WAIT_MS, err); /* nobody writes meanwhile */
        if (result == RF_OK) {
            result = rfi_db_moved(&db) /* this lock is none of the file that is there now */
                         ? rfi_db_fail(NULL, path, SQLITE_READONLY_DBMOVED, "migrate", err)
                         : replace(path, steps, *from, err);
            rfi_db_end(&db, RF_E_DB, NULL); /* nothing was changed in it */
        }
    }
    rfi_db_close(&db);
    return result;
}
