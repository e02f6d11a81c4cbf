/* Host memory of the cuda backend over a driver of our own: registered once in a process, given
 * back by its last user, nothing left behind when the driver refuses; and verdicts that peers leave
 * there. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "../ranks/group.h"
#include "core/codes.h"
#include "core/shared.h"
#include "cuda/cuda.h"

/* ---- the driver ---- */

#define SHIFT 0x100000000000u /* device addresses differ from the host's */

static struct {
    int registered, contexts, allocations, launches;
    CUresult no_register, no_address, no_memory;
    rf_control controls[2][RFI_CHANNELS * RF_CONTROLS]; /* the memory of two devices */
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
    if (world.no_memory)
        return world.no_memory;
    assert_in_range(bytes, 1, sizeof world.controls[0]);
    *at = (CUdeviceptr)(uintptr_t)world.controls[world.allocations++];
    return CUDA_SUCCESS;
}

static CUresult give_back(CUdeviceptr at)
{
    assert_true((void *)(uintptr_t)at == world.controls[0] ||
                (void *)(uintptr_t)at == world.controls[1]);
    world.allocations--;
    return CUDA_SUCCESS;
}

static CUresult clear(CUdeviceptr at, unsigned char value, size_t n, CUstream stream)
{
    (void)stream;
    memset((void *)(uintptr_t)at, value, n);
    return CUDA_SUCCESS;
}

static CUresult to_device(CUdeviceptr at, const void *from, size_t n, CUstream stream)
{
    (void)stream;
    memcpy((void *)(uintptr_t)at, from, n);
    return CUDA_SUCCESS;
}

static CUresult to_host(void *to, CUdeviceptr at, size_t n, CUstream stream)
{
    (void)stream;
    memcpy(to, (const void *)(uintptr_t)at, n);
    return CUDA_SUCCESS;
}

static CUresult launch(const CUlaunchConfig *config, CUfunction function, void **arguments,
                       void **extra)
{
    (void)config, (void)function, (void)arguments, (void)extra;
    world.launches++;
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
                                  .cuMemcpyHtoDAsync = to_device,
                                  .cuMemcpyDtoHAsync = to_host,
                                  .cuLaunchKernelEx = launch,
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
    assert_null(rfi_cuda_host_of(&b, theirs.base + BYTES));
    assert_null(rfi_cuda_host_of(&a, own.base - 1));
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

static void one_of_two_can_be_forgotten(void **state)
{
    (void)state;
    rfi_device a = device_of(0), b = device_of(1);
    rfi_memory own, others, theirs;
    rf_error err;
    assert_int_equal(cuda->allocate(&a, HOST, BYTES, &own, &err), RF_OK);
    assert_int_equal(cuda->allocate(&b, HOST, BYTES, &others, &err), RF_OK);
    assert_int_equal(cuda->import(&b, HOST, &own, 0, &theirs, &err), RF_OK);
    cuda->forget(&b, &theirs);
    assert_ptr_equal(rfi_cuda_host_of(&b, others.base), others.host);
    assert_int_equal(world.allocations, 2);
    cuda->forget(&b, &others);
    cuda->forget(&a, &own);
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

static void a_refusal_says_what_may_be_locked(void **state)
{
    (void)state;
    struct rlimit before, few;
    rfi_device a = device_of(0);
    rfi_memory own;
    rf_error err;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    few = (struct rlimit){.rlim_cur = 4096, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &few), 0);
    world.no_register = CUDA_ERROR_OUT_OF_MEMORY;
    assert_int_equal(cuda->allocate(&a, HOST, BYTES, &own, &err), RF_E_MEMORY);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
    assert_non_null(strstr(err.text, "pinning of 65536 bytes"));
    assert_non_null(strstr(err.text, "locked memory: 4096 bytes; raise it by ulimit -l"));
    assert_nothing_left();
}

/* Where the memory lies, and in pages of which size, is a wish: nodes without memory or that there
 * are not, no huge pages. A file system has no part in it, so neither has /dev/shm. */
static void wishes_are_not_conditions(void **state)
{
    (void)state;
    static const int nodes[] = {-1, 0, 1, 63, 64, 1023, 1024, 1 << 20};
    for (int huge = 0; huge < 2; huge++) {
        (void)prctl(PR_SET_THP_DISABLE, !huge, 0, 0, 0);
        for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
            unsigned char *base;
            int fd;
            rf_error err;
            if (rfi_shared_create(3 << 20, nodes[i], &base, &fd, &err))
                fail_msg("node %d: %s", nodes[i], err.text);
            assert_int_equal(base[0] | base[(3 << 20) - 1], 0);
            rfi_shared_leave(base);
            close(fd);
        }
    }
    assert_nothing_left();
}

