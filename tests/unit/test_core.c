/* Pure parts of the core: environment, configs, plan tables, classes, JSON, texts. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/codes.h"
#include "core/comm.h"
#include "core/env.h"
#include "core/hash.h"
#include "core/json.h"
#include "cpu/cpu.h"

extern const int rfi_abi_4;

/* ---- texts ---- */

static void every_result_has_a_text_of_its_own(void **state)
{
    (void)state;
    static const rf_result all[] = {
#define RF_X(name, number, text) RF_##name,
        RF_RESULT_LIST(RF_X)
#undef RF_X
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(rf_strerror(all[i]), rf_strerror(all[k]));
    assert_string_equal(rf_strerror((rf_result)999), "unknown result");
    /* rf_dispatch leaves both to the caller */
    assert_non_null(strstr(rf_strerror(RF_FALLBACK), "faster"));
    assert_non_null(strstr(rf_strerror(RF_FALLBACK), "not prepared"));
    assert_string_equal(rf_rung_text((rf_rung)99), "unknown rung");
}

static void version_text_and_number_agree(void **state)
{
    (void)state;
    char text[32];
    uint32_t n = rf_version_number();
    snprintf(text, sizeof text, "%u.%u.%u", n / 10000, n / 100 % 100, n % 100);
    assert_string_equal(rf_version_string(), text);
    assert_int_equal(rfi_abi_4, RF_ABI);
}

static void fail_keeps_one_terminated_line(void **state)
{
    (void)state;
    rf_error err;
    char text[2 * RF_ERROR_TEXT];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    text[3] = '\n';
    assert_int_equal(rfi_fail(&err, RF_E_ARG, 3, "step", "%s", text), RF_E_ARG);
    assert_int_equal(strlen(err.text), RF_ERROR_TEXT - 1);
    assert_null(strchr(err.text, '\n'));
    assert_int_equal(err.rank, 3);
    assert_int_equal(rfi_fail(NULL, RF_E_DTYPE, 0, "step", "x"), RF_E_DTYPE);
}

static void fail_may_quote_the_error_that_it_fills(void **state)
{
    (void)state;
    rf_error err;
    rfi_fail(&err, RF_E_ARG, 0, "a", "inner");
    rfi_fail(&err, RF_E_ARG, 0, "b", "outer: %s", err.text);
    assert_string_equal(err.text, "outer: inner");
}

/* ---- environment ---- */

static void numbers_are_whole_decimal_and_in_range(void **state)
{
    (void)state;
    static const char *const bad[] = {"",    " 1", "1 ", "-1",         "+1",
                                      "0x1", "1.", "9",  "4294967296", "99999999999999999999"};
    uint32_t out = 77;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(rfi_parse_u32(bad[i], 1, 8, &out));
    assert_false(rfi_parse_u32(NULL, 1, 8, &out));
    assert_int_equal(out, 77);
    assert_true(rfi_parse_u32("8", 1, 8, &out));
    assert_int_equal(out, 8);
    assert_true(rfi_parse_u32("4294967295", 0, UINT32_MAX, &out));
    assert_int_equal(out, UINT32_MAX);
}

static void an_empty_variable_counts_as_unset(void **state)
{
    (void)state;
    setenv("RANKFOLD_TACTIC", "", 1);
    assert_null(rfi_env_get(RFI_RANKFOLD_TACTIC));
    setenv("RANKFOLD_TACTIC", "*os*", 1);
    assert_string_equal(rfi_env_get(RFI_RANKFOLD_TACTIC), "*os*");
    unsetenv("RANKFOLD_TACTIC");
}

static void clear_launcher(void)
{
    static const char *const names[] = {"RANK",
                                        "WORLD_SIZE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "PMIX_NAMESPACE",
                                        "PMI_JOBID",
                                        "MASTER_ADDR",
                                        "TORCHELASTIC_RUN_ID",
                                        "RANKFOLD_BOOTSTRAP",
                                        "MASTER_PORT"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

static void each_launcher_gives_rank_and_world(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"RANK", "WORLD_SIZE"},
                                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_RANK", "PMI_SIZE"}};
    for (size_t i = 0; i < 3; i++) {
        clear_launcher();
        setenv(pairs[i][0], "2", 1);
        setenv(pairs[i][1], "5", 1);
        setenv("RANKFOLD_BOOTSTRAP", "name", 1);
        rf_bootstrap boot;
        rf_error err;
        assert_int_equal(rf_bootstrap_env(&boot, &err), RF_OK);
        assert_int_equal(boot.rank, 2);
        assert_int_equal(boot.world, 5);
        rf_bootstrap_free(&boot);
    }
    clear_launcher();
}

static void a_launcher_that_makes_no_sense_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *rank, *world, *named;
    } cases[] = {{"2", "2", "RANK"},
                 {"0", "9", "WORLD_SIZE"},
                 {"0", "0", "WORLD_SIZE"},
                 {"x", "2", "RANK"},
                 {"0", "2", "RANKFOLD_BOOTSTRAP"}}; /* the last: nothing names the job */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        clear_launcher();
        setenv("RANK", cases[i].rank, 1);
        setenv("WORLD_SIZE", cases[i].world, 1);
        rf_bootstrap boot;
        rf_error err = {0};
        assert_int_equal(rf_bootstrap_env(&boot, &err), RF_E_ARG);
        assert_non_null(strstr(err.text, cases[i].named));
    }
    clear_launcher();
    rf_bootstrap boot;
    assert_int_equal(rf_bootstrap_env(&boot, NULL), RF_E_ARG);
}

