/* What the NCCL-compatible shim keeps in mind: which communicators it knows, and the order of their
 * launches over streams and captures, with a driver that writes down what it is asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/driver.h"
#include "nccl/shim.h"

/* ---- the driver: streams are numbers; those from 100 on are captured, id 7 * stream ---- */

static char said[512];
static int live, fails; /* events and contexts; the calls that fail from now on: -1 = none */

static CUresult say(const char *what, uintptr_t a, uintptr_t b)
{
    size_t used = strlen(said);
    snprintf(said + used, sizeof said - used, "%s %d %d;", what, (int)a, (int)b);
    return fails == 0;
}

static CUresult push(CUcontext context)
{
    live += 1000;
    return context ? 0 : 1;
}

static CUresult pop(CUcontext *context)
{
    *context = NULL;
    live -= 1000;
    return 0;
}

static CUresult get(CUdevice *out, int ordinal)
{
    *out = ordinal + 40;
    return 0;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
    *context = (CUcontext)(uintptr_t)device;
    live++;
    return 0;
}

static CUresult release(CUdevice device)
{
    assert_int_equal(device, 43);
    live--;
    return 0;
}

static CUresult create(CUevent *event, unsigned int flags)
{
    static uintptr_t next;
    assert_int_equal(flags, 2); /* no timing */
    if (fails-- == 0)
        return 1;
    *event = (CUevent)(next++ % 2 + 1);
    live++;
    return 0;
}

static CUresult destroy(CUevent event)
{
    (void)event;
    live--;
    return 0;
}

static CUresult capturing(CUstream stream, int *status)
{
    *status = (uintptr_t)stream >= 100;
    return 0;
}

static CUresult capture_info(CUstream stream, int *status, unsigned long long *id)
{
    *status = 1;
    *id = 7 * (uintptr_t)stream;
    return 0;
}

static CUresult get_id(CUstream stream, unsigned long long *id)
{
    *id = (uintptr_t)stream % 10; /* streams 1 and 11 are one */
    return 0;
}

static CUresult wait(CUstream stream, CUevent event, unsigned int flags)
{
    (void)flags;
    return say("wait", (uintptr_t)stream, (uintptr_t)event);
}

static CUresult record(CUevent event, CUstream stream)
{
    return say("record", (uintptr_t)stream, (uintptr_t)event);
}

static const rfi_driver driver = {.cuDeviceGet = get,
                                  .cuCtxPushCurrent = push,
                                  .cuCtxPopCurrent = pop,
                                  .cuDevicePrimaryCtxRetain = retain,
                                  .cuDevicePrimaryCtxRelease = release,
                                  .cuEventCreate = create,
                                  .cuEventDestroy = destroy,
                                  .cuEventRecord = record,
                                  .cuStreamIsCapturing = capturing,
                                  .cuStreamGetCaptureInfo = capture_info,
                                  .cuStreamGetId = get_id,
                                  .cuStreamWaitEvent = wait};

/* In place of the one that opens libcuda.so.1. */
const rfi_driver *rfi_driver_open(char *why, size_t size)
{
    (void)why, (void)size;
    return &driver;
}

static int setup(void **state)
{
    (void)state;
    said[0] = 0;
    live = 0;
    fails = -1;
    return 0;
}

static void *stream(uintptr_t number)
{
    return (void *)number;
}

static rfi_order open_order(void)
{
    rfi_order o;
    assert_null(rfi_order_open(&o, 0, 3));
    assert_int_equal(live, 3);
    return o;
}

/* One call; what the driver was asked for has to be `expected`. */
static void call(rfi_order *o, uintptr_t number, const char *expected)
{
    uint64_t capture;
    said[0] = 0;
    rf_mode mode = rfi_order_mode(o, stream(number), &capture);
    assert_int_equal(mode, number >= 100 ? RF_GRAPH : RF_EAGER);
    assert_int_equal(rfi_order_before(o, mode, stream(number), capture), 0);
    assert_int_equal(rfi_order_after(o, mode, stream(number)), 0);
    assert_string_equal(said, expected);
}

/* ---- order ---- */

static void another_stream_waits_for_the_launch_before(void **state)
{
    (void)state;
    rfi_order o = open_order();
    call(&o, 1, "record 1 1;");
    call(&o, 1, "record 1 1;");
    call(&o, 2, "wait 2 1;record 2 1;");
    call(&o, 11, "wait 11 1;record 11 1;");
    call(&o, 1, "record 1 1;"); /* the same by its id */
    rfi_order_close(&o);
    assert_int_equal(live, 0);
}

static void the_null_stream_is_one_too(void **state)
{
    (void)state;
    rfi_order o = open_order();
    call(&o, 0, "record 0 1;");
    call(&o, 1, "wait 1 1;record 1 1;");
    call(&o, 0, "wait 0 1;record 0 1;");
    rfi_order_close(&o);
}