static void a_refused_import_leaves_the_owner_alone(void **state)
{
    (void)state;
    rfi_device a = device_of(0), b = device_of(1);
    rfi_memory own, theirs;
    rf_error err;
    assert_int_equal(cuda->allocate(&a, HOST, BYTES, &own, &err), RF_OK);
    world.no_register = 304; /* this process has no right to */
    assert_int_equal(cuda->import(&b, HOST, &own, 0, &theirs, &err), RF_E_BACKEND);
    assert_non_null(strstr(err.text, "IPC_LOCK"));
    assert_int_equal(world.registered, 1);
    assert_int_equal(world.contexts, 1);
    assert_int_equal(group_mappings(), 1);
    world.no_register = 0;
    world.no_address = 1;
    for (int same_process = 0; same_process < 2; same_process++) {
        assert_int_equal(cuda->import(&b, HOST, &own, same_process, &theirs, &err), RF_E_BACKEND);
        assert_int_equal(world.registered, 1);
        assert_int_equal(group_mappings(), 1);
    }
    cuda->forget(&a, &own);
    assert_nothing_left();
}

/* ---- device memory of peers, and kernels: what the driver is asked for ---- */

static char orders[1024];

static CUresult ask(const char *format, ...)
{
    size_t used = strlen(orders);
    va_list args;
    va_start(args, format);
    vsnprintf(orders + used, sizeof orders - used, format, args);
    va_end(args);
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr at, size_t bytes, const CUmemAccess *access, size_t n)
{
    return ask("access %d+%zu from %d x%zu; ", (int)at, bytes, access->location.id, n);
}

static CUresult load_data(CUlibrary *library, const void *image, int *jit, void **values,
                          unsigned int n_jit, int *options, void **option_values, unsigned int n)
{
    (void)jit, (void)values, (void)n_jit, (void)options, (void)option_values, (void)n;
    *library = (CUlibrary)(uintptr_t)image;
    return ask("image %s; ", (const char *)image);
}

static CUresult get_kernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    *kernel = (CUkernel)(uintptr_t)library;
    return ask("kernel %s; ", name);
}

static CUresult get_function(CUfunction *function, CUkernel kernel)
{
    *function = (CUfunction)(uintptr_t)kernel;
    return CUDA_SUCCESS;
}

static CUresult load_function(CUfunction function)
{
    (void)function;
    return ask("load; ");
}

static CUresult unload(CUlibrary library)
{
    return ask("unload %s; ", (const char *)library);
}

static CUresult launch_probe(const CUlaunchConfig *config, CUfunction function, void **arguments,
                             void **extra)
{
    const rf_probe *probe = arguments[0];
    (void)config, (void)function, (void)extra;
    return ask("launch %u; ", probe->words);
}

static CUresult query_probe(CUstream stream)
{
    (void)stream;
    return ask("wait; ");
}

static rfi_device asking_device(rfi_driver *v, int rank)
{
    *v = driver;
    v->cuMemSetAccess = set_access;
    v->cuLibraryLoadData = load_data;
    v->cuLibraryGetKernel = get_kernel;
    v->cuKernelGetFunction = get_function;
    v->cuFuncLoad = load_function;
    v->cuLibraryUnload = unload;
    v->cuLaunchKernelEx = launch_probe;
    v->cuStreamQuery = query_probe;
    orders[0] = 0;
    rfi_device d = {.driver = v, .rank = rank, .world = 2, .ordinal = 5};
    d.caps.granularity = 4096;
    d.caps.isa_mask = 1u << RFI_ISA_SM90;
    return d;
}

