/* Sums through the public interface against the oracle, bit for bit, in worlds 1 to 8. Cases F25 to
 * F28. (tests/unit/test_kernels.c has the kernels alone.) */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "group.h"

typedef const char *run_fn(int, rank_fn, void *, const ranks_options *);

static const rf_dtype dtypes[] = {RF_F32, RF_BF16, RF_F16};

/* ---- every variant that may run, and the plans ---- */

static const uint64_t counts[] = {1, 2, 3, 5, 8, 17, 64, 127, 1000, 1023, 4096, 9001};
#define N_COUNTS (sizeof counts / sizeof *counts)
#define MOST     40000 /* elements, where they come in rows */

/* 4 KiB steps: large calls take several, small ones one. */
static void variants(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    uint64_t seed = 1;
    size_t step = world < 5 ? 2 : 4; /* what to expect costs world times world */
    for (size_t i = 0; i < rfi_variant_count(comm); i++) {
        const rf_variant *v = rfi_variant_at(comm, i);
        uint64_t unit = v->hidden ? v->hidden : 1;
        rf_shape shape = {.dtype = (rf_dtype)v->dtype, .rows = 1, .hidden = unit};
        if (rfi_refusal(comm, v, &shape))
            continue;
        for (size_t c = i % step; c < N_COUNTS && counts[c] * unit <= MOST; c += step, seed++)
            group_call(comm, 0, v, 4, (rf_dtype)v->dtype, counts[c] * unit, seed, (int)seed % 5,
                       (int)(seed & 1));
    }
    group_close(comm);
}

static void test_every_variant(void **state)
{
    (void)state;
    for (int world = 1; world <= RF_MAX_WORLD; world++) {
        run_fn *run = world % 2 ? ranks_run : ranks_run_threads;
        RANKS_ASSERT(run(world, variants, (void *)group_name(), NULL));
    }
}

/* Prepared, nearest and class plans, to the last element of the capacity. */
static void plans(int rank, int world, void *arg)
{
    rf_config config = group_config();
    config.capacity_bytes = 100000;
    rf_comm *comm = group_create(arg, &config, rank, world);
    rf_error err = {0};
    uint64_t seed = 100;
    for (int prepared = 0; prepared < 2; prepared++) {
        for (int d = 0; d < 3; d++) {
            uint64_t most = config.capacity_bytes / rf_dtype_size(dtypes[d]);
            const uint64_t sizes[] = {1, 7, 4097, 20001, most - 1, most};
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++, seed++)
                group_call(comm, 0, NULL, 0, dtypes[d], sizes[i], seed, (int)i % 3, (int)i & 1);
        }
        const rf_shape shapes[] = {{RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, 7},
                                   {RF_ALL_REDUCE, RF_BF16, RF_EAGER, 16, 1024},
                                   {RF_ALL_REDUCE, RF_F16, RF_EAGER, 3, 4096}};
        RANK_CHECK(rf_prepare(comm, 0, shapes, 3, &err) == RF_OK, "prepare: %s", err.text);
    }
    group_close(comm);
}

static void test_plans(void **state)
{
    (void)state;
    for (int world = 1; world <= RF_MAX_WORLD; world++) {
        run_fn *run = world % 2 ? ranks_run_threads : ranks_run;
        RANKS_ASSERT(run(world, plans, (void *)group_name(), NULL));
    }
}

/* ---- the same row in any batch, by any tactic (F27) ---- */

#define HIDDEN 512
#define BATCH  64

static void rows(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    uint16_t *in = malloc(BATCH * HIDDEN * 2), *alone = malloc(HIDDEN * 2),
             *batch = malloc(BATCH * HIDDEN * 2);
    for (int row = 0; row < BATCH; row++) /* every row the same data */
        group_fill(in + row * HIDDEN, RF_BF16, 5, rank, HIDDEN);
    const rf_variant *first = NULL;
    for (size_t i = 0; i < rfi_variant_count(comm); i++) {
        const rf_variant *v = rfi_variant_at(comm, i);
        rf_shape shape = {.dtype = RF_BF16, .rows = 1, .hidden = HIDDEN};
        if (rfi_refusal(comm, v, &shape))
            continue;
        if (!first) {
            first = v;
            RANK_CHECK(rfi_launch(comm, 0, v, 64, in, alone, HIDDEN, RF_BF16, NULL) == RF_OK, "%s",
                       rf_comm_error(comm)->text);
        }
        RANK_CHECK(rfi_launch(comm, 0, v, 16, in, batch, BATCH * HIDDEN, RF_BF16, NULL) == RF_OK,
                   "%s", rf_comm_error(comm)->text);
        for (int row = 0; row < BATCH; row++)
            RANK_CHECK(!memcmp(batch + row * HIDDEN, alone, HIDDEN * 2),
                       "row %d of %s differs from the row alone by %s", row, v->name, first->name);
    }
    RANK_CHECK(first, "no bf16 variant");
    free(in);
    free(alone);
    free(batch);
    group_close(comm);
}

