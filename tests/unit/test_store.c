/* The SQLite store through its vtable: what is recorded comes back, and on which rung. */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "store_facts.h"
#include "store_folder.h"

#define HW_TEXT  "r0.cpu=Imaginary 9000\nr1.cpu=Imaginary 9000\n"
#define ENV_TEXT "r0.driver=1\nr0.kernel=6.1.0-18\nr1.driver=1\nr1.kernel=6.1.0-18\n"

typedef struct fixture {
    char folder[FOLDER_PATH], path[FOLDER_PATH + 32];
    rf_store *store;
    facts_place here, dependent; /* the same place, where dependent launch is admitted */
    rf_variant os, ts, generic, early, islands;
} fixture;

static rf_store *open_store(const char *path, const char *shipped, uint32_t flags)
{
    rf_error err = {0};
    rf_store *store = NULL;
    if (rf_store_open(path, shipped, flags, &store, &err))
        fail_msg("%s", err.text);
    return store;
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (!folder_make(f->folder))
        return -1;
    snprintf(f->path, sizeof f->path, "%s/state/tactics.db", f->folder);
    f->here = facts_at(HW_TEXT, ENV_TEXT);
    f->os = facts_variant("ar_w2_f32_h4096_os", 4096, 1);
    f->ts = facts_variant("ar_w2_f32_h4096_ts", 4096, 1);
    f->generic = facts_variant("ar_w2_f32_h0_os", 0, 1);
    f->early = facts_variant("ar_w2_f32_h4096_os_dep", 4096, 1);
    f->islands = facts_variant("ar_w2_f32_h4096_il", 4096, 1);
    f->dependent = f->here;
    f->dependent.admits = RF_VARIANT_DEPENDENT;
    f->store = open_store(f->path, NULL, 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    rf_store_close(f->store);
    folder_remove(f->folder);
    free(f);
    return 0;
}

static rf_error why;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != RF_OK)                                                                       \
            fail_msg("%s: %s", #call, why.text);                                                   \
    } while (0)

/* os 10 us, ts 12 us, generic 11 us, at {rows, 4096} */
static void tune(fixture *f, rf_store *store, const facts_place *place, uint64_t rows)
{
    rfi_key key = facts_key(place, rows, 4096);
    rfi_measurement m[] = {facts_measurement(&key, &f->ts, 4, 12000),
                           facts_measurement(&key, &f->os, 8, 10000),
                           facts_measurement(&key, &f->generic, 8, 11000)};
    MUST(facts_campaign(store, place, &key, m, 3, &why));
}

/* os 10 us, and dependent 8 us, at 4 x 4096 */
static void tune_dependent(fixture *f, const facts_place *place)
{
    rfi_key key = facts_key(place, 4, 4096);
    rfi_measurement m[] = {facts_measurement(&key, &f->os, 8, 10000),
                           facts_measurement(&key, &f->early, 8, 8000)};
    MUST(facts_campaign(f->store, place, &key, m, 2, &why));
}

static rfi_decision ask(rf_store *store, const rfi_key *key, rfi_have_fn have)
{
    rfi_decision d;
    store->v->lookup(store, key, have, NULL, &d);
    return d;
}

static int has_other_builds(void *ctx, const unsigned char hash[16], const char *name)
{
    (void)ctx, (void)hash, (void)name;
    return 1;
}

static int has_generic_only(void *ctx, const unsigned char hash[16], const char *name)
{
    (void)ctx, (void)hash;
    return strstr(name, "_h0_") ? 2 : 0;
}

/* ---- facts ---- */

static void opening_creates_nothing(void **state)
{
    fixture *f = *state;
    assert_int_equal(access(f->path, F_OK), -1);
    assert_null(rf_store_warning(f->store));
    assert_int_equal(f->store->v->generation(f->store), 0);
}

static void the_fastest_is_answered(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 4, 4096);
    tune(f, f->store, &f->here, 4);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_string_equal(d.variant, f->os.name);
    assert_memory_equal(d.hash, f->os.hash, 16);
    assert_int_equal(d.grid, 8);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
    assert_int_equal(d.bucket, 65536);
    assert_true(d.median_ns == 10000);
    assert_int_equal(d.fallback, 0);
    assert_null(rf_store_warning(f->store));
}

