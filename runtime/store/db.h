/* One open database file, and what the parts of the SQLite store share. */
#ifndef RANKFOLD_DB_H
#define RANKFOLD_DB_H

#include <sqlite3.h>

#include "core/hash.h"
#include "store/store.h"

#define RFI_DB_APPLICATION 0x524B4644 /* 'RKFD' */
#define RFI_DB_VERSION     2

extern const char rfi_schema_sql[];

/* ---- statements, prepared on first use and kept: X(NAME, SQL) ---- */

#define RFI_DECISION_COLUMNS                                                                       \
    "SELECT v.name, d.variant_hash, d.grid, d.bucket_bytes, d.median_ns, d.env_fp, "               \
    "c.started_utc, d.baseline_median_ns, s.rows, s.hidden "                                       \
    "FROM decision d CROSS JOIN variant v ON v.variant_hash = d.variant_hash "                     \
    "CROSS JOIN campaign c ON c.campaign = d.campaign "                                            \
    "LEFT JOIN shape s ON s.campaign = d.campaign AND s.shape_no = d.shape_no "                    \
    "WHERE d.hw_fp = ?1 AND d.architecture = ?2 AND d.op = ?3 AND d.world = ?4 AND d.dtype = ?5 "  \
    "AND d.mode = ?6 AND d.admits = ?11 AND d.hidden = ?7 AND "

/* Of several environments one with the caller's transports, and of those the latest. ?12 may begin
 * anywhere in the text, and go to its end: the mark behind it. */
#define RFI_END_OF_ENV "\4"
#define RFI_BEST_ENV                                                                               \
    "(SELECT instr(e.env_text || '" RFI_END_OF_ENV                                                 \
    "', ?12) FROM environment e WHERE e.env_fp = d.env_fp) = 0, "                                  \
    "c.started_utc DESC, d.campaign DESC"

/* Measured over the caller's transports, or nobody said over which. */
#define RFI_LIKE_ENV                                                                               \
    "(SELECT instr(e.env_text || '" RFI_END_OF_ENV                                                 \
    "', ?12) OR NOT instr(e.env_text, 'transports=') FROM environment e "                          \
    "WHERE e.env_fp = d.env_fp)"

/* In this very environment, or in one with a grouping besides, which ?13 begins: NULL where that
 * matters. */
#define RFI_HERE_OR_GROUPED                                                                        \
    "(c.env_fp = ?9 OR EXISTS (SELECT 1 FROM environment e "                                       \
    "WHERE e.env_fp = c.env_fp AND instr(e.env_text, ?13) = 1))"

#define RFI_SHAPES_OF_HOST                                                                         \
    "FROM campaign c CROSS JOIN shape s ON s.campaign = c.campaign "                               \
    "WHERE c.hw_fp = ?1 AND c.architecture = ?2 AND s.op = ?3 AND s.world = ?4 AND s.dtype = ?5 "  \
    "AND s.mode = ?6 AND s.bucket_bytes = ?8 AND "

#define RFI_IS_SWEPT                                                                               \
    "EXISTS (SELECT 1 FROM sweep w WHERE w.campaign = s.campaign AND w.shape_no = s.shape_no)"

