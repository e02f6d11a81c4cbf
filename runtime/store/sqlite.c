/* The store behind rf_store_open: a writable database over a shipped read-only one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/env.h"
#include "core/group.h"
#include "store/db.h"
#include "store/fold.h"
#include "store/ladder.h"
#include "store/names.h"

#define WAIT_READ_MS  1000  /* a lookup rather answers from the next rung */
#define WAIT_WRITE_MS 30000 /* a measurement is worth waiting for */

/* One file of the store. */
typedef struct layer {
    rfi_db db;
    rfi_access access;
    int impatient;  /* was locked a moment ago: don't wait for it again */
    rf_error error; /* why it does not answer; code RF_OK = it does */
} layer;

typedef struct sqlite_store {
    rf_store base;
    layer overlay, shipped;
    char warning[2 * RF_ERROR_TEXT + 16];
    uint32_t flags;
    /* the open campaign; campaign[0] == '\0': none */
    char campaign[RFI_HEX], arch[64];
    unsigned char hw[16], env[16];
    uint8_t admits;
} sqlite_store;

static sqlite_store *self(rf_store *s)
{
    return (sqlite_store *)s;
}

/* ---- trouble ---- */

static void warn(sqlite_store *s)
{
    const char *const lines[] = {s->overlay.error.code ? s->overlay.error.text : "",
                                 s->shipped.error.code ? s->shipped.error.text : ""};
    snprintf(s->warning, sizeof s->warning, "%s%s%s", lines[0], *lines[0] && *lines[1] ? "; " : "",
             lines[1]);
}

static rf_result open_layer(sqlite_store *s, layer *l, int wait_ms)
{
    char path[RFI_DB_PATH];
    memcpy(path, l->db.path, sizeof path);
    memset(&l->error, 0, sizeof l->error);
    rf_result result = rfi_db_open(&l->db, path, l->access, wait_ms, &l->error);
    if (result == RF_E_DB_READONLY && l->access == RFI_DB_WRITE) {
        l->error.code = RF_OK;
        result = rfi_db_open(&l->db, path, RFI_DB_READ, wait_ms, &l->error);
    }
    memcpy(l->db.path, path, sizeof path);
    warn(s);
    return result;
}

/* A statement of this layer failed: says so, and leaves a damaged file alone from now on. */
static void trouble(sqlite_store *s, layer *l)
{
    int rc = sqlite3_extended_errcode(l->db.handle);
    rf_result result = rfi_db_fail(l->db.handle, l->db.path, rc, "look up", &l->error);
    warn(s);
    if (result == RF_E_DB_LOCKED) {
        l->impatient = 1;
        sqlite3_busy_timeout(l->db.handle, 0); /* the other rungs of this lookup don't wait again */
    } else {
        rfi_db_close(&l->db);
    }
}

/* Can the layer be asked? A file that was locked when it was opened is tried again. */
static int ready(sqlite_store *s, layer *l)
{
    if (!l->db.handle) {
        if (l->error.code != RF_E_DB_LOCKED || open_layer(s, l, 0) != RF_OK)
            return 0;
    }
    sqlite3_busy_timeout(l->db.handle, l->impatient ? 0 : WAIT_READ_MS);
    return 1;
}

/* It answered after all. */
static void calm(sqlite_store *s, layer *l)
{
    if (!l->impatient)
        return;
    l->impatient = 0;
    l->error.code = RF_OK;
    warn(s);
}

/* ---- look up ---- */

typedef struct asked {
    sqlite_store *store;
    layer *layer;
} asked;

/* The line of the transports with its ends; for who sums by the grouping, whose line comes behind
 * if it has one (create.c), all from there to the end. "", where there is none, is in every text.
 */
static void bind_transports(sqlite3_stmt *statement, int at, const rfi_key *key)
{
    const char *line = strstr(key->env->text, "\ntransports=");
    if (!line)
        sqlite3_bind_text(statement, at, "", 0, SQLITE_STATIC);
    else if (key->admits & RF_VARIANT_REASSOC)
        sqlite3_bind_text(statement, at, sqlite3_mprintf("%s%s", line, RFI_END_OF_ENV), -1,
                          sqlite3_free);
    else
        sqlite3_bind_text(statement, at, line, (int)strcspn(line + 1, "\n") + 2, SQLITE_TRANSIENT);
}

/* How the text of this environment begins where a file groups the ranks (create.c), for whom that
 * is nothing. */