static void memory_of_a_thread_is_opened_to_its_peers_device(void **state)
{
    (void)state;
    rfi_driver v;
    rfi_device d = asking_device(&v, 1);
    rfi_memory theirs = {.base = (unsigned char *)8192, .bytes = 5000, .fd = -1}, out;
    rf_error err;
    assert_int_equal(rfi_cuda_peer_import(&d, &theirs, 1, &out, &err), RF_OK);
    assert_string_equal(orders, "access 8192+8192 from 5 x1; ");
    assert_true(out.base == theirs.base && out.bytes == 5000);
    assert_int_equal(rfi_cuda_peer_import(&d, &theirs, 0, &out, &err), RF_E_MISMATCH);
    assert_non_null(strstr(err.text, "no file descriptor"));
}

static void kernels_are_loaded_once_and_for_real(void **state)
{
    (void)state;
    static const rf_variant v[] = {{.name = "any"}, {.name = "own", .by_rank = 1}};
    static const rf_shard shard = {.name = "s", .n = 2, .variants = v, .image = "s"};
    static const rf_shard empty = {.name = "e", .n = 2, .variants = v};
    rfi_driver driver_of_it;
    rfi_device d = asking_device(&driver_of_it, 1);
    rf_error err;
    assert_int_equal(rfi_cuda_load(&d, &empty, &v[0], &err), RF_E_PACK);
    assert_int_equal(rfi_cuda_load(&d, NULL, &v[0], &err), RF_E_PACK);
    assert_string_equal(orders, "");
    assert_null(rfi_cuda_function(&d, &v[0]));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rfi_cuda_load(&d, &shard, &v[0], &err), RF_OK);
        assert_int_equal(rfi_cuda_load(&d, &shard, &v[1], &err), RF_OK);
    }
    assert_string_equal(orders, "image s; kernel any; load; kernel own_r1; load; ");
    assert_non_null(rfi_cuda_function(&d, &v[1]));
    orders[0] = 0;
    rfi_cuda_unload_all(&d);
    assert_string_equal(orders, "unload s; ");
    assert_null(rfi_cuda_function(&d, &v[1]));
}

static void the_probe_takes_a_shard_that_runs_here(void **state)
{
    (void)state;
    static const rf_variant sm80 = {.isa = RFI_ISA_SM80}, sm90 = {.isa = RFI_ISA_SM90};
    static const rf_shard list[] = {
        {.name = "cpu", .world = 2, .n = 1, .variants = &sm90},
        {.name = "w4", .world = 4, .n = 1, .variants = &sm90, .image = "w4"},
        {.name = "sm80", .world = 2, .n = 1, .variants = &sm80, .image = "sm80"},
        {.name = "w2", .world = 2, .n = 1, .variants = &sm90, .image = "w2"}};
    static const rf_shard *const shards[] = {&list[0], &list[1], &list[2], &list[3]};
    static const rf_pack pack = {.n_shards = 4, .shards = shards};
    static const rf_pack *const packs[] = {&pack};
    rfi_driver driver_of_it;
    rfi_device d = asking_device(&driver_of_it, 0);
    unsigned char word[RF_PROBE_WORDS * 4 + 4] = {0};
    uint32_t words[RF_PROBE_WORDS] = {7};
    d.packs = packs, d.n_packs = 1, d.words = words;
    assert_int_equal(rfi_cuda_put(&d, word, word, 5), RF_E_ARG);
    assert_int_equal(rfi_cuda_put(&d, word, word, sizeof word), RF_E_ARG);
    assert_int_equal(rfi_cuda_get(&d, word, word, 5), RF_E_ARG);
    assert_int_equal(rfi_cuda_get(&d, word, word, sizeof word), RF_E_ARG);
    assert_string_equal(orders, "");
    assert_int_equal(rfi_cuda_put(&d, word, word, 8), RF_OK);
    assert_string_equal(orders, "image w2; kernel rf_probe_put; load; launch 2; wait; ");
    orders[0] = 0;
    assert_int_equal(rfi_cuda_get(&d, word, word, 4), RF_OK);
    assert_string_equal(orders, "kernel rf_probe_get; load; launch 1; wait; ");
    assert_int_equal(word[0], 7);
    rfi_cuda_unload_all(&d);
    d.n_packs = 0;
    assert_int_equal(rfi_cuda_put(&d, word, word, 8), RF_E_VARIANT);
}

/* ---- two ranks that share a channel; kernels are played by the test ---- */