/* ---- configs ---- */

static void zero_means_the_default(void **state)
{
    (void)state;
    rf_config in = RF_CONFIG_INIT, out;
    assert_int_equal(rfi_config_read(&in, &out, NULL), RF_OK);
    assert_int_equal(out.capacity_bytes, 64 << 20);
    assert_int_equal(out.channels, 1);
    assert_int_equal(out.deadline_ms, 30000);
    assert_int_equal(out.create_timeout_ms, 60000);
}

static void a_config_of_a_later_version_is_refused_unless_its_rest_is_zero(void **state)
{
    (void)state;
    struct {
        rf_config config;
        uint64_t later;
    } in = {.config = {.struct_size = sizeof in}};
    rf_config out;
    assert_int_equal(rfi_config_read(&in.config, &out, NULL), RF_OK);
    in.later = 1;
    assert_int_equal(rfi_config_read(&in.config, &out, NULL), RF_E_ARG);
    in.config.struct_size = 8;
    assert_int_equal(rfi_config_read(&in.config, &out, NULL), RF_E_ARG);
    assert_int_equal(rfi_config_read(NULL, &out, NULL), RF_E_ARG);
}

static void ranges_are_checked_and_named(void **state)
{
    (void)state;
    rf_config out;
    rf_error err;
    rf_config channels = RF_CONFIG_INIT;
    channels.channels = 17;
    assert_int_equal(rfi_config_read(&channels, &out, &err), RF_E_ARG);
    assert_non_null(strstr(err.text, "config.channels is 17"));
    rf_config flags = RF_CONFIG_INIT;
    flags.flags = 1u << 30;
    assert_int_equal(rfi_config_read(&flags, &out, &err), RF_E_ARG);
    rf_config backend = RF_CONFIG_INIT;
    backend.backend = (rf_backend_kind)99;
    assert_int_equal(rfi_config_read(&backend, &out, &err), RF_E_ARG);
}

static void packs_of_another_abi_are_refused_in_words(void **state)
{
    (void)state;
    rf_pack pack = {.abi = RF_ABI + 1, .size = sizeof pack, .sku = "x", .abi_witness = &rfi_abi_4};
    const rf_pack *packs[] = {&pack};
    rf_config config = {.struct_size = sizeof config, .packs = packs, .n_packs = 1};
    rf_error err;
    assert_int_equal(rfi_config_packs(&config, &err), RF_E_PACK);
    assert_non_null(strstr(err.text, "abi 4"));
    pack.abi = RF_ABI;
    assert_int_equal(rfi_config_packs(&config, &err), RF_OK);
    pack.abi_witness = NULL;
    assert_int_equal(rfi_config_packs(&config, &err), RF_E_PACK);
    config.n_packs = 0;
    assert_int_equal(rfi_config_packs(&config, &err), RF_E_PACK);
}

static void footprint_is_what_the_layout_takes(void **state)
{
    (void)state;
    rf_config config = RF_CONFIG_INIT;
    rf_footprint all = {0};
    config.capacity_bytes = 100;
    config.channels = 3;
    assert_int_equal(rf_footprint_query(&config, 2, &all, NULL), RF_OK);
    assert_int_equal(all.host_bytes, 3 * (RF_REGION_HEADER + RF_SLOTS * 4096));
    assert_int_equal(all.device_bytes, 0);
    config.capacity_bytes = 1ull << 30;
    assert_int_equal(rf_footprint_query(&config, 2, &all, NULL), RF_OK);
    assert_int_equal(all.host_bytes, 3ull * (RF_REGION_HEADER + RF_SLOTS * RFI_SLOT_MAX));
    assert_int_equal(rf_footprint_query(&config, 9, &all, NULL), RF_E_ARG);
    config.backend = RF_BACKEND_CUDA;
    assert_int_equal(rf_footprint_query(&config, 2, &all, NULL), RF_OK);
    assert_in_range(all.device_bytes, 12ull << 30, 13ull << 30);
    assert_in_range(all.host_bytes, 6 * RF_HOST_HALF_BYTES, 3 * 7ull << 20);
    config.flags = RF_NO_PEER;
    assert_int_equal(rf_footprint_query(&config, 2, &all, NULL), RF_OK);
    assert_in_range(all.device_bytes, 1, 4096);
    assert_int_equal(rf_footprint_query(&config, 1, &all, NULL), RF_OK);
    assert_in_range(all.device_bytes, 12ull << 30, 13ull << 30);
    assert_int_equal(rf_footprint_query(&config, 2, NULL, NULL), RF_E_ARG);
}