static void bind_grouped(sqlite3_stmt *statement, int at, const rfi_key *key)
{
    if (key->admits & RF_VARIANT_REASSOC)
        sqlite3_bind_null(statement, at);
    else
        sqlite3_bind_text(statement, at, sqlite3_mprintf("%sislands=", key->env->text), -1,
                          sqlite3_free);
}

/* ?1 hw, ?2 arch, ?3 op, ?4 world, ?5 dtype, ?6 mode, ?7 hidden, ?8 bucket, ?9 env, ?10 rows, ?11
 * admits, ?12 transports, ?13 grouped: as many as the statement has. 0 = a code that no database
 * can know. */
static int bind_key(sqlite3_stmt *statement, const rfi_key *key)
{
    char hw[RFI_HEX], env[RFI_HEX];
    const char *op = rfi_name(RFI_OPS, key->op), *dtype = rfi_name(RFI_DTYPES, key->dtype);
    const char *mode = rfi_name(RFI_MODES, key->mode), *admits = rfi_name(RFI_ADMITS, key->admits);
    if (!op || !dtype || !mode || !admits)
        return 0;
    rfi_hex(key->hw->hash, hw);
    rfi_hex(key->env->hash, env);
    rfi_db_bind_texts(statement, 1, 3, (const char *const[]){hw, key->arch, op});
    sqlite3_bind_int64(statement, 4, key->world);
    rfi_db_bind_texts(statement, 5, 2, (const char *const[]){dtype, mode});
    sqlite3_bind_int64(statement, 7, (sqlite3_int64)key->hidden);
    sqlite3_bind_int64(statement, 8, (sqlite3_int64)rfi_bucket(key->bytes));
    rfi_db_bind_texts(statement, 9, 1, (const char *const[]){env});
    if (sqlite3_bind_parameter_count(statement) >= 10)
        sqlite3_bind_int64(statement, 10, (sqlite3_int64)key->rows);
    if (sqlite3_bind_parameter_count(statement) >= 11)
        rfi_db_bind_texts(statement, 11, 1, &admits);
    if (sqlite3_bind_parameter_count(statement) >= 12)
        bind_transports(statement, 12, key);
    if (sqlite3_bind_parameter_count(statement) >= 13)
        bind_grouped(statement, 13, key);
    return 1;
}

static int read_row(sqlite3_stmt *statement, rfi_row *out)
{
    const char *name = (const char *)sqlite3_column_text(statement, 0);
    const char *hash = (const char *)sqlite3_column_text(statement, 1);
    sqlite3_int64 grid = sqlite3_column_int64(statement, 2);
    sqlite3_int64 bucket = sqlite3_column_int64(statement, 3);
    const char *env = (const char *)sqlite3_column_text(statement, 5);
    const char *day = (const char *)sqlite3_column_text(statement, 6);
    memset(out, 0, sizeof *out);
    if (!name || !*name || strlen(name) >= sizeof out->variant || !rfi_unhex(hash, out->hash) ||
        !rfi_unhex(env, out->env) || grid < 0 || grid > UINT32_MAX || bucket < 64)
        return 0; /* not written by us: as good as no row */
    snprintf(out->variant, sizeof out->variant, "%s", name);
    snprintf(out->day, sizeof out->day, "%.10s", day ? day : "");
    out->grid = (uint32_t)grid;
    out->bucket = (uint64_t)bucket;
    out->median_ns = sqlite3_column_double(statement, 4);
    out->baseline_ns = sqlite3_column_double(statement, 7); /* NULL = 0 */
    sqlite3_int64 rows = sqlite3_column_int64(statement, 8);
    sqlite3_int64 hidden = sqlite3_column_int64(statement, 9);
    if (rows > 0 && hidden > 0) {
        out->measured_rows = (uint64_t)rows;
        out->measured_hidden = (uint64_t)hidden;
    }
    return 1;
}

/* Runs a kept statement to its first row. 1 = there is one; the caller resets. */
static int first_row(asked *a, sqlite3_stmt *statement)
{
    int rc = rfi_db_step(statement);
    if (rc == SQLITE_ROW)
        return 1;
    if (statement)
        sqlite3_reset(statement);
    if (rc != SQLITE_DONE)
        trouble(a->store, a->layer);
    return 0;
}

