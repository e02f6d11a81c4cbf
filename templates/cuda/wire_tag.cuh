/* Wire tag, in host memory: a vector of 16 bytes is a pack - 14 bytes of the tensor, or 12 where
 * its elements have 4 - and in the last two the call's tag, the epoch + 1. A rank stores into its
 * own region, once for all peers, and they poll it there; the own region is never read. Relies on
 * single 16-byte accesses, which host memory has. Nothing is re-armed.
 *
 * Vector i belongs to pack i of the tensor, whatever the algorithm: in a two-shot the owner's
 * vectors of its own part, which nobody needs, hold the sums. Threads next to each other store
 * vectors next to each other, and parts begin on whole lines: the bus carries whole lines.
 *
 * Tags come round after 2^16 calls, so no vector may be left that carries one so old. Of calls
 * that use a slot, every RF_UPKEEP_EVERYth gives the next RF_UPKEEP_VECTORS in it the current tag:
 * inside the call's extent by the payload, outside by wire_upkeep. All kernels of the slots' family
 * do, whatever their dtype, and the largest slot has 342 times so many; so every vector is younger
 * than 342 * 32 * 4 calls (twice, since there are two slots, and twice more where the count of
 * calls wraps), which is less than 2^16. That goes for cleared ones too, whose 0 is the tag of the
 * epoch 2^16 - 1. Nobody reads a vector outside the call's extent (of ranks that agree on it), nor,
 * with two slots, is anybody still reading it for an earlier call. Stores of one call to a vector
 * come before those of a later one: a kernel's stores are complete when it ends.
 */
#ifndef RANKFOLD_CUDA_WIRE_TAG_CUH
#define RANKFOLD_CUDA_WIRE_TAG_CUH

#include "cuda/shares.cuh"

#define RF_WIRE_PACK_BYTES RF_TAG_PACK_BYTES(RF_ELEMENT_BYTES)
#define RF_WIRE_PART_PACKS 8 /* a part is a multiple of it: RF_LINE bytes of vectors */

#ifndef RF_TAG_MASK /* tests let tags come round sooner */
#define RF_TAG_MASK       0xffffu
#define RF_UPKEEP_EVERY   32
#define RF_UPKEEP_VECTORS 256 /* slots have whole pages of them */
typedef char rf_tags_are_kept[RF_HOST_SLOT_BYTES(RF_HOST_TAG_BYTES) / (RF_UPKEEP_VECTORS * 16) *
                                          RF_UPKEEP_EVERY * RF_SLOTS * 2 <=
                                      RF_TAG_MASK
                                  ? 1
                                  : -1];
#endif
#ifndef RF_SETTLE_KIB /* of vectors */
#define RF_SETTLE_KIB 16
#endif

RF_DEVICE uint32_t tag_of(const rf_shares *s)
{
    return ((uint32_t)s->turn.epoch + 1) & RF_TAG_MASK;
}

RF_DEVICE unsigned char *vector_at(const rf_shares *s, uint32_t where, uint32_t pack)
{
    return s->t.p->peer[where] + RF_REGION_HEADER + s->turn.slot * s->t.p->slot_bytes +
           (uint64_t)pack * 16;
}

/* Where rank q's pack of a box appears. */
RF_DEVICE unsigned char *wire_at(const rf_shares *s, rf_box box, uint32_t q, uint32_t i)
{
    uint32_t owner = box == RF_BOX_WHOLE ? 0 : box == RF_BOX_PART ? s->rank : q;
    return vector_at(s, q, owner * s->part + i);
}

/* What travels for v. */
RF_DEVICE rf_pack16 wire_seal(const rf_shares *s, rf_pack16 v)
{
    v.w[3] = (v.w[3] & 0xffff) | tag_of(s) << 16;
    return v;
}

/* To an owner; box is RF_BOX_PART. */
RF_DEVICE void wire_send(const rf_shares *s, rf_box box, uint32_t owner, uint32_t i, rf_pack16 v)
{
    (void)box;
    store_sys(vector_at(s, s->rank, owner * s->part + i), v);
}

/* To all others; box is RF_BOX_WHOLE or RF_BOX_SUM. */
RF_DEVICE void wire_send_all(const rf_shares *s, rf_box box, uint32_t i, rf_pack16 v)
{
    store_sys(wire_at(s, box, s->rank, i), v);
}

RF_DEVICE uint32_t wire_is_ready(const rf_shares *s, rf_pack16 v)
{
    return v.w[3] >> 16 == tag_of(s);
}

/* Before the first look. */
RF_DEVICE void wire_forget(const rf_shares *s, rf_pack16 *v)
{
    v->w[3] = ~(tag_of(s) << 16);
}

/* Is v, as read, worth another look? What has come is not sent over the bus again. */
RF_DEVICE uint32_t wire_looks_again(const rf_shares *s, rf_pack16 v)
{
    return !wire_is_ready(s, v);
}

/* Behind the reading of a pack. */
RF_DEVICE void wire_taken(const rf_shares *s, rf_box box, uint32_t q, uint32_t i)
{
    (void)s, (void)box, (void)q, (void)i;
}

/* Once in a call. */
RF_DEVICE void wire_upkeep(const rf_shares *s, uint32_t threads)
{
    uint32_t turn = (uint32_t)(s->turn.epoch / RF_SLOTS);
    if (turn % RF_UPKEEP_EVERY == 0 && block_index() == grid_size() - 1) {
        uint32_t places = (uint32_t)(s->t.p->slot_bytes / 16) / RF_UPKEEP_VECTORS;
        uint32_t first = turn / RF_UPKEEP_EVERY % places * RF_UPKEEP_VECTORS;
        rf_pack16 v = {{0, 0, 0, tag_of(s) << 16}};
        for (uint32_t i = thread_index(); i < RF_UPKEEP_VECTORS; i += threads) {
            if (first + i >= s->t.packs) {
                store_sys(vector_at(s, s->rank, first + i), v);
            }
        }
    }
}

/* Before the first look of a one-shot: until the link has had time for what this rank has stored.
 * A read waits behind those stores, so that a later look finds as soon what is there, and peers in
 * step need as long: an earlier one is in the way of the look that finds it. On two H200s 16 KiB
 * take 3.0 us instead of 3.4, 32 KiB 3.8 instead of 4.3, 64 KiB 5.5 instead of 5.7, 256 KiB 12.0
 * instead of 12.4 (packs of 12 bytes); for less there was nothing to gain, nor by pauses of 0.15 to
 * 0.5 us. Several looks in flight at a time make it 4.1 us instead of 3.0: a kernel ends when all
 * of its loads have come back. */
RF_DEVICE void wire_settle(const rf_shares *s)
{
    uint32_t sent = s->stride * s->unroll;
    uint32_t kib = (sent < s->t.packs ? sent : s->t.packs) / 64;
    if (kib >= RF_SETTLE_KIB) {
        pause(kib * s->t.p->kib_clocks);
    }
}

#endif
