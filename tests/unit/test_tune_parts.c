/* The tuner's pure parts: statistics, the space of grids, test data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/codes.h"
#include "core/comm.h"
#include "tune/candidates.h"
#include "tune/data.h"
#include "tune/stats.h"

static void test_statistics_of_an_odd_number(void **state)
{
    (void)state;
    double samples[] = {5, 1, 9, 3, 100};
    rfi_stats s = rfi_stats_of(samples, 5);
    assert_true(s.n == 5 && s.min == 1 && s.p10 == 1 && s.median == 5 && s.p90 == 100);
    assert_true(s.max == 100);
    assert_true(s.mad == 4); /* of 0 2 4 4 95 */
}

static void test_statistics_of_an_even_number(void **state)
{
    (void)state;
    double samples[] = {4, 2};
    rfi_stats s = rfi_stats_of(samples, 2);
    assert_true(s.median == 3 && s.min == 2 && s.max == 4 && s.mad == 1);
}

/* Of an odd number of deviations, the one in the middle. */
static void test_the_deviation_is_a_median(void **state)
{
    (void)state;
    double three[] = {1, 2, 4}, five[] = {0, 10, 11, 13, 100};
    assert_true(rfi_stats_of(three, 3).mad == 1);
    assert_true(rfi_stats_of(five, 5).mad == 2);
}

static void test_statistics_of_one_and_none(void **state)
{
    (void)state;
    double one[] = {7};
    rfi_stats s = rfi_stats_of(one, 1);
    assert_true(s.median == 7 && s.p10 == 7 && s.p90 == 7 && s.mad == 0);
    assert_true(rfi_stats_of(one, 0).n == 0 && rfi_stats_of(one, 0).median == 0);
}

static void test_small_payloads_have_one_grid(void **state)
{
    (void)state;
    uint32_t grids[RFI_GRIDS];
    assert_int_equal(rfi_grids(1, grids), 1);
    assert_int_equal(rfi_grids(16 * 1024, grids), 1);
    assert_int_equal(grids[0], 16);
}

static void test_every_grid_but_the_last_cuts_the_payload(void **state)
{
    (void)state;
    for (uint64_t bytes = 1; bytes < 64u << 20; bytes += 1 + bytes / 3) {
        uint32_t grids[RFI_GRIDS];
        size_t n = rfi_grids(bytes, grids);
        assert_in_range(n, 1, RFI_GRIDS);
        for (size_t i = 0; i + 1 < n; i++) {
            assert_true(grids[i] < grids[i + 1]);
            assert_true(grids[i] * UINT64_C(1024) < bytes);
        }
    }
}

static void test_tiny_steps_of_large_payloads_are_left_out(void **state)
{
    (void)state;
    uint32_t grids[RFI_GRIDS];
    assert_int_equal(rfi_grids(UINT64_C(64) << 20, grids), 2);
    assert_int_equal(grids[0], 256);
    assert_int_equal(grids[1], 1024);
}

static void test_blocks_are_tried_around_the_usual_number(void **state)
{
    (void)state;
    uint32_t grids[RFI_GRIDS];
    assert_int_equal(rfi_block_grids(1, 132, grids), 2);
    assert_true(grids[0] == 1 && grids[1] == 2);
    assert_int_equal(rfi_block_grids(9, 132, grids), 3);
    assert_true(grids[0] == 5 && grids[1] == 9 && grids[2] == 18);
    assert_int_equal(rfi_block_grids(132, 132, grids), 2);
    assert_true(grids[0] == 66 && grids[1] == 132);
    assert_int_equal(rfi_block_grids(1, 1, grids), 1);
}

static void test_few_blocks_poll_host_memory(void **state)
{
    (void)state;
    uint32_t grids[RFI_GRIDS];
    assert_int_equal(rfi_host_grids(1, 132, grids), 1);
    assert_int_equal(grids[0], 1);
    assert_int_equal(rfi_host_grids(5, 132, grids), 4);
    assert_true(grids[0] == 1 && grids[1] == 2 && grids[2] == 4 && grids[3] == 8);
    assert_int_equal(rfi_host_grids(1000, 132, grids), 5);
    assert_true(grids[0] == 8 && grids[4] == 128);
    assert_int_equal(rfi_host_grids(1000, 33, grids), 5);
    assert_int_equal(grids[4], 32);
    assert_int_equal(rfi_host_grids(1000, 1, grids), 1);
}

