/* One-shot: every rank sends its whole tensor to every other, and sums what arrived.
 *
 * A thread sends its next tile before it finishes this one, so that the link works while the sums
 * are made. Own packs stay in registers. */
#ifndef RANKFOLD_CUDA_ONE_SHOT_CUH
#define RANKFOLD_CUDA_ONE_SHOT_CUH

#include "cuda/collect.cuh"

RF_DEVICE void one_shot_load(const rf_shares *s, rf_tile *tile, uint32_t first)
{
#pragma unroll
    for (uint32_t u = 0; u < s->unroll; u++) {
        if (first + u * s->stride < s->part) {
            tile->v[u] = tensor_load(&s->t, first + u * s->stride);
        }
    }
}

RF_DEVICE void one_shot_send(const rf_shares *s, rf_tile *tile, uint32_t first)
{
#pragma unroll
    for (uint32_t u = 0; u < s->unroll; u++) {
        uint32_t pack = first + u * s->stride;
        if (pack < s->part) {
            tile->v[u] = wire_seal(s, tile->v[u]);
            wire_send_all(s, RF_BOX_WHOLE, pack, tile->v[u]);
        }
    }
}

/* Waits for the peers' packs of one tile, sums, stores. Returns 0 when the call has failed. */
RF_DEVICE uint32_t one_shot_finish(const rf_shares *s, const rf_tile *own, uint32_t first,
                                   uint64_t *since)
{
    rf_pack16 v[RF_MAX_UNROLL][RF_MAX_WORLD]; /* by source */
    if (!collect(s, RF_BOX_WHOLE, first, v, since)) {
        return 0;
    }
#pragma unroll
    for (uint32_t u = 0; u < s->unroll; u++) {
        uint32_t pack = first + u * s->stride;
        if (pack < s->part) {
            tensor_store(&s->t, pack, sum_of(s->world, s->rank, own->v[u], v[u]));
            taken_from_all(s, RF_BOX_WHOLE, pack);
        }
    }
    return 1;
}

RF_DEVICE void all_reduce_os(const rf_params *p, uint32_t world, uint32_t rank, uint32_t threads,
                             uint32_t unroll, uint32_t dependent)
{
    rf_shares s;
    shares_set(&s, p, RF_WIRE_PACK_BYTES, world, rank, threads, unroll);
    uint64_t since = 0;
    rf_tile own, ahead;
    s.part = s.t.packs;
    rf_pack16 control = begin(p->control, dependent);
    one_shot_load(&s, &ahead, s.first);
    s.turn = enter(p, rank, world, p->control, control);
    if (!s.turn.ok) {
        return;
    }
    one_shot_send(&s, &ahead, s.first);
    arrive(&s.turn, threads, dependent);
    wire_upkeep(&s, threads);
    wire_settle(&s);
    for (uint32_t first = s.first; first < s.part; first += unroll * s.stride) {
        uint32_t next = first + unroll * s.stride;
        own = ahead;
        if (next < s.part) {
            one_shot_load(&s, &ahead, next);
            one_shot_send(&s, &ahead, next);
        }
        if (!one_shot_finish(&s, &own, first, &since)) {
            return;
        }
    }
}

#endif
