/* Wrong arguments of every public call: an error that says what was found, no crash, nothing
 * changed. A comm of one rank is enough for most. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "group.h"

#define assert_refused(expected, call, words)                                                      \
    do {                                                                                           \
        rf_error err = {0};                                                                        \
        rf_result found = (call);                                                                  \
        if (found != (expected) || err.code != found || !strstr(err.text, words))                  \
            fail_msg("%s: %d: %s", #call, (int)found, err.text);                                   \
    } while (0)

static rf_comm *comm; /* of one rank */

static int open_comm(void **state)
{
    (void)state;
    rf_config config = group_config();
    return rf_comm_create_all(&config, 1, &comm, NULL) != RF_OK;
}

static int close_comm(void **state)
{
    (void)state;
    rf_comm_destroy(comm);
    return 0;
}

/* After every test: the comm still works. */
static int still_works(void **state)
{
    (void)state;
    float in = 2, out = 0;
    return rf_all_reduce(comm, 0, &in, &out, 1, RF_F32, NULL) != RF_OK || out != 2;
}

/* ---- the hot call ---- */

static void test_all_reduce(void **state)
{
    (void)state;
    static float x[70000], y[70000];
    uint64_t most = rfi_capacity(comm) / 4;
    static char *const bytes = (char *)x;
    const struct {
        rf_result code;
        int channel;
        const void *in;
        void *out;
        uint64_t count;
        int dtype;
        const char *words;
    } rows[] = {
        {RF_E_ARG, 0, NULL, y, 1, RF_F32, "in is NULL"},
        {RF_E_ARG, 0, x, NULL, 1, RF_F32, "out is NULL"},
        {RF_E_DTYPE, 0, x, y, 1, 3, "dtype 3"},
        {RF_E_DTYPE, 0, x, y, 1, -1, "dtype -1"},
        {RF_E_ALIGN, 0, bytes + 1, y, 1, RF_F32, "in is not aligned"},
        {RF_E_ALIGN, 0, x, (char *)y + 2, 1, RF_F32, "out is not aligned"},
        {RF_E_ALIGN, 0, bytes + 1, bytes + 1, 1, RF_BF16, "aligned to 2"},
        {RF_E_OVERLAP, 0, x, x + 1, 2, RF_F32, "4 bytes apart and 8 bytes long"},
        {RF_E_OVERLAP, 0, x + 99, x, 100, RF_F32, "396 bytes apart"},
        {RF_E_CAPACITY, 0, x, y, most + 1, RF_F32, "capacity"},
        {RF_E_CAPACITY, 0, x, y, 2 * most + 1, RF_F16, "capacity"},
        {RF_E_CAPACITY, 0, x, y, UINT64_MAX, RF_F32, "capacity"},
        {RF_E_CAPACITY, 0, x, y, UINT64_MAX / 4 + 2, RF_F32, "capacity"},
        {RF_E_CHANNEL, -1, x, y, 1, RF_F32, "channel -1"},
        {RF_E_CHANNEL, 1, x, y, 1, RF_F32, "channel 1"},
        {RF_E_CHANNEL, INT32_MAX, x, y, 1, RF_F32, "channel"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rf_result r = rf_all_reduce(comm, rows[i].channel, rows[i].in, rows[i].out, rows[i].count,
                                    (rf_dtype)rows[i].dtype, NULL);
        const rf_error *err = rf_comm_error(comm);
        if (r != rows[i].code || err->code != r || !strstr(err->text, rows[i].words))
            fail_msg("row %zu: %d: %s", i, (int)r, err->text);
    }
    assert_int_equal(rf_all_reduce(NULL, 0, x, y, 1, RF_F32, NULL), RF_E_ARG);
}

static void test_what_all_reduce_takes(void **state)
{
    (void)state;
    static float x[70000];
    assert_int_equal(rf_all_reduce(comm, 0, NULL, NULL, 0, RF_F32, NULL), RF_OK);   /* no-op */
    assert_int_equal(rf_all_reduce(comm, 0, x, x + 100, 100, RF_F32, NULL), RF_OK); /* adjacent */
    assert_int_equal(rf_all_reduce(comm, 0, x + 1, x + 1, 3, RF_F32, NULL), RF_OK);
    assert_int_equal(rf_all_reduce(comm, 0, x, x, rfi_capacity(comm) / 4, RF_F32, NULL), RF_OK);
}

/* ---- create ---- */

static int no_allgather(void *ctx, const void *in, void *out, size_t bytes, int timeout_ms)
{
    (void)ctx, (void)in, (void)out, (void)bytes, (void)timeout_ms;
    return 5; /* EIO */
}

static void test_create(void **state)
{
    (void)state;
    rf_config config = group_config();
    rf_comm *out = comm;
    rf_bootstrap alone = {.world = 1};
    const rf_bootstrap bad[] = {{.world = 0},
                                {.world = 9},
                                {.world = -1},
                                {.world = 2, .rank = 2},
                                {.world = 2, .rank = -1},
                                {.world = 2}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_refused(RF_E_ARG, rf_comm_create(&config, &bad[i], &out, &err), "boot.");
    assert_refused(RF_E_ARG, rf_comm_create(&config, NULL, &out, &err), "boot is NULL");
    assert_refused(RF_E_ARG, rf_comm_create(&config, &alone, NULL, &err), "out is NULL");
    assert_refused(RF_E_ARG, rf_comm_create(NULL, &alone, &out, &err), "config is NULL");
    rf_bootstrap broken = {.world = 2, .rank = 1, .allgather = no_allgather};
    rf_error broken_err = {0};
    assert_true(rf_comm_create(&config, &broken, &out, &broken_err) != RF_OK);
    assert_string_not_equal(broken_err.text, "");

    assert_refused(RF_E_ARG, rf_comm_create_all(&config, 0, &out, &err), "world");
    assert_refused(RF_E_ARG, rf_comm_create_all(&config, 9, &out, &err), "world");
    assert_refused(RF_E_ARG, rf_comm_create_all(&config, 1, NULL, &err), "out");
    assert_refused(RF_E_ARG, rf_comm_create_all(NULL, 1, &out, &err), "config is NULL");
    assert_ptr_equal(out, comm);                                           /* untouched */
    assert_int_equal(rf_comm_create(&config, NULL, &out, NULL), RF_E_ARG); /* err NULL */
}

static void test_configs(void **state)
{
    (void)state;
    rf_comm *out = NULL;
    rf_footprint all = {.host_bytes = 7};
    static const rf_pack *const none[] = {NULL};
    struct {
        rf_config config;
        rf_result code;
        const char *words;
    } rows[12];
    size_t n = 0;
#define ROW(field, value, result, text)                                                            \
    rows[n].config = group_config(), rows[n].config.field = (value), rows[n].code = (result),      \
    rows[n++].words = (text)
    ROW(struct_size, 0, RF_E_ARG, "config.struct_size is 0");
    ROW(struct_size, sizeof(rf_config) - 1, RF_E_ARG, "config.struct_size");
    ROW(struct_size, SIZE_MAX, RF_E_ARG, "config.struct_size");
    ROW(backend, (rf_backend_kind)77, RF_E_ARG, "config.backend is 77");
    ROW(capacity_bytes, UINT64_MAX, RF_E_ARG, "config.capacity_bytes");
    ROW(channels, 17, RF_E_ARG, "config.channels is 17");
    ROW(deadline_ms, UINT32_MAX, RF_E_ARG, "time-out");
    ROW(create_timeout_ms, UINT32_MAX, RF_E_ARG, "time-out");
    ROW(flags, 0x80000000, RF_E_ARG, "config.flags is 0x80000000");
    ROW(packs, NULL, RF_E_ARG, "config.packs is NULL");
    ROW(packs, none, RF_E_ARG, "config.packs[0] is NULL");
    ROW(n_packs, 0, RF_E_PACK, "config.packs is empty");
    for (size_t i = 0; i < n; i++)
        assert_refused(rows[i].code, rf_comm_create_all(&rows[i].config, 1, &out, &err),
                       rows[i].words);
    assert_null(out);
    for (size_t i = 0; i < 9; i++)
        assert_refused(rows[i].code, rf_footprint_query(&rows[i].config, 2, &all, &err),
                       rows[i].words);
    assert_refused(RF_E_ARG, rf_footprint_query(NULL, 2, &all, &err), "config is NULL");
    assert_refused(RF_E_ARG, rf_footprint_query(&rows[11].config, 0, &all, &err), "world is 0");
    assert_refused(RF_E_ARG, rf_footprint_query(&rows[11].config, 9, &all, &err), "world is 9");
    assert_refused(RF_E_ARG, rf_footprint_query(&rows[11].config, 2, NULL, &err), "out is NULL");
    assert_int_equal(all.host_bytes, 7);
}

static void test_disabled(void **state)
{
    (void)state;
    rf_config config = group_config();
    rf_comm *out = NULL;
    setenv("RANKFOLD_DISABLE", "1", 1);
    assert_refused(RF_E_BACKEND, rf_comm_create_all(&config, 2, &out, &err), "RANKFOLD_DISABLE");
    setenv("RANKFOLD_DISABLE", "maybe", 1);
    assert_refused(RF_E_ARG, rf_comm_create_all(&config, 2, &out, &err), "expected 0 or 1");
    unsetenv("RANKFOLD_DISABLE");
    setenv("RANKFOLD_DEADLINE_MS", "soon", 1);
    assert_refused(RF_E_ARG, rf_comm_create_all(&config, 2, &out, &err), "RANKFOLD_DEADLINE_MS");
    unsetenv("RANKFOLD_DEADLINE_MS");
    setenv("RANKFOLD_TACTIC", "no_such_tactic", 1);
    rf_result result = rf_comm_create_all(&config, 1, &out, NULL);
    unsetenv("RANKFOLD_TACTIC");
    if (result == RF_OK) { /* said in prepare at the latest */
        const rf_shape shape = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, 64};
        rf_plan_info info;
        rf_result prepared = rf_prepare(out, 0, &shape, 1, NULL);
        if (prepared == RF_OK) {
            assert_int_equal(rf_plan_query(out, 0, 64, RF_F32, RF_EAGER, &info), RF_OK);
            assert_int_not_equal(info.rung, RF_RUNG_FORCED);
        }
        rf_comm_destroy(out);
    }
}

/* F12: without a driver cuda is an error in words (with one, whatever it says), and cpu still
 * works.
 */
static void test_cuda_without_a_driver(void **state)
{
    (void)state;
    rf_config config = group_config();
    rf_comm *out = NULL;
    rf_error err = {0};
    config.backend = RF_BACKEND_CUDA;
    if (dlopen("libcuda.so.1", RTLD_LAZY))
        return;
    assert_int_equal(rf_comm_create_all(&config, 1, &out, &err), RF_E_BACKEND);
    assert_non_null(strstr(err.text, "libcuda.so.1"));
    assert_null(out);
}

/* ---- shapes ---- */

static void test_shapes(void **state)
{
    (void)state;
    uint64_t most = rfi_capacity(comm) / 4;
    const struct {
        rf_shape shape;
        rf_result code;
        const char *words;
    } rows[] = {
        {{(rf_op)1, RF_F32, RF_EAGER, 1, 64}, RF_E_ARG, "op"},
        {{RF_ALL_REDUCE, (rf_dtype)3, RF_EAGER, 1, 64}, RF_E_DTYPE, "dtype"},
        {{RF_ALL_REDUCE, (rf_dtype)-1, RF_EAGER, 1, 64}, RF_E_DTYPE, "dtype"},
        {{RF_ALL_REDUCE, RF_F32, (rf_mode)2, 1, 64}, RF_E_ARG, "mode"},
        {{RF_ALL_REDUCE, RF_F32, RF_EAGER, 0, 64}, RF_E_ARG, "0"},
        {{RF_ALL_REDUCE, RF_F32, RF_EAGER, 64, 0}, RF_E_ARG, "0"},
        {{RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, most + 1}, RF_E_CAPACITY, "capacity"},
        {{RF_ALL_REDUCE, RF_F32, RF_EAGER, 1ull << 33, 1ull << 33}, RF_E_CAPACITY, "capacity"},
        {{RF_ALL_REDUCE, RF_F32, RF_EAGER, UINT64_MAX, UINT64_MAX}, RF_E_CAPACITY, "capacity"},
        {{RF_ALL_REDUCE, RF_F32, RF_EAGER, 1ull << 62, 4}, RF_E_CAPACITY, "capacity"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_refused(rows[i].code, rf_prepare(comm, 0, &rows[i].shape, 1, &err), rows[i].words);
        assert_refused(rows[i].code, rf_prepare_all(&comm, 1, 0, &rows[i].shape, 1, &err),
                       rows[i].words);
        assert_refused(rows[i].code, rf_tune(comm, 0, &rows[i].shape, 1, NULL, NULL, &err),
                       rows[i].words);
        assert_int_equal(rf_supports(comm, &rows[i].shape), 0);
    }
    const rf_shape good = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, 64};
    assert_int_equal(rf_supports(comm, &good), 1);
    assert_int_equal(rf_supports(NULL, &good), 0);
    assert_int_equal(rf_supports(comm, NULL), 0);
    assert_refused(RF_E_ARG, rf_prepare(NULL, 0, &good, 1, &err), "comm is NULL");
    assert_refused(RF_E_ARG, rf_prepare(comm, 0, NULL, 1, &err), "1 shapes at");
    assert_refused(RF_E_ARG, rf_prepare(comm, 0, &good, 65537, &err), "65537 shapes");
    assert_refused(RF_E_CHANNEL, rf_prepare(comm, 1, &good, 1, &err), "channel 1");
    assert_refused(RF_E_CHANNEL, rf_prepare(comm, -1, &good, 1, &err), "channel -1");
    assert_refused(RF_E_ARG, rf_prepare_all(NULL, 1, 0, &good, 1, &err), "comms");
    assert_refused(RF_E_ARG, rf_prepare_all(&comm, 0, 0, &good, 1, &err), "world");
    assert_refused(RF_E_ARG, rf_prepare_all(&comm, 9, 0, &good, 1, &err), "world");
    assert_int_equal(rf_prepare(comm, 0, NULL, 0, NULL), RF_OK);
}

static void test_tune(void **state)
{
    (void)state;
    const rf_shape good = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, 64};
    rf_tune_options options = RF_TUNE_OPTIONS_INIT;
    assert_refused(RF_E_ARG, rf_tune(NULL, 0, &good, 1, NULL, NULL, &err), "comm is NULL");
    assert_refused(RF_E_ARG, rf_tune(comm, 0, NULL, 1, NULL, NULL, &err), "1 shapes at");
    assert_refused(RF_E_CHANNEL, rf_tune(comm, 5, &good, 1, NULL, NULL, &err), "channel 5");
    options.struct_size = 3;
    assert_refused(RF_E_ARG, rf_tune(comm, 0, &good, 1, &options, NULL, &err), "struct_size is 3");
    options = (rf_tune_options)RF_TUNE_OPTIONS_INIT;
    options.flags = 0xff00;
    assert_refused(RF_E_ARG, rf_tune(comm, 0, &good, 1, &options, NULL, &err), "flags");
    assert_int_equal(rf_can_profile(NULL), 0);
    assert_int_equal(rf_can_profile(comm), 0);
}

