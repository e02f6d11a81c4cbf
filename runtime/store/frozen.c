/* The store behind rf_store_frozen: decisions as a C table that `rankfold db freeze` wrote and the
 * product compiled. No file, no SQLite. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/group.h"
#include "store/ladder.h"

typedef struct frozen_store {
    rf_store base;
    const rf_frozen *table;
} frozen_store;

/* Order of the rows: everything that lookups fix first, then hidden, then the bucket. Those that
 * are equal are of different environments, the latest one first. */
static int compare_key(const rfi_frozen_row *a, const rfi_frozen_row *b)
{
    int order = memcmp(a->hw, b->hw, sizeof a->hw);
    if (!order)
        order = strcmp(a->arch, b->arch);
    const uint8_t left[] = {a->op, a->world, a->dtype, a->mode, a->admits};
    const uint8_t right[] = {b->op, b->world, b->dtype, b->mode, b->admits};
    if (!order)
        order = memcmp(left, right, sizeof left);
    if (!order)
        order = strcmp(a->transports, b->transports);
    return order ? order : (a->hidden > b->hidden) - (a->hidden < b->hidden);
}

static int compare(const rfi_frozen_row *a, const rfi_frozen_row *b)
{
    int order = compare_key(a, b);
    return order ? order : (a->bucket > b->bucket) - (a->bucket < b->bucket);
}

