/* The rule by which measurements become decisions (runtime/store/fold.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "store/fold.h"

#define MAX_TRIALS     16
#define MAX_CANDIDATES 64

static rfi_trial trials[MAX_TRIALS];
static rfi_candidate candidates[MAX_CANDIDATES];
static size_t n_trials, n_candidates;
static rfi_choice choices[MAX_TRIALS];

static int reset(void **state)
{
    (void)state;
    memset(trials, 0, sizeof trials);
    memset(candidates, 0, sizeof candidates);
    n_trials = n_candidates = 0;
    return 0;
}

/* The candidates that follow belong to it. */
static void trial(const char *env, int swept, uint64_t rows)
{
    rfi_trial *t = &trials[n_trials++];
    snprintf(t->env, sizeof t->env, "%s", env);
    t->swept = swept;
    t->rows = rows;
    t->hidden = 4096;
    t->first = n_candidates;
}

static rfi_candidate *candidate(const char *name, double median_ns, double noise_ns)
{
    rfi_candidate *c = &candidates[n_candidates++];
    snprintf(c->name, sizeof c->name, "%s", name);
    c->median_ns = median_ns;
    c->noise_ns = noise_ns;
    trials[n_trials - 1].count++;
    return c;
}

static size_t fold(void)
{
    return rfi_fold(trials, n_trials, candidates, 0, choices);
}

/* ---- with opt-ins ---- */

#define DEP RF_VARIANT_DEPENDENT

/* A sweep that admits `admits`. */
static void sweep(unsigned admits)
{
    trial("a", 1, 1);
    trials[n_trials - 1].admits = admits;
}

static void dependent(const char *name, double median_ns)
{
    candidate(name, median_ns, 1)->flags = DEP;
}

/* Name of the choice for callers that admit `admits`, of the last environment; "" = there is none.
 */
static const char *winner(unsigned admits)
{
    size_t n = rfi_fold(trials, n_trials, candidates, admits, choices);
    return n ? choices[n - 1].best->name : "";
}

/* ---- facts ---- */

static void the_fastest_of_a_first_sweep_wins(void **state)
{
    (void)state;
    trial("a", 1, 1);
    candidate("slow", 200, 1);
    candidate("fast", 100, 1);
    candidate("middle", 150, 1);
    assert_int_equal(fold(), 1);
    assert_string_equal(choices[0].best->name, "fast");
    assert_string_equal(choices[0].runner_up->name, "middle");
}

static void an_unfinished_sweep_decides_nothing(void **state)
{
    (void)state;
    trial("a", 0, 1);
    candidate("x", 100, 1);
    assert_int_equal(fold(), 0);
}

static void the_incumbent_stays_within_the_noise(void **state)
{
    (void)state;
    trial("a", 1, 1);
    candidate("old", 100, 1);
    candidate("new", 101, 1);
    trial("a", 1, 1);
    candidate("old", 103, 1);
    candidate("new", 100, 1); /* 3 faster, 3 * 1 of noise: not beyond */
    assert_int_equal(fold(), 1);
    assert_string_equal(choices[0].best->name, "old");
    assert_true(choices[0].best->median_ns == 103); /* as measured last */
    assert_string_equal(choices[0].runner_up->name, "new");
    assert_int_equal(choices[0].trial, 1);
}

static void beyond_the_noise_it_falls(void **state)
{
    (void)state;
    trial("a", 1, 1);
    candidate("old", 100, 1);
    candidate("new", 101, 1);
    trial("a", 1, 1);
    candidate("old", 103.5, 1);
    candidate("new", 100, 1);
    assert_int_equal(fold(), 1);
    assert_string_equal(choices[0].best->name, "new");
}

static void one_per_cent_is_noise_in_any_case(void **state)
{
    (void)state;
    const rfi_candidate old = {.median_ns = 100, .noise_ns = 0};
    const rfi_candidate near = {.median_ns = 99, .noise_ns = 0};
    const rfi_candidate far = {.median_ns = 98.9, .noise_ns = 0};
    assert_int_equal(rfi_beats(&near, &old), 0);
    assert_int_equal(rfi_beats(&far, &old), 1);
}

