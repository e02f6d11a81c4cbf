/* What one-shot and two-shot have in common, whatever the wire: who has which packs of the tensor.
 *
 * A thread takes the packs first + u * threads of the grid, `unroll` at a time (a tile). One-shot:
 * `part` is the whole tensor. Two-shot: rank o owns packs [o * part, (o + 1) * part); with fewer
 * packs than ranks some own nothing, but all send and receive. Islands are two-shots beside each
 * other, whose owners meet: `world` and `rank` are then of the own island. */
#ifndef RANKFOLD_CUDA_SHARES_CUH
#define RANKFOLD_CUDA_SHARES_CUH

#include "cuda/call.cuh"
#include "cuda/tensor.cuh"

#define RF_MAX_UNROLL 8

typedef struct rf_tile {
    rf_pack16 v[RF_MAX_UNROLL];
} rf_tile;

typedef struct rf_shares {
    rf_tensor t;
    rf_turn turn;
    uint32_t part, world, rank, unroll;
    uint32_t first, stride; /* the thread's first index, threads of the grid */
    uint32_t islands;       /* 0 or 1 */
    uint32_t place;         /* islands: where the own one begins in the order */
} rf_shares;

/* All but `part`, `turn` and what only islands have. */
RF_DEVICE void shares_set(rf_shares *s, const rf_params *p, uint32_t pack_bytes, uint32_t world,
                          uint32_t rank, uint32_t threads, uint32_t unroll)
{
    s->first = block_index() * threads + thread_index();
    s->t = tensor_of(p, pack_bytes);
    s->stride = grid_size() * threads;
    s->world = world, s->rank = rank, s->unroll = unroll;
    s->islands = 0;
}

/* What a rank waits for. */
typedef enum rf_box {
    RF_BOX_WHOLE, /* one-shot: packs of another's tensor */
    RF_BOX_PART,  /* two-shot: another's packs of the own part */
    RF_BOX_SUM,   /* two-shot: sums of an owner */
    RF_BOX_OTHER  /* islands: the other island's sums of the own part, as fp32: number q is that of
                     RF_SUMS_PACKS packs */
} rf_box;

/* Who that is in the comm: a rank of the own island, and the one in its place in the other. */
RF_DEVICE uint32_t rank_of(const rf_shares *s, uint32_t q)
{
    return s->islands ? s->t.p->order[s->place + q] : q;
}

RF_DEVICE uint32_t partner_of(const rf_shares *s)
{
    return s->t.p->order[s->world - s->place + s->rank];
}

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

/* Does this rank expect something at index i at all? */
RF_DEVICE uint32_t expects(const rf_shares *s, rf_box box, uint32_t i)
{
    return box == RF_BOX_PART || box == RF_BOX_OTHER ? has_pack(s, s->rank, i) : i < s->part;
}

/* And from rank q? */
RF_DEVICE uint32_t expects_from(const rf_shares *s, rf_box box, uint32_t q, uint32_t i)
{
    if (box == RF_BOX_OTHER) {
        return q < RF_SUMS_PACKS;
    }
    return q != s->rank && (box != RF_BOX_SUM || has_pack(s, q, i));
}

#endif