static void captures_have_a_lane_of_their_own_each(void **state)
{
    (void)state;
    rfi_order o = open_order();
    call(&o, 1, "record 1 1;");
    call(&o, 101, "record 101 2;");
    call(&o, 101, "record 101 2;");
    call(&o, 2, "wait 2 1;record 2 1;");
    call(&o, 102, "record 102 2;"); /* another capture */
    rf_mode mode = RF_GRAPH;
    said[0] = 0;
    assert_int_equal(rfi_order_before(&o, mode, stream(103), UINT64_C(7) * 102), 0);
    assert_string_equal(said, "wait 103 2;"); /* another stream of the same capture */
    rfi_order_close(&o);
}

static void who_could_not_wait_has_to_wait_still(void **state)
{
    (void)state;
    rfi_order o = open_order();
    call(&o, 1, "record 1 1;");
    fails = 0;
    assert_int_not_equal(rfi_order_before(&o, RF_EAGER, stream(2), 0), 0);
    assert_int_not_equal(rfi_order_after(&o, RF_EAGER, stream(2)), 0);
    fails = -1;
    call(&o, 2, "wait 2 1;record 2 1;");
    rfi_order_close(&o);
}

static void on_the_cpu_nothing_is_asked_for(void **state)
{
    (void)state;
    rfi_order o;
    assert_null(rfi_order_open(&o, 1, 3));
    uint64_t capture = 1;
    assert_int_equal(rfi_order_mode(&o, stream(101), &capture), RF_EAGER);
    assert_int_equal(capture, 0);
    assert_int_equal(rfi_order_before(&o, RF_EAGER, stream(1), 0), 0);
    assert_int_equal(rfi_order_after(&o, RF_EAGER, stream(1)), 0);
    rfi_order_close(&o);
    assert_int_equal(live, 0);
    assert_string_equal(said, "");
}

static void without_its_events_nothing_is_left(void **state)
{
    (void)state;
    for (int n = 0; n < RFI_LANES; n++) {
        rfi_order o;
        fails = n;
        assert_non_null(rfi_order_open(&o, 0, 3));
        assert_null(o.driver);
        assert_int_equal(live, 0);
        rfi_order_close(&o);
    }
}

/* ---- communicators ---- */

static ncclComm_t key(uintptr_t number)
{
    return (ncclComm_t)number;
}

static void communicators_are_found_until_they_are_dropped(void **state)
{
    (void)state;
    assert_null(rfi_entry_find(key(5)));
    rfi_entry *five = rfi_entry_add(key(5), 50), *six = rfi_entry_add(key(6), 60);
    assert_true(five && six && five != six);
    assert_ptr_equal(rfi_entry_find(key(5)), five);
    assert_ptr_equal(rfi_entry_find(key(6)), six);
    assert_int_equal(five->name, 50);
    five->children = five->pending = 3;
    rfi_entry_drop(five);
    assert_null(rfi_entry_find(key(5)));
    assert_null(rfi_entry_find(NULL)); /* not the place that is free */
    rfi_entry *seven = rfi_entry_add(key(7), 70);
    assert_ptr_equal(seven, five); /* used again, as new */
    assert_true(seven->name == 70 && !seven->children && !seven->pending);
    assert_ptr_equal(rfi_entry_find(key(6)), six);
    rfi_entry_drop(six);
    rfi_entry_drop(seven);
}

static void there_is_an_end_to_them(void **state)
{
    (void)state;
    uintptr_t n = 0;
    while (rfi_entry_add(key(n + 1), n))
        n++;
    assert_int_equal(n, 1024);
    for (uintptr_t i = 0; i < n; i++)
        rfi_entry_drop(rfi_entry_find(key(i + 1)));
    rfi_entry *again = rfi_entry_add(key(1), 1);
    assert_non_null(again);
    rfi_entry_drop(again);
}

static void sizes_are_powers_of_two_rounded_up(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        int size;
    } rows[] = {{0, 11},    {1, 11},    {2048, 11},     {2049, 12},
                {4096, 12}, {4097, 13}, {1u << 20, 20}, {(1u << 20) + 1, 21}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(rfi_shim_size(rows[i].bytes), rows[i].size);
}

static void names_are_fnv(void **state)
{
    (void)state;
    assert_true(rfi_shim_hash(RFI_SHIM_FNV, "", 0) == RFI_SHIM_FNV);
    assert_true(rfi_shim_hash(RFI_SHIM_FNV, "a", 1) == 0xaf63dc4c8601ec8cu); /* the known vector */
    assert_true(rfi_shim_hash(rfi_shim_hash(RFI_SHIM_FNV, "foo", 3), "bar", 3) ==
                0x85944171f73967e8u);
}

int main(void)
{
#define FACT(name) cmocka_unit_test_setup(name, setup)
    const struct CMUnitTest tests[] = {
        FACT(another_stream_waits_for_the_launch_before),
        FACT(the_null_stream_is_one_too),
        FACT(captures_have_a_lane_of_their_own_each),
        FACT(who_could_not_wait_has_to_wait_still),
        FACT(on_the_cpu_nothing_is_asked_for),
        FACT(without_its_events_nothing_is_left),
        FACT(communicators_are_found_until_they_are_dropped),
        FACT(there_is_an_end_to_them),
        FACT(sizes_are_powers_of_two_rounded_up),
        FACT(names_are_fnv),
    };
    return cmocka_run_group_tests_name("shim", tests, NULL, NULL);
}
