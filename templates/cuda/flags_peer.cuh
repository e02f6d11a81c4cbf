/* Flags of the ring between peers: each reader has its own copy, in its own memory, so that polls
 * cross no link. The copies arrive when they like; each is one word of one writer on its own line.
 */
#ifndef RANKFOLD_CUDA_FLAGS_PEER_CUH
#define RANKFOLD_CUDA_FLAGS_PEER_CUH

#include "cuda/call.cuh"

#define RF_RING_FLAGS_BYTES RF_PEER_RING_FLAGS_BYTES

RF_DEVICE uint32_t ring_half_bytes(const rf_params *p)
{
    return RF_PEER_HALF_BYTES(p->slot_bytes);
}

/* Where `rank` sees how far q has come. */
RF_DEVICE unsigned char *flag_at(const rf_params *p, uint32_t rank, uint32_t q, uint32_t lane)
{
    return p->peer[rank] + RF_RING_AT(p->slot_bytes) +
           (lane * RF_MAX_WORLD + q) * sizeof(rf_ring_flag);
}

/* Not all ranks at one port at a time. */
RF_DEVICE void flag_raise(const rf_params *p, uint32_t world, uint32_t rank, uint32_t lane,
                          uint64_t turns)
{
#pragma unroll
    for (uint32_t k = 1; k < world; k++) {
        uint32_t q = rank + k < world ? rank + k : rank + k - world;
        store_u64_sys(flag_at(p, q, rank, lane), turns);
    }
}

#endif