static int fetch(void *ctx, const rfi_key *key, rfi_pick pick, rfi_row *out)
{
    static const rfi_sql by_pick[] = {[RFI_SAME_ENV] = RFI_SQL_SAME_ENV,
                                      [RFI_OTHER_ENV] = RFI_SQL_OTHER_ENV,
                                      [RFI_BELOW] = RFI_SQL_BELOW,
                                      [RFI_ABOVE] = RFI_SQL_ABOVE};
    asked *a = ctx;
    if (!a->layer->db.handle)
        return 0; /* it broke on the way */
    sqlite3_stmt *statement = rfi_db_sql(&a->layer->db, by_pick[pick]);
    if (statement && !bind_key(statement, key))
        return 0;
    if (!first_row(a, statement))
        return 0;
    int found = read_row(statement, out);
    sqlite3_reset(statement);
    return found;
}

static const char *env_text(void *ctx, const unsigned char env[16])
{
    asked *a = ctx;
    char hex[RFI_HEX];
    rfi_hex(env, hex);
    sqlite3_stmt *statement =
        a->layer->db.handle ? rfi_db_sql(&a->layer->db, RFI_SQL_ENV_TEXT) : NULL;
    if (!statement)
        return NULL;
    rfi_db_bind_texts(statement, 1, 1, (const char *const[]){hex});
    /* Not reset here: the text belongs to the row until close_read. */
    return first_row(a, statement) ? (const char *)sqlite3_column_text(statement, 0) : NULL;
}

/* One lookup is one read transaction: a single trip to the lock, one state of the file. */
static void open_read(layer *l)
{
    sqlite3_stmt *statement = rfi_db_sql(&l->db, RFI_SQL_BEGIN_READ);
    if (rfi_db_step(statement) == SQLITE_DONE)
        sqlite3_reset(statement);
}

static void close_read(layer *l)
{
    if (!l->db.handle)
        return;
    if (l->db.kept[RFI_SQL_ENV_TEXT])
        sqlite3_reset(l->db.kept[RFI_SQL_ENV_TEXT]);
    sqlite3_stmt *statement = rfi_db_sql(&l->db, RFI_SQL_ROLLBACK);
    if (rfi_db_step(statement) == SQLITE_DONE)
        sqlite3_reset(statement);
}

static int lookup(rf_store *base, const rfi_key *key, rfi_have_fn have, void *ctx,
                  rfi_decision *out)
{
    sqlite_store *s = self(base);
    layer *const layers[] = {&s->overlay, &s->shipped};
    for (size_t i = 0; i < 2; i++) {
        asked a = {s, layers[i]};
        rfi_source source = {&a, fetch, env_text, i == 1};
        if (!ready(s, layers[i]))
            continue;
        rf_result before = layers[i]->error.code;
        layers[i]->error.code = RF_OK;
        open_read(layers[i]);
        int found = rfi_ladder(&source, key, have, ctx, out);
        close_read(layers[i]);
        if (layers[i]->error.code == RF_OK) {
            layers[i]->error.code = before;
            calm(s, layers[i]);
        }
        if (found)
            return 1;
    }
    rfi_ladder_missed(key, out);
    return 0;
}

static int swept(rf_store *base, const rfi_key *key)
{
    sqlite_store *s = self(base);
    asked a = {s, &s->overlay};
    if (!ready(s, &s->overlay))
        return 0;
    sqlite3_stmt *sweeps = rfi_db_sql(&s->overlay.db, RFI_SQL_SWEPT);
    if (sweeps && !bind_key(sweeps, key))
        return 0;
    int found = 0;
    while (!found && first_row(&a, sweeps)) {
        int admits = rfi_name_code(RFI_ADMITS, (const char *)sqlite3_column_text(sweeps, 0));
        found = admits >= 0 && !(key->admits & ~admits);
    }
    if (found)
        sqlite3_reset(sweeps);
    return found;
}

static double column_ns(sqlite3_stmt *statement, int column)
{
    return sqlite3_column_double(statement, column); /* NULL = 0 */
}

