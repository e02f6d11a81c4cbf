/* The CUDA driver, found at run time: nothing of CUDA is needed to build or to link.
 *
 * One list says which entry points are used, by the name and the ABI version that cuGetProcAddress
 * is asked for; their types are declared here, as far as they are used. The library is opened by
 * the first comm that needs it. */
#ifndef RANKFOLD_CUDA_DRIVER_H
#define RANKFOLD_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

typedef struct CUuuid {
    unsigned char bytes[16];
} CUuuid;

typedef uint64_t CUmemHandle;

typedef struct CUmemLocation {
    int type, id;
} CUmemLocation;

typedef struct CUmemProperties {
    int type, handle_types;
    CUmemLocation location;
    void *windows;
    unsigned char flags[8];
} CUmemProperties;

typedef struct CUmemAccess {
    CUmemLocation location;
    int flags;
} CUmemAccess;

typedef struct CUlaunchAttribute {
    int id;
    int pad;
    union {
        unsigned char bytes[64];
        int enabled;
    } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
    unsigned int grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream stream;
    CUlaunchAttribute *attributes;
    unsigned int n_attributes;
} CUlaunchConfig;

enum { /* values of the driver's headers, by their names there */
       CUDA_SUCCESS = 0,
       CUDA_ERROR_OUT_OF_MEMORY = 2,
       CUDA_ERROR_NO_DEVICE = 100,
       CUDA_ERROR_INVALID_DEVICE = 101,
       CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
       CUDA_ERROR_NOT_FOUND = 500,
       CUDA_ERROR_NOT_READY = 600,
       CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13,
       CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
       CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20,
       CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
       CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
       CU_COMPUTEMODE_PROHIBITED = 2,
       CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
       CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
       CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED = 3,
       CU_MEMORYTYPE_HOST = 1,
       CU_MEMHOSTALLOC_PORTABLE = 1,
       CU_MEMHOSTALLOC_DEVICEMAP = 2,
       CU_MEMHOSTREGISTER_PORTABLE = 1,
       CU_MEMHOSTREGISTER_DEVICEMAP = 2,
       CU_STREAM_NON_BLOCKING = 1,
       CU_STREAM_CAPTURE_STATUS_NONE = 0,
       CU_STREAM_CAPTURE_MODE_RELAXED = 2,
       CU_MEM_ALLOCATION_TYPE_PINNED = 1,
       CU_MEM_LOCATION_TYPE_DEVICE = 1,
       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
       CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
       CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
};

#define RFI_DRIVER_NEEDS 12040 /* cuFuncLoad; Linux driver 550 */