#define RFI_SQL_LIST(X)                                                                            \
    X(SAME_ENV, RFI_DECISION_COLUMNS "d.bucket_bytes = ?8 AND d.env_fp = ?9")                      \
    X(OTHER_ENV, RFI_DECISION_COLUMNS "d.bucket_bytes = ?8 AND d.env_fp <> ?9 "                    \
                                      "ORDER BY " RFI_BEST_ENV " LIMIT 1")                         \
    X(BELOW, RFI_DECISION_COLUMNS "d.bucket_bytes < ?8 AND " RFI_LIKE_ENV                          \
                                  " ORDER BY d.bucket_bytes DESC, "                                \
                                  "d.env_fp = ?9 DESC, " RFI_BEST_ENV " LIMIT 1")                  \
    X(ABOVE,                                                                                       \
      RFI_DECISION_COLUMNS "d.bucket_bytes > ?8 AND " RFI_LIKE_ENV " ORDER BY d.bucket_bytes, "    \
                           "d.env_fp = ?9 DESC, " RFI_BEST_ENV " LIMIT 1")                         \
    X(ENV_TEXT, "SELECT env_text FROM environment WHERE env_fp = ?1")                              \
    X(GENERATION, "SELECT generation FROM generation WHERE one = 1")                               \
    X(SWEPT, "SELECT c.admits " RFI_SHAPES_OF_HOST "s.hidden = ?7 AND " RFI_HERE_OR_GROUPED        \
             " AND s.rows = ?10 AND " RFI_IS_SWEPT)                                                \
    X(TRIALS_HERE, "SELECT s.campaign, s.shape_no, " RFI_IS_SWEPT ", c.admits " RFI_SHAPES_OF_HOST \
                   "s.hidden = ?7 AND c.env_fp = ?9 AND s.rows = ?10 "                             \
                   "ORDER BY c.started_utc DESC, c.campaign DESC")                                 \
    X(MEASURED, "SELECT outcome, samples, order_index, min_ns, p10_ns, median_ns, p90_ns, "        \
                "max_ns, noise_ns FROM measurement WHERE campaign = ?1 AND shape_no = ?2 AND "     \
                "variant_hash = ?3 AND grid = ?4 ORDER BY measurement_no DESC LIMIT 1")            \
    X(BEGIN_READ, "BEGIN")                                                                         \
    X(BEGIN, "BEGIN IMMEDIATE")                                                                    \
    X(COMMIT, "COMMIT")                                                                            \
    X(ROLLBACK, "ROLLBACK")                                                                        \
    X(ADD_HOST, "INSERT INTO host VALUES(?1, ?2) ON CONFLICT DO NOTHING")                          \
    X(ADD_ENVIRONMENT, "INSERT INTO environment VALUES(?1, ?2) ON CONFLICT DO NOTHING")            \
    X(ADD_VARIANT, "INSERT INTO variant VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, "     \
                   "?12, ?13, ?14) ON CONFLICT DO NOTHING")                                        \
    X(ADD_CAMPAIGN, "INSERT INTO campaign VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)")             \
    X(FIND_SHAPE, "SELECT shape_no FROM shape WHERE campaign = ?1 AND op = ?2 AND world = ?3 AND " \
                  "dtype = ?4 AND mode = ?5 AND rows = ?6 AND hidden = ?7 AND bucket_bytes = ?8")  \
    X(ADD_SHAPE, "INSERT INTO shape SELECT ?1, (SELECT coalesce(max(shape_no) + 1, 0) FROM shape " \
                 "WHERE campaign = ?1), ?2, ?3, ?4, ?5, ?6, ?7, ?8")                               \
    X(ADD_MEASUREMENT,                                                                             \
      "INSERT INTO measurement SELECT ?1, ?2, (SELECT coalesce(max(measurement_no) + 1, 0) "       \
      "FROM measurement WHERE campaign = ?1 AND shape_no = ?2), ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, " \
      "?11, ?12, ?13")                                                                             \
    X(ADD_SWEEP, "INSERT INTO sweep VALUES(?1, ?2, ?3) ON CONFLICT DO NOTHING")                    \
    X(ADD_FINISH, "INSERT INTO finish VALUES(?1, ?2)")                                             \
    X(TRIALS, "SELECT s.campaign, s.shape_no, c.env_fp, s.rows, s.hidden, c.admits, " RFI_IS_SWEPT \
              " " RFI_SHAPES_OF_HOST "(?7 = 0 OR s.hidden = ?7) "                                  \
              "ORDER BY c.started_utc, s.campaign, s.shape_no")                                    \
    X(CANDIDATES,                                                                                  \
      "SELECT v.name, m.variant_hash, m.grid, m.outcome, m.median_ns, m.noise_ns, "                \
      "v.flags FROM measurement m CROSS JOIN variant v ON v.variant_hash = m.variant_hash "        \
      "WHERE m.campaign = ?1 AND m.shape_no = ?2 AND (?3 <> 0 OR v.hidden = 0) "                   \
      "ORDER BY m.measurement_no")                                                                 \
    X(DECIDED, "SELECT env_fp, variant_hash, grid, median_ns, noise_ns, runner_up_hash, "          \
               "runner_up_grid, runner_up_median_ns, baseline_median_ns, campaign, shape_no "      \
               "FROM decision WHERE hw_fp = ?1 AND architecture = ?2 AND op = ?3 AND world = ?4 "  \
               "AND dtype = ?5 AND mode = ?6 AND admits = ?9 AND hidden = ?7 AND "                 \
               "bucket_bytes = ?8 ORDER BY env_fp")                                                \
    X(DROP_DECISIONS, "DELETE FROM decision WHERE hw_fp = ?1 AND architecture = ?2 AND op = ?3 "   \
                      "AND world = ?4 AND dtype = ?5 AND mode = ?6 AND admits = ?9 AND "           \
                      "hidden = ?7 AND bucket_bytes = ?8")                                         \
    X(ADD_DECISION, "INSERT INTO decision VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?9, ?7, ?8, ?10, ?11, "   \
                    "?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)")                                \
    X(BUMP_GENERATION, "UPDATE generation SET generation = generation + 1 WHERE one = 1")          \
    X(KEYS, "SELECT DISTINCT c.hw_fp, c.architecture, s.op, s.world, s.dtype, s.mode, s.hidden, "  \
            "s.bucket_bytes FROM campaign c JOIN shape s ON s.campaign = c.campaign")              \
    X(KEYS_ANY, "SELECT DISTINCT c.hw_fp, c.architecture, s.op, s.world, s.dtype, s.mode, 0, "     \
                "s.bucket_bytes FROM campaign c JOIN shape s ON s.campaign = c.campaign")