static int measured_in(asked *a, const char *campaign, sqlite3_int64 shape_no,
                       const rf_variant *variant, uint32_t grid, rfi_measurement *out)
{
    char hash[RFI_HEX] = RFI_BASELINE_HASH;
    if (variant)
        rfi_hex(variant->hash, hash);
    sqlite3_stmt *statement = rfi_db_sql(&a->layer->db, RFI_SQL_MEASURED);
    if (statement) {
        rfi_db_bind_texts(statement, 1, 1, (const char *const[]){campaign});
        sqlite3_bind_int64(statement, 2, shape_no);
        rfi_db_bind_texts(statement, 3, 1, (const char *const[]){hash});
        sqlite3_bind_int64(statement, 4, grid);
    }
    if (!first_row(a, statement))
        return 0;
    int outcome = rfi_name_code(RFI_OUTCOMES, (const char *)sqlite3_column_text(statement, 0));
    if (outcome >= 0) {
        out->variant = variant;
        out->grid = grid;
        out->outcome = (rfi_outcome)outcome;
        out->n = (uint32_t)sqlite3_column_int64(statement, 1);
        out->order_index = (uint32_t)sqlite3_column_int64(statement, 2);
        out->min_ns = column_ns(statement, 3);
        out->p10_ns = column_ns(statement, 4);
        out->median_ns = column_ns(statement, 5);
        out->p90_ns = column_ns(statement, 6);
        out->max_ns = column_ns(statement, 7);
        out->noise_ns = column_ns(statement, 8);
    }
    sqlite3_reset(statement);
    return outcome >= 0;
}

/* What a campaign admitted, if its trial (a row of TRIALS_HERE) is a complete sweep; else -1. */
static int swept_with(sqlite3_stmt *trial)
{
    return sqlite3_column_int(trial, 2)
               ? rfi_name_code(RFI_ADMITS, (const char *)sqlite3_column_text(trial, 3))
               : -1;
}

static int measured(rf_store *base, const rfi_key *key, const rf_variant *variant, uint32_t grid,
                    rfi_measurement *out)
{
    sqlite_store *s = self(base);
    asked a = {s, &s->overlay};
    if (!ready(s, &s->overlay))
        return 0;
    sqlite3_stmt *trials = rfi_db_sql(&s->overlay.db, RFI_SQL_TRIALS_HERE);
    if (!trials || !bind_key(trials, key))
        return 0;
    const unsigned flags = variant ? variant->flags : 0;
    unsigned looked = 0;
    rfi_settles(&looked, flags, key->admits); /* the sweep to come */
    int found = 0;
    while (!found && first_row(&a, trials)) {
        const char *campaign = (const char *)sqlite3_column_text(trials, 0);
        int admits = swept_with(trials);
        if (admits >= 0 && rfi_settles(&looked, flags, (unsigned)admits))
            break;
        found = measured_in(&a, campaign, sqlite3_column_int64(trials, 1), variant, grid, out);
        if (!s->overlay.db.handle)
            break;
    }
    if (!s->overlay.db.handle)
        return 0; /* it broke, and its statements are gone */
    sqlite3_reset(trials);
    if (found)
        out->key = *key;
    return found;
}

static uint64_t generation(rf_store *base)
{
    sqlite_store *s = self(base);
    layer *const layers[] = {&s->overlay, &s->shipped};
    uint64_t sum = 0;
    for (size_t i = 0; i < 2; i++) {
        asked a = {s, layers[i]};
        if (!ready(s, layers[i]))
            continue;
        sqlite3_stmt *statement = rfi_db_sql(&layers[i]->db, RFI_SQL_GENERATION);
        if (!first_row(&a, statement))
            continue;
        sum += (uint64_t)sqlite3_column_int64(statement, 0);
        sqlite3_reset(statement);
    }
    return sum;
}

static const char *warning(const rf_store *base)
{
    const sqlite_store *s = (const sqlite_store *)base;
    return s->warning[0] ? s->warning : NULL;
}

/* ---- write ---- */

static rf_result statement_fail(sqlite_store *s, const char *doing, rf_error *err)
{
    rfi_db *db = &s->overlay.db;
    return rfi_db_fail(db->handle, db->path, sqlite3_extended_errcode(db->handle), doing, err);
}

/* Runs a kept statement whose parameters are bound. */
static rf_result execute(sqlite_store *s, sqlite3_stmt *statement, const char *doing, rf_error *err)
{
    int rc = rfi_db_step(statement);
    rf_result result =
        rc == SQLITE_DONE || rc == SQLITE_ROW ? RF_OK : statement_fail(s, doing, err);
    if (statement)
        sqlite3_reset(statement);
    return result;
}

static rf_result add_texts(sqlite_store *s, rfi_sql name, const char *doing, int n,
                           const char *const *texts, rf_error *err)
{
    sqlite3_stmt *statement = rfi_db_sql(&s->overlay.db, name);
    rfi_db_bind_texts(statement, 1, n, texts);
    return execute(s, statement, doing, err);
}

