/* Facts in, decisions out: feeds the fold (fold.h) from a database and stores what it says. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/group.h"
#include "store/db.h"
#include "store/fold.h"
#include "store/names.h"

/* A row of `decision` without its key, padded with zeros so that rows compare as bytes. */
typedef struct decided {
    char env[RFI_HEX], variant[RFI_HEX], runner_up[RFI_HEX], campaign[RFI_HEX];
    int64_t grid, runner_up_grid, shape_no;
    double median_ns, noise_ns, runner_up_median_ns;
    double baseline_median_ns; /* 0 = NULL */
} decided;

typedef struct facts {
    rfi_trial *trials;
    rfi_candidate *candidates;
    size_t n_trials, n_candidates, trial_room, candidate_room;
} facts;

static void copy_text(char *out, size_t size, sqlite3_stmt *statement, int column)
{
    const char *text = (const char *)sqlite3_column_text(statement, column);
    size_t length = text ? strlen(text) : 0;
    if (length >= size)
        length = size - 1;
    memcpy(out, text ? text : "", length);
    out[length] = '\0';
}

/* Room for one more; 0 = out of memory. */
static int grow(void **array, size_t n, size_t *room, size_t size)
{
    if (n < *room)
        return 1;
    size_t wanted = *room ? *room * 2 : 64;
    void *larger = realloc(*array, wanted * size);
    if (!larger)
        return 0;
    *array = larger;
    *room = wanted;
    return 1;
}

void rfi_db_bind_key(sqlite3_stmt *statement, const rfi_decision_key *key)
{
    rfi_db_bind_texts(statement, 1, 3, (const char *const[]){key->hw, key->arch, key->op});
    rfi_db_bind_texts(statement, 5, 2, (const char *const[]){key->dtype, key->mode});
    sqlite3_bind_int64(statement, 4, key->world);
    sqlite3_bind_int64(statement, 7, key->hidden);
    sqlite3_bind_int64(statement, 8, key->bucket);
}