static void test_blocks_get_as_many_tiles_each(void **state)
{
    (void)state;
    uint32_t grids[RFI_GRIDS];
    assert_int_equal(rfi_even_grids(1, 132, grids), 1);
    assert_int_equal(grids[0], 1);
    assert_int_equal(rfi_even_grids(2, 132, grids), 2);
    assert_true(grids[0] == 1 && grids[1] == 2);
    assert_int_equal(rfi_even_grids(86, 132, grids), 5); /* 128 KiB in blocks of 128 */
    assert_true(grids[0] == 15 && grids[2] == 29 && grids[3] == 43 && grids[4] == 86);
    assert_int_equal(rfi_even_grids(1000, 132, grids), 5);
    assert_true(grids[0] == 21 && grids[4] == 84);
    assert_int_equal(rfi_even_grids(1000, 1, grids), 1);
    assert_int_equal(grids[0], 1);
    assert_int_equal(rfi_even_grids(UINT64_C(1) << 37, 132, grids), 5); /* a terabyte, nearly */
    for (int i = 0; i < 5; i++)
        assert_in_range(grids[i], i ? grids[i - 1] + 1 : 1, 96);
}

/* Where the time does not suffice for all, this is the order. */
static void test_neighbours_of_the_default_come_first(void **state)
{
    (void)state;
    const rf_variant one = {.world = 2,
                            .algo = RFI_ALGO_ONE_SHOT,
                            .transport = RFI_TRANSPORT_PEER,
                            .wire = RFI_WIRE_NAN,
                            .isa = RFI_ISA_SM90,
                            .threads = 128,
                            .unroll = 1,
                            .by_rank = 1};
    rf_variant any = one, two = one, old = one, host = one, pull = one;
    any.by_rank = 0;
    two.algo = RFI_ALGO_TWO_SHOT;
    host.transport = RFI_TRANSPORT_HOST;
    host.wire = RFI_WIRE_TAG; /* what the class says, there */
    old.isa = RFI_ISA_SM80;
    pull.wire = RFI_WIRE_FLAG;
    pull.threads = 256 + RF_RING_SERVANTS; /* which move no data */
    const uint64_t bytes = 8192;           /* 4 blocks */
    const struct {
        const rf_variant *variant;
        uint32_t grid;
    } order[] = {{&rfi_baseline, 0}, {&one, 4},  {&one, 2},  {&any, 4},
                 {&two, 4},          {&pull, 2}, {&host, 6}, {&old, 4}};
    rf_comm comm = {.world = 2, .backend = &rfi_backend_cuda, .max_grid = 132};
    comm.transport[RFI_TRANSPORT_PEER].on = comm.transport[RFI_TRANSPORT_HOST].on = 1;
    for (size_t i = 1; i < sizeof order / sizeof *order; i++)
        if (rfi_promise(&comm, order[i - 1].variant, order[i - 1].grid, bytes) <=
            rfi_promise(&comm, order[i].variant, order[i].grid, bytes))
            fail_msg("%zu does not come before %zu", i - 1, i);
}

/* ---- data ---- */

static const uint64_t count = 2 * RFI_PERIOD + 17; /* several periods and a tail */

static void open_filled(rfi_data *d, rf_dtype dtype)
{
    assert_int_equal(rfi_data_open(d, dtype, count, 1, 3, NULL), RF_OK);
    rfi_data_fill(d, 42, 1, NULL);
}

/* What a right kernel leaves: the oracle's sum of all three ranks' whole inputs. */
static void sum_rightly(rfi_data *d, unsigned char *out)
{
    rfi_data others[3];
    const void *in[3];
    for (int r = 0; r < 3; r++) {
        assert_int_equal(rfi_data_open(&others[r], d->dtype, count, r, 3, NULL), RF_OK);
        rfi_data_fill(&others[r], 42, 1, NULL);
        in[r] = others[r].in;
    }
    assert_int_equal(rf_oracle_all_reduce(in, out, count, d->dtype, 3), RF_OK);
    for (int r = 0; r < 3; r++)
        rfi_data_close(&others[r]);
}

static void test_the_oracles_sum_is_right(void **state)
{
    (void)state;
    for (int dtype = 0; rf_dtype_name((rf_dtype)dtype); dtype++) {
        rfi_data d;
        uint64_t index;
        open_filled(&d, (rf_dtype)dtype);
        sum_rightly(&d, d.out);
        assert_int_equal(rfi_data_judge(&d, 0, 0, &index), RFI_DATA_RIGHT);
        rfi_data_close(&d);
    }
}

static void test_untouched_output_is_wrong(void **state)
{
    (void)state;
    rfi_data d;
    uint64_t index;
    open_filled(&d, RF_BF16);
    assert_int_equal(rfi_data_judge(&d, 0, 0, &index), RFI_DATA_WRONG);
    assert_int_equal(index, 0);
    memcpy(d.out, d.expected, d.period * rf_dtype_size(RF_BF16));
    rfi_data_fill(&d, 42, 1, NULL); /* a result of the call before is none of this one */
    assert_int_equal(rfi_data_judge(&d, 0, 0, &index), RFI_DATA_WRONG);
    assert_int_equal(index, 0);
    rfi_data_close(&d);
}