static void the_shape_that_was_measured_is_named_to_another_of_its_bucket(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 3, 4096); /* 48 KiB, and so of the bucket of 64 */
    tune(f, f->store, &f->here, 3);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
    assert_null(strstr(d.reason, " at "));

    key = facts_key(&f->here, 4, 4096);
    d = ask(f->store, &key, facts_have_all);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
    assert_int_equal(d.measured_rows, 3);
    assert_int_equal(d.measured_hidden, 4096);
    assert_non_null(strstr(d.reason, " at 3 x 4096"));

    key = facts_key(&f->here, 4, 3072); /* what serves any hidden size */
    assert_non_null(strstr(ask(f->store, &key, facts_have_all).reason, " at 3 x 4096"));
    key = facts_key(&f->here, 8, 4096);
    assert_non_null(strstr(ask(f->store, &key, facts_have_all).reason,
                           " at 3 x 4096, 65536 B, the nearest to 131072 B"));
}

static void an_empty_store_says_what_to_run(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 4, 4096);
    rfi_decision d;
    assert_int_equal(f->store->v->lookup(f->store, &key, facts_have_all, NULL, &d), 0);
    assert_non_null(strstr(d.reason, "; run `rankfold tune -n 2 --shapes f32:4x4096`"));
    key.arch = "cuda/sm90";
    assert_int_equal(f->store->v->lookup(f->store, &key, facts_have_all, NULL, &d), 0);
    assert_non_null(strstr(d.reason, "tune -n 2 --backend cuda --shapes f32:4x4096`"));
    key.mode = RF_GRAPH;
    assert_int_equal(f->store->v->lookup(f->store, &key, facts_have_all, NULL, &d), 0);
    assert_non_null(strstr(d.reason, "--shapes f32:4x4096:graph`"));
}

static void another_environment_is_stale_and_named(void **state)
{
    fixture *f = *state;
    facts_place later =
        facts_at(HW_TEXT, "r0.driver=1\nr0.kernel=6.1.0-20\nr1.driver=1\nr1.kernel=6.1.0-20\n");
    rfi_key key = facts_key(&later, 4, 4096);
    tune(f, f->store, &f->here, 4);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_int_equal(d.rung, RF_RUNG_OTHER_ENV);
    assert_string_equal(d.variant, f->os.name);
    assert_non_null(strstr(d.reason, ": kernel 6.1.0-18 -> 6.1.0-20; run"));
    assert_null(strstr(d.reason, "driver"));
    assert_non_null(strstr(d.reason, "rankfold tune"));
}

static void of_fields_of_one_name_each_has_its_own_counterpart(void **state)
{
    fixture *f = *state;
    facts_place then = facts_at(HW_TEXT, "r0.gpu=a\nr0.gpu=b\n");
    facts_place later = facts_at(HW_TEXT, "r0.gpu=a\nr0.gpu=c\n");
    rfi_key key = facts_key(&later, 4, 4096);
    tune(f, f->store, &then, 4);
    assert_non_null(strstr(ask(f->store, &key, facts_have_all).reason, ": gpu b -> c; run"));
}

/* However much differs, what to run is said. */
static void advice_has_its_room(void **state)
{
    fixture *f = *state;
    char before[4096] = "", after[4096] = "";
    for (int i = 0; i < 40; i++) {
        snprintf(before + strlen(before), 100, "r0.field%d=1\n", i);
        snprintf(after + strlen(after), 100, "r0.field%d=2\n", i);
    }
    facts_place then = facts_at(HW_TEXT, before), later = facts_at(HW_TEXT, after);
    rfi_key key = facts_key(&later, 4, 4096);
    tune(f, f->store, &then, 4);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_non_null(strstr(d.reason, "field0 "));
    assert_non_null(strstr(d.reason, "...; run `rankfold tune -n 2 --shapes f32:4x4096`"));
}

static void other_transports_are_not_answered(void **state)
{
    fixture *f = *state;
    facts_place both = facts_at(HW_TEXT, ENV_TEXT "transports=peer,host\n");
    facts_place host = facts_at(HW_TEXT, ENV_TEXT "transports=host\n");
    rfi_key key = facts_key(&host, 4, 4096);
    rfi_decision d;
    tune(f, f->store, &both, 4);
    assert_int_equal(f->store->v->lookup(f->store, &key, facts_have_all, NULL, &d), 0);
    tune(f, f->store, &host, 4);
    assert_int_equal(ask(f->store, &key, facts_have_all).rung, RF_RUNG_EXACT);
}