/* Of a GPU's own memory: at most four times the capacity and 2 MiB for each channel. */
static void footprint_on_gpus_is_bounded(void **state)
{
    (void)state;
    for (uint32_t channels = 1; channels <= RFI_CHANNELS; channels *= 4)
        for (int world = 1; world <= RF_MAX_WORLD; world++)
            for (uint64_t capacity = 1; capacity <= 1ull << 40; capacity = 3 * capacity + 1) {
                rf_config config = RF_CONFIG_INIT;
                rf_footprint all = {0};
                config.backend = RF_BACKEND_CUDA;
                config.capacity_bytes = capacity;
                config.channels = channels;
                assert_int_equal(rf_footprint_query(&config, world, &all, NULL), RF_OK);
                assert_in_range(all.device_bytes, 2 * capacity * channels,
                                (4 * capacity + (2u << 20)) * channels);
            }
}

/* ---- plan tables ---- */

static rfi_plan plan(uint64_t rows, uint64_t hidden, rf_mode mode, const rf_variant *variant)
{
    return (rfi_plan){.count = rows * hidden,
                      .variant = variant,
                      .shape = {.dtype = RF_F32, .mode = mode, .rows = rows, .hidden = hidden}};
}

static void a_plan_is_found_by_its_count_and_replaced(void **state)
{
    (void)state;
    rfi_plan_table t = {0};
    rf_variant a = {.name = "a"}, b = {.name = "b"};
    assert_null(rfi_plan_find(&t, RF_F32, RF_EAGER, 64));
    for (uint64_t i = 1; i <= 1000; i++) {
        rfi_plan p = plan(i, 64, RF_EAGER, &a);
        assert_true(rfi_plan_put(&t, &p));
    }
    rfi_plan again = plan(500, 64, RF_EAGER, &b);
    assert_true(rfi_plan_put(&t, &again));
    assert_int_equal(t.n, 1000);
    for (uint64_t i = 1; i <= 1000; i++) {
        const rfi_plan *p = rfi_plan_find(&t, RF_F32, RF_EAGER, i * 64);
        assert_non_null(p);
        assert_int_equal(p->count, i * 64);
        assert_ptr_equal(p->variant, i == 500 ? &b : &a);
    }
    for (uint64_t i = 1; i <= 1000; i++) { /* each mode has its own, wherever they collide */
        rfi_plan p = plan(i, 64, RF_GRAPH, &b);
        assert_true(rfi_plan_put(&t, &p));
    }
    for (uint64_t i = 1; i <= 1000; i++) {
        assert_int_equal(rfi_plan_find(&t, RF_F32, RF_GRAPH, i * 64)->shape.mode, RF_GRAPH);
        assert_int_equal(rfi_plan_find(&t, RF_F32, RF_EAGER, i * 64)->shape.mode, RF_EAGER);
    }
    assert_null(rfi_plan_find(&t, RF_BF16, RF_EAGER, 64));
    assert_null(rfi_plan_find(&t, RF_F32, RF_EAGER, 65));
    rfi_plan_free(&t);
}

static void the_other_mode_is_second_choice(void **state)
{
    (void)state;
    rfi_plan_table t = {0};
    rf_variant eager = {.name = "e"}, graph = {.name = "g"};
    rfi_plan p = plan(1, 64, RF_EAGER, &eager);
    rfi_plan_put(&t, &p);
    assert_ptr_equal(rfi_plan_find(&t, RF_F32, RF_GRAPH, 64)->variant, &eager);
    p = plan(1, 64, RF_GRAPH, &graph);
    rfi_plan_put(&t, &p);
    assert_ptr_equal(rfi_plan_find(&t, RF_F32, RF_GRAPH, 64)->variant, &graph);
    assert_ptr_equal(rfi_plan_find(&t, RF_F32, RF_EAGER, 64)->variant, &eager);
    rfi_plan_free(&t);
}