/* What is a candidate: grids that a ring has lanes for, of variants for this hidden size, that the
 * filter lets through. */
static void test_candidates_fit_the_shape(void **state)
{
    (void)state;
    static const rf_variant v[] = {
#define RF_X(name_, wire_, hidden_)                                                                \
    {.name = name_,                                                                                \
     .world = 2,                                                                                   \
     .dtype = RF_F32,                                                                              \
     .algo = RFI_ALGO_ONE_SHOT,                                                                    \
     .transport = RFI_TRANSPORT_PEER,                                                              \
     .wire = RFI_WIRE_##wire_,                                                                     \
     .isa = RFI_ISA_SM90,                                                                          \
     .threads = 192,                                                                               \
     .unroll = 1,                                                                                  \
     .hidden = hidden_}
        RF_X("ring", FLAG, 0),
        RF_X("rows", NAN, 4096),
        RF_X("rows_of_others", NAN, 8192),
        RF_X("filtered", NAN, 0),
#undef RF_X
    };
    const rf_variant *variants[] = {&v[0], &v[1], &v[2], &v[3]};
    rf_comm comm = {.world = 2, .backend = &rfi_backend_cuda, .isa_mask = UINT32_MAX};
    const rf_shape shape = {.dtype = RF_F32, .rows = 256, .hidden = 4096};
    rfi_tune_candidate *list;
    size_t n, of_ring = 0, of_rows = 0;
    comm.max_grid = 132;
    comm.variants = variants, comm.n_variants = 4;
    comm.transport[RFI_TRANSPORT_PEER].on = 1;
    comm.transport[RFI_TRANSPORT_PEER].layout =
        rfi_backend_cuda.layout(RFI_TRANSPORT_PEER, UINT64_C(64) << 20);
    assert_int_equal(rfi_candidates(&comm, &shape, "r*", &list, &n, NULL), RF_OK);
    for (size_t i = 0; i < n; i++) {
        assert_null(list[i].refusal);
        assert_true(list[i].variant == &v[0] || list[i].variant == &v[1]);
        of_ring += list[i].variant == &v[0] && list[i].grid <= RF_RING_LANES;
        of_rows += list[i].variant == &v[1];
    }
    assert_true(of_ring && of_rows && of_ring + of_rows == n);
    free(list);
}

/* 128 KiB are 9363 packs of bf16, in blocks of 128. */
static void test_blocks_share_the_packs_of_the_wire(void **state)
{
    (void)state;
    const rf_variant v = {.name = "v",
                          .world = 2,
                          .dtype = RF_BF16,
                          .algo = RFI_ALGO_ONE_SHOT,
                          .transport = RFI_TRANSPORT_HOST,
                          .wire = RFI_WIRE_TAG,
                          .isa = RFI_ISA_SM90,
                          .threads = 128,
                          .unroll = 1};
    const rf_variant *variants[] = {&v};
    rf_comm comm = {.world = 2, .backend = &rfi_backend_cuda, .isa_mask = UINT32_MAX};
    const rf_shape shape = {.dtype = RF_BF16, .rows = 16, .hidden = 4096};
    rfi_tune_candidate *list;
    size_t n;
    comm.max_grid = 132;
    comm.variants = variants, comm.n_variants = 1;
    comm.transport[RFI_TRANSPORT_HOST].on = 1;
    comm.transport[RFI_TRANSPORT_HOST].layout =
        rfi_backend_cuda.layout(RFI_TRANSPORT_HOST, UINT64_C(64) << 20);
    assert_int_equal(rfi_candidates(&comm, &shape, NULL, &list, &n, NULL), RF_OK);
    assert_true(n > 2 && list[n - 1].grid == 74 && list[n - 2].grid == 37);
    free(list);
}

static void test_one_wrong_bit_is_found_where_it_is(void **state)
{
    (void)state;
    rfi_data d;
    uint64_t index;
    open_filled(&d, RF_F16);
    sum_rightly(&d, d.out);
    d.out[2 * (count - 1)] ^= 1;
    assert_int_equal(rfi_data_judge(&d, 0, 0, &index), RFI_DATA_WRONG);
    assert_int_equal(index, count - 1);
    rfi_data_close(&d);
}

