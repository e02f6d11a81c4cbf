#define _GNU_SOURCE
#include "fake_driver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi.h"
#include "cuda/driver.h"

#define N_DEVICES   8
#define GRANULARITY (2u << 20)
#define FAILURE     719 /* CUDA_ERROR_LAUNCH_FAILED: none that the backend knows */

static int calls, failing, live, mapped, images;
static int device_of_memory; /* that was allocated last */
static const char *failed;

void fake_driver_fail(int n)
{
    calls = 0;
    failing = n;
    failed = NULL;
}

const char *fake_driver_failed(void)
{
    return failed;
}

int fake_driver_live(void)
{
    return live;
}

int fake_driver_mapped(void)
{
    return mapped;
}

/* What a driver would not put up with. */
static void must(int holds)
{
    if (!holds)
        abort();
}

static CUresult enter(const char *name)
{
    if (++calls != failing)
        return CUDA_SUCCESS;
    failed = name;
    return FAILURE;
}

/* ---- what calls do by default: nothing ---- */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
/* NOLINTBEGIN(misc-unused-parameters): as the driver declares them */

#define RF_X(name, version, parameters)                                                            \
    static CUresult plain_##name parameters                                                        \
    {                                                                                              \
        return enter(#name);                                                                       \
    }
RFI_DRIVER_LIST(RF_X)
#undef RF_X

/* ---- what some do. MAKES: one thing more is there; GIVES_BACK: one less ---- */

#define MAKES(name, parameters, body)                                                              \
    static CUresult do_##name parameters                                                           \
    {                                                                                              \
        CUresult bad = enter(#name);                                                               \
        if (!bad) {                                                                                \
            body;                                                                                  \
            live++;                                                                                \
        }                                                                                          \
        return bad;                                                                                \
    }
#define GIVES_BACK(name, parameters, body)                                                         \
    static CUresult do_##name parameters                                                           \
    {                                                                                              \
        body;                                                                                      \
        live--;                                                                                    \
        return CUDA_SUCCESS;                                                                       \
    }
#define DOES(name, parameters, body)                                                               \
    static CUresult do_##name parameters                                                           \
    {                                                                                              \
        CUresult bad = enter(#name);                                                               \
        if (!bad) {                                                                                \
            body;                                                                                  \
        }                                                                                          \
        return bad;                                                                                \
    }

static void *pointer(CUdeviceptr at)
{
    return (void *)(uintptr_t)at;
}

static CUdeviceptr address(const void *at)
{
    return (CUdeviceptr)(uintptr_t)at;
}

static int attribute_of(int attribute)
{
    static const struct {
        int attribute, value;
    } values[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
        {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (values[i].attribute == attribute)
            return values[i].value;
    return 0;
}

static int physical(size_t bytes)
{
    int fd = memfd_create("fake device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes))
        abort();
    return fd;
}

static void place(CUdeviceptr at, size_t bytes, int fd)
{
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    void *got = mmap(pointer(at), bytes, fd < 0 ? PROT_NONE : PROT_READ | PROT_WRITE,
                     flags | (at ? MAP_FIXED : 0), fd, 0);
    if (got != pointer(at))
        abort();
}

static CUdeviceptr reserve(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        abort();
    return address(at);
}

static const char *const kernels[] = {"some other", "rf_probe_put", "rf_probe_get"};

static CUkernel kernel_named(const char *name)
{
    uintptr_t i = sizeof kernels / sizeof *kernels - 1;
    while (i && strcmp(kernels[i], name))
        i--;
    return (CUkernel)&kernels[i];
}

static void run(CUfunction function, const rf_probe *probe)
{
    if (function == (CUfunction)kernel_named("rf_probe_put"))
        memcpy(probe->at, probe->word, probe->words * sizeof *probe->word);
    else if (function == (CUfunction)kernel_named("rf_probe_get"))
        memcpy(probe->to, probe->at, probe->words * sizeof *probe->word);
}

static CUresult do_cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

static CUresult do_cuGetErrorName(CUresult error, const char **text)
{
    *text = "FAKE";
    return CUDA_SUCCESS;
}

static CUresult do_cuGetErrorString(CUresult error, const char **text)
{
    *text = "made to fail";
    return CUDA_SUCCESS;
}

/* calls that come with all the others */
static CUresult do_cuCtxPushCurrent(CUcontext context)
{
    return CUDA_SUCCESS;
}

static CUresult do_cuCtxPopCurrent(CUcontext *context)
{
    *context = NULL;
    return CUDA_SUCCESS;
}

static CUresult do_cuThreadExchangeStreamCaptureMode(int *mode)
{
    return CUDA_SUCCESS;
}

DOES(cuDeviceGetCount, (int *count), *count = N_DEVICES)
DOES(cuDeviceGet, (CUdevice * device, int ordinal), *device = ordinal)
DOES(cuDeviceGetName, (char *name, int bytes, CUdevice device),
     snprintf(name, (size_t)bytes, "Fake"))
DOES(cuDeviceTotalMem, (size_t * bytes, CUdevice device), *bytes = 128ull << 30)
DOES(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device), memset(uuid, device + 1, sizeof *uuid))
DOES(cuDeviceGetPCIBusId, (char *text, int bytes, CUdevice device),
     snprintf(text, (size_t)bytes, "0000:%02X:00.0", (unsigned)device))
DOES(cuDeviceGetByPCIBusId, (CUdevice * device, const char *text),
     *device = (CUdevice)strtol(text + 5, NULL, 16))
DOES(cuDeviceGetAttribute, (int *value, int attribute, CUdevice device),
     *value = attribute_of(attribute))
MAKES(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device),
      *context = (CUcontext)(uintptr_t)(device + 1))
GIVES_BACK(cuDevicePrimaryCtxRelease, (CUdevice device), (void)device)
DOES(cuMemGetAllocationGranularity, (size_t * bytes, const CUmemProperties *properties, int option),
     *bytes = GRANULARITY)
MAKES(cuMemCreate,
      (CUmemHandle * handle, size_t bytes, const CUmemProperties *properties, uint64_t flags),
      (must(bytes % GRANULARITY == 0), device_of_memory = properties->location.id,
       *handle = (CUmemHandle)physical(bytes)))
GIVES_BACK(cuMemRelease, (CUmemHandle handle), close((int)handle))
DOES(cuMemExportToShareableHandle, (void *exported, CUmemHandle handle, int type, uint64_t flags),
     *(int *)exported = fcntl((int)handle, F_DUPFD_CLOEXEC, 0))
MAKES(cuMemImportFromShareableHandle, (CUmemHandle * handle, void *exported, int type),
      *handle = (CUmemHandle)fcntl((int)(intptr_t)exported, F_DUPFD_CLOEXEC, 0))
MAKES(cuMemAddressReserve,
      (CUdeviceptr * at, size_t bytes, size_t alignment, CUdeviceptr hint, uint64_t flags),
      (must(bytes % GRANULARITY == 0), *at = reserve(bytes)))
GIVES_BACK(cuMemAddressFree, (CUdeviceptr at, size_t bytes), munmap(pointer(at), bytes))
MAKES(cuMemMap, (CUdeviceptr at, size_t bytes, size_t offset, CUmemHandle handle, uint64_t flags),
      (place(at, bytes, (int)handle), mapped++))
GIVES_BACK(cuMemUnmap, (CUdeviceptr at, size_t bytes), (place(at, bytes, -1), mapped--))
DOES(cuMemSetAccess, (CUdeviceptr at, size_t bytes, const CUmemAccess *access, size_t n),
     must(access->location.id == device_of_memory))
MAKES(cuMemAlloc, (CUdeviceptr * at, size_t bytes),
      *at = address(memset(malloc(bytes), 0xa5, bytes)))
GIVES_BACK(cuMemFree, (CUdeviceptr at), free(pointer(at)))
MAKES(cuMemHostAlloc, (void **at, size_t bytes, unsigned int flags), *at = malloc(bytes))
GIVES_BACK(cuMemFreeHost, (void *at), free(at))
MAKES(cuMemHostRegister, (void *at, size_t bytes, unsigned int flags), (void)at)
GIVES_BACK(cuMemHostUnregister, (void *at), (void)at)
DOES(cuMemHostGetDevicePointer, (CUdeviceptr * at, void *host, unsigned int flags),
     *at = address(host))
DOES(cuMemsetD8Async, (CUdeviceptr at, unsigned char value, size_t n, CUstream stream),
     memset(pointer(at), value, n))
DOES(cuMemcpyHtoDAsync, (CUdeviceptr to, const void *from, size_t n, CUstream stream),
     memcpy(pointer(to), from, n))
DOES(cuMemcpyDtoHAsync, (void *to, CUdeviceptr from, size_t n, CUstream stream),
     memcpy(to, pointer(from), n))
MAKES(cuLibraryLoadData,
      (CUlibrary * library, const void *image, int *jit_options, void **jit_values,
       unsigned int n_jit, int *options, void **values, unsigned int n),
      (must(!images++), *library = (CUlibrary)(uintptr_t)image)) /* each once */
GIVES_BACK(cuLibraryUnload, (CUlibrary library), images--)
DOES(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name),
     *kernel = kernel_named(name))
DOES(cuKernelGetFunction, (CUfunction * function, CUkernel kernel), *function = (CUfunction)kernel)
DOES(cuLaunchKernelEx,
     (const CUlaunchConfig *config, CUfunction function, void **params, void **extra),
     run(function, params[0]))
MAKES(cuStreamCreate, (CUstream * stream, unsigned int flags), *stream = (CUstream)&live)
GIVES_BACK(cuStreamDestroy, (CUstream stream), (void)stream)

/* NOLINTEND(misc-unused-parameters) */
#pragma GCC diagnostic pop

/* ---- where they are found ---- */

typedef struct entry {
    const char *name;
    void (*at)(void);
} entry;

#define DOING(name)                                                                                \
    {                                                                                              \
#name, (void (*)(void))do_##name                                                           \
    }
static const entry doing[] = {
    DOING(cuDeviceGetCount),
    DOING(cuDeviceGet),
    DOING(cuDeviceGetName),
    DOING(cuDeviceTotalMem),
    DOING(cuDeviceGetUuid),
    DOING(cuDeviceGetPCIBusId),
    DOING(cuDeviceGetByPCIBusId),
    DOING(cuDeviceGetAttribute),
    DOING(cuDevicePrimaryCtxRetain),
    DOING(cuDevicePrimaryCtxRelease),
    DOING(cuMemGetAllocationGranularity),
    DOING(cuMemCreate),
    DOING(cuMemRelease),
    DOING(cuMemExportToShareableHandle),
    DOING(cuMemImportFromShareableHandle),
    DOING(cuMemAddressReserve),
    DOING(cuMemAddressFree),
    DOING(cuMemMap),
    DOING(cuMemUnmap),
    DOING(cuMemSetAccess),
    DOING(cuMemAlloc),
    DOING(cuMemFree),
    DOING(cuMemHostAlloc),
    DOING(cuMemFreeHost),
    DOING(cuMemHostRegister),
    DOING(cuMemHostUnregister),
    DOING(cuMemHostGetDevicePointer),
    DOING(cuMemsetD8Async),
    DOING(cuMemcpyHtoDAsync),
    DOING(cuMemcpyDtoHAsync),
    DOING(cuLibraryLoadData),
    DOING(cuLibraryUnload),
    DOING(cuLibraryGetKernel),
    DOING(cuKernelGetFunction),
    DOING(cuLaunchKernelEx),
    DOING(cuStreamCreate),
    DOING(cuStreamDestroy),
    DOING(cuDriverGetVersion),
    DOING(cuGetErrorName),
    DOING(cuGetErrorString),
    DOING(cuCtxPushCurrent),
    DOING(cuCtxPopCurrent),
    DOING(cuThreadExchangeStreamCaptureMode),
};

static const entry plain[] = {
#define RF_X(name, version, parameters) {#name, (void (*)(void))plain_##name},
    RFI_DRIVER_LIST(RF_X)
#undef RF_X
};

static void *find(const entry *entries, size_t n, const char *name)
{
    void *at = NULL;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(entries[i].name, name))
            memcpy(&at, &entries[i].at, sizeof at);
    return at;
}

static CUresult get_proc_address(const char *name, void **at, int version, uint64_t flags,
                                 int *status)
{
    (void)version, (void)flags;
    *at = find(doing, sizeof doing / sizeof *doing, name);
    if (!*at)
        *at = find(plain, sizeof plain / sizeof *plain, name);
    *status = 0;
    return *at ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

void *__real_dlopen(const char *path, int flags);
void *__real_dlsym(void *library, const char *name);
void *__wrap_dlopen(const char *path, int flags);
void *__wrap_dlsym(void *library, const char *name);

void *__wrap_dlopen(const char *path, int flags)
{
    return path && !strcmp(path, "libcuda.so.1") ? (void *)&calls : __real_dlopen(path, flags);
}

void *__wrap_dlsym(void *library, const char *name)
{
    CUresult (*get)(const char *, void **, int, uint64_t, int *) = get_proc_address;
    void *at = NULL;
    if (library != &calls)
        return __real_dlsym(library, name);
    if (strcmp(name, "cuGetProcAddress_v2"))
        return find(doing, sizeof doing / sizeof *doing, name);
    memcpy(&at, &get, sizeof at);
    return at;
}
