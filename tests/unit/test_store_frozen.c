/* The frozen table: the same ladder, and no table is believed unseen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "store_facts.h"

extern const int rfi_abi_4;

static facts_place here;
static rfi_frozen_row rows[8];
static rf_frozen table;

static void put(size_t i, uint64_t hidden, uint64_t bucket, const char *variant)
{
    rows[i] = (rfi_frozen_row){.env_text = here.env.text,
                               .arch = here.arch,
                               .transports = "",
                               .world = 2,
                               .grid = (uint32_t)i,
                               .hidden = hidden,
                               .bucket = bucket,
                               .variant = variant,
                               .median_ns = 1000};
    memcpy(rows[i].hw, here.hw.hash, 16);
    memcpy(rows[i].env, here.env.hash, 16);
}

static int setup(void **state)
{
    (void)state;
    here = facts_at("r0.cpu=Imaginary\n", "r0.kernel=1\n");
    put(0, 0, 65536, "any_64k");
    put(1, 4096, 1024, "h4096_1k");
    put(2, 4096, 65536, "h4096_64k");
    put(3, 4096, 1048576, "");
    put(4, 8192, 64, "h8192_64");
    rows[5] = rows[4];
    rows[5].bucket = 128;
    put(6, 4096, 65536, "early");
    rows[6].admits = RF_VARIANT_DEPENDENT;
    rows[7] = rows[6];
    rows[7].variant = "far";
    rows[7].transports = "host";
    table = (rf_frozen){RF_ABI, sizeof *rows, &rfi_abi_4, 7, 8, rows};
    return 0;
}

static rf_store *open_table(void)
{
    rf_error err = {0};
    rf_store *store = NULL;
    if (rf_store_frozen(&table, &store, &err))
        fail_msg("%s", err.text);
    return store;
}

static rfi_decision ask(const facts_place *place, uint64_t rows_asked, uint64_t hidden)
{
    rfi_decision d;
    rf_store *store = open_table();
    rfi_key key = facts_key(place, rows_asked, hidden);
    store->v->lookup(store, &key, facts_have_all, NULL, &d);
    rf_store_close(store);
    return d;
}

static void an_exact_row_answers(void **state)
{
    (void)state;
    rfi_decision d = ask(&here, 4, 4096);
    assert_string_equal(d.variant, "h4096_64k");
    assert_int_equal(d.grid, 2);
    assert_int_equal(d.rung, RF_RUNG_SHIPPED);
    assert_int_equal(strncmp(d.reason, "shipped: ", 9), 0);
}

static void any_hidden_comes_next(void **state)
{
    (void)state;
    assert_string_equal(ask(&here, 16, 1024).variant, "any_64k");
}

static void then_the_nearest_bucket(void **state)
{
    (void)state;
    rfi_decision d = ask(&here, 4, 1024); /* 16 KiB: 64 KiB of any hidden size */
    assert_string_equal(d.variant, "any_64k");
    assert_non_null(strstr(d.reason, "the nearest to"));
    assert_int_equal(ask(&here, 16, 4096).bucket, 65536); /* 256 KiB: two steps from both */
    assert_int_equal(ask(&here, 256, 4096).fallback, 1);
}

static int has_not_64k(void *ctx, const unsigned char hash[16], const char *name)
{
    (void)ctx, (void)hash;
    return strstr(name, "64k") ? 0 : 2;
}

static void a_variant_that_is_not_here_is_passed_over(void **state)
{
    (void)state;
    rfi_decision d;
    rows[3].bucket = 131072;
    rf_store *store = open_table();
    rfi_key key = facts_key(&here, 4, 4096);
    assert_int_equal(store->v->lookup(store, &key, has_not_64k, NULL, &d), 1);
    rf_store_close(store);
    assert_int_equal(d.bucket, 131072); /* the next above */
}

static void but_none_that_is_far_away(void **state)
{
    (void)state;
    const rfi_decision far[] = {ask(&here, 2, 1024), ask(&here, 512, 4096)};
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(far[i].variant, "");
        assert_int_equal(far[i].fallback, 0);
        assert_non_null(strstr(far[i].reason, "at a like size"));
    }
}