/* ... also where an environment with other transports was tuned later. */
static void of_several_environments_one_with_the_transports_answers(void **state)
{
    fixture *f = *state;
    facts_place both = facts_at(HW_TEXT, ENV_TEXT "transports=peer,host\n");
    facts_place host = facts_at(HW_TEXT, ENV_TEXT "transports=host\n");
    facts_place later = facts_at(HW_TEXT, "r0.kernel=7.0\ntransports=peer,host\n");
    rfi_key key = facts_key(&later, 4, 4096);
    tune(f, f->store, &both, 4);
    tune(f, f->store, &host, 4);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_int_equal(d.rung, RF_RUNG_OTHER_ENV);
    assert_null(strstr(d.reason, "transports"));
    key = facts_key(&later, 8, 4096);
    assert_int_equal(ask(f->store, &key, facts_have_all).rung, RF_RUNG_NEAREST);
}

static void a_nearer_size_over_other_transports_is_passed_over(void **state)
{
    fixture *f = *state;
    facts_place both = facts_at(HW_TEXT, ENV_TEXT "transports=peer,host\n");
    facts_place host = facts_at(HW_TEXT, ENV_TEXT "transports=host\n");
    rfi_key above = facts_key(&both, 16, 4096), below = facts_key(&both, 2, 4096);
    tune(f, f->store, &both, 4);
    tune(f, f->store, &host, 8);
    assert_int_equal(ask(f->store, &above, facts_have_all).bucket, 65536);
    tune(f, f->store, &both, 8);
    tune(f, f->store, &host, 4);
    assert_int_equal(ask(f->store, &below, facts_have_all).bucket, 65536);
}

static void what_a_file_says_stays_on_one_line(void **state)
{
    fixture *f = *state;
    facts_place then = facts_at(HW_TEXT, "r0.kernel=6.1\033[2J\tx\nr1.kernel=6.1\n");
    rfi_key key = facts_key(&f->here, 4, 4096);
    tune(f, f->store, &then, 4);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_int_equal(d.rung, RF_RUNG_OTHER_ENV);
    assert_non_null(strstr(d.reason, "6.1?[2J?x ->"));
}

static void another_build_is_stale(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 4, 4096);
    tune(f, f->store, &f->here, 4);
    rfi_decision d = ask(f->store, &key, has_other_builds);
    assert_int_equal(d.rung, RF_RUNG_OTHER_HASH);
    assert_string_equal(d.variant, f->os.name);
}

static void any_hidden_is_served_by_generic_variants(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 2, 8192);
    tune(f, f->store, &f->here, 4);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_string_equal(d.variant, f->generic.name);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
}

static void a_variant_that_is_not_here_is_passed_over(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 4, 4096);
    tune(f, f->store, &f->here, 4);
    assert_string_equal(ask(f->store, &key, has_generic_only).variant, f->generic.name);
}

static void the_nearest_bucket_answers(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 64, 4096);
    tune(f, f->store, &f->here, 4);  /* 64 KiB */
    tune(f, f->store, &f->here, 16); /* 256 KiB */
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_int_equal(d.rung, RF_RUNG_NEAREST);
    assert_int_equal(d.bucket, 16 * 4096 * 4);
    assert_non_null(strstr(d.reason, "262144"));
    key = facts_key(&f->here, 8, 4096);
    d = ask(f->store, &key, facts_have_all);
    assert_int_equal(d.bucket, 4 * 4096 * 4);   /* as near as the next above, and smaller */
    assert_string_equal(d.variant, f->os.name); /* and not that of any hidden size */
}

static void a_bucket_far_away_is_no_answer(void **state)
{
    fixture *f = *state;
    rfi_decision d;
    tune(f, f->store, &f->here, 16); /* 256 KiB */
    const uint64_t rows[] = {2, 128};
    for (size_t i = 0; i < 2; i++) {
        rfi_key key = facts_key(&f->here, rows[i], 4096);
        assert_int_equal(f->store->v->lookup(f->store, &key, facts_have_all, NULL, &d), 0);
        assert_non_null(
            strstr(d.reason, "for op ar, dtype f32, mode eager, world 2 at a like size; run"));
    }
}

static void other_hardware_is_no_answer(void **state)
{
    fixture *f = *state;
    facts_place elsewhere = facts_at("0.cpu=Another\n", ENV_TEXT);
    rfi_key key = facts_key(&elsewhere, 4, 4096);
    rfi_decision d;
    tune(f, f->store, &f->here, 4);
    assert_int_equal(f->store->v->lookup(f->store, &key, facts_have_all, NULL, &d), 0);
}

static void the_baseline_may_win(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 4, 4096);
    rfi_measurement m[] = {facts_measurement(&key, &f->os, 8, 10000),
                           facts_measurement(&key, NULL, 0, 5000)};
    MUST(facts_campaign(f->store, &f->here, &key, m, 2, &why));
    rfi_decision d = ask(f->store, &key, has_other_builds);
    assert_int_equal(d.fallback, 1);
    assert_string_equal(d.variant, "");
    assert_int_equal(d.rung, RF_RUNG_EXACT);
}