static void nearest_is_by_ratio_and_fits_hidden(void **state)
{
    (void)state;
    rfi_plan_table t = {0};
    rf_variant any = {.name = "any"}, special = {.name = "h1024", .hidden = 1024};
    rfi_plan small = plan(1, 100, RF_EAGER, &any), mid = plan(1, 1024, RF_EAGER, &special),
             big = plan(100, 1000, RF_EAGER, &any);
    assert_null(rfi_plan_nearest(&t, RF_F32, RF_EAGER, 5));
    rfi_plan_put(&t, &big);
    rfi_plan_put(&t, &mid);
    rfi_plan_put(&t, &small);
    assert_int_equal(rfi_plan_nearest(&t, RF_F32, RF_EAGER, 2048)->count, 1024);
    /* 2000 is no multiple of 1024: 100 is 20 times smaller, 100000 is 50 times larger */
    assert_int_equal(rfi_plan_nearest(&t, RF_F32, RF_EAGER, 2000)->count, 100);
    assert_int_equal(rfi_plan_nearest(&t, RF_F32, RF_EAGER, 40000)->count, 100000);
    assert_int_equal(rfi_plan_nearest(&t, RF_F32, RF_EAGER, UINT64_MAX)->count, 100000);
    assert_null(rfi_plan_nearest(&t, RF_F16, RF_EAGER, 2000));
    rfi_plan_free(&t);
}

static void a_tie_goes_to_the_mode_asked_for_then_to_the_smaller(void **state)
{
    (void)state;
    rf_variant any = {.name = "any"};
    rfi_plan low = plan(1, 100, RF_GRAPH, &any), high = plan(1, 400, RF_EAGER, &any);
    for (int swapped = 0; swapped < 2; swapped++) {
        rfi_plan_table t = {0};
        rfi_plan_put(&t, swapped ? &high : &low);
        rfi_plan_put(&t, swapped ? &low : &high);
        assert_int_equal(rfi_plan_nearest(&t, RF_F32, RF_EAGER, 200)->count, 400);
        assert_int_equal(rfi_plan_nearest(&t, RF_F32, RF_GRAPH, 200)->count, 100);
        rfi_plan_free(&t);
    }
    high.shape.mode = RF_GRAPH;
    for (int swapped = 0; swapped < 2; swapped++) {
        rfi_plan_table t = {0};
        rfi_plan_put(&t, swapped ? &high : &low);
        rfi_plan_put(&t, swapped ? &low : &high);
        assert_int_equal(rfi_plan_nearest(&t, RF_F32, RF_GRAPH, 200)->count, 100);
        rfi_plan_free(&t);
    }
}

static void tags_differ_by_variant_and_grid(void **state)
{
    (void)state;
    rf_variant a = {.hash = {1}}, b = {.hash = {2}};
    assert_int_not_equal(rfi_plan_tag(&a, 64), rfi_plan_tag(&a, 128));
    assert_int_not_equal(rfi_plan_tag(&a, 64), rfi_plan_tag(&b, 64));
}

static void size_classes_cover_all_sizes_in_order(void **state)
{
    (void)state;
    int before = 0;
    for (uint64_t bytes = 1; bytes; bytes <<= 1) {
        int c = rfi_class_of(bytes);
        assert_in_range(c, before, rfi_class_count() - 1);
        assert_int_not_equal(rfi_class_grid(bytes), 0);
        before = c;
    }
    for (int c = 0; c < rfi_class_count(); c++)
        assert_int_equal(rfi_class_of(rfi_class_bytes(c)), c);
}

static const rf_variant on_host[] = {
#define RF_X(algo_, wire_, threads_, unroll_, own)                                                 \
    {                                                                                              \
        .world = 2, .algo = RFI_ALGO_##algo_, .transport = RFI_TRANSPORT_HOST,                     \
        .wire = RFI_WIRE_##wire_, .isa = RFI_ISA_SM90, .threads = threads_, .unroll = unroll_,     \
        .by_rank = own                                                                             \
    }
    RF_X(ONE_SHOT, TAG, 256, 1, 1), /* as fast as the next, in larger blocks */
    RF_X(ONE_SHOT, TAG, 128, 1, 1),  RF_X(ONE_SHOT, TAG, 128, 4, 1),
    RF_X(ONE_SHOT, TAG, 256, 1, 0),  RF_X(TWO_SHOT, TAG, 128, 1, 1),
    RF_X(ONE_SHOT, TAG, 256, 1, 1),  RF_X(ONE_SHOT, TAG, 256, 2, 1),
    RF_X(TWO_SHOT, FLAG, 320, 4, 0), RF_X(TWO_SHOT, FLAG, 576, 2, 0),
    RF_X(ONE_SHOT, FLAG, 576, 2, 0),
#undef RF_X
};
#define N_ON_HOST (sizeof on_host / sizeof *on_host)

