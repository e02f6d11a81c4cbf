/* Islands: two groups of ranks, each near each other; few packs cross between them.
 *
 * p->order says who is where: the ranks of the first island, then as many of the second. Each
 * island shares the packs out as in a two-shot of its own. An owner sums what its island has sent
 * to it, in fp32 in the order of the island, and exchanges these sums, not rounded, with its
 * partner: the rank in the same place in the other island. Both add the two, round once, and send
 * the result to their islands. So the order of summation is the topology's (RF_VARIANT_REASSOC),
 * and equal on all ranks: the last addition gives the same from both sides.
 *
 * A thread handles the same index of every part in all three phases, and a rank waits for a tile's
 * packs only after it has sent its own of that tile, for a partner's sums only after it has sent
 * its own: nothing waits in a circle. Why two slots suffice, see cuda/call.cuh. */
#ifndef RANKFOLD_CUDA_ISLANDS_CUH
#define RANKFOLD_CUDA_ISLANDS_CUH

#include "cuda/two_shot.cuh"

/* The own island's sums of one tile, to the partner too. */
RF_DEVICE uint32_t islands_reduce(const rf_shares *s, uint32_t first, const rf_tile *own,
                                  rf_sums *sums, uint64_t *since)
{
    rf_pack16 v[RF_MAX_UNROLL][RF_MAX_WORLD]; /* by source */
    if (!collect(s, RF_BOX_PART, first, v, since)) {
        return 0;
    }
#pragma unroll
    for (uint32_t u = 0; u < s->unroll; u++) {
        uint32_t i = first + u * s->stride;
        if (has_pack(s, s->rank, i)) {
            sums[u] = sums_of(s->world, s->rank, own->v[u], v[u]);
#pragma unroll
            for (uint32_t k = 0; k < RF_SUMS_PACKS; k++) {
                wire_send_other(s, k, i, pack_of_sums(&sums[u], k));
            }
            taken_from_all(s, RF_BOX_PART, i);
        }
    }
    return 1;
}

/* Adds the other island's sums, and sends what comes out. */
RF_DEVICE uint32_t islands_meet(const rf_shares *s, uint32_t first, const rf_sums *sums,
                                uint64_t *since)
{
    rf_pack16 v[RF_MAX_UNROLL][RF_MAX_WORLD]; /* RF_SUMS_PACKS */
    if (!collect(s, RF_BOX_OTHER, first, v, since)) {
        return 0;
    }
#pragma unroll
    for (uint32_t u = 0; u < s->unroll; u++) {
        uint32_t i = first + u * s->stride;
        if (has_pack(s, s->rank, i)) {
            rf_pack16 answer = wire_seal(s, narrow(add_sums(sums[u], v[u])));
            wire_send_all(s, RF_BOX_SUM, i, answer);
            tensor_store(&s->t, s->rank * s->part + i, answer);
#pragma unroll
            for (uint32_t k = 0; k < RF_SUMS_PACKS; k++) {
                wire_taken(s, RF_BOX_OTHER, k, i);
            }
        }
    }
    return 1;
}

RF_DEVICE void all_reduce_il(const rf_params *p, uint32_t world, uint32_t rank, uint32_t threads,
                             uint32_t unroll, uint32_t dependent)
{
    uint32_t half = world / 2, at = 0; /* in the order */
    rf_shares s;
    shares_set(&s, p, RF_WIRE_PACK_BYTES, half, 0, threads, unroll);
    s.part = part_of(s.t.packs, half);
#pragma unroll
    for (uint32_t i = 1; i < world; i++) {
        at = p->order[i] == rank ? i : at;
    }
    s.islands = 1;
    s.place = at < half ? 0 : half;
    s.rank = at - s.place;
    uint64_t since = 0;
    rf_tile own, ahead;
    rf_sums sums[RF_MAX_UNROLL];
    if (!two_shot_begin(&s, world, rank, threads, dependent, &ahead)) {
        return;
    }
    uint32_t first = s.first, summed_first = s.part; /* tile that waits for its answers; none yet */
    while (first < s.part || summed_first < s.part) {
        uint32_t done = summed_first;
        summed_first = first < s.part ? first : s.part;
        if (first < s.part) {
            uint32_t next = two_shot_next(&s, first, &own, &ahead);
            if (!islands_reduce(&s, first, &own, sums, &since) ||
                !islands_meet(&s, first, sums, &since)) {
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