static void only_a_finished_shape_is_swept(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 4, 4096), other = facts_key(&f->here, 3, 4096);
    rfi_measurement m = facts_measurement(&key, &f->os, 8, 10000);
    MUST(facts_begin(f->store, &f->here, &why));
    MUST(f->store->v->record(f->store, &m, 1, &why));
    assert_int_equal(f->store->v->swept(f->store, &key), 0);
    MUST(f->store->v->finish_shape(f->store, &key, &why));
    assert_int_equal(f->store->v->swept(f->store, &key), 1);
    assert_int_equal(f->store->v->swept(f->store, &other), 0);
    MUST(f->store->v->end(f->store, &why));
}

static void a_killed_session_can_go_on(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 4, 4096);
    rfi_measurement m = facts_measurement(&key, &f->os, 8, 10000.1234), found = {0};
    m.order_index = 5;
    MUST(facts_begin(f->store, &f->here, &why));
    MUST(f->store->v->record(f->store, &m, 1, &why));
    rf_store_close(f->store); /* as if killed */
    f->store = open_store(f->path, NULL, 0);

    assert_int_equal(f->store->v->measured(f->store, &key, &f->os, 8, &found), 1);
    assert_true(found.median_ns == 10000.123);
    assert_int_equal(found.order_index, 5);
    assert_int_equal(found.outcome, RFI_OK);
    assert_int_equal(f->store->v->measured(f->store, &key, &f->os, 9, &found), 0);
    assert_int_equal(f->store->v->measured(f->store, &key, &f->ts, 8, &found), 0);

    /* The next session measures what is missing, and the old measurement counts. */
    rfi_measurement slower = facts_measurement(&key, &f->ts, 4, 12000);
    MUST(facts_campaign(f->store, &f->here, &key, &slower, 1, &why));
    assert_string_equal(ask(f->store, &key, facts_have_all).variant, f->os.name);
    /* Settled now: a new session starts afresh. */
    assert_int_equal(f->store->v->measured(f->store, &key, &f->os, 8, &found), 0);
}

static void a_failed_candidate_is_a_fact(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 4, 4096);
    rfi_measurement bad = facts_measurement(&key, &f->os, 8, 1), found = {0};
    bad.outcome = RFI_WRONG;
    MUST(facts_begin(f->store, &f->here, &why));
    MUST(f->store->v->record(f->store, &bad, 1, &why));
    assert_int_equal(f->store->v->measured(f->store, &key, &f->os, 8, &found), 1);
    assert_int_equal(found.outcome, RFI_WRONG);
    MUST(f->store->v->finish_shape(f->store, &key, &why));
    MUST(f->store->v->end(f->store, &why));
    rfi_decision d;
    assert_int_equal(f->store->v->lookup(f->store, &key, facts_have_all, NULL, &d), 0);
}

static void a_late_measurement_moves_the_decision_too(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 4, 4096);
    rfi_measurement first = facts_measurement(&key, &f->ts, 4, 12000);
    rfi_measurement late = facts_measurement(&key, &f->os, 8, 10000);
    MUST(facts_begin(f->store, &f->here, &why));
    MUST(f->store->v->record(f->store, &first, 1, &why));
    MUST(f->store->v->finish_shape(f->store, &key, &why));
    MUST(f->store->v->record(f->store, &late, 1, &why));
    assert_string_equal(ask(f->store, &key, facts_have_all).variant, f->os.name);
}

static void the_generation_changes_with_a_decision_only(void **state)
{
    fixture *f = *state;
    tune(f, f->store, &f->here, 4);
    uint64_t first = f->store->v->generation(f->store);
    assert_true(first > 0);

    rfi_key key = facts_key(&f->here, 4, 4096);
    rfi_measurement m = facts_measurement(&key, &f->os, 8, 9000);
    MUST(facts_begin(f->store, &f->here, &why));
    MUST(f->store->v->record(f->store, &m, 1, &why));
    assert_int_equal(f->store->v->generation(f->store), first);
    MUST(f->store->v->finish_shape(f->store, &key, &why));
    assert_true(f->store->v->generation(f->store) > first);
    MUST(f->store->v->end(f->store, &why));
}

/* ---- opt-ins ---- */

static void with_the_opt_in_its_winner_is_exact(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->dependent, 4, 4096);
    tune_dependent(f, &f->dependent);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_string_equal(d.variant, f->early.name);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
}

