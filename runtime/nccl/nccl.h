/* What the shim knows of NCCL 2: the few types and functions that it handles, by their names there.
 */
#ifndef RANKFOLD_NCCL_H
#define RANKFOLD_NCCL_H

#include <stddef.h>

typedef struct ncclComm *ncclComm_t;
typedef struct CUstream_st *cudaStream_t;

typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;

typedef int ncclResult_t;

enum { /* of ncclResult_t, ncclRedOp_t and ncclDataType_t */
       ncclSuccess = 0,
       ncclSystemError = 2,
       ncclInvalidArgument = 4,
       ncclRemoteError = 6,
       ncclInProgress = 7,
       ncclSum = 0,
       ncclFloat16 = 6,
       ncclFloat32 = 7,
       ncclBfloat16 = 9
};

/* Functions of the real library that the shim calls: X(name, (parameters)) */
#define RFI_NCCL_LIST(X)                                                                           \
    X(ncclGetVersion, (int *version))                                                              \
    X(ncclCommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank))                \
    X(ncclCommInitRankConfig,                                                                      \
      (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, void *config))                    \
    X(ncclCommInitRankScalable,                                                                    \
      (ncclComm_t * comm, int nranks, int rank, int n_ids, ncclUniqueId *ids, void *config))       \
    X(ncclCommInitAll, (ncclComm_t * comms, int n, const int *devices))                            \
    X(ncclCommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *out, void *config))         \
    X(ncclCommShrink,                                                                              \
      (ncclComm_t comm, int *exclude, int n, ncclComm_t *out, void *config, int flags))            \
    X(ncclCommFinalize, (ncclComm_t comm))                                                         \
    X(ncclCommDestroy, (ncclComm_t comm))                                                          \
    X(ncclCommAbort, (ncclComm_t comm))                                                            \
    X(ncclCommRevoke, (ncclComm_t comm, int flags))                                                \
    X(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t * error))                              \
    X(ncclCommCount, (ncclComm_t comm, int *count))                                                \
    X(ncclCommUserRank, (ncclComm_t comm, int *rank))                                              \
    X(ncclCommCuDevice, (ncclComm_t comm, int *device))                                            \
    X(ncclAllReduce, (const void *in, void *out, size_t count, int type, int op, ncclComm_t comm,  \
                      cudaStream_t stream))                                                        \
    X(ncclGroupStart, (void))                                                                      \
    X(ncclGroupEnd, (void))                                                                        \
    X(ncclGroupSimulateEnd, (void *info))

typedef struct rfi_nccl {
#define RF_X(name, parameters) ncclResult_t(*name) parameters;
    RFI_NCCL_LIST(RF_X)
#undef RF_X
    const char *(*ncclGetErrorString)(ncclResult_t result);
    const char *(*ncclGetLastError)(ncclComm_t comm);
} rfi_nccl;

/* The real library; every function that it lacks, and all of them where there is no library, is one
 * that fails. Thread-safe. */
const rfi_nccl *rfi_nccl_real(void);

#endif