/* What two GPUs without peer access would take of those from `first` on. */
static rfi_class_choice choice_on_host(size_t first, uint64_t bytes)
{
    const rf_variant *variants[N_ON_HOST];
    rf_comm comm = {.world = 2, .backend = &rfi_backend_cuda, .isa_mask = UINT32_MAX};
    rf_shape shape = {.op = RF_ALL_REDUCE, .dtype = RF_F32, .rows = 1, .hidden = bytes / 4};
    rfi_class_choice choice;
    comm.max_grid = 132;
    comm.variants = variants;
    for (size_t i = first; i < N_ON_HOST; i++)
        variants[comm.n_variants++] = &on_host[i];
    comm.transport[RFI_TRANSPORT_HOST].on = 1;
    comm.transport[RFI_TRANSPORT_HOST].layout =
        rfi_backend_cuda.layout(RFI_TRANSPORT_HOST, UINT64_C(64) << 20);
    assert_int_equal(rfi_class_choose(&comm, &shape, &choice), 1);
    return choice;
}

/* One pack a thread, in as many blocks as that takes, or as many packs each in fewer; a ring in few
 * blocks for large tensors. */
static void host_memory_has_its_classes(void **state)
{
    (void)state;
    static const struct {
        size_t first;
        uint64_t bytes;
        int variant;
        uint32_t grid;
    } rows[] = {
        {0, 2048, 1, 2},       {0, 16 << 10, 1, 11}, {0, 64 << 10, 1, 43}, {0, 128 << 10, 1, 43},
        {0, 1 << 20, 1, 49},   {0, 2 << 20, 8, 16},  {0, 64 << 20, 8, 16}, {2, 16 << 10, 5, 6},
        {2, 256 << 10, 5, 22}, {9, 2 << 20, 9, 16},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rfi_class_choice choice = choice_on_host(rows[i].first, rows[i].bytes);
        assert_int_equal(choice.variant - on_host, rows[i].variant);
        assert_int_equal(choice.grid, rows[i].grid);
        assert_int_equal(choice.rung, rows[i].first == 9 ? RF_RUNG_GENERIC : RF_RUNG_CLASS);
    }
}

static void packs_are_what_the_wire_leaves_of_16_bytes(void **state)
{
    (void)state;
    assert_int_equal(rfi_pack_bytes(&(rf_variant){.wire = RFI_WIRE_NAN}), 16);
    assert_int_equal(rfi_pack_bytes(&(rf_variant){.wire = RFI_WIRE_TAG, .dtype = RF_F32}), 12);
    assert_int_equal(rfi_pack_bytes(&(rf_variant){.wire = RFI_WIRE_TAG, .dtype = RF_BF16}), 14);
}

/* Blocks where nothing was measured: a turn of every thread that moves data, of what a rank sums.
 */
static void usual_grids(void **state)
{
    (void)state;
    static const struct {
        rf_variant v;
        uint64_t bytes;
        uint32_t grid;
    } rows[] = {
#define RF_X(where_, algo_, wire_, world_, threads_, unroll_)                                      \
    {.transport = RFI_TRANSPORT_##where_,                                                          \
     .algo = RFI_ALGO_##algo_,                                                                     \
     .wire = RFI_WIRE_##wire_,                                                                     \
     .world = world_,                                                                              \
     .threads = threads_,                                                                          \
     .unroll = unroll_}
        {RF_X(PEER, ONE_SHOT, NAN, 4, 128, 1), 64 << 10, 32},
        {RF_X(PEER, ONE_SHOT, NAN, 4, 128, 2), 64 << 10, 16},
        {RF_X(PEER, ONE_SHOT, NAN, 4, 128, 1), 16 << 20, 132}, /* no more than run at once */
        {RF_X(PEER, TWO_SHOT, NAN, 4, 128, 1), 64 << 10, 8},
        {RF_X(PEER, TWO_SHOT, NAN, 4, 128, 1), (64 << 10) + 2, 9}, /* parts of 1025 packs */
        {RF_X(PEER, ISLANDS, NAN, 4, 128, 1), 64 << 10, 16},       /* one owner of two */
        {RF_X(PEER, ONE_SHOT, FLAG, 4, 192, 1), 64 << 10, 32},     /* 64 of them move nothing */
        {RF_X(PEER, ONE_SHOT, FLAG, 4, 192, 1), 16 << 20, RF_RING_LANES},
        {RF_X(HOST, ONE_SHOT, TAG, 2, 160, 1), 40 * 160 * 12, 40}, /* 6272 threads in all */
        {RF_X(HOST, ONE_SHOT, TAG, 2, 160, 1), 41 * 160 * 12, 21},
        {RF_X(HOST, ONE_SHOT, TAG, 2, 160, 1), 160 * 14, 2},
#undef RF_X
    };
    rf_comm comm = {.max_grid = 132};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(rfi_usual_grid(&comm, &rows[i].v, rows[i].bytes), rows[i].grid);
}