static void without_it_the_best_of_the_others_is_exact_too(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 4, 4096);
    tune_dependent(f, &f->dependent);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_string_equal(d.variant, f->os.name);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
}

static void what_was_tuned_without_it_is_a_partial_answer(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->dependent, 4, 4096);
    tune(f, f->store, &f->here, 4);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_string_equal(d.variant, f->os.name);
    assert_int_equal(d.rung, RF_RUNG_PARTIAL);
    assert_non_null(strstr(d.reason, ", dependent launch not measured; run"));
    assert_non_null(strstr(d.reason, "tune -n 2 --admit dependent --shapes f32:4x4096`"));
}

static void every_set_within_what_is_admitted_is_asked(void **state)
{
    fixture *f = *state;
    facts_place all = f->here;
    all.admits = RF_VARIANT_DEPENDENT | RF_VARIANT_REASSOC | RF_VARIANT_LOSSY;
    rfi_key key = facts_key(&all, 4, 4096);
    tune(f, f->store, &f->here, 4);
    tune_dependent(f, &f->dependent);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_string_equal(d.variant, f->early.name);
    assert_int_equal(d.rung, RF_RUNG_PARTIAL);
    tune_dependent(f, &all);
    assert_int_equal(ask(f->store, &key, facts_have_all).rung, RF_RUNG_EXACT);
}

static void its_own_set_goes_first_though_stale(void **state)
{
    fixture *f = *state;
    facts_place before = facts_at(HW_TEXT, "r0.driver=0\n");
    before.admits = RF_VARIANT_DEPENDENT;
    rfi_key key = facts_key(&f->dependent, 4, 4096);
    tune_dependent(f, &before);
    tune(f, f->store, &f->here, 4);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_string_equal(d.variant, f->early.name);
    assert_int_equal(d.rung, RF_RUNG_OTHER_ENV);
}

static void a_smaller_set_at_this_size_goes_before_another_size(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->dependent, 16, 4096);
    tune_dependent(f, &f->dependent);
    tune(f, f->store, &f->here, 16);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_int_equal(d.rung, RF_RUNG_PARTIAL);
    assert_int_equal(d.bucket, 16 * 4096 * 4);
}

static void a_sweep_without_it_does_not_count_as_one_with_it(void **state)
{
    fixture *f = *state;
    rfi_key without = facts_key(&f->here, 4, 4096), with = facts_key(&f->dependent, 4, 4096);
    tune(f, f->store, &f->here, 4);
    assert_int_equal(f->store->v->swept(f->store, &without), 1);
    assert_int_equal(f->store->v->swept(f->store, &with), 0);
}

static void a_sweep_with_it_counts_as_one_without(void **state)
{
    fixture *f = *state;
    rfi_key without = facts_key(&f->here, 4, 4096), with = facts_key(&f->dependent, 4, 4096);
    tune_dependent(f, &f->dependent);
    assert_int_equal(f->store->v->swept(f->store, &with), 1);
    assert_int_equal(f->store->v->swept(f->store, &without), 1);
}

static void what_was_measured_without_it_is_known(void **state)
{
    fixture *f = *state;
    rfi_key with = facts_key(&f->dependent, 4, 4096);
    rfi_measurement found;
    tune(f, f->store, &f->here, 4);
    assert_int_equal(f->store->v->measured(f->store, &with, &f->os, 8, &found), 1);
    assert_true(found.median_ns == 10000);
    assert_int_equal(f->store->v->measured(f->store, &with, &f->early, 8, &found), 0);

    /* Only what is missing is measured, and the decision is among all. */
    rfi_measurement slower = facts_measurement(&with, &f->early, 8, 11000);
    MUST(facts_campaign(f->store, &f->dependent, &with, &slower, 1, &why));
    rfi_decision d = ask(f->store, &with, facts_have_all);
    assert_string_equal(d.variant, f->os.name);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
    /* Settled now. */
    assert_int_equal(f->store->v->measured(f->store, &with, &f->os, 8, &found), 0);
}

/* ---- groupings that a file makes ---- */

#define GROUPED(env, islands) env "transports=peer,host\nislands=" islands "\n"

static const char *const links_env = ENV_TEXT "transports=peer,host\n";
static const char *const one_env = GROUPED(ENV_TEXT, "0,1|2,3");
static const char *const two_env = GROUPED(ENV_TEXT, "0,2|1,3");

