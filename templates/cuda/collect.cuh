/* What the protocols share over the wire that the shard has included before: the size of parts, and
 * waiting for packs that peers sent. */
#ifndef RANKFOLD_CUDA_COLLECT_CUH
#define RANKFOLD_CUDA_COLLECT_CUH

#include "cuda/shares.cuh"

/* Packs of a part: as many for each rank, rounded up to what the wire likes. */
RF_DEVICE uint32_t part_of(uint32_t packs, uint32_t world)
{
    uint32_t grain = world * RF_WIRE_PART_PACKS;
    return (packs + grain - 1) / grain * RF_WIRE_PART_PACKS;
}

RF_DEVICE uint32_t step_of(const rf_shares *s, rf_box box)
{
    if (box == RF_BOX_SUM) {
        return s->islands ? RF_STEP_RELAY : RF_STEP_ANSWER;
    }
    return box == RF_BOX_OTHER ? RF_STEP_ANSWER : RF_STEP_ARRIVE;
}

/* Who is to blame where nothing comes from q. */
RF_DEVICE uint32_t source_of(const rf_shares *s, rf_box box, uint32_t q)
{
    return box == RF_BOX_OTHER ? partner_of(s) : rank_of(s, q);
}

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
                look_up(s->t.p, rank_of(s, s->rank), s->world << s->islands,
                        source_of(s, box, missing - 1), step_of(s, box), s->turn.epoch, *since);
            missing = *since == RF_GIVE_UP ? 0 : missing;
        }
    } while (missing); /* one way out: two would double the registers of what was read */
    return *since != RF_GIVE_UP;
}

/* Behind the reading of a pack from every other. */
RF_DEVICE void taken_from_all(const rf_shares *s, rf_box box, uint32_t i)
{
#pragma unroll
    for (uint32_t q = 0; q < s->world; q++) {
        if (q != s->rank) {
            wire_taken(s, box, q, i);
        }
    }
}

#endif