#define RF_X(algo_, wire_, threads_, unroll_)                                                      \
    .op = RF_ALL_REDUCE, .dtype = RF_F32, .transport = RFI_TRANSPORT_PEER, .isa = RFI_ISA_SM90,    \
    .algo = RFI_ALGO_##algo_, .wire = RFI_WIRE_##wire_, .threads = threads_, .unroll = unroll_

/* What GPUs with peer access take of two, whichever comes first. */
static const rf_variant *peers_take(rf_variant a, rf_variant b, int world, uint64_t bytes)
{
    static rf_variant kept[2];
    const rf_variant *variants[] = {&kept[0], &kept[1]};
    rf_comm comm = {.world = world, .backend = &rfi_backend_cuda, .isa_mask = UINT32_MAX};
    rf_shape shape = {.op = RF_ALL_REDUCE, .dtype = RF_F32, .rows = 1, .hidden = bytes / 4};
    rfi_class_choice choice;
    kept[0] = a, kept[1] = b;
    kept[0].world = kept[1].world = (uint8_t)world;
    comm.config.flags = RF_DEPENDENT;
    comm.max_grid = 132;
    comm.variants = variants;
    comm.n_variants = 2;
    comm.transport[RFI_TRANSPORT_PEER].on = 1;
    comm.transport[RFI_TRANSPORT_PEER].layout =
        rfi_backend_cuda.layout(RFI_TRANSPORT_PEER, UINT64_C(64) << 20);
    assert_int_equal(rfi_class_choose(&comm, &shape, &choice), 1);
    return choice.variant == &kept[0] ? &kept[0] : &kept[1];
}

static void peers_have_their_classes(void **state)
{
    (void)state;
    static const struct {
        rf_variant better, other;
        int world;
        uint64_t bytes;
    } rows[] = {
        /* the class's algorithm before its threads; two ranks move as much in one shot */
        {{RF_X(TWO_SHOT, NAN, 128, 1)}, {RF_X(ONE_SHOT, NAN, 512, 1)}, 4, 1 << 20},
        {{RF_X(ONE_SHOT, NAN, 128, 1)}, {RF_X(TWO_SHOT, NAN, 512, 1)}, 2, 1 << 20},
        {{RF_X(TWO_SHOT, NAN, 512, 1)}, {RF_X(TWO_SHOT, NAN, 128, 1)}, 4, 1 << 20},
        /* no ring where stores arrive, and little in flight where there are threads */
        {{RF_X(TWO_SHOT, NAN, 128, 4)}, {RF_X(TWO_SHOT, FLAG, 1024, 1)}, 4, 4 << 20},
        {{RF_X(ONE_SHOT, NAN, 128, 1)}, {RF_X(ONE_SHOT, NAN, 128, 4)}, 4, 8 << 10},
        {{RF_X(ONE_SHOT, NAN, 128, 1), .by_rank = 1}, {RF_X(ONE_SHOT, NAN, 128, 1)}, 4, 8 << 10},
        /* nothing that only some calls may have */
        {{RF_X(TWO_SHOT, NAN, 1024, 4)},
         {RF_X(ONE_SHOT, NAN, 128, 1), .flags = RF_VARIANT_DEPENDENT},
         4,
         8 << 10},
        {{RF_X(TWO_SHOT, NAN, 1024, 4)}, {RF_X(ONE_SHOT, NAN, 128, 1), .hidden = 2048}, 4, 8 << 10},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int turned = 0; turned < 2; turned++) {
            const rf_variant *taken =
                turned ? peers_take(rows[i].other, rows[i].better, rows[i].world, rows[i].bytes)
                       : peers_take(rows[i].better, rows[i].other, rows[i].world, rows[i].bytes);
            assert_int_equal(taken->algo, rows[i].better.algo);
            assert_int_equal(taken->threads, rows[i].better.threads);
            assert_int_equal(taken->unroll, rows[i].better.unroll);
            assert_int_equal(taken->by_rank, rows[i].better.by_rank);
        }
}

/* Where the tuner begins: the best transport, and on the cpu the class's algorithm before its
 * stores. */
static void scores_compare_transports_and_tactics(void **state)
{
    (void)state;
    rf_comm comm = {.world = 4, .backend = &rfi_backend_cuda};
    rf_variant peer = {RF_X(ONE_SHOT, NAN, 128, 1), .world = 4}, host = peer;
    host.transport = RFI_TRANSPORT_HOST, host.wire = RFI_WIRE_TAG;
    comm.transport[RFI_TRANSPORT_PEER].on = comm.transport[RFI_TRANSPORT_HOST].on = 1;
    assert_true(rfi_class_score(&comm, &peer, 8192) > rfi_class_score(&comm, &host, 8192));

    rf_variant near = {.transport = RFI_TRANSPORT_CPU, .algo = RFI_ALGO_ONE_SHOT}, far = near;
    near.copy = RFI_COPY_STREAMING, far.algo = RFI_ALGO_TWO_SHOT;
    comm.backend = &rfi_backend_cpu;
    comm.transport[RFI_TRANSPORT_CPU].on = 1;
    assert_true(rfi_class_score(&comm, &near, 8192) > rfi_class_score(&comm, &far, 8192));
}
#undef RF_X

