/* Flags of the ring in host memory: a rank raises its own, once for all peers, and they poll it
 * there. */
#ifndef RANKFOLD_CUDA_FLAGS_HOST_CUH
#define RANKFOLD_CUDA_FLAGS_HOST_CUH

#include "cuda/call.cuh"

#define RF_RING_FLAGS_BYTES RF_HOST_RING_FLAGS_BYTES

RF_DEVICE uint32_t ring_half_bytes(const rf_params *p)
{
    (void)p;
    return RF_HOST_HALF_BYTES;
}

/* Where `rank` sees how far q has come. */
RF_DEVICE unsigned char *flag_at(const rf_params *p, uint32_t rank, uint32_t q, uint32_t lane)
{
    (void)rank;
    return p->peer[q] + RF_RING_AT(p->slot_bytes) + lane * sizeof(rf_ring_flag);
}

RF_DEVICE void flag_raise(const rf_params *p, uint32_t world, uint32_t rank, uint32_t lane,
                          uint64_t turns)
{
    (void)world;
    store_u64_sys(flag_at(p, rank, rank, lane), turns);
}

#endif