/* What a baseline may do: another order, rounded at each step. */
static void test_sums_in_another_order_are_near(void **state)
{
    (void)state;
    for (int dtype = 0; rf_dtype_name((rf_dtype)dtype); dtype++) {
        rfi_data d;
        uint64_t index;
        open_filled(&d, (rf_dtype)dtype);
        rfi_data_fill(&d, 42, 0, NULL);
        const void *pair[] = {d.inputs[2], d.inputs[0]};
        rf_oracle_all_reduce(pair, d.out, d.period, d.dtype, 2);
        const void *rest[] = {d.out, d.inputs[1]};
        rf_oracle_all_reduce(rest, d.out, d.period, d.dtype, 2);
        size_t size = rf_dtype_size(d.dtype), period = d.period * size;
        memcpy(d.out + period, d.out, period);
        memcpy(d.out + 2 * period, d.out, count * size - 2 * period);
        assert_int_equal(rfi_data_judge(&d, 0, 0, &index), RFI_DATA_WRONG);
        assert_int_equal(rfi_data_judge(&d, 0, 1, &index), RFI_DATA_RIGHT);
        d.out[(count - 1) * size + size - 1] ^= 0x80; /* a sign */
        assert_int_equal(rfi_data_judge(&d, 0, 1, &index), RFI_DATA_WRONG);
        assert_int_equal(index, count - 1);
        rfi_data_close(&d);
    }
}

static void test_a_byte_behind_the_output_is_found(void **state)
{
    (void)state;
    rfi_data d;
    uint64_t index;
    open_filled(&d, RF_F32);
    sum_rightly(&d, d.out);
    d.out[4 * count] = 0;
    assert_int_equal(rfi_data_judge(&d, 0, 0, &index), RFI_DATA_BEYOND);
    rfi_data_close(&d);
}

static void test_a_changed_input_is_found_unless_in_place(void **state)
{
    (void)state;
    rfi_data d;
    uint64_t index;
    open_filled(&d, RF_F32);
    sum_rightly(&d, d.out);
    d.in[4 * (RFI_PERIOD + 1000)] ^= 1;
    assert_int_equal(rfi_data_judge(&d, 0, 0, &index), RFI_DATA_INPUT);
    assert_int_equal(index, RFI_PERIOD + 1000);
    assert_int_equal(rfi_data_judge(&d, 1, 0, &index), RFI_DATA_RIGHT);
    rfi_data_close(&d);
}

static void test_seeds_give_other_data(void **state)
{
    (void)state;
    rfi_data a, b;
    open_filled(&a, RF_F32);
    open_filled(&b, RF_F32);
    assert_memory_equal(a.in, b.in, 4 * count);
    rfi_data_fill(&b, 43, 1, NULL);
    assert_memory_not_equal(a.in, b.in, 64);
    assert_memory_not_equal(a.inputs[0], a.inputs[2], 64);
    rfi_data_close(&a);
    rfi_data_close(&b);
}

/* Does the period of rank 1 hold this float? */
static int holds(const rfi_data *d, uint32_t bits)
{
    for (uint64_t i = 0; i < d->period; i++)
        if (memcmp(d->inputs[1] + 4 * i, &bits, 4) == 0)
            return 1;
    return 0;
}

static void test_special_values_are_in_special_data_only(void **state)
{
    (void)state;
    static const uint32_t specials[] = {0x00000000, 0x80000000, 0x7F800000, 0xFF800000,
                                        0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7F7FFFFF,
                                        0x00000001, 0x807FFFFF, 0x00800000};
    rfi_data d;
    open_filled(&d, RF_F32);
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
        assert_true(holds(&d, specials[i]));
    rfi_data_fill(&d, 42, 0, NULL);
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
        assert_false(holds(&d, specials[i]));
    rfi_data_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statistics_of_an_odd_number),
        cmocka_unit_test(test_statistics_of_an_even_number),
        cmocka_unit_test(test_the_deviation_is_a_median),
        cmocka_unit_test(test_statistics_of_one_and_none),
        cmocka_unit_test(test_small_payloads_have_one_grid),
        cmocka_unit_test(test_every_grid_but_the_last_cuts_the_payload),
        cmocka_unit_test(test_tiny_steps_of_large_payloads_are_left_out),
        cmocka_unit_test(test_blocks_are_tried_around_the_usual_number),
        cmocka_unit_test(test_few_blocks_poll_host_memory),
        cmocka_unit_test(test_blocks_get_as_many_tiles_each),
        cmocka_unit_test(test_neighbours_of_the_default_come_first),
        cmocka_unit_test(test_the_oracles_sum_is_right),
        cmocka_unit_test(test_untouched_output_is_wrong),
        cmocka_unit_test(test_candidates_fit_the_shape),
        cmocka_unit_test(test_blocks_share_the_packs_of_the_wire),
        cmocka_unit_test(test_one_wrong_bit_is_found_where_it_is),
        cmocka_unit_test(test_sums_in_another_order_are_near),
        cmocka_unit_test(test_a_byte_behind_the_output_is_found),
        cmocka_unit_test(test_a_changed_input_is_found_unless_in_place),
        cmocka_unit_test(test_seeds_give_other_data),
        cmocka_unit_test(test_special_values_are_in_special_data_only),
    };
    return cmocka_run_group_tests_name("tuner's parts", tests, NULL, NULL);
}