static void no_noise_protects_from_what_takes_half_the_time(void **state)
{
    (void)state;
    const rfi_candidate old = {.median_ns = 110, .noise_ns = 42};
    const rfi_candidate near = {.median_ns = 56}, far = {.median_ns = 54};
    assert_int_equal(rfi_beats(&near, &old), 0);
    assert_int_equal(rfi_beats(&far, &old), 1);
}

static void the_noise_is_that_of_the_noisier(void **state)
{
    (void)state;
    const rfi_candidate still = {.median_ns = 100}, noisy = {.median_ns = 95, .noise_ns = 3};
    assert_int_equal(rfi_beats(&noisy, &still), 0);
    const rfi_candidate old = {.median_ns = 100, .noise_ns = 3}, new = {.median_ns = 95};
    assert_int_equal(rfi_beats(&new, &old), 0);
}

static void a_failure_is_no_runner_up(void **state)
{
    (void)state;
    trial("a", 1, 1);
    candidate("x", 100, 1);
    candidate("wrong", 50, 1)->outcome = RFI_WRONG;
    assert_int_equal(fold(), 1);
    assert_string_equal(choices[0].best->name, "x");
    assert_null(choices[0].runner_up);
}

static void an_empty_sweep_says_nothing(void **state)
{
    (void)state;
    trial("a", 1, 1);
    candidate("x", 100, 1);
    trial("a", 1, 1);
    assert_int_equal(fold(), 1);
    assert_string_equal(choices[0].best->name, "x");
}

static void a_killed_session_counts_in_its_environment_only(void **state)
{
    (void)state;
    trial("b", 0, 1);
    candidate("x", 100, 1);
    trial("a", 1, 1);
    candidate("y", 200, 1);
    assert_int_equal(fold(), 1);
    assert_string_equal(choices[0].best->name, "y");
}

static void a_sweep_settles_nothing_that_it_did_not_admit(void **state)
{
    (void)state;
    unsigned looked = 0;
    assert_int_equal(rfi_settles(&looked, DEP, 0), 0);
    assert_int_equal(rfi_settles(&looked, DEP, DEP), 0);
    assert_int_equal(rfi_settles(&looked, DEP, DEP), 1);
}

static void a_failed_incumbent_is_gone(void **state)
{
    (void)state;
    trial("a", 1, 1);
    candidate("old", 100, 1);
    trial("a", 1, 1);
    candidate("old", 0, 0)->outcome = RFI_WRONG;
    candidate("new", 500, 1);
    assert_int_equal(fold(), 1);
    assert_string_equal(choices[0].best->name, "new");
}

static void an_incumbent_that_is_not_there_any_more_is_gone(void **state)
{
    (void)state;
    trial("a", 1, 1);
    candidate("old", 100, 1);
    trial("a", 1, 1);
    candidate("new", 500, 1);
    fold();
    assert_string_equal(choices[0].best->name, "new");
}

static void a_new_build_succeeds_under_its_name(void **state)
{
    (void)state;
    trial("a", 1, 1);
    candidate("x", 100, 1)->hash[0] = 1;
    trial("a", 1, 1);
    candidate("x", 103, 1)->hash[0] = 2;
    candidate("y", 101, 1);
    fold();
    assert_string_equal(choices[0].best->name, "x"); /* within the noise of y */
    assert_int_equal(choices[0].best->hash[0], 2);
}

static void ties_go_by_name_then_grid(void **state)
{
    (void)state;
    trial("a", 1, 1);
    candidate("b", 100, 1);
    candidate("a", 100, 1)->grid = 8;
    candidate("a", 100, 1)->grid = 4;
    fold();
    assert_string_equal(choices[0].best->name, "a");
    assert_int_equal(choices[0].best->grid, 4);
}

static void a_killed_session_counts_for_the_next_one(void **state)
{
    (void)state;
    trial("a", 0, 1);
    candidate("x", 100, 1);
    trial("a", 1, 1);
    candidate("y", 200, 1);
    assert_int_equal(fold(), 1);
    assert_string_equal(choices[0].best->name, "x");
}

