/* -DTABLE=kernels_..., -DRF_SHARD_DTYPE=..., -DHOST=0 or 1. */
#if HOST
#include "cuda/wire_tag.cuh"

#include "cuda/flags_host.cuh"
#include "cuda/one_shot.cuh"
#include "cuda/two_shot.cuh"
#else
#include "cuda/wire_nan.cuh"

#include "cuda/flags_peer.cuh"
#include "cuda/islands.cuh"
#include "cuda/one_shot.cuh"
#include "cuda/permuted.cuh"
#endif
#include "cuda/ring.cuh"

#include "kernels.h"

#if HOST
#define PERMUTED(X, world)
#else
#define PERMUTED(X, world)                                                                         \
    X(all_reduce_pt, world, 1, 1, THREADS) X(all_reduce_pt, world, 2, 0, THREADS)
#endif
#define RING_THREADS (RF_RING_SERVANTS + THREADS)
#define RING(X, world)                                                                             \
    X(ring_os, world, 1, 0, RING_THREADS)                                                          \
    X(ring_os, world, 2, 1, RING_THREADS)                                                          \
    X(ring_ts, world, 1, 1, RING_THREADS) X(ring_ts, world, 2, 0, RING_THREADS)
#if HOST
#define ISLANDS(X, world)
#else
#define ISLANDS(X, world)                                                                          \
    X(all_reduce_il, world, 1, 0, THREADS)                                                         \
    X(all_reduce_il, world, 2, 1, THREADS)
#endif
#define ALL(X, world)                                                                              \
    X(all_reduce_os, world, 1, 0, THREADS)                                                         \
    X(all_reduce_os, world, 2, 1, THREADS)                                                         \
    X(all_reduce_ts, world, 1, 1, THREADS)                                                         \
    X(all_reduce_ts, world, 2, 0, THREADS)                                                         \
    RING(X, world)                                                                                 \
    PERMUTED(X, world)

#define ALONE(X) X(all_reduce_os, 1, 1, 0, THREADS)

#define KERNEL(name, world, unroll, dependent, threads)                                            \
    static void name##_w##world##_u##unroll(rf_params p)                                           \
    {                                                                                              \
        name(&p, world, p.rank, threads, unroll, dependent);                                       \
    }
ALONE(KERNEL)
ALL(KERNEL, 2)
ALL(KERNEL, 3)
ALL(KERNEL, 4)
ALL(KERNEL, 5)
ALL(KERNEL, 6)
ALL(KERNEL, 7)
ALL(KERNEL, 8)
ISLANDS(KERNEL, 4)
ISLANDS(KERNEL, 6)
ISLANDS(KERNEL, 8)

#define all_reduce_os_waits(world) RF_STEP_ARRIVE
#define all_reduce_ts_waits(world) RF_STEP_ANSWER
#define all_reduce_il_waits(world) RF_STEP_RELAY
#define all_reduce_pt_waits(world) (world)
#define ring_os_waits(world)       RF_STEP_ARRIVE
#define ring_ts_waits(world)       RF_STEP_ARRIVE
#define all_reduce_os_family       RF_CONTROL_SLOTS
#define all_reduce_ts_family       RF_CONTROL_SLOTS
#define all_reduce_il_family       RF_CONTROL_SLOTS
#define all_reduce_pt_family       RF_CONTROL_SLOTS
#define ring_os_family             RF_CONTROL_RING
#define ring_ts_family             RF_CONTROL_RING
#define ROW(name, world, unroll, dependent, threads)                                               \
    {name##_w##world##_u##unroll, threads, unroll, dependent, name##_waits(world), name##_family},
const kernel_table TABLE = {
    HOST,
    RF_SHARD_DTYPE,
    part_of,
    {[1] = {ALONE(ROW)},
     [2] = {ALL(ROW, 2)},
     [3] = {ALL(ROW, 3)},
     [4] = {ALL(ROW, 4) ISLANDS(ROW, 4)},
     [5] = {ALL(ROW, 5)},
     [6] = {ALL(ROW, 6) ISLANDS(ROW, 6)},
     [7] = {ALL(ROW, 7)},
     [8] = {ALL(ROW, 8) ISLANDS(ROW, 8)}},
};