typedef struct pair {
    rfi_device device[2];
    rf_page page[2];
    uint32_t words[2][RF_PROBE_WORDS];
    rfi_memory own[2], theirs[2];
    rf_params params[2];
} pair;

static void pair_open(pair *p)
{
    rf_error err;
    memset(p, 0, sizeof *p);
    for (int r = 0; r < 2; r++) {
        p->device[r] = device_of(r);
        p->device[r].pages = &p->page[r];
        p->device[r].words = p->words[r];
        for (int q = 0; q < RF_MAX_WORLD; q++)
            p->device[r].fd[q] = -1;
        assert_int_equal(cuda->allocate(&p->device[r], HOST, BYTES, &p->own[r], &err), RF_OK);
    }
    for (int r = 0; r < 2; r++) {
        rf_params *params = &p->params[r];
        assert_int_equal(cuda->import(&p->device[r], HOST, &p->own[!r], 0, &p->theirs[r], &err),
                         RF_OK);
        *params = (rf_params){.rank = (uint32_t)r, .generation = 1};
        params->peer[r] = p->own[r].base;
        params->peer[!r] = p->theirs[r].base;
        cuda->bind(&p->device[r], HOST, 0, params);
    }
}

static void pair_close(pair *p)
{
    for (int r = 0; r < 2; r++)
        cuda->forget(&p->device[r], &p->theirs[r]);
    for (int r = 0; r < 2; r++)
        cuda->forget(&p->device[r], &p->own[r]);
    assert_nothing_left();
}

static uint32_t poison_of(pair *p, int rank, rf_fault *fault)
{
    uint32_t word;
    cuda->read_fault(&p->device[rank], &p->params[rank], &word, fault);
    return word;
}

static const uint32_t aborted = RF_POISON(0, RF_FAULT_ABORT);
static const rf_fault no_fault;

static void a_peers_verdict_is_health_without_a_kernel(void **state)
{
    (void)state;
    pair p;
    rf_fault fault;
    rf_error err;
    const rf_variant variant = {.name = "any"};
    pair_open(&p);
    assert_int_equal(poison_of(&p, 1, &fault), 0);
    assert_int_equal(cuda->launch(&p.device[1], &variant, &p.params[1], NULL, &err),
                     RF_E_VARIANT); /* not loaded: that is all that is wrong */
    cuda->poison(&p.device[0], HOST, &p.params[0], 1, aborted);
    assert_int_equal(poison_of(&p, 0, &fault), 0); /* the own is another call */
    assert_int_equal(poison_of(&p, 1, &fault), aborted);
    assert_memory_equal(&fault, &no_fault, sizeof fault); /* no kernel has failed */
    assert_int_equal(cuda->launch(&p.device[1], &variant, &p.params[1], NULL, &err), RF_E_POISONED);
    assert_int_equal(world.launches, 0);
    cuda->poison(&p.device[0], HOST, &p.params[0], 1, RF_POISON(0, RF_FAULT_DEAD));
    assert_int_equal(poison_of(&p, 1, &fault), aborted); /* the first one stays */
    pair_close(&p);
}

/* Kernels look at them on entry: replays end, though nobody waits. */
static void an_abort_ends_the_own_control_lines(void **state)
{
    (void)state;
    pair p;
    rf_fault fault;
    pair_open(&p);
    cuda->poison(&p.device[0], HOST, &p.params[0], 0, aborted);
    assert_int_equal(poison_of(&p, 0, &fault), aborted);
    assert_int_equal(p.page[0].abort, 1);
    for (int i = 0; i < RF_CONTROLS; i++)
        assert_int_equal(p.params[0].control[i].poison, aborted);
    assert_int_equal(p.params[1].control[0].poison, 0);           /* out of this rank's reach */
    assert_int_equal(p.params[0].control[RF_CONTROLS].poison, 0); /* of another channel */
    pair_close(&p);
}

/* A kernel's own account goes with its verdict only. */
static void a_record_belongs_to_its_verdict(void **state)
{
    (void)state;
    pair p;
    rf_fault fault;
    const rf_fault late = {.code = RF_FAULT_DEADLINE, .culprit = 0, .sequence = 7};
    pair_open(&p);
    cuda->poison(&p.device[0], HOST, &p.params[0], 1, aborted);
    p.page[1].fault = late; /* half-way through telling */
    assert_int_equal(poison_of(&p, 1, &fault), aborted);
    assert_memory_equal(&fault, &no_fault, sizeof fault);
    p.page[1].poison = RF_POISON(0, RF_FAULT_DEADLINE);
    assert_int_equal(poison_of(&p, 1, &fault), RF_POISON(0, RF_FAULT_DEADLINE));
    assert_memory_equal(&fault, &late, sizeof fault);
    pair_close(&p);
}