/* As many as can be prepared afterwards. */
static void test_too_many_shapes(void **state)
{
    (void)state;
    const size_t n = 65537;
    rf_shape *shapes = malloc(n * sizeof *shapes);
    assert_non_null(shapes);
    for (size_t i = 0; i < n; i++)
        shapes[i] = (rf_shape){RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, 1 + i % 1000};
    assert_refused(RF_E_ARG, rf_prepare(comm, 0, shapes, n, &err), "expected at most 65536");
    assert_refused(RF_E_ARG, rf_tune(comm, 0, shapes, n, NULL, NULL, &err),
                   "expected at most 65536");
    assert_int_equal(rf_prepare(comm, 0, shapes, n - 1, NULL), RF_OK);
    free(shapes);
}

static void test_trials(void **state)
{
    (void)state;
    const rf_shape good = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, 64};
    const rf_shape bad = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 0, 64};
    double us[2] = {-1, -1};
    assert_refused(RF_E_ARG, rf_verify(NULL, 0, &good, 1, &err), "comm is NULL");
    assert_refused(RF_E_ARG, rf_verify(comm, 0, NULL, 1, &err), "the shape");
    assert_refused(RF_E_ARG, rf_verify(comm, 0, &bad, 1, &err), "the shape");
    assert_refused(RF_E_CHANNEL, rf_verify(comm, 5, &good, 1, &err), "channel 5");
    assert_refused(RF_E_ARG, rf_time(NULL, 0, &good, 1, us, 2, &err), "comm is NULL");
    assert_refused(RF_E_ARG, rf_time(comm, 0, &bad, 1, us, 2, &err), "the shape");
    assert_refused(RF_E_CHANNEL, rf_time(comm, -1, &good, 1, us, 2, &err), "channel -1");
    assert_refused(RF_E_ARG, rf_time(comm, 0, &good, 1, NULL, 2, &err), "us is NULL");
    assert_true(us[0] == -1 && us[1] == -1);
    assert_int_equal(rf_time(comm, 0, &good, 1, NULL, 0, NULL), RF_OK);
    assert_int_equal(rf_time(comm, 0, &good, 0, us, 2, NULL), RF_OK);
    assert_true(us[0] >= 0 && us[1] >= 0);
}

