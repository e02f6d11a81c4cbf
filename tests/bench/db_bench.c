/* How fast a tactic database of a million measurements answers: first lookup of a process (open
 * included), next lookups of each rung, one write transaction. Usage: db_bench [MEASUREMENTS]
 * [FILE]; the file is made if it isn't there, and removed at the end unless it was named. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../unit/store_facts.h"
#include "store/db.h"

#define CANDIDATES 100 /* of one shape */
#define SHAPES     50  /* of one campaign */
#define HOSTS      20

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void die(const char *what, const char *why)
{
    fprintf(stderr, "db_bench: %s: %s\n", what, why);
    exit(1);
}

/* ---- filling: straight into the tables, since the store syncs every transaction ---- */

static void step(rfi_db *db, sqlite3_stmt *statement)
{
    if (sqlite3_step(statement) != SQLITE_DONE)
        die("fill", sqlite3_errmsg(db->handle));
    sqlite3_reset(statement);
}

static facts_place host(int h)
{
    static char texts[HOSTS][64];
    snprintf(texts[h], sizeof texts[h], "0.cpu=Imaginary %d\n1.cpu=Imaginary %d\n", h, h);
    return facts_at(texts[h], "0.kernel=6.1.0-18\n1.kernel=6.1.0-18\n");
}

static rf_variant variant(int v)
{
    static char names[CANDIDATES][64];
    snprintf(names[v], sizeof names[v], "ar_w2_f32_h%d_os_%d", v % 2 ? 4096 : 0, v);
    return facts_variant(names[v], v % 2 ? 4096 : 0, 1);
}

static void fill_campaign(rfi_db *db, int c)
{
    facts_place place = host(c % HOSTS);
    char campaign[RFI_HEX], started[RFI_UTC], hw[RFI_HEX], env[RFI_HEX], hash[RFI_HEX];
    unsigned char id[16] = {0};
    memcpy(id, &c, sizeof c);
    rfi_hex(id, campaign);
    rfi_hex(place.hw.hash, hw);
    rfi_hex(place.env.hash, env);
    snprintf(started, sizeof started, "2026-01-01T%02d:%02d:%02d.000Z", c / 3600 % 24, c / 60 % 60,
             c % 60);
    sqlite3_stmt *add = rfi_db_sql(db, RFI_SQL_ADD_HOST);
    rfi_db_bind_texts(add, 1, 2, (const char *const[]){hw, place.hw.text});
    step(db, add);
    rfi_db_bind_texts(add = rfi_db_sql(db, RFI_SQL_ADD_ENVIRONMENT), 1, 2,
                      (const char *const[]){env, place.env.text});
    step(db, add);
    rfi_db_bind_texts(
        add = rfi_db_sql(db, RFI_SQL_ADD_CAMPAIGN), 1, 9,
        (const char *const[]){campaign, started, hw, env, place.arch, "", "bench", "cc", ""});
    step(db, add);
    for (int s = 0; s < SHAPES; s++) {
        int64_t rows = INT64_C(1) << (s % 16), hidden = 1024 * (1 + s / 16);
        add = rfi_db_sql(db, RFI_SQL_ADD_SHAPE);
        rfi_db_bind_texts(add, 1, 2, (const char *const[]){campaign, "ar"});
        sqlite3_bind_int64(add, 3, 2);
        rfi_db_bind_texts(add, 4, 2, (const char *const[]){"f32", "eager"});
        sqlite3_bind_int64(add, 6, rows);
        sqlite3_bind_int64(add, 7, hidden);
        sqlite3_bind_int64(add, 8, (int64_t)rfi_bucket((uint64_t)(rows * hidden * 4)));
        step(db, add);
        for (int v = 0; v < CANDIDATES; v++) {
            rf_variant candidate = variant(v);
            rfi_hex(candidate.hash, hash);
            double median = 1000 + (v * 7919 + c * 104729 + s * 1299709) % 9000;
            add = rfi_db_sql(db, RFI_SQL_ADD_MEASUREMENT);
            rfi_db_bind_texts(add, 1, 1, (const char *const[]){campaign});
            sqlite3_bind_int64(add, 2, s);
            rfi_db_bind_texts(add, 3, 1, (const char *const[]){hash});
            sqlite3_bind_int64(add, 4, 8);
            rfi_db_bind_texts(add, 5, 1, (const char *const[]){"ok"});
            sqlite3_bind_int64(add, 6, 7);
            sqlite3_bind_int64(add, 7, v);
            for (int t = 0; t < 6; t++)
                sqlite3_bind_double(add, 8 + t, t == 5 ? 10 : median + t - 2);
            step(db, add);
        }
        add = rfi_db_sql(db, RFI_SQL_ADD_SWEEP);
        rfi_db_bind_texts(add, 1, 1, (const char *const[]){campaign});
        sqlite3_bind_int64(add, 2, s);
        rfi_db_bind_texts(add, 3, 1, (const char *const[]){started});
        step(db, add);
    }
}

