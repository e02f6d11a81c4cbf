/* Pinned host memory of the cuda backend over a driver of our own: registered once in a process,
 * given back by its last user, and nothing left behind when the driver refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../ranks/group.h"
#include "core/codes.h"
#include "cuda/cuda.h"

/* ---- the driver ---- */

#define SHIFT 0x100000000000u /* device addresses differ from the host's */

static struct {
    int registered, contexts, allocations;
    CUresult no_register, no_address, no_memory;
} world;

static CUresult push(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context)
{
    *context = NULL;
    return CUDA_SUCCESS;
}

static CUresult exchange(int *mode)
{
    (void)mode;
    return CUDA_SUCCESS;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
    (void)context, (void)device;
    world.contexts++;
    return CUDA_SUCCESS;
}

static CUresult release(CUdevice device)
{
    (void)device;
    world.contexts--;
    return CUDA_SUCCESS;
}

static CUresult pin(void *at, size_t bytes, unsigned int flags)
{
    (void)at, (void)bytes;
    assert_int_equal(flags, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    world.registered += !world.no_register;
    return world.no_register;
}

static CUresult unpin(void *at)
{
    assert_int_equal(*(volatile unsigned char *)at, 0); /* still mapped */
    world.registered--;
    return CUDA_SUCCESS;
}

static CUresult address(CUdeviceptr *at, void *host, unsigned int flags)
{
    (void)flags;
    *at = (CUdeviceptr)(uintptr_t)host + SHIFT;
    return world.no_address;
}

static CUresult allocate(CUdeviceptr *at, size_t bytes)
{
    (void)bytes;
    if (world.no_memory)
        return world.no_memory;
    *at = 4096;
    world.allocations++;
    return CUDA_SUCCESS;
}

static CUresult give_back(CUdeviceptr at)
{
    assert_int_equal(at, 4096);
    world.allocations--;
    return CUDA_SUCCESS;
}

static CUresult clear(CUdeviceptr at, unsigned char value, size_t n, CUstream stream)
{
    (void)at, (void)value, (void)n, (void)stream;
    return CUDA_SUCCESS;
}

static CUresult query(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult say(CUresult error, const char **text)
{
    (void)error;
    *text = "injected";
    return CUDA_SUCCESS;
}

static const rfi_driver driver = {.cuCtxPushCurrent = push,
                                  .cuCtxPopCurrent = pop,
                                  .cuThreadExchangeStreamCaptureMode = exchange,
                                  .cuDevicePrimaryCtxRetain = retain,
                                  .cuDevicePrimaryCtxRelease = release,
                                  .cuMemHostRegister = pin,
                                  .cuMemHostUnregister = unpin,
                                  .cuMemHostGetDevicePointer = address,
                                  .cuMemAlloc = allocate,
                                  .cuMemFree = give_back,
                                  .cuMemsetD8Async = clear,
                                  .cuStreamQuery = query,
                                  .cuGetErrorString = say,
                                  .cuGetErrorName = say};

static rfi_device device_of(int rank)
{
    return (rfi_device){.driver = &driver, .rank = rank, .world = 2};
}

/* ---- tests ---- */

#define BYTES 65536
#define HOST  RFI_TRANSPORT_HOST

static const rfi_backend *const cuda = &rfi_backend_cuda;

static int setup(void **state)
{
    (void)state;
    memset(&world, 0, sizeof world);
    return 0;
}

static void assert_nothing_left(void)
{
    assert_int_equal(world.registered, 0);
    assert_int_equal(world.contexts, 0);
    assert_int_equal(world.allocations, 0);
    assert_int_equal(group_mappings(), 0);
}

static void both_ends_see_one_memory(void **state)
{
    (void)state;
    rfi_device a = device_of(0), b = device_of(1);
    rfi_memory own, theirs;
    rf_error err;
    assert_int_equal(cuda->allocate(&a, HOST, BYTES, &own, &err), RF_OK);
    assert_int_equal(cuda->import(&b, HOST, &own, 0, &theirs, &err), RF_OK);
    assert_int_equal(world.registered, 2); /* as another process would */
    assert_ptr_not_equal(own.host, theirs.host);
    assert_ptr_equal(own.base, own.host + SHIFT);
    assert_ptr_equal(rfi_cuda_host_of(&b, theirs.base + 100), theirs.host + 100);
    assert_null(rfi_cuda_host_of(&b, own.base + BYTES));
    own.host[BYTES - 1] = 7;
    assert_int_equal(theirs.host[BYTES - 1], 7);
    cuda->forget(&b, &theirs);
    cuda->forget(&a, &own);
    assert_nothing_left();
}

static void threads_register_once_and_the_last_ends_it(void **state)
{
    (void)state;
    rfi_device a = device_of(0), b = device_of(1);
    rfi_memory own, theirs;
    rf_error err;
    assert_int_equal(cuda->allocate(&a, HOST, BYTES, &own, &err), RF_OK);
    assert_int_equal(cuda->import(&b, HOST, &own, 1, &theirs, &err), RF_OK);
    assert_int_equal(world.registered, 1);
    cuda->forget(&a, &own);
    assert_int_equal(world.registered, 1);
    assert_int_equal(world.contexts, 1); /* of the rank that has gone */
    assert_int_equal(theirs.host[0], 0);
    cuda->forget(&b, &theirs);
    assert_nothing_left();
}

static void what_a_launch_may_use_stays(void **state)
{
    (void)state;
    rfi_device a = device_of(0);
    rfi_memory own;
    rf_error err;
    assert_int_equal(cuda->allocate(&a, HOST, BYTES, &own, &err), RF_OK);
    rfi_memory kept = own;
    a.in_flight = 1;
    cuda->forget(&a, &own);
    assert_int_equal(world.registered, 1);
    assert_int_equal(kept.host[0], 0);
    a.in_flight = 0;
    cuda->forget(&a, &kept);
    assert_nothing_left();
}

static void a_refusal_names_the_remedy_and_leaves_nothing(void **state)
{
    (void)state;
    static const struct {
        CUresult no_register, no_address, no_memory;
        rf_result code;
        const char *words;
    } rows[] = {
        {CUDA_ERROR_OUT_OF_MEMORY, 0, 0, RF_E_MEMORY, "ulimit -l"},
        {304, 0, 0, RF_E_BACKEND, "memlock=-1"},
        {0, 1, 0, RF_E_BACKEND, "address of pinned host memory"},
        {0, 0, CUDA_ERROR_OUT_OF_MEMORY, RF_E_MEMORY, "control lines"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rfi_device a = device_of(0);
        rfi_memory own;
        rf_error err;
        world.no_register = rows[i].no_register;
        world.no_address = rows[i].no_address;
        world.no_memory = rows[i].no_memory;
        assert_int_equal(cuda->allocate(&a, HOST, BYTES, &own, &err), rows[i].code);
        assert_int_equal(err.code, rows[i].code);
        assert_non_null(strstr(err.text, rows[i].words));
        assert_nothing_left();
    }
}

static void a_refused_import_leaves_the_owner_alone(void **state)
{
    (void)state;
    rfi_device a = device_of(0), b = device_of(1);
    rfi_memory own, theirs;
    rf_error err;
    assert_int_equal(cuda->allocate(&a, HOST, BYTES, &own, &err), RF_OK);
    world.no_address = 1;
    for (int same_process = 0; same_process < 2; same_process++) {
        assert_int_equal(cuda->import(&b, HOST, &own, same_process, &theirs, &err), RF_E_BACKEND);
        assert_int_equal(world.registered, 1);
        assert_int_equal(group_mappings(), 1);
    }
    cuda->forget(&a, &own);
    assert_nothing_left();
}

static void routes_of_devices(void **state)
{
    (void)state;
    static const char a[] = "/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:19:00.0";
    static const char b[] = "/sys/devices/pci0000:16/0000:16:01.0/0000:17:01.0/0000:1a:00.0";
    static const char c[] = "/sys/devices/pci0000:16/0000:16:03.0/0000:20:00.0";
    static const char d[] = "/sys/devices/pci0000:17/0000:17:01.0/0000:21:00.0";
    assert_string_equal(rfi_cuda_route(a, b), "switch");
    assert_string_equal(rfi_cuda_route(a, c), "root");
    assert_null(rfi_cuda_route(a, d));
    assert_null(rfi_cuda_route("/elsewhere", a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routes_of_devices),
        cmocka_unit_test_setup(both_ends_see_one_memory, setup),
        cmocka_unit_test_setup(threads_register_once_and_the_last_ends_it, setup),
        cmocka_unit_test_setup(what_a_launch_may_use_stays, setup),
        cmocka_unit_test_setup(a_refusal_names_the_remedy_and_leaves_nothing, setup),
        cmocka_unit_test_setup(a_refused_import_leaves_the_owner_alone, setup),
    };
    return cmocka_run_group_tests_name("cuda host memory", tests, NULL, NULL);
}