/* ---- everything else ---- */

static void test_channels(void **state)
{
    (void)state;
    int channel = 7;
    static const char longest[] = "a name of more bytes than a channel's name may have";
    assert_refused(RF_E_ARG, rf_channel_open(NULL, "a", &channel, &err), "comm is NULL");
    assert_refused(RF_E_ARG, rf_channel_open(comm, NULL, &channel, &err), "name is NULL");
    assert_refused(RF_E_ARG, rf_channel_open(comm, "a", NULL, &err), "channel is NULL");
    assert_refused(RF_E_ARG, rf_channel_open(comm, "", &channel, &err), "channel name");
    assert_refused(RF_E_ARG, rf_channel_open(comm, longest, &channel, &err), "channel name");
    assert_refused(RF_E_ARG, rf_channel_open(comm, "a\n", &channel, &err), "printable");
    assert_refused(RF_E_CHANNEL, rf_channel_open(comm, "second", &channel, &err), "in use");
    assert_int_equal(channel, 7);
    assert_int_equal(rf_channel_rebind(NULL, 0), RF_E_ARG);
    assert_int_equal(rf_channel_rebind(comm, -1), RF_E_CHANNEL);
    assert_int_equal(rf_channel_rebind(comm, 1), RF_E_CHANNEL);
}