/* The overlay, open for writing: made if there is none. */
static rf_result writable(sqlite_store *s, rf_error *err)
{
    layer *l = &s->overlay;
    if (s->flags & RF_STORE_READ)
        return rfi_fail(err, RF_E_DB_READONLY, -1, "database", "the store was opened for reading");
    if (l->db.handle && rfi_db_moved(&l->db))
        rfi_db_close(&l->db); /* to be opened, or made, anew */
    if (!l->db.path[0])       /* there is no place for it */
        return rfi_fail(err, l->error.code, -1, "database", "%s", l->error.text);
    if (!l->db.handle) {
        rf_result result = l->error.code == RF_OK || l->error.code == RF_E_DB_ABSENT
                               ? rfi_db_create(l->db.path, err)
                               : RF_OK;
        if (result)
            return result;
        if (open_layer(s, l, WAIT_WRITE_MS) != RF_OK)
            return rfi_fail(err, l->error.code, -1, "database", "%s", l->error.text);
    }
    if (sqlite3_db_readonly(l->db.handle, "main"))
        return rfi_fail(err, RF_E_DB_READONLY, -1, "database", "%.300s: cannot be written",
                        l->db.path);
    return RF_OK;
}

static int is_hash_of(const rfi_fingerprint *fp)
{
    unsigned char hash[16];
    if (!fp || !fp->text)
        return 0;
    rfi_hash128(fp->text, strlen(fp->text), hash);
    return !memcmp(hash, fp->hash, 16);
}

static rf_result begin(rf_store *base, const rfi_campaign *c, rf_error *err)
{
    sqlite_store *s = self(base);
    unsigned char id[16];
    char campaign[RFI_HEX], hw[RFI_HEX], env[RFI_HEX], now[RFI_UTC];
    s->campaign[0] = '\0'; /* what an error cut short stays open in the file, as if killed */
    if (!is_hash_of(c->hw) || !is_hash_of(c->env))
        return rfi_fail(err, RF_E_ARG, -1, "database", "a fingerprint is not the hash of its text");
    const char *admits = rfi_name(RFI_ADMITS, c->admits);
    if (!c->arch || strlen(c->arch) >= sizeof s->arch || !admits || !c->tool || !c->toolchain ||
        !c->policy)
        return rfi_fail(err, RF_E_ARG, -1, "database", "a fact of the campaign is missing");
    if (getrandom(id, sizeof id, 0) != sizeof id)
        return rfi_fail(err, RF_E_SYSTEM, -1, "database", "no random number for the campaign");
    rf_result result = writable(s, err);
    if (result)
        return result;

    rfi_hex(id, campaign);
    rfi_hex(c->hw->hash, hw);
    rfi_hex(c->env->hash, env);
    rfi_utc_now(now);
    if ((result = rfi_db_begin(&s->overlay.db, WAIT_WRITE_MS, err)))
        return result;
    result = add_texts(s, RFI_SQL_ADD_HOST, "add the host", 2,
                       (const char *const[]){hw, c->hw->text}, err);
    if (result == RF_OK)
        result = add_texts(s, RFI_SQL_ADD_ENVIRONMENT, "add the environment", 2,
                           (const char *const[]){env, c->env->text}, err);
    if (result == RF_OK)
        result = add_texts(s, RFI_SQL_ADD_CAMPAIGN, "add the campaign", 9,
                           (const char *const[]){campaign, now, hw, env, c->arch, admits, c->tool,
                                                 c->toolchain, c->policy},
                           err);
    result = rfi_db_end(&s->overlay.db, result, err);
    if (result)
        return result;
    memcpy(s->campaign, campaign, sizeof s->campaign);
    memcpy(s->hw, c->hw->hash, 16);
    memcpy(s->env, c->env->hash, 16);
    s->admits = c->admits;
    snprintf(s->arch, sizeof s->arch, "%s", c->arch);
    return RF_OK;
}

/* Does the key belong to the open campaign, and can it be stored? */
static rf_result check_key(const sqlite_store *s, const rfi_key *key, rf_error *err)
{
    if (!s->campaign[0])
        return rfi_fail(err, RF_E_ARG, -1, "database", "no campaign is open");
    if (memcmp(key->hw->hash, s->hw, 16) || memcmp(key->env->hash, s->env, 16) ||
        strcmp(key->arch, s->arch) || key->admits != s->admits)
        return rfi_fail(err, RF_E_ARG, -1, "database",
                        "the key is of another host, environment, architecture or set of opt-ins "
                        "than the campaign");
    if (!rfi_name(RFI_OPS, key->op) || !rfi_name(RFI_DTYPES, key->dtype) ||
        !rfi_name(RFI_MODES, key->mode) || !key->rows || !key->hidden || key->rows > INT64_MAX ||
        key->hidden > INT64_MAX)
        return rfi_fail(err, RF_E_ARG, -1, "database", "a key that cannot be");
    return RF_OK;
}

