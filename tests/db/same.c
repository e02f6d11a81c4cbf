/* same FILE: does the frozen table that is linked in answer as the database FILE does, from which
 * it was made? Every decision is asked for at its size, above and below it, in its environment and
 * in one that is unheard of. */
#include <stdio.h>
#include <string.h>

#include "../unit/store_facts.h"
#include "store/db.h"
#include "store/names.h"

extern const rf_frozen frozen_decisions;

static int differs(rf_store *one, rf_store *two, const rfi_key *key)
{
    rfi_decision a, b;
    int found_a = one->v->lookup(one, key, facts_have_all, NULL, &a);
    int found_b = two->v->lookup(two, key, facts_have_all, NULL, &b);
    if (found_a == found_b && !strcmp(a.variant, b.variant) && !memcmp(a.hash, b.hash, 16) &&
        a.grid == b.grid && a.fallback == b.fallback && a.rung == b.rung && a.bucket == b.bucket &&
        a.median_ns == b.median_ns)
        return 0;
    printf("%llu bytes, hidden %llu:\n  database %s (%s)\n  frozen   %s (%s)\n",
           (unsigned long long)key->bytes, (unsigned long long)key->hidden, a.variant, a.reason,
           b.variant, b.reason);
    return 1;
}

static int ask(rf_store *one, rf_store *two, sqlite3_stmt *row)
{
    static const uint64_t scales[] = {4, 1, 16}; /* quarters of the bucket */
    facts_place here = facts_at((const char *)sqlite3_column_text(row, 0),
                                (const char *)sqlite3_column_text(row, 1));
    rfi_fingerprint later = facts_fingerprint("r0.kernel=unheard of\ntransports=cpu\n");
    uint64_t bucket = (uint64_t)sqlite3_column_int64(row, 5);
    int bad = 0;
    for (size_t s = 0; s < 3; s++)
        for (int other = 0; other < 2; other++) {
            rfi_key key = facts_key(&here, 1, (uint64_t)sqlite3_column_int64(row, 4));
            key.arch = (const char *)sqlite3_column_text(row, 2);
            key.world = (uint8_t)sqlite3_column_int(row, 3);
            key.dtype =
                (uint8_t)rfi_name_code(RFI_DTYPES, (const char *)sqlite3_column_text(row, 6));
            key.mode = (uint8_t)rfi_name_code(RFI_MODES, (const char *)sqlite3_column_text(row, 7));
            key.bytes = bucket * scales[s] / 4;
            key.admits =
                (uint8_t)rfi_name_code(RFI_ADMITS, (const char *)sqlite3_column_text(row, 8));
            if (!key.hidden)
                key.hidden = 12345;
            if (other)
                key.env = &later;
            bad += differs(one, two, &key);
        }
    return bad;
}

int main(int argc, char **argv)
{
    rf_error err = {0};
    rf_store *one, *two;
    rfi_db db;
    sqlite3_stmt *row = NULL;
    int n = 0, bad = 0;
    if (argc != 2 || rfi_db_open(&db, argv[1], RFI_DB_READ, 0, &err) ||
        rf_store_open("/nonexistent/none.db", argv[1], 0, &one, &err) ||
        rf_store_frozen(&frozen_decisions, &two, &err)) {
        fprintf(stderr, "same: %s\n", err.text);
        return 1;
    }
    sqlite3_prepare_v2(
        db.handle,
        "SELECT h.hw_text, e.env_text, d.architecture, d.world, d.hidden, "
        "d.bucket_bytes, d.dtype, d.mode, d.admits FROM decision d JOIN host h ON h.hw_fp = "
        "d.hw_fp JOIN environment e ON e.env_fp = d.env_fp",
        -1, &row, NULL);
    for (; sqlite3_step(row) == SQLITE_ROW; n++)
        bad += ask(one, two, row);
    sqlite3_finalize(row);
    printf("%d decisions, %d answers differ\n", n, bad);
    rf_store_close(one);
    rf_store_close(two);
    rfi_db_close(&db);
    return n == 0 || bad;
}