/* A rank that nobody can reach any more is dead, whoever ran into the deadline. */
static void who_is_gone_is_dead_not_late(void **state)
{
    (void)state;
    pair p;
    rf_fault fault;
    int ends[2];
    pair_open(&p);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    p.device[1].fd[0] = ends[1];
    cuda->poison(&p.device[0], HOST, &p.params[0], 1, RF_POISON(0, RF_FAULT_DEADLINE));
    assert_int_equal(poison_of(&p, 1, &fault), RF_POISON(0, RF_FAULT_DEADLINE));
    close(ends[0]);
    assert_int_equal(poison_of(&p, 1, &fault), RF_POISON(0, RF_FAULT_DEAD));
    assert_int_equal(fault.code, RF_FAULT_NONE);
    p.page[1].fault = (rf_fault){.code = RF_FAULT_DEADLINE, .culprit = 0};
    p.page[1].poison = RF_POISON(0, RF_FAULT_DEADLINE);
    assert_int_equal(poison_of(&p, 1, &fault), RF_POISON(0, RF_FAULT_DEAD));
    assert_int_equal(fault.code, RF_FAULT_DEAD);
    close(ends[1]);
    pair_close(&p);
}

static void a_reset_forgets_all_of_it(void **state)
{
    (void)state;
    pair p;
    rf_fault fault;
    pair_open(&p);
    for (int r = 0; r < 2; r++)
        for (int q = 0; q < 2; q++)
            cuda->poison(&p.device[r], HOST, &p.params[r], q, RF_POISON(r, RF_FAULT_ABORT));
    p.page[1].fault = (rf_fault){.code = RF_FAULT_ABORT, .culprit = 1};
    for (int r = 0; r < 2; r++) {
        p.params[r].generation = 2;
        assert_int_equal(cuda->clear(&p.device[r], HOST, &p.params[r], BYTES, NULL), RF_OK);
    }
    for (int r = 0; r < 2; r++) {
        assert_int_equal(poison_of(&p, r, &fault), 0);
        assert_memory_equal(&fault, &no_fault, sizeof fault);
        assert_int_equal(p.page[r].abort, 0);
        for (int i = 0; i < RF_CONTROLS; i++) {
            assert_int_equal(p.params[r].control[i].poison, 0);
            assert_int_equal(p.params[r].control[i].generation, 2);
        }
    }
    pair_close(&p);
}

/* 64 GB/s: 16 ns at 1.98 GHz */
static void clocks_of_a_link(void **state)
{
    (void)state;
    assert_int_equal(rfi_cuda_link_clocks("32.0 GT/s PCIe", "16", 1980000), 31);
    assert_int_equal(rfi_cuda_link_clocks("16.0 GT/s PCIe", "8", 1980000), 126);
    assert_int_equal(rfi_cuda_link_clocks("unknown", "16", 1980000), 0);
    assert_int_equal(rfi_cuda_link_clocks("32.0 GT/s PCIe", "unknown", 1980000), 0);
    assert_int_equal(rfi_cuda_link_clocks("32.0 GT/s PCIe", "16", 0), 0);
    assert_int_equal(rfi_cuda_link_clocks("1e-9", "1", 1980000), 0);
}

/* Between peers the control lines lie in the regions, slots are all sentinel, flags of the ring
 * not.
 */