static facts_place reassoc_at(const char *env_text)
{
    facts_place place = facts_at(HW_TEXT, env_text);
    place.admits = RF_VARIANT_REASSOC;
    return place;
}

/* os 10 us, and islands 8 us, at `rows` x 4096 */
static void tune_islands(fixture *f, const facts_place *place, uint64_t rows)
{
    rfi_key key = facts_key(place, rows, 4096);
    rfi_measurement m[] = {facts_measurement(&key, &f->os, 8, 10000),
                           facts_measurement(&key, &f->islands, 8, 8000)};
    MUST(facts_campaign(f->store, place, &key, m, 2, &why));
}

static void a_grouping_is_nothing_to_those_who_do_not_sum_by_it(void **state)
{
    fixture *f = *state;
    facts_place grouped = reassoc_at(one_env), plain = facts_at(HW_TEXT, links_env);
    rfi_key key = facts_key(&plain, 4, 4096);
    tune_islands(f, &grouped, 4);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_string_equal(d.variant, f->os.name);
    assert_int_equal(d.rung, RF_RUNG_EXACT);
    assert_null(strstr(d.reason, "stale"));
    assert_int_equal(f->store->v->swept(f->store, &key), 1);
    key = facts_key(&plain, 8, 4096);
    assert_int_equal(f->store->v->swept(f->store, &key), 0);
    d = ask(f->store, &key, facts_have_all);
    assert_int_equal(d.rung, RF_RUNG_NEAREST);
    assert_null(strstr(d.reason, "stale"));
}

static void what_was_tuned_before_the_file_was_set_is_a_partial_answer(void **state)
{
    fixture *f = *state;
    facts_place plain = facts_at(HW_TEXT, links_env), grouped = reassoc_at(one_env);
    rfi_key key = facts_key(&grouped, 4, 4096);
    tune(f, f->store, &plain, 4);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_string_equal(d.variant, f->os.name);
    assert_int_equal(d.rung, RF_RUNG_PARTIAL);
    assert_null(strstr(d.reason, "stale"));
    assert_non_null(strstr(d.reason, ", sums in another order not measured in the islands=0,1|2,3 "
                                     "of RANKFOLD_TOPOLOGY; run `rankfold tune"));
}

/* Of two groupings, and of the links'. */
static void sums_by_one_grouping_say_nothing_of_another(void **state)
{
    fixture *f = *state;
    const char *const texts[] = {one_env, two_env, links_env};
    for (size_t tuned = 0; tuned < 3; tuned++) {
        facts_place place = reassoc_at(texts[tuned]);
        tune_islands(f, &place, (uint64_t)64 << (8 * tuned));
        for (size_t asked = 0; asked < 3; asked++) {
            facts_place asking = reassoc_at(texts[asked]);
            rfi_key key = facts_key(&asking, (uint64_t)64 << (8 * tuned), 4096);
            rfi_decision d = ask(f->store, &key, facts_have_all);
            assert_string_equal(d.variant, asked == tuned ? f->islands.name : f->os.name);
            assert_int_equal(d.rung, asked == tuned ? RF_RUNG_EXACT : RF_RUNG_PARTIAL);
            assert_int_equal(f->store->v->swept(f->store, &key), asked == tuned);
        }
    }
}

/* ... nor do they hide it. */
static void a_grouping_tuned_later_hides_no_other(void **state)
{
    fixture *f = *state;
    facts_place before = reassoc_at(GROUPED("r0.kernel=5.0\n", "0,1|2,3"));
    facts_place other = reassoc_at(two_env), now = reassoc_at(one_env);
    rfi_key key = facts_key(&now, 4, 4096), larger = facts_key(&now, 16, 4096);
    tune_islands(f, &before, 4);
    tune_islands(f, &other, 4);
    tune_islands(f, &other, 8);
    rfi_decision d = ask(f->store, &key, facts_have_all);
    assert_string_equal(d.variant, f->islands.name);
    assert_int_equal(d.rung, RF_RUNG_OTHER_ENV);
    assert_null(strstr(d.reason, "islands"));
    d = ask(f->store, &larger, facts_have_all);
    assert_string_equal(d.variant, f->os.name); /* of the nearer size, whose islands are others */
    assert_int_equal(d.bucket, 8 * 4096 * 4);
}