static void fill(const char *path, long measurements)
{
    rf_error err = {0};
    rfi_db db;
    uint64_t changed = 0, rows = 0;
    if (rfi_db_create(path, &err) || rfi_db_open(&db, path, RFI_DB_WRITE, 0, &err) ||
        rfi_db_begin(&db, 0, &err))
        die("fill", err.text);
    for (int v = 0; v < CANDIDATES; v++) {
        rf_variant candidate = variant(v);
        char hash[RFI_HEX];
        rfi_hex(candidate.hash, hash);
        sqlite3_stmt *add = rfi_db_sql(&db, RFI_SQL_ADD_VARIANT);
        rfi_db_bind_texts(add, 1, 3, (const char *const[]){hash, candidate.name, "ar"});
        sqlite3_bind_int64(add, 4, 2);
        rfi_db_bind_texts(add, 5, 1, (const char *const[]){"f32"});
        sqlite3_bind_int64(add, 6, candidate.hidden);
        rfi_db_bind_texts(add, 7, 5, (const char *const[]){"os", "cpu", "flag", "avx2", "ca"});
        for (int i = 12; i <= 14; i++)
            sqlite3_bind_int64(add, i, 0);
        step(&db, add);
    }
    double begin = now_us();
    for (int c = 0; c < measurements / (CANDIDATES * SHAPES); c++)
        fill_campaign(&db, c);
    double filled = now_us();
    if (rfi_decide_all(&db, 1, &changed, &rows, &err) || rfi_db_end(&db, RF_OK, &err))
        die("fill", err.text);
    printf("%-40s %10.2f s\n%-40s %10.2f s (%llu decisions)\n", "fill", (filled - begin) / 1e6,
           "fold everything", (now_us() - filled) / 1e6, (unsigned long long)rows);
    rfi_db_close(&db);
}

/* ---- asking ---- */

static int none(void *ctx, const unsigned char hash[16], const char *name)
{
    (void)ctx, (void)hash, (void)name;
    return 0;
}

static double ask_us(rf_store *store, const rfi_key *keys, int n, rfi_have_fn have)
{
    rfi_decision d;
    double begin = now_us();
    for (int i = 0; i < n; i++)
        store->v->lookup(store, &keys[i], have, NULL, &d);
    return (now_us() - begin) / n;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#define ROUNDS 21

static void report(const char *what, double *us, const char *unit, double scale)
{
    qsort(us, ROUNDS, sizeof *us, by_value);
    printf("%-40s %10.3f %s (median of %d; best %.3f, worst %.3f)\n", what, us[ROUNDS / 2] / scale,
           unit, ROUNDS, us[0] / scale, us[ROUNDS - 1] / scale);
}

static void ask(const char *path)
{
    rf_error err = {0};
    rf_store *store;
    double us[ROUNDS];
    facts_place place = host(3), elsewhere = facts_at("0.cpu=None\n", "0.kernel=1\n");
    facts_place other_env = facts_at(place.hw.text, "0.kernel=6.1.0-20\n1.kernel=6.1.0-20\n");
    rfi_key keys[64], other[64], far[64], unknown[64];
    for (int i = 0; i < 64; i++) {
        keys[i] = facts_key(&place, UINT64_C(1) << (i % 16), 1024 * (1 + (uint64_t)i / 32));
        other[i] = facts_key(&other_env, UINT64_C(1) << (i % 16), 1024);
        far[i] = facts_key(&place, UINT64_C(1) << 30, 1024);
        unknown[i] = facts_key(&elsewhere, 4, 4096);
    }
    for (int r = 0; r < ROUNDS; r++) {
        double begin = now_us();
        if (rf_store_open(path, NULL, 0, &store, &err))
            die("open", err.text);
        ask_us(store, keys, 1, facts_have_all);
        us[r] = now_us() - begin;
        if (rf_store_warning(store))
            die("open", rf_store_warning(store));
        rf_store_close(store);
    }
    report("first lookup, with opening", us, "ms", 1e3);
    if (rf_store_open(path, NULL, 0, &store, &err))
        die("open", err.text);
    const struct {
        const char *what;
        const rfi_key *keys;
        rfi_have_fn have;
    } cases[] = {{"next lookup: measured here", keys, facts_have_all},
                 {"next lookup: other environment", other, facts_have_all},
                 {"next lookup: nearest", far, facts_have_all},
                 {"next lookup: hardware unknown", unknown, facts_have_all},
                 {"next lookup: no variant is here", keys, none}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (int r = 0; r < ROUNDS; r++)
            us[r] = ask_us(store, cases[c].keys, 64, cases[c].have);
        report(cases[c].what, us, "us", 1);
    }
    for (int r = 0; r < ROUNDS; r++) {
        double begin = now_us();
        for (int i = 0; i < 64; i++)
            store->v->swept(store, &keys[i]);
        us[r] = (now_us() - begin) / 64;
    }
    report("swept", us, "us", 1);

    rf_variant v = variant(1);
    rfi_measurement m = facts_measurement(&keys[5], &v, 8, 5000);
    if (facts_begin(store, &place, &err))
        die("begin", err.text);
    for (int r = 0; r < ROUNDS; r++) {
        double begin = now_us();
        if (store->v->record(store, &m, 1, &err))
            die("record", err.text);
        us[r] = now_us() - begin;
    }
    report("record, synced to disk", us, "ms", 1e3);
    for (int r = 0; r < ROUNDS; r++) {
        double begin = now_us();
        if (store->v->finish_shape(store, &keys[5], &err))
            die("finish", err.text);
        us[r] = now_us() - begin;
    }
    report("finish a shape: fold its key", us, "ms", 1e3);
    rf_store_close(store);
}

int main(int argc, char **argv)
{
    long measurements = argc > 1 ? atol(argv[1]) : 1000000;
    const char *named = argc > 2 ? argv[2] : NULL, *tmp = getenv("TMPDIR");
    char path[300];
    snprintf(path, sizeof path, "%s/rankfold-db-bench.%d", tmp ? tmp : "/tmp", (int)getpid());
    if (named)
        snprintf(path, sizeof path, "%s", named);
    printf("SQLite %s, %ld measurements\n", sqlite3_libversion(), measurements);
    if (access(path, F_OK))
        fill(path, measurements);
    ask(path);
    if (!named)
        unlink(path);
    return 0;
}
