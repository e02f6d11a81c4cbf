/* Two-shot: pack by pack, an owner sums what the others sent to it and sends the rounded sum back
 * to all.
 *
 * One thread handles the same index of every part in both phases, so an owner's answer depends on
 * nothing but the same thread of its peers, and no grid-wide step is needed. The tile after this
 * one is sent before this one is summed, and answers are collected one tile later. The owner stores
 * the bits that it sends. */
#ifndef RANKFOLD_CUDA_TWO_SHOT_CUH
#define RANKFOLD_CUDA_TWO_SHOT_CUH

#include "cuda/collect.cuh"

/* Sends one tile of every other's part to its owner, and returns the own part's packs in registers.
 */
RF_DEVICE void two_shot_scatter(const rf_shares *s, uint32_t first, rf_tile *own)
{
    rf_pack16 v[RF_MAX_UNROLL][RF_MAX_WORLD];
#pragma unroll
    for (uint32_t u = 0; u < s->unroll; u++) {
        uint32_t i = first + u * s->stride;
#pragma unroll
        for (uint32_t k = 0; k < s->world; k++) {
            uint32_t o = after(s, k);
            if (has_pack(s, o, i)) {
                v[u][k] = wire_seal(s, tensor_load(&s->t, o * s->part + i));
            }
        }
    }
#pragma unroll
    for (uint32_t u = 0; u < s->unroll; u++) {
        uint32_t i = first + u * s->stride;
#pragma unroll
        for (uint32_t k = 1; k < s->world; k++) {
            uint32_t o = after(s, k);
            if (has_pack(s, o, i)) {
                wire_send(s, RF_BOX_PART, o, i, v[u][k]);
            }
        }
        own->v[u] = v[u][0];
    }
}

RF_DEVICE uint32_t two_shot_reduce(const rf_shares *s, uint32_t first, const rf_tile *own,
                                   uint64_t *since)
{
    rf_pack16 v[RF_MAX_UNROLL][RF_MAX_WORLD]; /* by source */
    if (!collect(s, RF_BOX_PART, first, v, since)) {
        return 0;
    }
#pragma unroll
    for (uint32_t u = 0; u < s->unroll; u++) {
        uint32_t i = first + u * s->stride;
        if (has_pack(s, s->rank, i)) {
            rf_pack16 answer = wire_seal(s, sum_of(s->world, s->rank, own->v[u], v[u]));
            wire_send_all(s, RF_BOX_SUM, i, answer);
            tensor_store(&s->t, s->rank * s->part + i, answer);
            taken_from_all(s, RF_BOX_PART, i);
        }
    }
    return 1;
}

RF_DEVICE uint32_t two_shot_gather(const rf_shares *s, uint32_t first, uint64_t *since)
{
    rf_pack16 v[RF_MAX_UNROLL][RF_MAX_WORLD]; /* by source */
    if (!collect(s, RF_BOX_SUM, first, v, since)) {
        return 0;
    }
#pragma unroll
    for (uint32_t u = 0; u < s->unroll; u++) {
        uint32_t i = first + u * s->stride;
#pragma unroll
        for (uint32_t o = 0; o < s->world; o++) {
            if (expects_from(s, RF_BOX_SUM, o, i)) {
                tensor_store(&s->t, o * s->part + i, v[u][o]);
                wire_taken(s, RF_BOX_SUM, o, i);
            }
        }
    }
    return 1;
}

/* Enters a call of the comm, where this is `rank` of `world`, and sends the first tile. Returns 0
 * when it is refused. */
RF_DEVICE uint32_t two_shot_begin(rf_shares *s, uint32_t world, uint32_t rank, uint32_t threads,
                                  uint32_t dependent, rf_tile *ahead)
{
    const rf_params *p = s->t.p;
    s->turn = enter(p, rank, world, p->control, begin(p->control, dependent));
    if (!s->turn.ok) {
        return 0;
    }
    two_shot_scatter(s, s->first, ahead);
    arrive(&s->turn, threads, dependent);
    wire_upkeep(s, threads);
    return 1;
}

/* Sends the tile after this one, and returns where it begins. `own`: the own packs of this one. */
RF_DEVICE uint32_t two_shot_next(const rf_shares *s, uint32_t first, rf_tile *own, rf_tile *ahead)
{
    uint32_t next = first + s->unroll * s->stride;
    *own = *ahead;
    if (next < s->part) {
        two_shot_scatter(s, next, ahead);
    }
    return next;
}

RF_DEVICE void all_reduce_ts(const rf_params *p, uint32_t world, uint32_t rank, uint32_t threads,
                             uint32_t unroll, uint32_t dependent)
{
    rf_shares s;
    shares_set(&s, p, RF_WIRE_PACK_BYTES, world, rank, threads, unroll);
    s.part = part_of(s.t.packs, world);
    uint64_t since = 0;
    rf_tile own, ahead;
    if (!two_shot_begin(&s, world, rank, threads, dependent, &ahead)) {
        return;
    }
    uint32_t first = s.first, summed_first = s.part; /* tile that waits for its answers; none yet */
    while (first < s.part || summed_first < s.part) {
        uint32_t done = summed_first;
        summed_first = first < s.part ? first : s.part;
        if (first < s.part) {
            uint32_t next = two_shot_next(&s, first, &own, &ahead);
            if (!two_shot_reduce(&s, first, &own, &since)) {
                return;
            }
            first = next;
        }
        if (done < s.part && !two_shot_gather(&s, done, &since)) {
            return;
        }
    }
}

#endif