static void a_region_of_a_peer_is_poisoned_and_cleared(void **state)
{
    (void)state;
    const rfi_layout layout = cuda->layout(RFI_TRANSPORT_PEER, 1000);
    pair p;
    pair_open(&p);
    unsigned char *region = malloc(layout.region_bytes);
    assert_non_null(region);
    memset(region, 7, layout.region_bytes);
    rf_params params = {.rank = 1, .generation = 3, .slot_bytes = layout.slot_bytes};
    params.peer[1] = region;
    cuda->bind(&p.device[1], RFI_TRANSPORT_PEER, 0, &params);
    assert_int_equal(
        cuda->clear(&p.device[1], RFI_TRANSPORT_PEER, &params, layout.region_bytes, NULL), RF_OK);
    const rf_control *lines = (const rf_control *)(void *)region;
    for (size_t i = 0; i < layout.region_bytes; i++) {
        size_t slots = RF_REGION_HEADER + RF_SLOTS * layout.slot_bytes;
        int is_slot = i >= RF_REGION_HEADER && i < slots;
        if (i >= RF_CONTROLS * sizeof *lines)
            assert_int_equal(region[i], is_slot ? 0xff : 0);
    }
    cuda->poison(&p.device[0], RFI_TRANSPORT_PEER, &params, 1, aborted);
    for (int i = 0; i < RF_CONTROLS; i++) {
        assert_int_equal(lines[i].epoch, 0);
        assert_int_equal(lines[i].generation, 3);
        assert_int_equal(lines[i].poison, aborted); /* replays of either family end */
    }
    assert_int_equal(lines[RF_CONTROLS].poison, 0);
    free(region);
    pair_close(&p);
}

/* Whatever the capacity and the world: a slot has the room of islands, but not much more. */
static void islands_have_room(void **state)
{
    (void)state;
    for (uint8_t ranks = 4; ranks <= 8; ranks += 2)
        for (uint64_t capacity = 1; capacity < 1u << 30; capacity = capacity * 3 + 1) {
            rf_variant v = {.world = ranks,
                            .algo = RFI_ALGO_ISLANDS,
                            .transport = RFI_TRANSPORT_PEER,
                            .wire = RFI_WIRE_NAN};
            uint64_t slot = cuda->layout(RFI_TRANSPORT_PEER, capacity).slot_bytes;
            assert_null(cuda->misfit(&v, slot, capacity));
            assert_string_equal(cuda->misfit(&v, slot, slot / 2 + 16),
                                "islands need twice the tensor's room");
        }
}

/* Whatever the capacity: tensors up to it, as far as the wire goes, and no pack more than a slot
 * has vectors. */
static void tagged_packs_have_room(void **state)
{
    (void)state;
    const char *refusal = "is for tensors of 1 MiB at most, that fit into a slot of host memory";
    for (rf_dtype dtype = RF_F32; dtype <= RF_F16; dtype++)
        for (uint64_t capacity = 1; capacity < 1u << 30; capacity = capacity * 3 + 1) {
            rf_variant v = {.world = 2,
                            .dtype = (uint8_t)dtype,
                            .algo = RFI_ALGO_ONE_SHOT,
                            .transport = RFI_TRANSPORT_HOST,
                            .wire = RFI_WIRE_TAG};
            uint64_t slot = cuda->layout(RFI_TRANSPORT_HOST, capacity).slot_bytes;
            uint64_t most = slot / 16 * rfi_pack_bytes(&v), limit = RF_HOST_TAG_BYTES;
            assert_null(cuda->misfit(&v, slot, capacity < limit ? capacity : limit));
            assert_null(cuda->misfit(&v, slot, most < limit ? most : limit));
            assert_string_equal(cuda->misfit(&v, slot, (most < limit ? most : limit) + 1), refusal);
        }
}

static CUresult no_such_device(CUdevice *device, const char *bus)
{
    (void)device, (void)bus;
    return 100;
}

static CUresult model(char *name, int size, CUdevice device)
{
    (void)device;
    snprintf(name, (size_t)size, "Imaginary");
    return CUDA_SUCCESS;
}

static CUresult memory(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = (size_t)139 << 30;
    return CUDA_SUCCESS;
}

static CUresult attribute(int *value, int which, CUdevice device)
{
    (void)device;
    assert_int_equal(which, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    *value = 1980000;
    return CUDA_SUCCESS;
}

/* What sysfs says of the link of the device below, and how often it was asked. */
static struct {
    const char *path, *text;
    int reads;
} sysfs[] = {
    {"/sys/bus/pci/devices/ffff:ff:1e.7/max_link_speed", "32.0 GT/s PCIe\n", 0},
    {"/sys/bus/pci/devices/ffff:ff:1e.7/../max_link_speed", "16.0 GT/s PCIe\n", 0},
    {"/sys/bus/pci/devices/ffff:ff:1e.7/max_link_width", "8\n", 0},
    {"/sys/bus/pci/devices/ffff:ff:1e.7/../max_link_width", "16\n", 0},
};
#define N_SYSFS (sizeof sysfs / sizeof *sysfs)

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);