/* Number of the key's shape in the open campaign; it is added if it is new. */
static rf_result shape_number(sqlite_store *s, const rfi_key *key, sqlite3_int64 *out,
                              rf_error *err)
{
    static const rfi_sql steps[] = {RFI_SQL_FIND_SHAPE, RFI_SQL_ADD_SHAPE, RFI_SQL_FIND_SHAPE};
    for (size_t i = 0; i < 3; i++) {
        sqlite3_stmt *statement = rfi_db_sql(&s->overlay.db, steps[i]);
        rfi_db_bind_texts(statement, 1, 2,
                          (const char *const[]){s->campaign, rfi_name(RFI_OPS, key->op)});
        sqlite3_bind_int64(statement, 3, key->world);
        rfi_db_bind_texts(statement, 4, 2,
                          (const char *const[]){rfi_name(RFI_DTYPES, key->dtype),
                                                rfi_name(RFI_MODES, key->mode)});
        sqlite3_bind_int64(statement, 6, (sqlite3_int64)key->rows);
        sqlite3_bind_int64(statement, 7, (sqlite3_int64)key->hidden);
        sqlite3_bind_int64(statement, 8, (sqlite3_int64)rfi_bucket(key->bytes));
        int rc = rfi_db_step(statement);
        if (rc == SQLITE_ROW)
            *out = sqlite3_column_int64(statement, 0);
        rf_result result =
            rc == SQLITE_ROW || rc == SQLITE_DONE ? RF_OK : statement_fail(s, "add a shape", err);
        if (statement)
            sqlite3_reset(statement);
        if (result || rc == SQLITE_ROW)
            return result;
    }
    return rfi_fail(err, RF_E_DB, -1, "database", "%.300s: a shape was not stored",
                    s->overlay.db.path);
}

static rf_result add_variant(sqlite_store *s, const rf_variant *v, const char *hash, rf_error *err)
{
    static const rf_variant none; /* the baseline has no parameters */
    const char *const texts[] = {
        v ? rfi_name(RFI_OPS, v->op) : "-",      v ? rfi_name(RFI_DTYPES, v->dtype) : "-",
        v ? rfi_name(RFI_ALGOS, v->algo) : "-",  v ? rfi_name(RFI_TRANSPORTS, v->transport) : "-",
        v ? rfi_name(RFI_WIRES, v->wire) : "-",  v ? rfi_name(RFI_ISAS, v->isa) : "-",
        v ? rfi_name(RFI_COPIES, v->copy) : "-",
    };
    const char *name = v ? v->name : RFI_BASELINE;
    if (!v)
        v = &none;
    sqlite3_stmt *statement = rfi_db_sql(&s->overlay.db, RFI_SQL_ADD_VARIANT);
    rfi_db_bind_texts(statement, 1, 3, (const char *const[]){hash, name, texts[0]});
    sqlite3_bind_int64(statement, 4, v->world);
    rfi_db_bind_texts(statement, 5, 1, &texts[1]);
    sqlite3_bind_int64(statement, 6, v->hidden);
    rfi_db_bind_texts(statement, 7, 5, &texts[2]);
    sqlite3_bind_int64(statement, 12, v->threads);
    sqlite3_bind_int64(statement, 13, v->unroll);
    sqlite3_bind_int64(statement, 14, v->flags);
    return execute(s, statement, "add a variant", err);
}

/* To the picosecond, which text keeps exactly; a time that is none is NULL. */
static void bind_ns(sqlite3_stmt *statement, int at, rfi_outcome outcome, double ns)
{
    if (outcome == RFI_OK && ns >= 0 && ns <= RFI_NS_MOST)
        sqlite3_bind_double(statement, at, (double)(int64_t)(ns * 1000 + 0.5) / 1000);
    else
        sqlite3_bind_null(statement, at);
}