typedef enum rfi_sql {
#define RF_X(name, sql) RFI_SQL_##name,
    RFI_SQL_LIST(RF_X)
#undef RF_X
        RFI_SQL_COUNT
} rfi_sql;

/* The text of a statement, for EXPLAIN. */
const char *rfi_sql_text(rfi_sql name);

/* ---- the file ---- */

#define RFI_DB_PATH 480 /* longest path, with terminator: SQLite takes 512 with "-journal" */

typedef enum rfi_access {
    RFI_DB_READ,   /* may be written by others */
    RFI_DB_WRITE,  /* falls back to reading where the file is read-only */
    RFI_DB_SHIPPED /* nobody writes it: no locks, no journal */
} rfi_access;

/* A write beyond the limit to the size of files (RLIMIT_FSIZE) raises SIGXFSZ, which ends a process
 * that is not prepared. Wherever files are written the thread has it blocked instead, and fetches
 * the one that its own write left pending: the write is an error like others, and the process keeps
 * its handlers. */
typedef struct rfi_quiet {
    int was_blocked, was_pending;
} rfi_quiet;

typedef struct rfi_db {
    sqlite3 *handle; /* NULL = closed */
    rfi_quiet quiet; /* in a transaction */
    char path[RFI_DB_PATH];
    sqlite3_stmt *kept[RFI_SQL_COUNT];
} rfi_db;

/* Opens an existing database after checking that it is one, ours, of this version and schema, and
 * that nobody else could have written it. The file is never changed. wait_ms: for locks.
 * Errors: E_DB*; db->handle is NULL then. */
rf_result rfi_db_open(rfi_db *db, const char *path, rfi_access access, int wait_ms, rf_error *err);
/* The same for a file whose schema may be older: all but version and schema is checked. */
rf_result rfi_db_open_any_version(rfi_db *db, const char *path, rfi_access access, int wait_ms,
                                  int *version, rf_error *err);