static int load_candidates(rfi_db *db, const rfi_decision_key *key, rfi_trial *trial, facts *f)
{
    sqlite3_stmt *statement = rfi_db_sql(db, RFI_SQL_CANDIDATES);
    if (!statement)
        return sqlite3_errcode(db->handle);
    rfi_db_bind_texts(statement, 1, 1, (const char *const[]){trial->campaign});
    sqlite3_bind_int64(statement, 2, trial->shape_no);
    sqlite3_bind_int64(statement, 3, key->hidden);
    trial->first = f->n_candidates;
    int rc;
    while ((rc = sqlite3_step(statement)) == SQLITE_ROW) {
        if (!grow((void **)&f->candidates, f->n_candidates, &f->candidate_room,
                  sizeof *f->candidates))
            return SQLITE_NOMEM;
        rfi_candidate *c = &f->candidates[f->n_candidates];
        memset(c, 0, sizeof *c);
        copy_text(c->name, sizeof c->name, statement, 0);
        int outcome = rfi_name_code(RFI_OUTCOMES, (const char *)sqlite3_column_text(statement, 3));
        if (!rfi_unhex((const char *)sqlite3_column_text(statement, 1), c->hash) || outcome < 0)
            return SQLITE_CORRUPT;
        c->grid = (uint32_t)sqlite3_column_int64(statement, 2);
        c->outcome = (rfi_outcome)outcome;
        c->median_ns = sqlite3_column_double(statement, 4);
        c->noise_ns = sqlite3_column_double(statement, 5);
        sqlite3_int64 flags = sqlite3_column_int64(statement, 6);
        c->flags = flags >= 0 && flags <= RFI_OPT_INS ? (unsigned)flags : UINT32_MAX; /* nobody's */
        f->n_candidates++;
    }
    trial->count = f->n_candidates - trial->first;
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int load(rfi_db *db, const rfi_decision_key *key, facts *f)
{
    sqlite3_stmt *statement = rfi_db_sql(db, RFI_SQL_TRIALS);
    if (!statement)
        return sqlite3_errcode(db->handle);
    rfi_db_bind_key(statement, key);
    int rc;
    while ((rc = sqlite3_step(statement)) == SQLITE_ROW) {
        if (!grow((void **)&f->trials, f->n_trials, &f->trial_room, sizeof *f->trials))
            return SQLITE_NOMEM;
        rfi_trial *t = &f->trials[f->n_trials++];
        memset(t, 0, sizeof *t);
        copy_text(t->campaign, sizeof t->campaign, statement, 0);
        t->shape_no = (uint32_t)sqlite3_column_int64(statement, 1);
        copy_text(t->env, sizeof t->env, statement, 2);
        t->rows = (uint64_t)sqlite3_column_int64(statement, 3);
        t->hidden = (uint64_t)sqlite3_column_int64(statement, 4);
        int admits = rfi_name_code(RFI_ADMITS, (const char *)sqlite3_column_text(statement, 5));
        if (admits < 0)
            return SQLITE_CORRUPT;
        t->admits = (unsigned)admits;
        t->swept = sqlite3_column_int(statement, 6);
    }
    if (rc != SQLITE_DONE)
        return rc;
    for (size_t t = 0; t < f->n_trials; t++)
        if ((rc = load_candidates(db, key, &f->trials[t], f)))
            return rc;
    return SQLITE_OK;
}

static void describe(const facts *f, const rfi_choice *choice, decided *out)
{
    const rfi_trial *trial = &f->trials[choice->trial];
    memset(out, 0, sizeof *out);
    memcpy(out->env, trial->env, sizeof out->env);
    memcpy(out->campaign, trial->campaign, sizeof out->campaign);
    out->shape_no = trial->shape_no;
    rfi_hex(choice->best->hash, out->variant);
    out->grid = choice->best->grid;
    out->median_ns = choice->best->median_ns;
    out->noise_ns = choice->best->noise_ns;
    if (choice->runner_up) {
        rfi_hex(choice->runner_up->hash, out->runner_up);
        out->runner_up_grid = choice->runner_up->grid;
        out->runner_up_median_ns = choice->runner_up->median_ns;
    }
    if (choice->baseline)
        out->baseline_median_ns =
            choice->baseline->outcome == RFI_OK ? choice->baseline->median_ns : INFINITY;
}

/* ?1 to ?9 */
static void bind_set(sqlite3_stmt *statement, const rfi_decision_key *key, unsigned admits)
{
    rfi_db_bind_key(statement, key);
    rfi_db_bind_texts(statement, 9, 1, (const char *const[]){rfi_name(RFI_ADMITS, admits)});
}

/* Are the stored rows of this key and set exactly these? -1: see sqlite3_errcode. */
static int same_as_stored(rfi_db *db, const rfi_decision_key *key, unsigned admits,
                          const decided *rows, size_t n)
{
    sqlite3_stmt *statement = rfi_db_sql(db, RFI_SQL_DECIDED);
    if (!statement)
        return -1;
    bind_set(statement, key, admits);
    size_t at = 0;
    int rc, same = 1;
    while ((rc = sqlite3_step(statement)) == SQLITE_ROW) {
        decided row;
        memset(&row, 0, sizeof row);
        copy_text(row.env, sizeof row.env, statement, 0);
        copy_text(row.variant, sizeof row.variant, statement, 1);
        row.grid = sqlite3_column_int64(statement, 2);
        row.median_ns = sqlite3_column_double(statement, 3);
        row.noise_ns = sqlite3_column_double(statement, 4);
        copy_text(row.runner_up, sizeof row.runner_up, statement, 5);
        row.runner_up_grid = sqlite3_column_int64(statement, 6);
        row.runner_up_median_ns = sqlite3_column_double(statement, 7);
        row.baseline_median_ns = sqlite3_column_double(statement, 8);
        copy_text(row.campaign, sizeof row.campaign, statement, 9);
        row.shape_no = sqlite3_column_int64(statement, 10);
        same &= at < n && !memcmp(&row, &rows[at], sizeof row);
        at++;
    }
    return rc == SQLITE_DONE ? same && at == n : -1;
}

static int store(rfi_db *db, const rfi_decision_key *key, unsigned admits, const decided *rows,
                 size_t n)
{
    sqlite3_stmt *statement = rfi_db_sql(db, RFI_SQL_DROP_DECISIONS);
    if (!statement)
        return sqlite3_errcode(db->handle);
    bind_set(statement, key, admits);
    int rc = sqlite3_step(statement);
    for (size_t i = 0; i < n && rc == SQLITE_DONE; i++) {
        const decided *d = &rows[i];
        if (!(statement = rfi_db_sql(db, RFI_SQL_ADD_DECISION)))
            return sqlite3_errcode(db->handle);
        sqlite3_clear_bindings(statement);
        bind_set(statement, key, admits);
        rfi_db_bind_texts(statement, 10, 2, (const char *const[]){d->env, d->variant});
        sqlite3_bind_int64(statement, 12, d->grid);
        sqlite3_bind_double(statement, 13, d->median_ns);
        sqlite3_bind_double(statement, 14, d->noise_ns);
        if (d->runner_up[0]) {
            rfi_db_bind_texts(statement, 15, 1, (const char *const[]){d->runner_up});
            sqlite3_bind_int64(statement, 16, d->runner_up_grid);
            sqlite3_bind_double(statement, 17, d->runner_up_median_ns);
        }
        if (d->baseline_median_ns > 0)
            sqlite3_bind_double(statement, 18, d->baseline_median_ns);
        rfi_db_bind_texts(statement, 19, 1, (const char *const[]){d->campaign});
        sqlite3_bind_int64(statement, 20, d->shape_no);
        rc = sqlite3_step(statement);
    }
    if (rc == SQLITE_DONE && (statement = rfi_db_sql(db, RFI_SQL_BUMP_GENERATION)))
        rc = sqlite3_step(statement);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int decide_set(rfi_db *db, const rfi_decision_key *key, unsigned admits, int write,
                      uint64_t *changed, uint64_t *total, const facts *f)
{
    rfi_choice *choices = calloc(f->n_trials + 1, sizeof *choices);
    decided *rows = calloc(f->n_trials + 1, sizeof *rows);
    size_t n = 0;
    int rc = SQLITE_OK;
    if (!choices || !rows)
        n = SIZE_MAX;
    else if (f->trials)
        n = rfi_fold(f->trials, f->n_trials, f->candidates, admits, choices);
    if (n == SIZE_MAX) {
        rc = SQLITE_NOMEM;
    } else {
        for (size_t i = 0; i < n; i++)
            describe(f, &choices[i], &rows[i]);
        int same = same_as_stored(db, key, admits, rows, n);
        if (same < 0)
            rc = sqlite3_errcode(db->handle);
        else if (!same && write)
            rc = store(db, key, admits, rows, n);
        *changed += !same;
        *total += n;
    }
    free(choices);
    free(rows);
    return rc;
}

static int decide(rfi_db *db, const rfi_decision_key *key, int write, uint64_t *changed,
                  uint64_t *total, facts *f)
{
    int rc = load(db, key, f);
    for (unsigned admits = 0; admits <= RFI_OPT_INS && !rc; admits++)
        rc = decide_set(db, key, admits, write, changed, total, f);
    return rc;
}

static rf_result decide_counted(rfi_db *db, const rfi_decision_key *key, int write,
                                uint64_t *changed, uint64_t *total, rf_error *err)
{
    facts f = {0};
    int rc = decide(db, key, write, changed, total, &f);
    free(f.trials);
    free(f.candidates);
    return rc ? rfi_db_fail(db->handle, db->path, rc, "decide", err) : RF_OK;
}

rf_result rfi_decide(rfi_db *db, const rfi_decision_key *key, int write, uint64_t *changed,
                     rf_error *err)
{
    uint64_t total = 0;
    return decide_counted(db, key, write, changed, &total, err);
}

rf_result rfi_decide_all(rfi_db *db, int write, uint64_t *changed, uint64_t *rows, rf_error *err)
{
    static const rfi_sql lists[] = {RFI_SQL_KEYS, RFI_SQL_KEYS_ANY};
    for (size_t i = 0; i < 2; i++) {
        sqlite3_stmt *statement = rfi_db_sql(db, lists[i]);
        int rc;
        while ((rc = rfi_db_step(statement)) == SQLITE_ROW) {
            rfi_decision_key key;
            copy_text(key.hw, sizeof key.hw, statement, 0);
            copy_text(key.arch, sizeof key.arch, statement, 1);
            copy_text(key.op, sizeof key.op, statement, 2);
            key.world = sqlite3_column_int64(statement, 3);
            copy_text(key.dtype, sizeof key.dtype, statement, 4);
            copy_text(key.mode, sizeof key.mode, statement, 5);
            key.hidden = sqlite3_column_int64(statement, 6);
            key.bucket = sqlite3_column_int64(statement, 7);
            rf_result result = decide_counted(db, &key, write, changed, rows, err);
            if (result) {
                sqlite3_reset(statement);
                return result;
            }
        }
        if (rc != SQLITE_DONE)
            return rfi_db_fail(db->handle, db->path, sqlite3_extended_errcode(db->handle),
                               "list the keys", err);
    }
    return RF_OK;
}