/* ---- what the tuner sees of a comm ---- */

static void deadlines_are_those_of_all_transports(void **state)
{
    (void)state;
    rfi_channel channel = {.name = "x"};
    rf_comm comm = {.channels = &channel};
    comm.config.deadline_ms = 30;
    static const uint32_t asked[] = {5, 0}, given[] = {5, 30};
    for (int i = 0; i < 2; i++) {
        rfi_set_deadline(&comm, 0, asked[i]);
        for (int t = 0; t < RFI_N_TRANSPORTS; t++)
            assert_true(channel.params[t].deadline_ns == given[i] * UINT64_C(1000000));
    }
}

static char logged[64];

static void keep_line(void *ctx, int level, const char *line)
{
    (void)ctx, (void)level;
    snprintf(logged, sizeof logged, "%s", line);
}

static void a_log_entry_is_one_line(void **state)
{
    (void)state;
    rf_comm comm = {.rank = 1};
    rfi_log(&comm, 1, "nobody listens");
    comm.config.log = keep_line;
    rfi_log(&comm, 1, "a\nb\rc");
    assert_string_equal(logged, "a b c");
}

static void only_rank_0_has_the_store(void **state)
{
    (void)state;
    rf_store store;
    rf_comm comm = {.rank = 0};
    comm.config.store = &store;
    assert_ptr_equal(rfi_store(&comm), &store);
    comm.rank = 1;
    assert_null(rfi_store(&comm));
}

static void a_closed_comm_meets_nobody(void **state)
{
    (void)state;
    rf_comm comm = {.closed = 1};
    char x[RF_MAX_WORLD];
    rf_error err = {0};
    assert_int_equal(rfi_agree(&comm, "x", RF_OK, NULL, 1, &err), RF_E_CLOSED);
    assert_int_equal(rfi_allgather(&comm, "x", x, x, 1, 1, &err), RF_E_CLOSED);
    assert_int_equal(rfi_broadcast(&comm, "x", x, 1, 1, &err), RF_E_CLOSED);
}

/* ---- hashes, faults ---- */

static void hashes_are_canonical(void **state)
{
    (void)state;
    unsigned char hash[16];
    char hex[RFI_HEX];
    rfi_hash128("", 0, hash);
    rfi_hex(hash, hex);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f"); /* xxhsum -H2 < /dev/null */
    assert_true(rfi_hash64("", 0) == 0x99aa06d3014798d8u);
}

static void faults_become_results(void **state)
{
    (void)state;
    assert_int_equal(rfi_fault_result(RF_FAULT_DEADLINE), RF_E_TIMEOUT);
    assert_int_equal(rfi_fault_result(RF_FAULT_DEAD), RF_E_PEER);
    assert_int_equal(rfi_fault_result(12345), RF_E_POISONED);
    assert_int_equal(RF_POISON_CULPRIT(RF_POISON(7, RF_FAULT_ABORT)), 7);
    assert_int_equal(RF_POISON_CODE(RF_POISON(7, RF_FAULT_ABORT)), RF_FAULT_ABORT);
}

/* ---- JSON ---- */

static const char *text_as_json(const char *text)
{
    static char buf[128];
    rfi_json j;
    rfi_json_start(&j, buf, sizeof buf);
    rfi_json_text(&j, NULL, text);
    rfi_json_end(&j);
    return buf;
}

static void texts_are_escaped(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"plain", "\"plain\""},
        {"a\"b\\c", "\"a\\\"b\\\\c\""},
        {"\n\t\x01\x7f", "\"\\u000a\\u0009\\u0001\\u007f\""},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"\xff", "\"\\ufffd\""},
        {"\xc3", "\"\\ufffd\""},                       /* cut */
        {"\xc0\xaf", "\"\\ufffd\\ufffd\""},            /* overlong */
        {"\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\""}, /* surrogate */
        {"\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(text_as_json(cases[i][0]), cases[i][1]);
    assert_string_equal(text_as_json(NULL), "null");
}

static size_t sample(char *buf, size_t size)
{
    rfi_json j;
    rfi_json_start(&j, buf, size);
    rfi_json_open(&j, NULL, '{');
    rfi_json_integer(&j, "a", -1);
    rfi_json_open(&j, "b", '[');
    rfi_json_number(&j, NULL, 0.5);
    rfi_json_bool(&j, NULL, 1);
    rfi_json_number(&j, NULL, 1.0 / 0.0);
    rfi_json_close(&j, ']');
    rfi_json_open(&j, "c", '{');
    rfi_json_close(&j, '}');
    rfi_json_close(&j, '}');
    return rfi_json_end(&j);
}