static void what_a_finished_sweep_settled_is_over(void **state)
{
    (void)state;
    trial("a", 1, 1);
    candidate("x", 100, 1);
    trial("a", 0, 2); /* another shape of the bucket */
    candidate("x", 1, 1);
    trial("a", 1, 1);
    candidate("y", 200, 1);
    fold();
    assert_string_equal(choices[0].best->name, "y");
}

static void the_latest_measurement_of_a_candidate_counts(void **state)
{
    (void)state;
    trial("a", 0, 1);
    candidate("x", 100, 1);
    trial("a", 1, 1);
    candidate("x", 300, 1);
    candidate("y", 200, 1);
    fold();
    assert_string_equal(choices[0].best->name, "y");
}

static void every_environment_keeps_its_own_choice(void **state)
{
    (void)state;
    trial("b", 1, 1);
    candidate("x", 100, 1);
    candidate("y", 200, 1);
    trial("a", 1, 1);
    candidate("x", 200, 1);
    candidate("y", 100, 1);
    assert_int_equal(fold(), 2);
    assert_string_equal(trials[choices[0].trial].env, "a");
    assert_string_equal(choices[0].best->name, "y");
    assert_string_equal(trials[choices[1].trial].env, "b");
    assert_string_equal(choices[1].best->name, "x");
}

static void the_incumbent_is_carried_into_the_next_environment(void **state)
{
    (void)state;
    trial("a", 1, 1);
    candidate("x", 100, 1);
    candidate("y", 200, 1);
    trial("b", 1, 1);
    candidate("x", 102, 1);
    candidate("y", 101, 1);
    assert_int_equal(fold(), 2);
    assert_string_equal(choices[1].best->name, "x");
}

static void when_everything_fails_there_is_no_choice(void **state)
{
    (void)state;
    trial("a", 1, 1);
    candidate("x", 100, 1);
    trial("a", 1, 1);
    candidate("x", 0, 0)->outcome = RFI_TIMEOUT;
    assert_int_equal(fold(), 0);
}

static void a_sweep_decides_for_every_set_within_what_it_admits(void **state)
{
    (void)state;
    sweep(DEP);
    candidate("plain", 100, 1);
    dependent("early", 50);
    assert_string_equal(winner(0), "plain");
    assert_string_equal(winner(DEP), "early");
}

static void it_decides_nothing_for_those_who_admit_more(void **state)
{
    (void)state;
    sweep(RF_VARIANT_LOSSY);
    candidate("plain", 100, 1);
    assert_string_equal(winner(DEP), "");
    assert_string_equal(winner(DEP | RF_VARIANT_LOSSY), "");
}

static void what_needs_two_opt_ins_is_for_those_who_admit_both(void **state)
{
    (void)state;
    sweep(DEP | RF_VARIANT_LOSSY);
    candidate("plain", 100, 1);
    candidate("both", 50, 1)->flags = DEP | RF_VARIANT_LOSSY;
    assert_string_equal(winner(DEP), "plain");
    assert_string_equal(winner(DEP | RF_VARIANT_LOSSY), "both");
}

static void what_a_sweep_that_admitted_less_measured_counts(void **state)
{
    (void)state;
    sweep(0);
    candidate("plain", 100, 1);
    sweep(DEP); /* measured only what was missing */
    dependent("early", 200);
    assert_string_equal(winner(DEP), "plain");
    assert_int_equal(choices[0].trial, 1);
}

static void measuring_what_was_missing_moves_no_other_decision(void **state)
{
    (void)state;
    sweep(0);
    candidate("plain", 100, 1);
    candidate("other", 200, 1);
    sweep(DEP);
    dependent("early", 50);
    assert_string_equal(winner(0), "plain");
    assert_string_equal(choices[0].runner_up->name, "other");
}

