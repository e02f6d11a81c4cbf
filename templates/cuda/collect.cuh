/* Waiting for packs that peers sent, over the wire that the shard has included before. */
#ifndef RANKFOLD_CUDA_COLLECT_CUH
#define RANKFOLD_CUDA_COLLECT_CUH

#include "cuda/shares.cuh"

/* Reads what the tile expects in a box until all is there: all loads of a turn are issued before
 * one is tested. Returns 0 when the call has failed. */
RF_DEVICE uint32_t collect(const rf_shares *s, rf_box box, uint32_t first,
                           rf_pack16 (*v)[RF_MAX_WORLD], uint64_t *since)
{
    uint32_t polls = 0, missing;
#pragma unroll
    for (uint32_t u = 0; u < s->unroll; u++) {
#pragma unroll
        for (uint32_t q = 0; q < s->world; q++) {
            wire_forget(s, &v[u][q]);
        }
    }
    do {
        missing = 0;
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
            uint32_t i = first + u * s->stride;
            if (expects(s, box, i)) {
#pragma unroll
                for (uint32_t q = 0; q < s->world; q++) {
                    if (expects_from(s, box, q, i) && wire_looks_again(s, v[u][q])) {
                        v[u][q] = load_sys(wire_at(s, box, q, i));
                    }
                }
            }
        }
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
            uint32_t i = first + u * s->stride;
            if (expects(s, box, i)) {
#pragma unroll
                for (uint32_t q = 0; q < s->world; q++) {
                    if (expects_from(s, box, q, i) && !wire_is_ready(s, v[u][q])) {
                        missing = q + 1;
                    }
                }
            }
        }
        if (missing && ++polls % RF_CHECK_EVERY == 0) {
            *since =
                look_up(s->t.p, s->rank, s->world, missing - 1,
                        box == RF_BOX_SUM ? RF_STEP_ANSWER : RF_STEP_ARRIVE, s->turn.epoch, *since);
            missing = *since == RF_GIVE_UP ? 0 : missing;
        }
    } while (missing); /* one way out: two would double the registers of what was read */
    return *since != RF_GIVE_UP;
}

#endif