static void structure_has_commas_where_they_belong(void **state)
{
    (void)state;
    char buf[64];
    size_t length = sample(buf, sizeof buf);
    assert_int_equal(length, strlen(buf));
    assert_string_equal(buf, "{\"a\":-1,\"b\":[0.5,true,null],\"c\":{}}");
}

static void a_small_buffer_is_filled_and_terminated(void **state)
{
    (void)state;
    char whole[64], part[64];
    size_t length = sample(whole, sizeof whole);
    assert_int_equal(sample(NULL, 0), length);
    for (size_t size = 1; size <= length + 1; size++) {
        memset(part, '#', sizeof part);
        assert_int_equal(sample(part, size), length);
        assert_int_equal(strlen(part), size - 1);
        assert_memory_equal(part, whole, size - 1);
        assert_int_equal(part[size], '#');
    }
}

/* ---- the machine ---- */

static void binding_changes_the_environment_and_not_the_hardware(void **state)
{
    (void)state;
    rfi_capabilities free_to_run, bound;
    rfi_cpu_facts(&free_to_run);
    memset(free_to_run.cpu_mask, 3, 1);
    bound = free_to_run;
    memset(bound.cpu_mask, 0, sizeof bound.cpu_mask);
    bound.cpu_mask[0] = 1;
    char *hw[] = {rfi_cpu_hw_text(&free_to_run), rfi_cpu_hw_text(&bound)};
    assert_string_equal(hw[0], hw[1]);
    assert_non_null(strstr(hw[0], "\ncpus="));

    char *each_its_own = rfi_cpu_env_text(&bound, 2), *all_on_one = rfi_cpu_env_text(&bound, 1);
    assert_non_null(strstr(each_its_own, "\nusable_cpus=1\nusable_cpus_of_all=2\nusable_nodes="));
    assert_string_not_equal(each_its_own, all_on_one);
    free(hw[0]);
    free(hw[1]);
    free(each_its_own);
    free(all_on_one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_result_has_a_text_of_its_own),
        cmocka_unit_test(version_text_and_number_agree),
        cmocka_unit_test(fail_keeps_one_terminated_line),
        cmocka_unit_test(fail_may_quote_the_error_that_it_fills),
        cmocka_unit_test(numbers_are_whole_decimal_and_in_range),
        cmocka_unit_test(an_empty_variable_counts_as_unset),
        cmocka_unit_test(each_launcher_gives_rank_and_world),
        cmocka_unit_test(a_launcher_that_makes_no_sense_is_refused_by_name),
        cmocka_unit_test(zero_means_the_default),
        cmocka_unit_test(a_config_of_a_later_version_is_refused_unless_its_rest_is_zero),
        cmocka_unit_test(ranges_are_checked_and_named),
        cmocka_unit_test(packs_of_another_abi_are_refused_in_words),
        cmocka_unit_test(footprint_is_what_the_layout_takes),
        cmocka_unit_test(footprint_on_gpus_is_bounded),
        cmocka_unit_test(a_plan_is_found_by_its_count_and_replaced),
        cmocka_unit_test(the_other_mode_is_second_choice),
        cmocka_unit_test(nearest_is_by_ratio_and_fits_hidden),
        cmocka_unit_test(a_tie_goes_to_the_mode_asked_for_then_to_the_smaller),
        cmocka_unit_test(tags_differ_by_variant_and_grid),
        cmocka_unit_test(size_classes_cover_all_sizes_in_order),
        cmocka_unit_test(host_memory_has_its_classes),
        cmocka_unit_test(packs_are_what_the_wire_leaves_of_16_bytes),
        cmocka_unit_test(usual_grids),
        cmocka_unit_test(peers_have_their_classes),
        cmocka_unit_test(deadlines_are_those_of_all_transports),
        cmocka_unit_test(a_log_entry_is_one_line),
        cmocka_unit_test(only_rank_0_has_the_store),
        cmocka_unit_test(a_closed_comm_meets_nobody),
        cmocka_unit_test(scores_compare_transports_and_tactics),
        cmocka_unit_test(hashes_are_canonical),
        cmocka_unit_test(faults_become_results),
        cmocka_unit_test(texts_are_escaped),
        cmocka_unit_test(structure_has_commas_where_they_belong),
        cmocka_unit_test(a_small_buffer_is_filled_and_terminated),
        cmocka_unit_test(binding_changes_the_environment_and_not_the_hardware),
    };
    return cmocka_run_group_tests_name("core", tests, NULL, NULL);
}