static rf_result add_measurement(sqlite_store *s, const rfi_measurement *m, rf_error *err)
{
    char hash[RFI_HEX] = RFI_BASELINE_HASH;
    sqlite3_int64 shape_no = 0;
    const char *outcome = rfi_name(RFI_OUTCOMES, m->outcome);
    rf_result result = check_key(s, &m->key, err);
    if (result)
        return result;
    if (!outcome || (m->outcome == RFI_OK && !(m->median_ns > 0 && m->median_ns <= RFI_NS_MOST)))
        return rfi_fail(err, RF_E_ARG, -1, "database", "a measurement of %g ns with outcome %d",
                        m->median_ns, (int)m->outcome);
    if (m->variant)
        rfi_hex(m->variant->hash, hash);
    if ((result = shape_number(s, &m->key, &shape_no, err)) ||
        (result = add_variant(s, m->variant, hash, err)))
        return result;

    const double times[] = {m->min_ns, m->p10_ns, m->median_ns, m->p90_ns, m->max_ns, m->noise_ns};
    sqlite3_stmt *statement = rfi_db_sql(&s->overlay.db, RFI_SQL_ADD_MEASUREMENT);
    if (statement) {
        rfi_db_bind_texts(statement, 1, 1, (const char *const[]){s->campaign});
        sqlite3_bind_int64(statement, 2, shape_no);
        rfi_db_bind_texts(statement, 3, 1, (const char *const[]){hash});
        sqlite3_bind_int64(statement, 4, m->grid);
        rfi_db_bind_texts(statement, 5, 1, &outcome);
        sqlite3_bind_int64(statement, 6, m->n);
        sqlite3_bind_int64(statement, 7, m->order_index);
        for (int i = 0; i < 6; i++)
            bind_ns(statement, 8 + i, m->outcome, times[i]);
    }
    return execute(s, statement, "add a measurement", err);
}

static rf_result decide_shape(sqlite_store *s, const rfi_key *key, rf_error *err)
{
    rfi_decision_key d = {.world = key->world, .bucket = (int64_t)rfi_bucket(key->bytes)};
    rfi_hex(key->hw->hash, d.hw);
    snprintf(d.arch, sizeof d.arch, "%s", key->arch);
    snprintf(d.op, sizeof d.op, "%s", rfi_name(RFI_OPS, key->op));
    snprintf(d.dtype, sizeof d.dtype, "%s", rfi_name(RFI_DTYPES, key->dtype));
    snprintf(d.mode, sizeof d.mode, "%s", rfi_name(RFI_MODES, key->mode));

    const uint64_t hidden[] = {key->hidden, 0};
    uint64_t changed = 0;
    rf_result result = RF_OK;
    for (size_t i = 0; i < 2 && result == RF_OK; i++) {
        d.hidden = (int64_t)hidden[i];
        result = rfi_decide(&s->overlay.db, &d, 1, &changed, err);
    }
    return result;
}

static int same_shape(const rfi_key *a, const rfi_key *b)
{
    return a->op == b->op && a->world == b->world && a->dtype == b->dtype && a->mode == b->mode &&
           a->rows == b->rows && a->hidden == b->hidden;
}

/* A measurement that comes after a sweep of its shape may belong to what that sweep is judged by:
 * it is late in this campaign, or another tuner, begun later, was done first. */
static rf_result decide_if_swept(sqlite_store *s, const rfi_key *key, rf_error *err)
{
    sqlite3_stmt *statement = rfi_db_sql(&s->overlay.db, RFI_SQL_SWEPT);
    int rc = statement && bind_key(statement, key) ? sqlite3_step(statement) : SQLITE_ERROR;
    if (statement)
        sqlite3_reset(statement);
    if (rc == SQLITE_ROW)
        return decide_shape(s, key, err);
    return rc == SQLITE_DONE ? RF_OK : statement_fail(s, "add a measurement", err);
}

static rf_result record(rf_store *base, const rfi_measurement *m, size_t n, rf_error *err)
{
    sqlite_store *s = self(base);
    if (!s->campaign[0])
        return rfi_fail(err, RF_E_ARG, -1, "database", "no campaign is open");
    rf_result result = rfi_db_begin(&s->overlay.db, WAIT_WRITE_MS, err);
    if (result)
        return result;
    for (size_t i = 0; i < n && result == RF_OK; i++) {
        result = add_measurement(s, &m[i], err);
        int last = i + 1 == n || !same_shape(&m[i].key, &m[i + 1].key);
        if (result == RF_OK && last)
            result = decide_if_swept(s, &m[i].key, err);
    }
    return rfi_db_end(&s->overlay.db, result, err);
}

