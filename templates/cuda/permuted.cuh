/* Permuted two-shot: the two-shot in world - 1 steps of each phase. In step k a rank stores to
 * rank + k only, and waits for rank - k before the next step. So ranks that keep pace, which those
 * waits make them, have one writer each and write to one, at any moment: for switches that collapse
 * where all store to all.
 *
 * A step comprises all tiles of a thread, so that threads differ in it by little of the time that a
 * large tensor takes. What has arrived stays where it is until all has, since sums are made in rank
 * order. The own sums lie in the box of sums that nobody sends to, the own one of the own region,
 * until they are sent to the last.
 *
 * Nobody waits in a ring: step 1 of the first phase sends before it waits, and whatever else
 * somebody waits for was sent by a rank that had seen an earlier step end. */
#ifndef RANKFOLD_CUDA_PERMUTED_CUH
#define RANKFOLD_CUDA_PERMUTED_CUH

#include "cuda/collect.cuh"

/* The k-th rank before this one. */
RF_DEVICE uint32_t before(const rf_shares *s, uint32_t k)
{
    return s->rank >= k ? s->rank - k : s->rank + s->world - k;
}

/* All tiles of the part of rank o. */
RF_DEVICE void permuted_send_part(const rf_shares *s, uint32_t o)
{
    for (uint32_t first = s->first; first < s->part; first += s->unroll * s->stride) {
        rf_tile tile;
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
            uint32_t i = first + u * s->stride;
            if (has_pack(s, o, i)) {
                tile.v[u] = wire_seal(s, tensor_load(&s->t, o * s->part + i));
            }
        }
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
            uint32_t i = first + u * s->stride;
            if (has_pack(s, o, i)) {
                wire_send(s, RF_BOX_PART, o, i, tile.v[u]);
            }
        }
    }
}

/* Second phase, step k: all tiles of the own sums; the own box is empty again behind the last. */
RF_DEVICE void permuted_send_sum(const rf_shares *s, uint32_t k)
{
    for (uint32_t first = s->first; first < s->part; first += s->unroll * s->stride) {
        rf_tile tile;
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
            uint32_t i = first + u * s->stride;
            if (has_pack(s, s->rank, i)) {
                tile.v[u] = load_plain(wire_at(s, RF_BOX_SUM, s->rank, i));
            }
        }
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
            uint32_t i = first + u * s->stride;
            if (has_pack(s, s->rank, i)) {
                wire_send(s, RF_BOX_SUM, after(s, k), i, tile.v[u]);
                if (k == s->world - 1) {
                    wire_taken(s, RF_BOX_SUM, s->rank, i);
                }
            }
        }
    }
}

/* As collect, from rank q alone. `waited`: steps of which q has seen the end before it sends them
 * (call.cuh: what it is granted). The compiler makes longer code of a collect for any ranks. */
RF_DEVICE uint32_t permuted_collect(const rf_shares *s, rf_box box, uint32_t q, uint32_t waited,
                                    uint32_t first, rf_tile *tile, uint64_t *since)
{
    uint32_t polls = 0, missing;
    do {
        missing = 0;
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
            uint32_t i = first + u * s->stride;
            if (expects(s, box, i) && expects_from(s, box, q, i)) {
                tile->v[u] = load_sys(wire_at(s, box, q, i));
            }
        }
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
            uint32_t i = first + u * s->stride;
            if (expects(s, box, i) && expects_from(s, box, q, i)) {
                missing |= !wire_is_ready(s, tile->v[u]);
            }
        }
        if (missing && ++polls % RF_CHECK_EVERY == 0) {
            *since = look_up(s->t.p, s->rank, s->world, q, RF_STEP_ARRIVE + waited, s->turn.epoch,
                             *since);
            missing = *since == RF_GIVE_UP ? 0 : missing;
        }
    } while (missing);
    return *since != RF_GIVE_UP;
}

/* First phase, step k behind its sends: all tiles of rank q's packs of the own part have come. */
RF_DEVICE uint32_t permuted_wait(const rf_shares *s, uint32_t k, uint64_t *since)
{
    for (uint32_t first = s->first; first < s->part; first += s->unroll * s->stride) {
        rf_tile tile;
        if (!permuted_collect(s, RF_BOX_PART, before(s, k), k - 1, first, &tile, since)) {
            return 0;
        }
    }
    return 1;
}

/* First phase behind its steps: sums, to the caller and into the own box. */
RF_DEVICE void permuted_reduce(const rf_shares *s)
{
    for (uint32_t first = s->first; first < s->part; first += s->unroll * s->stride) {
        rf_pack16 v[RF_MAX_UNROLL][RF_MAX_WORLD]; /* by source */
        rf_tile own;
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
            uint32_t i = first + u * s->stride;
            if (has_pack(s, s->rank, i)) {
#pragma unroll
                for (uint32_t q = 0; q < s->world; q++) {
                    if (q != s->rank) {
                        v[u][q] = load_sys(wire_at(s, RF_BOX_PART, q, i));
                    }
                }
                own.v[u] = tensor_load(&s->t, s->rank * s->part + i);
            }
        }
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
            uint32_t i = first + u * s->stride;
            if (has_pack(s, s->rank, i)) {
                rf_pack16 sum = wire_seal(s, sum_of(s->world, s->rank, own.v[u], v[u]));
                store_plain(wire_at(s, RF_BOX_SUM, s->rank, i), sum);
                tensor_store(&s->t, s->rank * s->part + i, sum);
                taken_from_all(s, RF_BOX_PART, i);
            }
        }
    }
}

/* Second phase, step k behind its sends: all sums of one owner. */
RF_DEVICE uint32_t permuted_gather(const rf_shares *s, uint32_t k, uint64_t *since)
{
    uint32_t o = before(s, k);
    for (uint32_t first = s->first; first < s->part; first += s->unroll * s->stride) {
        rf_tile tile;
        if (!permuted_collect(s, RF_BOX_SUM, o, s->world - 1, first, &tile, since)) {
            return 0;
        }
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
            uint32_t i = first + u * s->stride;
            if (has_pack(s, o, i)) {
                tensor_store(&s->t, o * s->part + i, tile.v[u]);
                wire_taken(s, RF_BOX_SUM, o, i);
            }
        }
    }
    return 1;
}

RF_DEVICE void all_reduce_pt(const rf_params *p, uint32_t world, uint32_t rank, uint32_t threads,
                             uint32_t unroll, uint32_t dependent)
{
    rf_shares s;
    shares_set(&s, p, RF_WIRE_PACK_BYTES, world, rank, threads, unroll);
    uint64_t since = 0;
    s.part = part_of(s.t.packs, world);
    s.turn = enter(p, rank, world, p->control, begin(p->control, dependent));
    if (!s.turn.ok) {
        return;
    }
    permuted_send_part(&s, after(&s, 1));
    arrive(&s.turn, threads, dependent);
#pragma unroll 1
    for (uint32_t k = 1; k < world; k++) {
        if (k > 1) {
            permuted_send_part(&s, after(&s, k));
        }
        if (!permuted_wait(&s, k, &since)) {
            return;
        }
    }
    permuted_reduce(&s);
#pragma unroll 1
    for (uint32_t k = 1; k < world; k++) {
        permuted_send_sum(&s, k);
        if (!permuted_gather(&s, k, &since)) {
            return;
        }
    }
}

#endif