/* Leaves an empty database at `path`, and its folder (0700) and file (0600) where there were none.
 * An empty file is as good as none: it is all that a failure leaves, or somebody who was killed,
 * once the next one has looked at it. Any other that exists is left alone, whatever it is. A link
 * that leads nowhere is an error, and so is a file that stays locked. */
rf_result rfi_db_create(const char *path, rf_error *err);
void rfi_db_close(rfi_db *db);
/* $RANKFOLD_DB, or the file in the user's state folder; empty on failure. */
rf_result rfi_db_default_path(char out[RFI_DB_PATH], rf_error *err);
/* Protections for a connection to a file that somebody else may have written. */
void rfi_db_protect(sqlite3 *handle);
/* Formats err from SQLite's last error on this connection: "PATH: DOING: MESSAGE". */
rf_result rfi_db_fail(sqlite3 *handle, const char *path, int rc, const char *doing, rf_error *err);

/* A kept statement, reset and unbound; NULL: see sqlite3_errcode. */
sqlite3_stmt *rfi_db_sql(rfi_db *db, rfi_sql name);
/* Runs it to the end of its first row: SQLITE_ROW, SQLITE_DONE or an error. */
int rfi_db_step(sqlite3_stmt *statement);
/* Binds text parameters ?first, ?first + 1 ...: `n` of them. */
void rfi_db_bind_texts(sqlite3_stmt *statement, int first, int n, const char *const *texts);

/* 1 = its name is gone, or is another file's by now. */
int rfi_db_moved(rfi_db *db);
/* One short write transaction. Waits up to wait_ms for other writers. On failure nothing is open.
 */
rf_result rfi_db_begin(rfi_db *db, int wait_ms, rf_error *err);
/* What is read from here on is of one state of the file, which nobody can write meanwhile. */
rf_result rfi_db_begin_read(rfi_db *db, rf_error *err);
/* Of both kinds, after a begin that did not fail: commits when result is RF_OK, else rolls back;
 * returns the result. */
rf_result rfi_db_end(rfi_db *db, rf_result result, rf_error *err);

/* 2026-11-29T21:57:45.123Z */
#define RFI_UTC 25
void rfi_utc_now(char out[RFI_UTC]);
/* 32 hex digits, lower case, nothing else: 1 = *out is filled. */
int rfi_unhex(const char *text, unsigned char out[16]);

/* ---- questions (query.c) ---- */

typedef void (*rfi_row_fn)(void *ctx, sqlite3_stmt *row);

/* Calls row for each row of a query; ?1, ?2 ... are bound to texts. It sees the views of this
 * build, whatever those in the file are. Errors: E_DB*. */
rf_result rfi_db_query(rfi_db *db, const char *sql, int n, const char *const *texts, rfi_row_fn row,
                       void *ctx, rf_error *err);

/* A column as text, "" for NULL; valid until the next step. */
const char *rfi_column(sqlite3_stmt *row, int column);

/* ---- measurements ---- */

#define RFI_NS_MOST 1e12 /* a longer call is no measurement */

/* The hash of RFI_BASELINE, as columns hold it. */
#define RFI_BASELINE_HASH "00000000000000000000000000000000"

/* ---- decisions ---- */

/* Key of decisions as the columns hold it; they differ in what is admitted and the environment. */
typedef struct rfi_decision_key {
    char hw[RFI_HEX], arch[64], op[16], dtype[16], mode[16];
    int64_t world, hidden, bucket;
} rfi_decision_key;

void rfi_db_bind_key(sqlite3_stmt *statement, const rfi_decision_key *key); /* ?1 to ?8 */

/* Folds the facts of one key, for every set of opt-ins. write: stores the outcome if it differs
 * from the rows that are there (inside the caller's transaction). *changed += 1 if it differs. */
rf_result rfi_decide(rfi_db *db, const rfi_decision_key *key, int write, uint64_t *changed,
                     rf_error *err);
/* All keys of the file. *rows = decisions that the facts give. */
rf_result rfi_decide_all(rfi_db *db, int write, uint64_t *changed, uint64_t *rows, rf_error *err);

#endif
