/* Waiting for packs that peers sent, over the wire that the shard has included before. */
#ifndef RANKFOLD_CUDA_COLLECT_CUH
#define RANKFOLD_CUDA_COLLECT_CUH

#include "cuda/shares.cuh"

typedef struct rf_arrivals {
    rf_pack16 v[RF_MAX_UNROLL][RF_MAX_WORLD]; /* by source */
} rf_arrivals;

/* Reads what the tile expects in a box; `again`: only what is worth another look. */
RF_DEVICE void collect_load(const rf_shares *s, rf_box box, uint32_t first, uint32_t again,
                            rf_arrivals *a)
{
#pragma unroll
    for (uint32_t u = 0; u < s->unroll; u++) {
        uint32_t i = first + u * s->stride;
#pragma unroll
        for (uint32_t q = 0; q < s->world; q++) {
            if (expects(s, box, q, i) && (!again || wire_looks_again(s, a->v[u][q]))) {
                a->v[u][q] = load_sys(wire_at(s, box, q, i));
            }
        }
    }
}

/* Reads until all is there; all loads are issued before one is tested. Returns 0 when the call has
 * failed. */
RF_DEVICE uint32_t collect(const rf_shares *s, rf_box box, uint32_t first, rf_arrivals *a,
                           uint64_t *since)
{
    uint32_t polls = 0;
    collect_load(s, box, first, 0, a);
    for (;;) {
        uint32_t missing = 0;
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
            uint32_t i = first + u * s->stride;
#pragma unroll
            for (uint32_t q = 0; q < s->world; q++) {
                if (expects(s, box, q, i) && !wire_is_ready(s, a->v[u][q])) {
                    missing = q + 1;
                }
            }
        }
        if (!missing) {
            return 1;
        }
        if (++polls % RF_CHECK_EVERY == 0) {
            *since =
                look_up(s->t.p, s->rank, s->world, missing - 1,
                        box == RF_BOX_SUM ? RF_STEP_ANSWER : RF_STEP_ARRIVE, s->turn.epoch, *since);
            if (*since == RF_GIVE_UP) {
                return 0;
            }
        }
        collect_load(s, box, first, 1, a);
    }
}

#endif