static void the_baseline_is_a_fallback(void **state)
{
    (void)state;
    rfi_decision d = ask(&here, 64, 4096);
    assert_int_equal(d.fallback, 1);
    assert_string_equal(d.variant, "");
}

static void an_opt_in_has_rows_of_its_own(void **state)
{
    (void)state;
    facts_place dependent = here;
    dependent.admits = RF_VARIANT_DEPENDENT;
    assert_string_equal(ask(&dependent, 4, 4096).variant, "early");
}

static void transports_have_rows_of_their_own(void **state)
{
    (void)state;
    facts_place far = facts_at(here.hw.text, "r0.kernel=1\ntransports=host\n");
    far.admits = RF_VARIANT_DEPENDENT;
    assert_string_equal(ask(&far, 4, 4096).variant, "far");
    facts_place both = facts_at(here.hw.text, "r0.kernel=1\ntransports=peer,host\n");
    assert_string_equal(ask(&both, 4, 4096).variant, "");
}

/* For a set that sums by it: by its neighbours with the same transports it is passed over. */
static void groupings_have_rows_of_their_own(void **state)
{
    (void)state;
    facts_place one = facts_at(here.hw.text, "r0.kernel=1\ntransports=host\nislands=0,1|2,3\n");
    facts_place two = facts_at(here.hw.text, "r0.kernel=1\ntransports=host\nislands=0,2|1,3\n");
    facts_place none = facts_at(here.hw.text, "r0.kernel=1\ntransports=host\n");
    rows[6].admits = rows[7].admits = RF_VARIANT_DEPENDENT | RF_VARIANT_REASSOC;
    rows[6].transports = "host";
    rows[6].variant = "none";
    rows[7].transports = "host islands=0,1|2,3";
    rows[7].variant = "one";
    one.admits = two.admits = none.admits = rows[6].admits;
    rows[6].env_text = none.env.text;
    rows[7].env_text = one.env.text;
    memcpy(rows[6].env, none.env.hash, 16);
    memcpy(rows[7].env, one.env.hash, 16);
    assert_string_equal(ask(&one, 4, 4096).variant, "one");
    assert_string_equal(ask(&two, 4, 4096).variant, "");
    assert_string_equal(ask(&none, 4, 4096).variant, "none");
}

static void what_was_frozen_without_it_answers_too(void **state)
{
    (void)state;
    facts_place dependent = here;
    dependent.admits = RF_VARIANT_DEPENDENT;
    rfi_decision d = ask(&dependent, 16, 1024);
    assert_string_equal(d.variant, "any_64k");
    assert_int_equal(d.rung, RF_RUNG_SHIPPED);
    assert_non_null(strstr(d.reason, "dependent launch not measured"));
}

static void another_environment_is_said(void **state)
{
    (void)state;
    facts_place later = facts_at(here.hw.text, "r0.kernel=2\n");
    rfi_decision d = ask(&later, 4, 4096);
    assert_string_equal(d.variant, "h4096_64k");
    assert_non_null(strstr(d.reason, ": kernel 1 -> 2"));
}

static void each_environment_has_rows_of_its_own(void **state)
{
    (void)state;
    facts_place earlier = facts_at(here.hw.text, "r0.kernel=0\n");
    facts_place later = facts_at(here.hw.text, "r0.kernel=2\n");
    rows[3].bucket = rows[2].bucket;
    rows[3].variant = "earlier";
    rows[3].env_text = earlier.env.text;
    memcpy(rows[3].env, earlier.env.hash, 16);
    const uint64_t sizes[] = {2, 4, 8}; /* the nearest above, the size itself, the nearest below */
    for (size_t i = 0; i < 3; i++) {
        rfi_decision d = ask(&earlier, sizes[i], 4096);
        assert_string_equal(d.variant, "earlier");
        assert_null(strstr(d.reason, "stale"));
        assert_string_equal(ask(&here, sizes[i], 4096).variant, "h4096_64k");
        assert_string_equal(ask(&later, sizes[i], 4096).variant, "h4096_64k");
    }
}