/* ... nor that of the links, which no line names. */
static void a_grouping_tuned_later_does_not_hide_the_links_own(void **state)
{
    fixture *f = *state;
    facts_place before = reassoc_at("r0.kernel=5.0\ntransports=peer,host\n");
    facts_place other = reassoc_at(one_env), now = reassoc_at(links_env);
    const uint64_t rows[] = {2, 4, 8};
    tune_islands(f, &before, 4);
    tune_islands(f, &other, 4);
    for (size_t i = 0; i < 3; i++) {
        rfi_key key = facts_key(&now, rows[i], 4096);
        rfi_decision d = ask(f->store, &key, facts_have_all);
        assert_string_equal(d.variant, f->islands.name);
        assert_int_equal(d.rung, i == 1 ? RF_RUNG_OTHER_ENV : RF_RUNG_NEAREST);
    }
}

static void a_key_is_of_its_campaigns_set(void **state)
{
    fixture *f = *state;
    rf_error err = {0};
    rfi_key key = facts_key(&f->here, 4, 4096);
    rfi_measurement m = facts_measurement(&key, &f->os, 8, 10000);
    MUST(facts_begin(f->store, &f->dependent, &why));
    assert_int_equal(f->store->v->record(f->store, &m, 1, &err), RF_E_ARG);
    assert_non_null(strstr(err.text, "set of opt-ins"));
}

static void the_baseline_of_a_killed_session_stays_known(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 4, 4096);
    rfi_measurement theirs = facts_measurement(&key, NULL, 0, 30000);
    rfi_measurement ours = facts_measurement(&key, &f->os, 8, 10000);
    MUST(facts_begin(f->store, &f->here, &why));
    MUST(f->store->v->record(f->store, &theirs, 1, &why));
    MUST(f->store->v->end(f->store, &why)); /* the shape was not finished */
    MUST(facts_campaign(f->store, &f->here, &key, &ours, 1, &why));
    assert_true(ask(f->store, &key, facts_have_all).baseline_ns == 30000);
}

static void a_baseline_that_failed_is_infinitely_slow(void **state)
{
    fixture *f = *state;
    rfi_key key = facts_key(&f->here, 4, 4096);
    rfi_measurement m[] = {facts_measurement(&key, &f->os, 8, 10000),
                           facts_measurement(&key, NULL, 0, 1)};
    m[1].outcome = RFI_WRONG;
    MUST(facts_campaign(f->store, &f->here, &key, m, 2, &why));
    assert_true(isinf(ask(f->store, &key, facts_have_all).baseline_ns));
}

