/* fill FILE: a database with a history, for tests of the queries in db/README.md and of `rankfold
 * db`: two hosts, a kernel update, a rebuilt variant, a regression, failures, a killed session, a
 * session that admits dependent launch and measures only what is missing. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../unit/store_facts.h"

#define HOST_A "r0.cpu=Imaginary 9000\nr0.cpus=4\nr1.cpu=Imaginary 9000\nr1.cpus=4\n"
#define HOST_B "r0.cpu=Another 100\nr0.cpus=2\nr1.cpu=Another 100\nr1.cpus=2\n"
#define OLD                                                                                        \
    "r0.governor=performance\nr0.kernel=6.1.0-18\nr1.governor=performance\nr1.kernel=6.1.0-18\n"   \
    "transports=cpu\n"
#define NEW                                                                                        \
    "r0.governor=performance\nr0.kernel=6.1.0-20\nr1.governor=performance\nr1.kernel=6.1.0-20\n"   \
    "transports=cpu\n"

static void must(rf_result result, const rf_error *err)
{
    if (result == RF_OK)
        return;
    fprintf(stderr, "fill: %s\n", err->text);
    exit(1);
}

/* Campaigns are ordered by their start, to the millisecond. */
static void next_millisecond(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

/* Sweeps rows = 1, 4, 16 ... 4^(n-1) of hidden 4096; every time is multiplied by `factor`. */
static void tune(rf_store *store, const facts_place *place, int n, double factor, int build,
                 int end)
{
    rf_error err = {0};
    rf_variant os = facts_variant("ar_w2_f32_h0_os_cpu_flag_avx2_u1_ca", 0, build);
    rf_variant ts = facts_variant("ar_w2_f32_h0_ts_cpu_flag_avx2_u1_ca", 0, build);
    rf_variant special = facts_variant("ar_w2_f32_h4096_os_cpu_flag_avx2_u4_nt", 4096, build);
    next_millisecond();
    must(facts_begin(store, place, &err), &err);
    for (int i = 0; i < n; i++) {
        rfi_key key = facts_key(place, UINT64_C(1) << 2 * i, 4096);
        double bytes = (double)key.bytes;
        rfi_measurement m[] = {
            facts_measurement(&key, &os, 16, factor * (2000 + bytes / 20)),
            facts_measurement(&key, &ts, 16, factor * (3500 + bytes / 40)),
            facts_measurement(&key, &special, 16, factor * (2100 + bytes / 21)),
            facts_measurement(&key, NULL, 0, factor * (9000 + bytes / 10)),
        };
        if (i == 2)
            m[2].outcome = RFI_WRONG;
        if (i == 3)
            m[2].outcome = RFI_TIMEOUT;
        must(store->v->record(store, m, sizeof m / sizeof *m, &err), &err);
        if (!end && i == n - 1)
            return; /* killed in the middle of the last shape */
        must(store->v->finish_shape(store, &key, &err), &err);
    }
    must(store->v->end(store, &err), &err);
}

/* The same shapes again, where dependent launch is admitted. */
static void tune_dependent(rf_store *store, facts_place place, int n, double factor)
{
    rf_error err = {0};
    rf_variant early = facts_variant("ar_w2_f32_h0_os_cpu_flag_avx2_u1_dep", 0, 1);
    place.admits = RF_VARIANT_DEPENDENT;
    next_millisecond();
    must(facts_begin(store, &place, &err), &err);
    for (int i = 0; i < n; i++) {
        rfi_key key = facts_key(&place, UINT64_C(1) << 2 * i, 4096);
        rfi_measurement m =
            facts_measurement(&key, &early, 16, factor * (1500 + (double)key.bytes / 20));
        must(store->v->record(store, &m, 1, &err), &err);
        must(store->v->finish_shape(store, &key, &err), &err);
    }
    must(store->v->end(store, &err), &err);
}

static rf_store *open_again(rf_store *store, const char *path)
{
    rf_error err = {0};
    rf_store_close(store);
    must(rf_store_open(path, NULL, 0, &store, &err), &err);
    if (rf_store_warning(store)) {
        fprintf(stderr, "fill: %s\n", rf_store_warning(store));
        exit(1);
    }
    return store;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    facts_place a = facts_at(HOST_A, OLD), a_new = facts_at(HOST_A, NEW), b = facts_at(HOST_B, OLD);
    rf_store *store = open_again(NULL, argv[1]);
    tune(store, &a, 6, 1, 1, 1);
    tune(store, &b, 4, 2, 1, 1);
    tune(store, &a_new, 4, 1.3, 2, 1);
    tune_dependent(store, b, 2, 2);
    tune(store, &b, 3, 2, 2, 0);
    rf_store_close(open_again(store, argv[1]));
    return 0;
}