static void other_hardware_is_not_answered(void **state)
{
    (void)state;
    facts_place elsewhere = facts_at("r0.cpu=Another\n", "r0.kernel=1\n");
    rfi_decision d = ask(&elsewhere, 4, 4096);
    assert_string_equal(d.variant, "");
    assert_non_null(strstr(d.reason, "rankfold tune"));
}

static void an_empty_table_is_legal(void **state)
{
    (void)state;
    table.n = 0;
    table.rows = NULL;
    assert_string_equal(ask(&here, 4, 4096).variant, "");
}

static void it_cannot_be_written(void **state)
{
    (void)state;
    rf_error err = {0};
    rf_store *store = open_table();
    assert_int_equal(facts_begin(store, &here, &err), RF_E_DB_READONLY);
    assert_non_null(strstr(err.text, "frozen"));
    assert_int_equal(store->v->generation(store), 7);
    assert_null(rf_store_warning(store));
    rf_store_close(store);
}

static void refused(const char *expected)
{
    rf_error err = {0};
    rf_store *store = NULL;
    assert_int_equal(rf_store_frozen(&table, &store, &err), RF_E_DB);
    assert_null(store);
    if (!strstr(err.text, expected))
        fail_msg("'%s' does not say '%s'", err.text, expected);
}

static void bad_tables_are_refused(void **state)
{
    char text[32];
    snprintf(text, sizeof text, "ABI %d", RF_ABI + 1);
    table.abi = RF_ABI + 1;
    refused(text);
    setup(state);
    table.row_size--;
    refused("size");
    setup(state);
    table.abi_witness = NULL;
    refused("incomplete");
    setup(state);
    table.rows = NULL;
    refused("incomplete");
    setup(state);
    rows[2].variant = NULL;
    refused("row 2 has no architecture, variant");
    setup(state);
    rows[3].bucket = 1000;
    refused("row 3 has a bucket");
    setup(state);
    rows[0].bucket = 32;
    refused("row 0 has a bucket");
    setup(state);
    rows[6].admits = 8;
    refused("row 6 admits what there is not");
    setup(state);
    rows[6].admits = 0;
    refused("row 6 is not in order");
    setup(state);
    rows[2].hidden = 5000;
    refused("row 3 is not in order");
    setup(state);
    rows[5] = rows[4];
    refused("row 5 is not in order");
    setup(state);
    char name[RFI_NAME + 1];
    memset(name, 'x', RFI_NAME);
    name[RFI_NAME] = '\0';
    rows[0].variant = name;
    refused("too long");
}

static void null_arguments_are_refused(void **state)
{
    (void)state;
    rf_store *store;
    assert_int_equal(rf_store_frozen(NULL, &store, NULL), RF_E_ARG);
    assert_int_equal(rf_store_frozen(&table, NULL, NULL), RF_E_ARG);
}

int main(void)
{
#define FACT(name) cmocka_unit_test_setup(name, setup)
    const struct CMUnitTest tests[] = {
        FACT(an_exact_row_answers),
        FACT(any_hidden_comes_next),
        FACT(then_the_nearest_bucket),
        FACT(a_variant_that_is_not_here_is_passed_over),
        FACT(but_none_that_is_far_away),
        FACT(the_baseline_is_a_fallback),
        FACT(another_environment_is_said),
        FACT(each_environment_has_rows_of_its_own),
        FACT(other_hardware_is_not_answered),
        FACT(an_opt_in_has_rows_of_its_own),
        FACT(transports_have_rows_of_their_own),
        FACT(groupings_have_rows_of_their_own),
        FACT(what_was_frozen_without_it_answers_too),
        FACT(an_empty_table_is_legal),
        FACT(it_cannot_be_written),
        FACT(bad_tables_are_refused),
        FACT(null_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