static void test_a_row_has_the_same_bits_in_any_batch_and_tactic(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, rows, (void *)group_name(), NULL));
    RANKS_ASSERT(ranks_run_threads(4, rows, (void *)group_name(), NULL));
}

/* ---- partial sums that overflow f16 though the total does not (F26) ---- */

static void overflow(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    static const uint16_t part[] = {0x7bff, 0x7bff, 0xfbff, 0xfbff}; /* 65504 65504 -65504 -65504 */
    for (size_t i = 0; i < rfi_variant_count(comm); i++) {
        const rf_variant *v = rfi_variant_at(comm, i);
        rf_shape shape = {.dtype = RF_F16, .rows = 1, .hidden = 100};
        if (rfi_refusal(comm, v, &shape))
            continue;
        uint16_t x[100];
        for (int k = 0; k < 100; k++)
            x[k] = part[rank];
        RANK_CHECK(rfi_launch(comm, 0, v, 4, x, x, 100, RF_F16, NULL) == RF_OK, "%s",
                   rf_comm_error(comm)->text);
        for (int k = 0; k < 100; k++)
            RANK_CHECK(x[k] == 0, "%s: element %d is %04x, expected 0", v->name, k, x[k]);
    }
    group_close(comm);
}

static void test_f16_partial_sums_may_overflow(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(4, overflow, (void *)group_name(), NULL));
}

/* ---- two channels at once, all ranks from one thread ---- */

static void test_all_ranks_from_one_thread(void **state)
{
    (void)state;
    enum { WORLD = 3, N = 5000 };
    rf_config config = group_config();
    rf_comm *comm[WORLD];
    rf_cpu_stream *stream[WORLD];
    static float x[WORLD][N], want[N];
    rf_error err = {0};
    if (rf_comm_create_all(&config, WORLD, comm, &err))
        fail_msg("%s", err.text);
    const rf_shape shape = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, N};
    if (rf_prepare_all(comm, WORLD, 0, &shape, 1, &err))
        fail_msg("%s", err.text);
    const void *in[] = {x[0], x[1], x[2]};
    for (int r = 0; r < WORLD; r++) {
        group_fill(x[r], RF_F32, 9, r, N);
        assert_int_equal(rf_cpu_stream_create(&stream[r], NULL), RF_OK);
    }
    assert_int_equal(rf_oracle_all_reduce(in, want, N, RF_F32, WORLD), RF_OK);
    for (int r = 0; r < WORLD; r++)
        assert_int_equal(rf_all_reduce(comm[r], 0, x[r], x[r], N, RF_F32, stream[r]), RF_OK);
    for (int r = 0; r < WORLD; r++) {
        assert_int_equal(rf_cpu_stream_synchronize(stream[r]), RF_OK);
        assert_memory_equal(x[r], want, sizeof want);
    }
    for (int r = 0; r < WORLD; r++) {
        rf_cpu_stream_destroy(stream[r]);
        rf_comm_destroy(comm[r]);
    }
}

/* ---- negative control: a wrong bit anywhere is seen ---- */

static void broken_entry(const rf_params *p)
{
    group_fill(p->out, RF_F32, 1, (int)p->rank, p->count); /* this rank's input, not the sum */
}

static void broken(int rank, int world, void *arg)
{
    rf_config config = group_config();
    rf_comm *comm = group_create(arg, &config, rank, world);
    rf_variant v = {.name = "broken", .world = (uint8_t)world, .entry = broken_entry};
    group_call(comm, 0, &v, 4, RF_F32, 100, 1, 0, 0);
    group_close(comm);
}

static void test_a_wrong_sum_is_seen(void **state)
{
    (void)state;
    const char *text = ranks_run(2, broken, (void *)group_name(), NULL);
    assert_non_null(text);
    assert_non_null(strstr(text, "not the oracle's bits"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wrong_sum_is_seen),
        cmocka_unit_test(test_every_variant),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_a_row_has_the_same_bits_in_any_batch_and_tactic),
        cmocka_unit_test(test_f16_partial_sums_may_overflow),
        cmocka_unit_test(test_all_ranks_from_one_thread),
    };
    return cmocka_run_group_tests_name("sums", tests, NULL, NULL);
}