static void test_queries(void **state)
{
    (void)state;
    rf_plan_info info;
    rf_health health;
    char text[8];
    assert_int_equal(rf_plan_query(NULL, 0, 1, RF_F32, RF_EAGER, &info), RF_E_ARG);
    assert_int_equal(rf_plan_query(comm, 0, 1, RF_F32, RF_EAGER, NULL), RF_E_ARG);
    assert_int_equal(rf_plan_query(comm, 0, 1, (rf_dtype)9, RF_EAGER, &info), RF_E_DTYPE);
    assert_int_equal(rf_plan_query(comm, 0, 1, RF_F32, (rf_mode)7, &info), RF_E_ARG);
    assert_int_equal(rf_plan_query(comm, 3, 1, RF_F32, RF_EAGER, &info), RF_E_CHANNEL);
    assert_int_equal(rf_plan_query(comm, 0, UINT64_MAX, RF_F32, RF_EAGER, &info), RF_E_CAPACITY);
    assert_int_equal(rf_comm_check(NULL, &health), RF_E_ARG);
    assert_int_equal(rf_comm_check(comm, NULL), RF_E_ARG);
    assert_null(rf_comm_error(NULL));
    assert_true(rf_comm_rank(NULL) < 0);
    assert_true(rf_comm_world(NULL) <= 0);
    assert_true(rf_status_json(comm, NULL, 0) > 100);
    assert_true(rf_status_json(comm, text, sizeof text) > 100);
    assert_int_equal(strlen(text), sizeof text - 1);
    rf_status_json(NULL, text, sizeof text);
    assert_null(rf_dtype_name((rf_dtype)99));
    assert_int_equal(rf_dtype_parse(NULL), -1);
    assert_int_equal(rf_pack_count(NULL), 0);
    rf_variant_info variant;
    assert_int_equal(rf_pack_variant(NULL, 0, &variant), RF_E_ARG);
    assert_int_equal(rf_pack_variant(&rf_pack_cpu_small, SIZE_MAX, &variant), RF_E_ARG);
    assert_int_equal(rf_pack_variant(&rf_pack_cpu_small, 0, NULL), RF_E_ARG);
}

