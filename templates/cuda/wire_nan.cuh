/* Wire nan: a word of payload is there as soon as it is not the sentinel. A rank pushes into its
 * peers' memory and polls its own, and re-arms what it has read.
 *
 * A slot holds for a one-shot one box of `part` packs per source rank: world * bytes <= slot_bytes.
 * For a two-shot it holds one box of `part` packs per source, then one per owner; what a rank would
 * send to itself in these, with islands, its partner sends. The layout may depend on the call's
 * size, since a slot is all sentinel when its turn comes. */
#ifndef RANKFOLD_CUDA_WIRE_NAN_CUH
#define RANKFOLD_CUDA_WIRE_NAN_CUH

#include "cuda/shares.cuh"

/* "Nothing has arrived here yet": a NaN pattern in every dtype. The producer rewrites exactly this
 * word. */
#define RF_SENTINEL 0xffffffffu
#define RF_NAN_WORD 0x7fff7fffu

#define RF_WIRE_PACK_BYTES 16
#define RF_WIRE_PART_PACKS 1 /* a part is a multiple of it */

RF_DEVICE unsigned char *box_at(const rf_shares *s, uint32_t where, uint32_t number, uint32_t i)
{
    return s->t.p->peer[where] + RF_REGION_HEADER + s->turn.slot * s->t.p->slot_bytes +
           ((uint64_t)number * s->part + i) * 16;
}

/* The box's number for what comes from q. */
RF_DEVICE uint32_t box_number(const rf_shares *s, rf_box box, uint32_t q)
{
    return box == RF_BOX_OTHER ? q * s->world + s->rank : box == RF_BOX_SUM ? s->world + q : q;
}

/* Where rank q's pack of a box arrives. */
RF_DEVICE unsigned char *wire_at(const rf_shares *s, rf_box box, uint32_t q, uint32_t i)
{
    return box_at(s, rank_of(s, s->rank), box_number(s, box, q), i);
}

/* What travels for v. */
RF_DEVICE rf_pack16 wire_seal(const rf_shares *s, rf_pack16 v)
{
    (void)s;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v.w[i] = v.w[i] == RF_SENTINEL ? RF_NAN_WORD : v.w[i];
    }
    return v;
}

/* To one other: to an owner what is RF_BOX_PART there. */
RF_DEVICE void wire_send(const rf_shares *s, rf_box box, uint32_t to, uint32_t i, rf_pack16 v)
{
    store_sys(box_at(s, rank_of(s, to), box_number(s, box, s->rank), i), v);
}

/* Islands: one of the RF_SUMS_PACKS packs of the own island's sums. */
RF_DEVICE void wire_send_other(const rf_shares *s, uint32_t number, uint32_t i, rf_pack16 v)
{
    store_sys(box_at(s, partner_of(s), box_number(s, RF_BOX_OTHER, number), i), v);
}

/* To all others; box is RF_BOX_WHOLE or RF_BOX_SUM. Not all ranks at one port at a time. */
RF_DEVICE void wire_send_all(const rf_shares *s, rf_box box, uint32_t i, rf_pack16 v)
{
#pragma unroll
    for (uint32_t k = 1; k < s->world; k++) {
        wire_send(s, box, after(s, k), i, v);
    }
}

RF_DEVICE uint32_t wire_is_ready(const rf_shares *s, rf_pack16 v)
{
    (void)s;
    return v.w[0] != RF_SENTINEL && v.w[1] != RF_SENTINEL && v.w[2] != RF_SENTINEL &&
           v.w[3] != RF_SENTINEL;
}

/* Before the first look. */
RF_DEVICE void wire_forget(const rf_shares *s, rf_pack16 *v)
{
    (void)s;
    (void)v;
}

/* Is v, as read, worth another look? Own memory is so near that all of a tile is read again. */
RF_DEVICE uint32_t wire_looks_again(const rf_shares *s, rf_pack16 v)
{
    (void)s;
    (void)v;
    return 1;
}

/* Behind the reading of a pack. */
RF_DEVICE void wire_taken(const rf_shares *s, rf_box box, uint32_t q, uint32_t i)
{
    rf_pack16 v = {{RF_SENTINEL, RF_SENTINEL, RF_SENTINEL, RF_SENTINEL}};
    store_plain(wire_at(s, box, q, i), v);
}

/* Once in a call. */
RF_DEVICE void wire_upkeep(const rf_shares *s, uint32_t threads)
{
    (void)s, (void)threads;
}

/* Before the first look of a one-shot. */
RF_DEVICE void wire_settle(const rf_shares *s)
{
    (void)s;
}

#endif
