/* What the GPU tests share: a rank with its device, stream and buffers. Errors of the driver end
 * the rank (RANK_CHECK). */
#ifndef RANKFOLD_TESTS_GPU_H
#define RANKFOLD_TESTS_GPU_H

#include "core/comm.h"
#include "cuda/driver.h"
#include "rankfold.h"
#include "ranks.h"

typedef struct gpu {
    const rfi_driver *driver;
    int rank, world, ordinal;
    CUcontext context;
    CUstream stream;
    CUdeviceptr in, out; /* `bytes` each, plus GPU_GUARD */
    size_t bytes;
    unsigned char *inputs[RF_MAX_WORLD], *expected, *found; /* host */
} gpu;

#define GPU_GUARD 256

#define DRIVER(g, call)                                                                            \
    do {                                                                                           \
        CUresult driver_result = (g)->driver->call;                                                \
        RANK_CHECK(driver_result == CUDA_SUCCESS, #call " gives %d", driver_result);               \
    } while (0)

int gpu_count(void); /* in a child only: touches the driver */
void gpu_open(gpu *g, int rank, int world, size_t bytes);
void gpu_close(gpu *g);
double gpu_seconds(void);
extern int gpu_session; /* a number that the ranks of one program share; main sets it */

/* A comm of the packs under test. */
rf_config gpu_config(const gpu *g, uint64_t capacity);
rf_comm *gpu_comm(const gpu *g, const char *name, const rf_config *config);

/* Random inputs of all ranks with every special value among them, the oracle's sum, and this rank's
 * input on the device at `in`; `out` is poisoned. offset: in elements, for pointers that are not
 * 16-byte aligned. */
void gpu_fill(gpu *g, rf_dtype dtype, uint64_t count, uint64_t offset, uint64_t seed);
/* Expects the islands' sum instead; NULL: the ranks' again. 1 = they differ for these inputs. */
int gpu_expect(gpu *g, rf_dtype dtype, uint64_t count, const uint8_t *order);
/* Puts this rank's input into `out` as well: for calls in place. */
void gpu_in_place(gpu *g, rf_dtype dtype, uint64_t count, uint64_t offset);
/* Is the sum at `out`, and nothing behind it touched? */
void gpu_check(gpu *g, rf_dtype dtype, uint64_t count, uint64_t offset, const char *what);
void gpu_wait(const gpu *g, const rf_comm *comm); /* at most a minute */

#endif