static void test_ends(void **state)
{
    (void)state;
    assert_refused(RF_E_ARG, rf_comm_reset(NULL, 1, &err), "comm is NULL");
    assert_refused(RF_E_ARG, rf_comm_close(NULL, 1, &err), "comm is NULL");
    rf_comm_abort(NULL);
    rf_comm_destroy(NULL);
    rf_bootstrap_free(NULL);
    rf_store_close(NULL);
    rf_cpu_stream_destroy(NULL);
    rf_cpu_graph_destroy(NULL);
}

static void test_streams(void **state)
{
    (void)state;
    rf_cpu_graph *graph = NULL;
    assert_refused(RF_E_ARG, rf_cpu_stream_create(NULL, &err), "out is NULL");
    assert_int_equal(rf_cpu_stream_synchronize(NULL), RF_E_ARG);
    assert_int_equal(rf_cpu_capture_begin(NULL), RF_E_ARG);
    assert_int_equal(rf_cpu_capture_end(NULL, &graph), RF_E_ARG);
    assert_int_equal(rf_cpu_graph_launch(NULL, NULL), RF_E_ARG);
    assert_int_equal(rf_cpu_stream_delay(NULL, 1), RF_E_ARG);
}

static void test_bootstraps(void **state)
{
    (void)state;
    rf_bootstrap out = {.rank = 77};
    assert_refused(RF_E_ARG, rf_bootstrap_socket("x", 0, 2, NULL, &err), "out is NULL");
    assert_refused(RF_E_ARG, rf_bootstrap_socket(NULL, 0, 2, &out, &err), "name");
    assert_refused(RF_E_ARG, rf_bootstrap_socket("", 0, 2, &out, &err), "name");
    assert_refused(RF_E_ARG, rf_bootstrap_socket("x", 2, 2, &out, &err), "rank");
    assert_refused(RF_E_ARG, rf_bootstrap_socket("x", -1, 2, &out, &err), "rank");
    assert_refused(RF_E_ARG, rf_bootstrap_socket("x", 0, 0, &out, &err), "world");
    assert_refused(RF_E_ARG, rf_bootstrap_socket("x", 0, 9, &out, &err), "world");
    assert_refused(RF_E_ARG, rf_bootstrap_threads(0, &out, &err), "world");
    assert_refused(RF_E_ARG, rf_bootstrap_threads(9, &out, &err), "world");
    assert_refused(RF_E_ARG, rf_bootstrap_threads(2, NULL, &err), "out is NULL");
    assert_refused(RF_E_ARG, rf_bootstrap_env(NULL, &err), "out is NULL");
    assert_refused(RF_E_ARG, rf_bootstrap_env(&out, &err), "RANK");
    setenv("RANK", "1", 1), setenv("WORLD_SIZE", "two", 1);
    assert_refused(RF_E_ARG, rf_bootstrap_env(&out, &err), "WORLD_SIZE");
    setenv("RANK", "3", 1), setenv("WORLD_SIZE", "2", 1);
    assert_refused(RF_E_ARG, rf_bootstrap_env(&out, &err), "RANK");
    unsetenv("RANK"), unsetenv("WORLD_SIZE");
    assert_int_equal(out.rank, 77); /* untouched */
}