static void the_folder_and_the_file_are_private(void **state)
{
    fixture *f = *state;
    struct stat st;
    char folder[FOLDER_PATH + 32];
    snprintf(folder, sizeof folder, "%s/state", f->folder);
    tune(f, f->store, &f->here, 4);
    assert_int_equal(stat(f->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(stat(folder, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
}

static void a_store_for_reading_refuses_to_write(void **state)
{
    fixture *f = *state;
    rf_error err = {0};
    tune(f, f->store, &f->here, 4);
    rf_store *reader = open_store(f->path, NULL, RF_STORE_READ);
    rfi_key key = facts_key(&f->here, 4, 4096);
    assert_int_equal(ask(reader, &key, facts_have_all).rung, RF_RUNG_EXACT);
    assert_int_equal(facts_begin(reader, &f->here, &err), RF_E_DB_READONLY);
    rf_store_close(reader);
}

static void the_shipped_file_is_the_lowest_rung(void **state)
{
    fixture *f = *state;
    char empty[FOLDER_PATH + 32];
    rfi_key key = facts_key(&f->here, 4, 4096);
    snprintf(empty, sizeof empty, "%s/none.db", f->folder);
    tune(f, f->store, &f->here, 4);
    rf_store *both = open_store(empty, f->path, 0);
    rfi_decision d = ask(both, &key, facts_have_all);
    assert_int_equal(d.rung, RF_RUNG_SHIPPED);
    assert_string_equal(d.variant, f->os.name);
    assert_int_equal(strncmp(d.reason, "shipped: ", 9), 0);
    assert_null(rf_store_warning(both));
    rf_store_close(both);
}

static void wrong_order_of_calls_is_refused(void **state)
{
    fixture *f = *state;
    rf_error err = {0};
    rfi_key key = facts_key(&f->here, 4, 4096);
    rfi_measurement m = facts_measurement(&key, &f->os, 8, 10000);
    assert_int_equal(f->store->v->record(f->store, &m, 1, &err), RF_E_ARG);
    assert_int_equal(f->store->v->finish_shape(f->store, &key, &err), RF_E_ARG);
    assert_int_equal(f->store->v->end(f->store, &err), RF_E_ARG);
    MUST(facts_begin(f->store, &f->here, &why));
    m.median_ns = 0;
    assert_int_equal(f->store->v->record(f->store, &m, 1, &err), RF_E_ARG);
}

/* A session that failed has left its campaign open: the next one of the same store begins its own.
 */
static void a_campaign_cut_short_is_no_obstacle(void **state)
{
    fixture *f = *state;
    rf_error err = {0};
    MUST(facts_begin(f->store, &f->here, &why));
    assert_int_equal(facts_begin(f->store, &f->here, &err), RF_OK);
    MUST(f->store->v->end(f->store, &why));
    assert_int_equal(f->store->v->end(f->store, &err), RF_E_ARG);
}

static rf_result begin_without_a_place(const char *path, rf_error *err, const fixture *f)
{
    rf_store *store;
    MUST(rf_store_open(path, NULL, 0, &store, &why));
    rf_result result = facts_begin(store, &f->here, err);
    rf_store_close(store);
    return result;
}

static void no_place_for_a_file_is_said(void **state)
{
    rf_error err = {0};
    assert_int_equal(begin_without_a_place("", &err, *state), RF_E_DB);
    assert_non_null(strstr(err.text, "the path is empty"));
    static const char *const names[] = {"RANKFOLD_DB", "XDG_STATE_HOME", "HOME"};
    char *kept[3];
    for (int i = 0; i < 3; i++) {
        kept[i] = getenv(names[i]) ? strdup(getenv(names[i])) : NULL;
        unsetenv(names[i]);
    }
    rf_result result = begin_without_a_place(NULL, &err, *state);
    for (int i = 0; i < 3; i++) {
        if (kept[i])
            setenv(names[i], kept[i], 1);
        free(kept[i]);
    }
    assert_int_equal(result, RF_E_DB_ABSENT);
    assert_non_null(strstr(err.text, "neither RANKFOLD_DB nor HOME is set"));
}

int main(void)
{
#define FACT(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        FACT(opening_creates_nothing),
        FACT(the_fastest_is_answered),
        FACT(the_shape_that_was_measured_is_named_to_another_of_its_bucket),
        FACT(an_empty_store_says_what_to_run),
        FACT(another_environment_is_stale_and_named),
        FACT(of_fields_of_one_name_each_has_its_own_counterpart),
        FACT(advice_has_its_room),
        FACT(other_transports_are_not_answered),
        FACT(a_nearer_size_over_other_transports_is_passed_over),
        FACT(of_several_environments_one_with_the_transports_answers),
        FACT(what_a_file_says_stays_on_one_line),
        FACT(another_build_is_stale),
        FACT(any_hidden_is_served_by_generic_variants),
        FACT(a_variant_that_is_not_here_is_passed_over),
        FACT(the_nearest_bucket_answers),
        FACT(a_bucket_far_away_is_no_answer),
        FACT(other_hardware_is_no_answer),
        FACT(the_baseline_may_win),
        FACT(only_a_finished_shape_is_swept),
        FACT(a_killed_session_can_go_on),
        FACT(a_failed_candidate_is_a_fact),
        FACT(a_late_measurement_moves_the_decision_too),
        FACT(the_generation_changes_with_a_decision_only),
        FACT(with_the_opt_in_its_winner_is_exact),
        FACT(without_it_the_best_of_the_others_is_exact_too),
        FACT(what_was_tuned_without_it_is_a_partial_answer),
        FACT(every_set_within_what_is_admitted_is_asked),
        FACT(its_own_set_goes_first_though_stale),
        FACT(a_smaller_set_at_this_size_goes_before_another_size),
        FACT(a_sweep_without_it_does_not_count_as_one_with_it),
        FACT(a_sweep_with_it_counts_as_one_without),
        FACT(what_was_measured_without_it_is_known),
        FACT(a_grouping_is_nothing_to_those_who_do_not_sum_by_it),
        FACT(what_was_tuned_before_the_file_was_set_is_a_partial_answer),
        FACT(sums_by_one_grouping_say_nothing_of_another),
        FACT(a_grouping_tuned_later_hides_no_other),
        FACT(a_grouping_tuned_later_does_not_hide_the_links_own),
        FACT(a_key_is_of_its_campaigns_set),
        FACT(the_baseline_of_a_killed_session_stays_known),
        FACT(a_baseline_that_failed_is_infinitely_slow),
        FACT(the_folder_and_the_file_are_private),
        FACT(a_store_for_reading_refuses_to_write),
        FACT(the_shipped_file_is_the_lowest_rung),
        FACT(a_campaign_cut_short_is_no_obstacle),
        FACT(no_place_for_a_file_is_said),
        FACT(wrong_order_of_calls_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