static void what_a_sweep_that_admitted_less_settled_is_over(void **state)
{
    (void)state;
    sweep(0);
    candidate("gone", 10, 1);
    sweep(0);
    candidate("plain", 100, 1);
    sweep(DEP);
    dependent("early", 200);
    assert_string_equal(winner(DEP), "plain");
    assert_string_equal(winner(0), "plain");
}

static void a_killed_session_counts_through_a_sweep_that_admitted_less(void **state)
{
    (void)state;
    trial("a", 0, 1);
    candidate("killed", 10, 1);
    sweep(0);
    candidate("plain", 100, 1);
    sweep(DEP);
    dependent("early", 200);
    assert_string_equal(winner(DEP), "killed");
}

static void a_sweep_that_admitted_more_settles_for_all(void **state)
{
    (void)state;
    sweep(DEP);
    candidate("gone", 10, 1);
    dependent("early", 5);
    sweep(0);
    candidate("plain", 100, 1);
    assert_string_equal(winner(0), "plain");
    assert_string_equal(winner(DEP), "early"); /* the other sweep did not look at it */
}

static void one_that_admitted_as_much_is_the_last_that_counts(void **state)
{
    (void)state;
    sweep(DEP);
    candidate("gone", 10, 1);
    sweep(RF_VARIANT_LOSSY);
    candidate("plain", 100, 1);
    sweep(DEP);
    dependent("early", 200);
    assert_string_equal(winner(DEP), "plain");
}

static void the_baseline_of_a_killed_session_is_known(void **state)
{
    (void)state;
    trial("a", 0, 1);
    candidate(RFI_BASELINE, 300, 1);
    trial("a", 1, 1);
    candidate("x", 100, 1);
    fold();
    assert_non_null(choices[0].baseline);
    assert_true(choices[0].baseline->median_ns == 300);
}

static void without_a_baseline_there_is_none(void **state)
{
    (void)state;
    trial("a", 1, 1);
    candidate("x", 100, 1);
    fold();
    assert_null(choices[0].baseline);
}

int main(void)
{
#define FACT(name) cmocka_unit_test_setup(name, reset)
    const struct CMUnitTest tests[] = {
        FACT(the_fastest_of_a_first_sweep_wins),
        FACT(an_unfinished_sweep_decides_nothing),
        FACT(the_incumbent_stays_within_the_noise),
        FACT(beyond_the_noise_it_falls),
        FACT(one_per_cent_is_noise_in_any_case),
        FACT(the_noise_is_that_of_the_noisier),
        FACT(no_noise_protects_from_what_takes_half_the_time),
        FACT(a_failure_is_no_runner_up),
        FACT(an_empty_sweep_says_nothing),
        FACT(a_killed_session_counts_in_its_environment_only),
        FACT(a_sweep_settles_nothing_that_it_did_not_admit),
        FACT(a_failed_incumbent_is_gone),
        FACT(an_incumbent_that_is_not_there_any_more_is_gone),
        FACT(a_new_build_succeeds_under_its_name),
        FACT(ties_go_by_name_then_grid),
        FACT(a_killed_session_counts_for_the_next_one),
        FACT(what_a_finished_sweep_settled_is_over),
        FACT(the_latest_measurement_of_a_candidate_counts),
        FACT(every_environment_keeps_its_own_choice),
        FACT(the_incumbent_is_carried_into_the_next_environment),
        FACT(when_everything_fails_there_is_no_choice),
        FACT(a_sweep_decides_for_every_set_within_what_it_admits),
        FACT(it_decides_nothing_for_those_who_admit_more),
        FACT(what_needs_two_opt_ins_is_for_those_who_admit_both),
        FACT(what_a_sweep_that_admitted_less_measured_counts),
        FACT(measuring_what_was_missing_moves_no_other_decision),
        FACT(what_a_sweep_that_admitted_less_settled_is_over),
        FACT(a_killed_session_counts_through_a_sweep_that_admitted_less),
        FACT(a_sweep_that_admitted_more_settles_for_all),
        FACT(one_that_admitted_as_much_is_the_last_that_counts),
        FACT(the_baseline_of_a_killed_session_is_known),
        FACT(without_a_baseline_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