static void test_stores(void **state)
{
    (void)state;
    rf_store *store = NULL;
    assert_refused(RF_E_ARG, rf_store_open("x", NULL, 0, NULL, &err), "out is NULL");
    assert_refused(RF_E_ARG, rf_store_open("x", NULL, 0xf0, &store, &err), "flags");
    assert_refused(RF_E_ARG, rf_store_frozen(NULL, &store, &err), "NULL");
    assert_null(store);
    assert_null(rf_store_warning(NULL));
}

static void test_oracle(void **state)
{
    (void)state;
    float x = 1;
    const void *one[] = {&x}, *none[] = {NULL};
    assert_int_equal(rf_oracle_all_reduce(NULL, &x, 1, RF_F32, 1), RF_E_ARG);
    assert_int_equal(rf_oracle_all_reduce(none, &x, 1, RF_F32, 1), RF_E_ARG);
    assert_int_equal(rf_oracle_all_reduce(one, NULL, 1, RF_F32, 1), RF_E_ARG);
    assert_int_equal(rf_oracle_all_reduce(one, &x, 1, (rf_dtype)4, 1), RF_E_DTYPE);
    assert_int_equal(rf_oracle_all_reduce(one, &x, 1, RF_F32, 0), RF_E_ARG);
    assert_int_equal(rf_oracle_all_reduce(one, &x, 1, RF_F32, 9), RF_E_ARG);
}