/* X(name, version, (parameters)) */
#define RFI_DRIVER_LIST(X)                                                                         \
    X(cuInit, 2000, (unsigned int flags))                                                          \
    X(cuDriverGetVersion, 2020, (int *version))                                                    \
    X(cuGetErrorName, 6000, (CUresult error, const char **text))                                   \
    X(cuGetErrorString, 6000, (CUresult error, const char **text))                                 \
    X(cuDeviceGetCount, 2000, (int *count))                                                        \
    X(cuDeviceGet, 2000, (CUdevice * device, int ordinal))                                         \
    X(cuDeviceGetName, 2000, (char *name, int bytes, CUdevice device))                             \
    X(cuDeviceGetUuid, 11040, (CUuuid * uuid, CUdevice device))                                    \
    X(cuDeviceGetPCIBusId, 4010, (char *text, int bytes, CUdevice device))                         \
    X(cuDeviceGetByPCIBusId, 4010, (CUdevice * device, const char *text))                          \
    X(cuDeviceGetP2PAttribute, 8000, (int *value, int attribute, CUdevice from, CUdevice to))      \
    X(cuDeviceGetAttribute, 2000, (int *value, int attribute, CUdevice device))                    \
    X(cuDevicePrimaryCtxRetain, 7000, (CUcontext * context, CUdevice device))                      \
    X(cuDevicePrimaryCtxRelease, 11000, (CUdevice device))                                         \
    X(cuCtxPushCurrent, 4000, (CUcontext context))                                                 \
    X(cuCtxPopCurrent, 4000, (CUcontext * context))                                                \
    X(cuDeviceCanAccessPeer, 4000, (int *can, CUdevice device, CUdevice peer))                     \
    X(cuCtxSynchronize, 2000, (void))                                                              \
    X(cuDeviceTotalMem, 3020, (size_t * bytes, CUdevice device))                                   \
    X(cuMemGetAllocationGranularity, 10020,                                                        \
      (size_t * bytes, const CUmemProperties *properties, int option))                             \
    X(cuMemCreate, 10020,                                                                          \
      (CUmemHandle * handle, size_t bytes, const CUmemProperties *properties, uint64_t flags))     \
    X(cuMemRelease, 10020, (CUmemHandle handle))                                                   \
    X(cuMemExportToShareableHandle, 10020,                                                         \
      (void *exported, CUmemHandle handle, int type, uint64_t flags))                              \
    X(cuMemImportFromShareableHandle, 10020, (CUmemHandle * handle, void *exported, int type))     \
    X(cuMemAddressReserve, 10020,                                                                  \
      (CUdeviceptr * at, size_t bytes, size_t alignment, CUdeviceptr hint, uint64_t flags))        \
    X(cuMemAddressFree, 10020, (CUdeviceptr at, size_t bytes))                                     \
    X(cuMemMap, 10020,                                                                             \
      (CUdeviceptr at, size_t bytes, size_t offset, CUmemHandle handle, uint64_t flags))           \
    X(cuMemUnmap, 10020, (CUdeviceptr at, size_t bytes))                                           \
    X(cuMemSetAccess, 10020, (CUdeviceptr at, size_t bytes, const CUmemAccess *access, size_t n))  \
    X(cuMemAlloc, 3020, (CUdeviceptr * at, size_t bytes))                                          \
    X(cuMemFree, 3020, (CUdeviceptr at))                                                           \
    X(cuMemHostAlloc, 2020, (void **at, size_t bytes, unsigned int flags))                         \
    X(cuMemFreeHost, 2000, (void *at))                                                             \
    X(cuMemHostRegister, 6050, (void *at, size_t bytes, unsigned int flags))                       \
    X(cuMemHostUnregister, 4000, (void *at))                                                       \
    X(cuMemHostGetDevicePointer, 3020, (CUdeviceptr * at, void *host, unsigned int flags))         \
    X(cuMemsetD8Async, 3020, (CUdeviceptr at, unsigned char value, size_t n, CUstream stream))     \
    X(cuMemcpyHtoDAsync, 3020, (CUdeviceptr to, const void *from, size_t n, CUstream stream))      \
    X(cuMemcpyDtoHAsync, 3020, (void *to, CUdeviceptr from, size_t n, CUstream stream))            \
    X(cuMemcpyAsync, 4000, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream))          \
    X(cuPointerGetAttribute, 4000, (void *value, int attribute, CUdeviceptr at))                   \
    X(cuLibraryLoadData, 12000,                                                                    \
      (CUlibrary * library, const void *image, int *jit_options, void **jit_values,                \
       unsigned int n_jit, int *options, void **values, unsigned int n))                           \
    X(cuLibraryUnload, 12000, (CUlibrary library))                                                 \
    X(cuLibraryGetKernel, 12000, (CUkernel * kernel, CUlibrary library, const char *name))         \
    X(cuKernelGetFunction, 12000, (CUfunction * function, CUkernel kernel))                        \
    X(cuFuncLoad, 12040, (CUfunction function))                                                    \
    X(cuLaunchHostFunc, 10000, (CUstream stream, void (*function)(void *), void *data))            \
    X(cuLaunchKernelEx, 11060,                                                                     \
      (const CUlaunchConfig *config, CUfunction function, void **params, void **extra))            \
    X(cuStreamCreate, 2000, (CUstream * stream, unsigned int flags))                               \
    X(cuStreamDestroy, 4000, (CUstream stream))                                                    \
    X(cuStreamGetId, 12000, (CUstream stream, unsigned long long *id))                             \
    X(cuStreamIsCapturing, 10000, (CUstream stream, int *status))                                  \
    X(cuStreamGetCaptureInfo, 10010, (CUstream stream, int *status, unsigned long long *id))       \
    X(cuStreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned int flags))               \
    X(cuStreamQuery, 2000, (CUstream stream))                                                      \
    X(cuStreamSynchronize, 2000, (CUstream stream))                                                \
    X(cuThreadExchangeStreamCaptureMode, 10010, (int *mode))                                       \
    X(cuStreamBeginCapture, 10010, (CUstream stream, int mode))                                    \
    X(cuStreamEndCapture, 10000, (CUstream stream, CUgraph * graph))                               \
    X(cuGraphInstantiateWithFlags, 11040,                                                          \
      (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                               \
    X(cuGraphLaunch, 10000, (CUgraphExec exec, CUstream stream))                                   \
    X(cuGraphExecDestroy, 10000, (CUgraphExec exec))                                               \
    X(cuGraphDestroy, 10000, (CUgraph graph))                                                      \
    X(cuEventCreate, 2000, (CUevent * event, unsigned int flags))                                  \
    X(cuEventRecord, 2000, (CUevent event, CUstream stream))                                       \
    X(cuEventSynchronize, 2000, (CUevent event))                                                   \
    X(cuEventElapsedTime, 2000, (float *ms, CUevent start, CUevent end))                           \
    X(cuEventDestroy, 4000, (CUevent event))

typedef struct rfi_driver {
#define RF_X(name, version, parameters) CUresult(*name) parameters;
    RFI_DRIVER_LIST(RF_X)
#undef RF_X
    int version; /* as cuDriverGetVersion says, 13000 = CUDA 13.0 */
} rfi_driver;

/* The process's driver table, cuInit done; NULL: `why` says what is missing. Thread-safe. Never
 * unloaded. */
const rfi_driver *rfi_driver_open(char *why, size_t bytes);

#endif