FILE *__wrap_fopen(const char *path, const char *mode)
{
    for (size_t i = 0; i < N_SYSFS; i++)
        if (!strcmp(path, sysfs[i].path)) {
            sysfs[i].reads++;
            return fmemopen((void *)(uintptr_t)sysfs[i].text, strlen(sysfs[i].text), "r");
        }
    return __real_fopen(path, mode);
}

/* A GPU that is shared is nearest; of one that nobody can look up nobody knows. The link is what
 * the device and the slot both can do, and sysfs is slow enough to be asked once. */
static void facts_of_a_device(void **state)
{
    (void)state;
    const rfi_driver asked = {.version = 12040,
                              .cuDeviceGetByPCIBusId = no_such_device,
                              .cuDeviceGetName = model,
                              .cuDeviceTotalMem = memory,
                              .cuDeviceGetAttribute = attribute};
    rfi_device d = {.driver = &asked, .rank = 1, .world = 3, .caps.max_grid = 132};
    snprintf(d.place[0], sizeof d.place[0], "ffff:ff:1f.7");
    snprintf(d.place[1], sizeof d.place[1], "ffff:ff:1e.7");
    snprintf(d.place[2], sizeof d.place[2], "ffff:ff:1e.7");
    memcpy(d.caps.place, d.place[1], sizeof d.caps.place);
    assert_int_equal(rfi_cuda_describe(&d, NULL), RF_OK);
    assert_int_equal(d.caps.distance[0], 0);
    assert_int_equal(d.caps.distance[2], 1);
    assert_string_equal(d.caps.hw_text, "gpu=Imaginary\nsms=132\nmemory_gib=139\n"
                                        "pcie=16.0 GT/s PCIe x8\nnode=0\nlinks=unknown,-,same\n");
    assert_int_equal(strncmp(d.caps.env_text, "cuda=12.4\ndriver=", 17), 0);
    assert_int_equal(d.kib_clocks, 126);
    for (size_t i = 0; i < N_SYSFS; i++)
        assert_int_equal(sysfs[i].reads, 1);
    free(d.hw_text);
    free(d.env_text);
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
        cmocka_unit_test(clocks_of_a_link),
        cmocka_unit_test(islands_have_room),
        cmocka_unit_test(tagged_packs_have_room),
        cmocka_unit_test(facts_of_a_device),
        cmocka_unit_test(routes_of_devices),
        cmocka_unit_test_setup(both_ends_see_one_memory, setup),
        cmocka_unit_test_setup(threads_register_once_and_the_last_ends_it, setup),
        cmocka_unit_test_setup(one_of_two_can_be_forgotten, setup),
        cmocka_unit_test_setup(memory_of_a_thread_is_opened_to_its_peers_device, setup),
        cmocka_unit_test_setup(kernels_are_loaded_once_and_for_real, setup),
        cmocka_unit_test_setup(the_probe_takes_a_shard_that_runs_here, setup),
        cmocka_unit_test_setup(what_a_launch_may_use_stays, setup),
        cmocka_unit_test_setup(a_refusal_names_the_remedy_and_leaves_nothing, setup),
        cmocka_unit_test_setup(a_refusal_says_what_may_be_locked, setup),
        cmocka_unit_test_setup(wishes_are_not_conditions, setup),
        cmocka_unit_test_setup(a_refused_import_leaves_the_owner_alone, setup),
        cmocka_unit_test_setup(a_peers_verdict_is_health_without_a_kernel, setup),
        cmocka_unit_test_setup(an_abort_ends_the_own_control_lines, setup),
        cmocka_unit_test_setup(a_record_belongs_to_its_verdict, setup),
        cmocka_unit_test_setup(who_is_gone_is_dead_not_late, setup),
        cmocka_unit_test_setup(a_reset_forgets_all_of_it, setup),
        cmocka_unit_test_setup(a_region_of_a_peer_is_poisoned_and_cleared, setup),
    };
    return cmocka_run_group_tests_name("cuda host memory", tests, NULL, NULL);
}