/* ---- between ranks ---- */

static void shapes_differ(int rank, int world, void *arg)
{
    rf_config config = group_config();
    config.channels = 2;
    rf_comm *c = group_create(arg, &config, rank, world);
    rf_error err = {0};
    rf_shape shape = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, rank == 1 ? 128 : 64};
    rf_result result = rf_prepare(c, 0, &shape, 1, &err);
    RANK_CHECK(result == RF_E_MISMATCH && strstr(err.text, "rank 1"), "%d: %s", (int)result,
               err.text);
    shape.hidden = 64;
    result = rf_prepare(c, 0, &shape, rank == 2 ? 0 : 1, &err);
    RANK_CHECK(result == RF_E_MISMATCH && strstr(err.text, "rank 2"), "%d: %s", (int)result,
               err.text);
    rf_config one = group_config();
    rf_bootstrap boot = {.rank = world, .world = world};
    rf_comm *none = NULL;
    result = rf_comm_create(&one, &boot, &none, &err);
    RANK_CHECK(result == RF_E_ARG && strstr(err.text, "boot.rank is 3"), "%d: %s", (int)result,
               err.text);
    int channel = -1;
    result = rf_channel_open(c, rank == 1 ? "b" : "a", &channel, &err);
    RANK_CHECK(result == RF_E_MISMATCH && strstr(err.text, "rank 1") && channel == -1, "%d: %s",
               (int)result, err.text);
    result = rf_channel_open(c, rank == 1 ? NULL : "a", &channel, &err);
    RANK_CHECK(result == RF_E_ARG && strstr(err.text, "name is NULL"), "%d: %s", (int)result,
               err.text);
    RANK_CHECK(rf_channel_open(c, "a", &channel, &err) == RF_OK, "%s", err.text);
    result = rf_prepare(c, rank == 1 ? channel : 0, &shape, 1, &err);
    RANK_CHECK(result == RF_E_MISMATCH && strstr(err.text, "rank 1"), "%d: %s", (int)result,
               err.text);
    group_call(c, 0, NULL, 0, RF_F32, 1000, 1, 0, 0);
    group_close(c);
}

