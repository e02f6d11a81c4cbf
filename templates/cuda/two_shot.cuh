/* Two-shot: pack by pack, an owner sums what the others pushed to it and pushes the rounded sum
 * back to all.
 *
 * part = ceil(packs / world); rank o owns packs [o * part, (o + 1) * part). A slot holds, for the
 * reduce-scatter, one box of `part` packs per source rank, then, for the all-gather, one box of
 * `part` packs per owner: 2 * world * part packs. One thread handles the same index of every part
 * in both phases, so an owner's answer depends on nothing but the same thread of its peers, and no
 * grid-wide step is needed. The tile after this one is pushed before this one is summed, and
 * answers are collected one tile later. With fewer packs than ranks some own nothing, but all send
 * and receive. The owner stores the bits that it sends. */
#ifndef RANKFOLD_CUDA_TWO_SHOT_CUH
#define RANKFOLD_CUDA_TWO_SHOT_CUH

#include "cuda/one_shot.cuh"

typedef struct rf_shares {
    rf_tensor t;
    rf_turn turn;
    uint32_t part, stride, world, rank, unroll;
} rf_shares;

/* k-th rank after this one: all start at another port. */
RF_DEVICE uint32_t after(const rf_shares *s, uint32_t k)
{
    return s->rank + k < s->world ? s->rank + k : s->rank + k - s->world;
}

/* Is index i of owner o's part a pack of the tensor? */
RF_DEVICE uint32_t has_pack(const rf_shares *s, uint32_t owner, uint32_t i)
{
    return i < s->part && owner * s->part + i < s->t.packs;
}

RF_DEVICE unsigned char *scatter_at(const rf_shares *s, uint32_t where, uint32_t from, uint32_t i)
{
    return s->t.p->peer[where] + RF_REGION_HEADER + s->turn.slot * s->t.p->slot_bytes +
           ((uint64_t)from * s->part + i) * 16;
}

RF_DEVICE unsigned char *gather_at(const rf_shares *s, uint32_t where, uint32_t owner, uint32_t i)
{
    return scatter_at(s, where, s->world + owner, i);
}

/* Pushes one tile of every other's part to its owner, and returns the own part's packs in
 * registers. */
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
                v[u][k] = no_sentinel(tensor_load(&s->t, o * s->part + i));
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
                store_sys(scatter_at(s, o, s->rank, i), v[u][k]);
            }
        }
        own->v[u] = v[u][0];
    }
}

RF_DEVICE uint32_t two_shot_reduce(const rf_shares *s, uint32_t first, const rf_tile *own,
                                   uint64_t *since)
{
    rf_pack16 v[RF_MAX_UNROLL][RF_MAX_WORLD];
    uint32_t polls = 0, missing;
    do {
        missing = 0;
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
            uint32_t i = first + u * s->stride;
            if (has_pack(s, s->rank, i)) {
#pragma unroll
                for (uint32_t q = 0; q < s->world; q++) {
                    if (q != s->rank) {
                        v[u][q] = load_sys(scatter_at(s, s->rank, q, i));
                    }
                }
            }
        }
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
            if (has_pack(s, s->rank, first + u * s->stride)) {
#pragma unroll
                for (uint32_t q = 0; q < s->world; q++) {
                    if (q != s->rank && !is_ready(v[u][q])) {
                        missing = q + 1;
                    }
                }
            }
        }
        if (missing && ++polls % RF_CHECK_EVERY == 0) {
            *since = look_up(s->t.p, s->rank, s->world, missing - 1, RF_STEP_ARRIVE, s->turn.epoch,
                             *since);
            if (*since == RF_GIVE_UP) {
                return 0;
            }
        }
    } while (missing);
#pragma unroll
    for (uint32_t u = 0; u < s->unroll; u++) {
        uint32_t i = first + u * s->stride;
        if (has_pack(s, s->rank, i)) {
            rf_sums sums = widen(s->rank == 0 ? own->v[u] : v[u][0]);
#pragma unroll
            for (uint32_t q = 1; q < s->world; q++) {
                sums = add(sums, q == s->rank ? own->v[u] : v[u][q]);
            }
            rf_pack16 answer = narrow(sums);
#pragma unroll
            for (uint32_t k = 1; k < s->world; k++) {
                store_sys(gather_at(s, after(s, k), s->rank, i), answer);
            }
            tensor_store(&s->t, s->rank * s->part + i, answer);
#pragma unroll
            for (uint32_t q = 0; q < s->world; q++) {
                if (q != s->rank) {
                    store_plain(scatter_at(s, s->rank, q, i), sentinel_pack());
                }
            }
        }
    }
    return 1;
}

RF_DEVICE uint32_t two_shot_gather(const rf_shares *s, uint32_t first, uint64_t *since)
{
    rf_pack16 v[RF_MAX_UNROLL][RF_MAX_WORLD];
    uint32_t polls = 0, missing;
    do {
        missing = 0;
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
#pragma unroll
            for (uint32_t o = 0; o < s->world; o++) {
                if (o != s->rank && has_pack(s, o, first + u * s->stride)) {
                    v[u][o] = load_sys(gather_at(s, s->rank, o, first + u * s->stride));
                }
            }
        }
#pragma unroll
        for (uint32_t u = 0; u < s->unroll; u++) {
#pragma unroll
            for (uint32_t o = 0; o < s->world; o++) {
                if (o != s->rank && has_pack(s, o, first + u * s->stride) && !is_ready(v[u][o])) {
                    missing = o + 1;
                }
            }
        }
        if (missing && ++polls % RF_CHECK_EVERY == 0) {
            *since = look_up(s->t.p, s->rank, s->world, missing - 1, RF_STEP_ANSWER, s->turn.epoch,
                             *since);
            if (*since == RF_GIVE_UP) {
                return 0;
            }
        }
    } while (missing);
#pragma unroll
    for (uint32_t u = 0; u < s->unroll; u++) {
        uint32_t i = first + u * s->stride;
#pragma unroll
        for (uint32_t o = 0; o < s->world; o++) {
            if (o != s->rank && has_pack(s, o, i)) {
                tensor_store(&s->t, o * s->part + i, v[u][o]);
                store_plain(gather_at(s, s->rank, o, i), sentinel_pack());
            }
        }
    }
    return 1;
}

RF_DEVICE void all_reduce_ts(const rf_params *p, uint32_t world, uint32_t rank, uint32_t threads,
                             uint32_t unroll, uint32_t dependent)
{
    rf_shares s;
    uint32_t first = block_index() * threads + thread_index();
    uint64_t since = 0;
    rf_tile own, ahead;
    s.t = tensor_of(p);
    s.part = (s.t.packs + world - 1) / world;
    s.stride = grid_size() * threads;
    s.world = world, s.rank = rank, s.unroll = unroll;
    if (dependent) {
        dependents_wait();
    }
    s.turn = enter(p, rank, world, p->control, load_sys(p->control));
    if (!s.turn.ok) {
        return;
    }
    two_shot_scatter(&s, first, &ahead);
    if (dependent) {
        dependents_launch();
    }
    arrive(&s.turn);
    uint32_t summed_first = s.part; /* tile that waits for its answers; none yet */
    while (first < s.part || summed_first < s.part) {
        uint32_t done = summed_first;
        summed_first = first < s.part ? first : s.part;
        if (first < s.part) {
            uint32_t next = first + unroll * s.stride;
            own = ahead;
            if (next < s.part) {
                two_shot_scatter(&s, next, &ahead);
            }
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
