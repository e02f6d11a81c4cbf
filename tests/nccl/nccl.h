/* As much of NCCL 2 as programs of these tests use, declared by ourselves. */
#ifndef TESTS_NCCL_H
#define TESTS_NCCL_H

#include <stddef.h>

#define API __attribute__((visibility("default")))

typedef struct ncclComm *ncclComm_t;
typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;
typedef int ncclResult_t;

enum {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError
};
enum { ncclInProgress = 7 };
enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg };
enum { ncclInt32 = 2, ncclFloat16 = 6, ncclFloat32 = 7, ncclFloat64 = 8, ncclBfloat16 = 9 };

API ncclResult_t ncclGetVersion(int *version);
API ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
API ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);
API ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                        void *config);
API ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int n_ids,
                                          ncclUniqueId *ids, void *config);
API ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices);
API ncclResult_t ncclCommShrink(ncclComm_t comm, int *exclude, int n, ncclComm_t *out, void *config,
                                int flags);
API ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, void *config);
API ncclResult_t ncclCommFinalize(ncclComm_t comm);
API ncclResult_t ncclCommDestroy(ncclComm_t comm);
API ncclResult_t ncclCommAbort(ncclComm_t comm);
API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
API ncclResult_t ncclCommCount(ncclComm_t comm, int *count);
API ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank);
API ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device);
API const char *ncclGetErrorString(ncclResult_t result);
API const char *ncclGetLastError(ncclComm_t comm);
API ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, int type, int op,
                               ncclComm_t comm, void *stream);
API ncclResult_t ncclAllGather(const void *in, void *out, size_t count, int type, ncclComm_t comm,
                               void *stream);
API ncclResult_t ncclGroupStart(void);
API ncclResult_t ncclGroupEnd(void);
API ncclResult_t ncclGroupSimulateEnd(void *info);

/* Bytes of an element; 0 = unknown. */
static inline size_t nccl_size(int type)
{
    return type == ncclFloat16 || type == ncclBfloat16 ? 2
           : type == ncclInt32 || type == ncclFloat32  ? 4
           : type == ncclFloat64                       ? 8
                                                       : 0;
}

#endif