static void test_collective_calls_that_differ(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(3, shapes_differ, (void *)group_name(), NULL));
}

/* What one rank is asked differs from what the other is: said, and nothing has moved. */
static void trials_differ(int rank, int world, void *arg)
{
    static const struct {
        uint64_t hidden[2], seed[2];
        int channel[2];
        uint32_t calls[2];
        size_t n[2];
        const char *words;
    } rows[] = {
        {{64, 128}, {1, 1}, {0, 0}, {2, 2}, {2, 2}, "shape.hidden is 128 on rank 1, 64 on rank 0"},
        {{64, 64}, {1, 1}, {0, 1}, {2, 2}, {2, 2}, "channel is 1 on rank 1"},
        {{64, 64}, {1, 7}, {0, 0}, {2, 2}, {2, 2}, "seed is 7 on rank 1"},
        {{64, 64}, {1, 1}, {0, 0}, {2, 3}, {2, 2}, "calls is 3 on rank 1"},
        {{64, 64}, {1, 1}, {0, 0}, {2, 2}, {2, 1}, "n is 1 on rank 1"},
    };
    rf_config config = group_config();
    config.channels = 2;
    rf_comm *c = group_create(arg, &config, rank, world);
    int second;
    double us[2];
    rf_error err = {0};
    rf_result result = rf_channel_open(c, "second", &second, &err);
    RANK_CHECK(!result, "%s", err.text);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rf_shape shape = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, rows[i].hidden[rank]};
        result = rows[i].seed[0] != rows[i].seed[1]
                     ? rf_verify(c, rows[i].channel[rank], &shape, rows[i].seed[rank], &err)
                     : rf_time(c, rows[i].channel[rank], &shape, rows[i].calls[rank], us,
                               rows[i].n[rank], &err);
        RANK_CHECK(result == RF_E_MISMATCH && strstr(err.text, rows[i].words), "%d: %s",
                   (int)result, err.text);
    }
    rf_shape shape = {RF_ALL_REDUCE, RF_F32, RF_EAGER, 1, 64};
    result = rf_time(c, 0, &shape, 2, rank == 1 ? NULL : us, 2, &err);
    RANK_CHECK(result == RF_E_ARG && strstr(err.text, "rank 1: us is NULL"), "%d: %s", (int)result,
               err.text);
    group_call(c, 0, NULL, 0, RF_F32, 1000, 1, 0, 0);
    group_close(c);
}

static void test_trials_that_differ(void **state)
{
    (void)state;
    RANKS_ASSERT(ranks_run(2, trials_differ, (void *)group_name(), NULL));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, still_works)
    const struct CMUnitTest tests[] = {
        TEST(test_all_reduce),
        TEST(test_what_all_reduce_takes),
        TEST(test_create),
        TEST(test_configs),
        TEST(test_disabled),
        TEST(test_cuda_without_a_driver),
        TEST(test_shapes),
        TEST(test_tune),
        TEST(test_channels),
        TEST(test_queries),
        TEST(test_ends),
        TEST(test_streams),
        TEST(test_bootstraps),
        TEST(test_stores),
        TEST(test_oracle),
        TEST(test_trials),
        TEST(test_too_many_shapes),
        cmocka_unit_test(test_collective_calls_that_differ),
        cmocka_unit_test(test_trials_that_differ),
    };
    return cmocka_run_group_tests_name("arguments", tests, open_comm, close_comm);
}