static rf_result finish_shape(rf_store *base, const rfi_key *key, rf_error *err)
{
    sqlite_store *s = self(base);
    sqlite3_int64 shape_no = 0;
    char now[RFI_UTC];
    rf_result result = check_key(s, key, err);
    if (result || (result = rfi_db_begin(&s->overlay.db, WAIT_WRITE_MS, err)))
        return result;
    rfi_utc_now(now);
    result = shape_number(s, key, &shape_no, err);
    if (result == RF_OK) {
        sqlite3_stmt *statement = rfi_db_sql(&s->overlay.db, RFI_SQL_ADD_SWEEP);
        rfi_db_bind_texts(statement, 1, 1, (const char *const[]){s->campaign});
        sqlite3_bind_int64(statement, 2, shape_no);
        rfi_db_bind_texts(statement, 3, 1, (const char *const[]){now});
        result = execute(s, statement, "finish a shape", err);
    }
    if (result == RF_OK)
        result = decide_shape(s, key, err);
    return rfi_db_end(&s->overlay.db, result, err);
}

static rf_result end(rf_store *base, rf_error *err)
{
    sqlite_store *s = self(base);
    if (!s->campaign[0])
        return rfi_fail(err, RF_E_ARG, -1, "database", "no campaign is open");
    rf_result result = rfi_db_begin(&s->overlay.db, WAIT_WRITE_MS, err);
    if (result == RF_OK) {
        char now[RFI_UTC];
        rfi_utc_now(now);
        result = add_texts(s, RFI_SQL_ADD_FINISH, "finish the campaign", 2,
                           (const char *const[]){s->campaign, now}, err);
        result = rfi_db_end(&s->overlay.db, result, err);
    }
    s->campaign[0] = '\0'; /* after an error too: it stays open in the file, as if killed */
    return result;
}

static void close_store(rf_store *base)
{
    sqlite_store *s = self(base);
    rfi_db_close(&s->overlay.db);
    rfi_db_close(&s->shipped.db);
    free(s);
}

static const rfi_store_vtable vtable = {
    .lookup = lookup,
    .swept = swept,
    .measured = measured,
    .begin = begin,
    .record = record,
    .finish_shape = finish_shape,
    .end = end,
    .generation = generation,
    .warning = warning,
    .close = close_store,
};

/* ---- open ---- */

static void set_path(layer *l, const char *path)
{
    if (!*path)
        rfi_fail(&l->error, RF_E_DB, -1, "database", "the path is empty");
    else if (strlen(path) < sizeof l->db.path)
        memcpy(l->db.path, path, strlen(path) + 1);
    else
        rfi_fail(&l->error, RF_E_DB, -1, "database", "path is longer than %d bytes: %.60s...",
                 RFI_DB_PATH - 1, path);
}

rf_result rf_store_open(const char *path, const char *shipped, uint32_t flags, rf_store **out,
                        rf_error *err)
{
    if (!out)
        return rfi_fail(err, RF_E_ARG, -1, "database", "rf_store_open: out is NULL");
    if (flags & ~RF_STORE_READ)
        return rfi_fail(err, RF_E_ARG, -1, "database",
                        "rf_store_open: flags are 0x%x, expected 0 or RF_STORE_READ", flags);
    sqlite_store *s = calloc(1, sizeof *s);
    if (!s)
        return rfi_fail(err, RF_E_MEMORY, -1, "database", "out of memory");
    s->base.v = &vtable;
    s->flags = flags;
    s->overlay.access = flags & RF_STORE_READ ? RFI_DB_READ : RFI_DB_WRITE;
    s->shipped.access = RFI_DB_SHIPPED;

    int asked_for = path || rfi_env_get(RFI_RANKFOLD_DB);
    if (path)
        set_path(&s->overlay, path);
    else
        rfi_db_default_path(s->overlay.db.path, &s->overlay.error);
    if (s->overlay.error.code == RF_OK &&
        open_layer(s, &s->overlay, WAIT_READ_MS) == RF_E_DB_ABSENT)
        /* Nothing measured yet is no trouble, unless a file was named to be read. */
        if (!asked_for || !(flags & RF_STORE_READ))
            s->overlay.error.code = RF_OK;
    if (shipped) {
        set_path(&s->shipped, shipped);
        if (s->shipped.error.code == RF_OK)
            open_layer(s, &s->shipped, 0);
    }
    warn(s);
    *out = &s->base;
    return RF_OK;
}