/* First row that is not before `wanted`. */
static size_t lower_bound(const rf_frozen *table, const rfi_frozen_row *wanted)
{
    size_t low = 0, high = table->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare(&table->rows[middle], wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A line of an environment without a rank (create.c): where its value begins, and its length. */
static const char *value_of(const char *env_text, const char *field, int *length)
{
    const char *line = strstr(env_text, field), *value = line ? line + strlen(field) : "";
    *length = (int)strcspn(value, "\n");
    return value;
}

/* As in rows (store.h). */
static void transports_of(const rfi_key *key, char *out, size_t size)
{
    int n, m;
    const char *transports = value_of(key->env->text, "\ntransports=", &n);
    const char *islands = value_of(key->env->text, "\nislands=", &m);
    int grouped = m && key->admits & RF_VARIANT_REASSOC;
    snprintf(out, size, "%.*s%s%.*s", n, transports, grouped ? " islands=" : "", grouped ? m : 0,
             islands);
}

/* Of the rows that are equal to `wanted`, for a caller in the environment `env`. NULL: none. */
static const rfi_frozen_row *choose(const rf_frozen *table, const rfi_frozen_row *wanted,
                                    const unsigned char env[16], rfi_pick pick)
{
    const rfi_frozen_row *own = NULL, *other = NULL;
    for (size_t i = lower_bound(table, wanted); i < table->n; i++) {
        const rfi_frozen_row *row = &table->rows[i];
        if (compare(row, wanted))
            break;
        if (!memcmp(row->env, env, sizeof row->env))
            own = row;
        else if (!other)
            other = row;
    }
    if (pick == RFI_SAME_ENV)
        return own;
    return pick == RFI_OTHER_ENV || !own ? other : own;
}

static int fetch(void *ctx, const rfi_key *key, rfi_pick pick, rfi_row *out)
{
    const rf_frozen *table = ctx;
    char transports[RFI_NAME];
    transports_of(key, transports, sizeof transports);
    rfi_frozen_row wanted = {.arch = key->arch,
                             .transports = transports,
                             .op = key->op,
                             .world = key->world,
                             .dtype = key->dtype,
                             .mode = key->mode,
                             .admits = key->admits,
                             .hidden = key->hidden,
                             .bucket = rfi_bucket(key->bytes) + (pick == RFI_ABOVE)};
    memcpy(wanted.hw, key->hw->hash, sizeof wanted.hw);
    if (pick == RFI_BELOW || pick == RFI_ABOVE) {
        size_t at = lower_bound(table, &wanted);
        if (pick == RFI_BELOW && at-- == 0)
            return 0;
        if (at == table->n || compare_key(&table->rows[at], &wanted))
            return 0;
        wanted.bucket = table->rows[at].bucket;
    }
    const rfi_frozen_row *row = choose(table, &wanted, key->env->hash, pick);
    if (!row)
        return 0;

    memset(out, 0, sizeof *out);
    memcpy(out->variant, row->variant, strlen(row->variant) + 1);
    if (!*row->variant)
        memcpy(out->variant, RFI_BASELINE, sizeof RFI_BASELINE);
    memcpy(out->hash, row->hash, sizeof out->hash);
    memcpy(out->env, row->env, sizeof out->env);
    out->grid = row->grid;
    out->bucket = row->bucket;
    out->median_ns = row->median_ns;
    return 1;
}

static const char *env_text(void *ctx, const unsigned char env[16])
{
    const rf_frozen *table = ctx;
    for (size_t i = 0; i < table->n; i++)
        if (!memcmp(table->rows[i].env, env, 16))
            return table->rows[i].env_text;
    return NULL;
}

static const rf_frozen *table_of(const rf_store *s)
{
    return ((const frozen_store *)s)->table;
}

static int lookup(rf_store *s, const rfi_key *key, rfi_have_fn have, void *ctx, rfi_decision *out)
{
    rfi_source source = {(void *)(uintptr_t)table_of(s), fetch, env_text, 1};
    if (rfi_ladder(&source, key, have, ctx, out))
        return 1;
    rfi_ladder_missed(key, out);
    return 0;
}

static uint64_t generation(rf_store *s)
{
    return table_of(s)->generation;
}

/* ---- what a table cannot do ---- */

static int swept(rf_store *s, const rfi_key *key)
{
    (void)s, (void)key;
    return 0;
}

static int measured(rf_store *s, const rfi_key *key, const rf_variant *variant, uint32_t grid,
                    rfi_measurement *out)
{
    (void)s, (void)key, (void)variant, (void)grid, (void)out;
    return 0;
}

static rf_result refuse(rf_error *err)
{
    return rfi_fail(err, RF_E_DB_READONLY, -1, "database",
                    "a frozen table cannot be written; open a database with rf_store_open to tune");
}

static rf_result begin(rf_store *s, const rfi_campaign *campaign, rf_error *err)
{
    (void)s, (void)campaign;
    return refuse(err);
}

static rf_result record(rf_store *s, const rfi_measurement *m, size_t n, rf_error *err)
{
    (void)s, (void)m, (void)n;
    return refuse(err);
}

static rf_result finish_shape(rf_store *s, const rfi_key *key, rf_error *err)
{
    (void)s, (void)key;
    return refuse(err);
}

static rf_result end(rf_store *s, rf_error *err)
{
    (void)s;
    return refuse(err);
}

static const char *warning(const rf_store *s)
{
    (void)s;
    return NULL;
}

static void close_store(rf_store *s)
{
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

static const char *fault_of_row(const rfi_frozen_row *row)
{
    if (!row->arch || !row->variant || !row->transports)
        return "has no architecture, variant or transports";
    if (strlen(row->variant) >= RFI_NAME)
        return "has a variant whose name is too long";
    if (row->admits > RFI_OPT_INS)
        return "admits what there is not";
    if (row->bucket < 64 || row->bucket & (row->bucket - 1))
        return "has a bucket that is no power of two from 64";
    return NULL;
}

static const char *fault_of_order(const rfi_frozen_row *before, const rfi_frozen_row *row)
{
    int order = compare(before, row);
    int twice = !order && !memcmp(before->env, row->env, sizeof row->env);
    return order > 0 || twice ? "is not in order" : NULL;
}

rf_result rf_store_frozen(const rf_frozen *table, rf_store **out, rf_error *err)
{
    if (!table || !out)
        return rfi_fail(err, RF_E_ARG, -1, "database", "rf_store_frozen: %s is NULL",
                        table ? "out" : "the table");
    if (table->abi != RF_ABI || table->row_size != sizeof *table->rows)
        return rfi_fail(err, RF_E_DB, -1, "database",
                        "frozen table has ABI %u and rows of size %u, expected %u and %zu; run "
                        "`rankfold db freeze` of this version",
                        table->abi, table->row_size, (unsigned)RF_ABI, sizeof *table->rows);
    if (!table->abi_witness || *table->abi_witness != RF_ABI || (table->n && !table->rows))
        return rfi_fail(err, RF_E_DB, -1, "database", "frozen table is incomplete");
    for (size_t i = 0; i < table->n; i++) {
        const char *fault = fault_of_row(&table->rows[i]);
        if (!fault && i)
            fault = fault_of_order(&table->rows[i - 1], &table->rows[i]);
        if (fault)
            return rfi_fail(err, RF_E_DB, -1, "database", "frozen table: row %zu %s", i, fault);
    }
    frozen_store *s = calloc(1, sizeof *s);
    if (!s)
        return rfi_fail(err, RF_E_MEMORY, -1, "database", "out of memory");
    s->base.v = &vtable;
    s->table = table;
    *out = &s->base;
    return RF_OK;
}
