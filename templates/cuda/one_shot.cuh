/* One-shot: every rank pushes its whole tensor to every other, and sums what arrived in its own
 * memory.
 *
 * A slot holds one box per source rank, `packs` packs each: world * bytes <= slot_bytes. A thread
 * takes the packs first + u * threads of the grid, `unroll` at a time (a tile); it pushes the next
 * tile before it finishes this one, so that the link works while the sums are made. Own words stay
 * in registers. */
#ifndef RANKFOLD_CUDA_ONE_SHOT_CUH
#define RANKFOLD_CUDA_ONE_SHOT_CUH

#include "cuda/call.cuh"
#include "cuda/tensor.cuh"

#define RF_MAX_UNROLL 8

typedef struct rf_tile {
    rf_pack16 v[RF_MAX_UNROLL];
} rf_tile;

RF_DEVICE unsigned char *one_shot_at(const rf_params *p, uint32_t where, uint32_t from,
                                     const rf_turn *turn, uint32_t packs, uint32_t pack)
{
    return p->peer[where] + RF_REGION_HEADER + turn->slot * p->slot_bytes +
           ((uint64_t)from * packs + pack) * 16;
}

RF_DEVICE void one_shot_load(const rf_tensor *t, rf_tile *tile, uint32_t first, uint32_t stride,
                             uint32_t unroll)
{
#pragma unroll
    for (uint32_t u = 0; u < unroll; u++) {
        if (first + u * stride < t->packs) {
            tile->v[u] = no_sentinel(tensor_load(t, first + u * stride));
        }
    }
}

RF_DEVICE void one_shot_push(const rf_tensor *t, const rf_turn *turn, const rf_tile *tile,
                             uint32_t first, uint32_t stride, uint32_t world, uint32_t rank,
                             uint32_t unroll)
{
#pragma unroll
    for (uint32_t u = 0; u < unroll; u++) {
        uint32_t pack = first + u * stride;
        if (pack < t->packs) {
#pragma unroll
            for (uint32_t i = 1; i < world; i++) { /* not all ranks at one port at a time */
                uint32_t q = rank + i < world ? rank + i : rank + i - world;
                store_sys(one_shot_at(t->p, q, rank, turn, t->packs, pack), tile->v[u]);
            }
        }
    }
}

/* Waits for the peers' packs of one tile, sums, stores, re-arms. Returns 0 when the call has
 * failed. */
RF_DEVICE uint32_t one_shot_finish(const rf_tensor *t, const rf_turn *turn, const rf_tile *own,
                                   uint32_t first, uint32_t stride, uint32_t world, uint32_t rank,
                                   uint32_t unroll, uint64_t *since)
{
    rf_pack16 v[RF_MAX_UNROLL][RF_MAX_WORLD];
    uint32_t polls = 0, missing;
    do {
        missing = 0;
#pragma unroll
        for (uint32_t u = 0; u < unroll; u++) {
            if (first + u * stride < t->packs) {
#pragma unroll
                for (uint32_t s = 0; s < world; s++) {
                    if (s != rank) {
                        v[u][s] = load_sys(
                            one_shot_at(t->p, rank, s, turn, t->packs, first + u * stride));
                    }
                }
            }
        }
#pragma unroll
        for (uint32_t u = 0; u < unroll; u++) {
            if (first + u * stride < t->packs) {
#pragma unroll
                for (uint32_t s = 0; s < world; s++) {
                    if (s != rank && !is_ready(v[u][s])) {
                        missing = s + 1;
                    }
                }
            }
        }
        if (missing && ++polls % RF_CHECK_EVERY == 0) {
            *since = look_up(t->p, rank, world, missing - 1, RF_STEP_ARRIVE, turn->epoch, *since);
            if (*since == RF_GIVE_UP) {
                return 0;
            }
        }
    } while (missing);
#pragma unroll
    for (uint32_t u = 0; u < unroll; u++) {
        uint32_t pack = first + u * stride;
        if (pack < t->packs) {
            rf_sums sums = widen(rank == 0 ? own->v[u] : v[u][0]);
#pragma unroll
            for (uint32_t s = 1; s < world; s++) {
                sums = add(sums, s == rank ? own->v[u] : v[u][s]);
            }
            tensor_store(t, pack, narrow(sums));
#pragma unroll
            for (uint32_t s = 0; s < world; s++) {
                if (s != rank) {
                    store_plain(one_shot_at(t->p, rank, s, turn, t->packs, pack), sentinel_pack());
                }
            }
        }
    }
    return 1;
}

RF_DEVICE void all_reduce_os(const rf_params *p, uint32_t world, uint32_t rank, uint32_t threads,
                             uint32_t unroll, uint32_t dependent)
{
    rf_tensor t = tensor_of(p);
    uint32_t stride = grid_size() * threads;
    uint32_t first = block_index() * threads + thread_index();
    uint64_t since = 0;
    rf_tile own, ahead;
    if (dependent) {
        dependents_wait();
    }
    rf_pack16 control = load_sys(p->control);
    one_shot_load(&t, &ahead, first, stride, unroll);
    rf_turn turn = enter(p, rank, world, p->control, control);
    if (!turn.ok) {
        return;
    }
    one_shot_push(&t, &turn, &ahead, first, stride, world, rank, unroll);
    if (dependent) {
        dependents_launch();
    }
    arrive(&turn);
    for (; first < t.packs; first += unroll * stride) {
        uint32_t next = first + unroll * stride;
        own = ahead;
        if (next < t.packs) {
            one_shot_load(&t, &ahead, next, stride, unroll);
            one_shot_push(&t, &turn, &ahead, next, stride, world, rank, unroll);
        }
        if (!one_shot_finish(&t, &turn, &own, first, stride, world, rank, unroll, &since)) {
            return;
        }
    }
}

#endif
