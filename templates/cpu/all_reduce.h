/* All-reduce between ranks that map each other's channel region (templates/abi.h).
 *
 * A call is cut into steps, numbered through all calls of the channel; step s uses slot s % 2.
 *
 * One-shot: every rank copies its input to its slot and arrives; when all have arrived, each folds
 * all inputs, in rank order, its own from `in`.
 *
 * Two-shot: the step is cut into `world` parts of whole lines, part i owned by rank i. Every rank
 * copies what others own to its slot and arrives; when all have arrived, the owner folds its part,
 * stores the sum to `out` and over the inputs in the peers' slots, and answers; when all have
 * answered, each copies the other parts' sums from its own slot to `out`. Each line goes to its
 * owner and comes back; neither way is another copy of it left that a store would have to call in,
 * which is why this beats sums that wait in the owner's slot. A rank that owns nothing arrives and
 * answers like the others.
 *
 * Slots are free when they are used again. Step s stores to a slot that step s - 2 used. This rank
 * has finished step s - 1, so every rank has arrived at s - 1, so every rank has finished step
 * s - 2: it has folded what it read from our slot, stored to our slot what it owed us, and will do
 * neither again. With one slot, a slow rank may still read step s - 1. Where in its slot a step
 * lies (place_of) doesn't enter the argument.
 *
 * Order: what a rank stores before it publishes (release) is seen by whoever has read the sequence
 * number (acquire). Loads from slots come after the wait, by control flow and acquire. A rank that
 * reads early never happens: slots are read after the flag only.
 *
 * In place (in == out): a step's inputs are in the slots, or in registers (fold_turn), or own input
 * of a place not yet written, before `out` is written at that place. One-shot: place i of out is
 * written by the turn that read place i of in. Two-shot: out's own part likewise; the other parts
 * are written after the answers, and were staged before the arrival. Later steps touch other
 * places. */
#ifndef RANKFOLD_CPU_ALL_REDUCE_H
#define RANKFOLD_CPU_ALL_REDUCE_H

#include "cpu/fold.h"
#include "cpu/flags.h"

/* Offset in its slot of a step of `bytes`. Small steps move through the slot: a line that lies in
 * the nearest cache of its writer, shared with its readers, is slower to get back than one that has
 * moved on to the next cache. */
RF_INLINE uint64_t place_of(const rf_params *p, uint64_t sequence, uint64_t bytes)
{
    static const struct {
        uint32_t most, places, stride;
    } table[] = {{4096, 2, 16384}, {16384, 8, 16384}, {65536, 2, 65536}};
    uint64_t turn = sequence / RF_SLOTS;
    for (uint32_t i = 0; i < 3 && p->slot_bytes >= 131072; i++) {
        if (bytes <= table[i].most) {
            return (turn & (table[i].places - 1)) * table[i].stride;
        }
    }
    return 0;
}

RF_INLINE unsigned char *slot_of(const rf_params *p, uint32_t rank, uint64_t sequence,
                                 uint64_t bytes)
{
    return p->peer[rank] + RF_REGION_HEADER + (sequence & (RF_SLOTS - 1)) * p->slot_bytes +
           place_of(p, sequence, bytes);
}

/* A few elements travel with the flag. */
RF_INLINE int small_step(const rf_params *p, uint32_t world, uint64_t sequence,
                         const unsigned char *in, unsigned char *out, uint64_t bytes)
{
    uint64_t mine = 0;
    if (bytes == sizeof mine) {
        __builtin_memcpy(&mine, in, sizeof mine);
    } else {
        __builtin_memcpy(&mine, in, bytes);
    }
    arrive(p, sequence, mine);
    if (!await(p, world, sequence, RF_STEP_ARRIVE) || !same_call(p, world, sequence)) {
        return 0;
    }
    for (uint64_t at = 0; at < bytes; at += sizeof(rf_element)) {
        float sum = 0;
        UNROLL for (uint32_t r = 0; r < world; r++)
        {
            const uint64_t *from = r == p->rank ? &mine : &call_of(p, r, sequence)->small;
            rf_element e;
            __builtin_memcpy(&e, (const unsigned char *)from + at, sizeof e);
            sum = r == 0 ? element_widen(e) : sum + element_widen(e);
        }
        rf_element rounded = element_round(sum);
        __builtin_memcpy(out + at, &rounded, sizeof rounded);
    }
    return 1;
}

RF_INLINE int one_shot_step(const rf_params *p, rf_tactic t, uint64_t sequence,
                            const unsigned char *in, unsigned char *out, uint64_t bytes)
{
    rf_fold f;
    f.bytes = bytes, f.rank = p->rank, f.out = out;
    copy_lines(slot_of(p, p->rank, sequence, bytes), in, bytes);
    arrive(p, sequence, 0);
    f.slot[0] = slot_of(p, p->rank, sequence + 1, bytes);
    own_lines(&f, t, 0, lead_of(t));
    UNROLL for (uint32_t r = 0; r < t.world; r++)
    {
        f.from[r] = r == p->rank ? in : slot_of(p, r, sequence, bytes);
    }
    if (!await(p, t.world, sequence, RF_STEP_ARRIVE) || !same_call(p, t.world, sequence)) {
        return 0;
    }
    fold(&f, t);
    return 1;
}

RF_INLINE int two_shot_step(const rf_params *p, rf_tactic t, uint64_t sequence,
                            const unsigned char *in, unsigned char *out, uint64_t bytes)
{
    const uint64_t lines = (bytes + LINE - 1) / LINE, part = (lines + t.world - 1) / t.world * LINE;
    unsigned char *mine = slot_of(p, p->rank, sequence, bytes);
    uint64_t begin[RF_MAX_WORLD + 1];
    for (uint32_t r = 0; r <= t.world; r++) {
        begin[r] = r * part < bytes ? r * part : bytes;
    }
    for (uint32_t r = 0; r < t.world; r++) {
        if (r != p->rank) {
            copy_lines(mine + begin[r], in + begin[r], begin[r + 1] - begin[r]);
        }
    }
    arrive(p, sequence, 0);

    const uint64_t own = begin[p->rank];
    rf_fold f;
    f.bytes = begin[p->rank + 1] - own, f.rank = p->rank, f.out = out + own;
    UNROLL for (uint32_t r = 0; r < t.world; r++)
    {
        f.from[r] = (r == p->rank ? in : slot_of(p, r, sequence, bytes)) + own;
    }
    UNROLL for (uint32_t i = 0; i < t.world - 1; i++)
    {
        uint32_t peer = i < p->rank ? i : i + 1;
        f.slot[i] = slot_of(p, peer, sequence, bytes) + own;
    }
    if (!await(p, t.world, sequence, RF_STEP_ARRIVE) || !same_call(p, t.world, sequence)) {
        return 0;
    }
    own_lines(&f, t, 0, lead_of(t));
    fold(&f, t);
    publish(p, &region_of(p, p->rank)->answer, sequence);
    if (!await(p, t.world, sequence, RF_STEP_ANSWER)) {
        return 0;
    }
    for (uint32_t r = 0; r < t.world; r++) {
        if (r != p->rank) {
            collect(out + begin[r], mine + begin[r], begin[r + 1] - begin[r], t);
        }
    }
    return 1;
}

/* All steps of one call; stops at the first that fails. */
RF_INLINE void steps(const rf_params *p, rf_tactic t, rf_control *control)
{
    const uint64_t bytes = p->count * sizeof(rf_element), asked = (uint64_t)p->grid * 1024;
    const uint64_t most = asked < p->slot_bytes ? asked : p->slot_bytes;
    const unsigned char *in = p->in;
    unsigned char *out = p->out;
    uint64_t sequence = control->epoch;
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < most ? bytes - at : most;
        sequence++;
        int done = t.two_shot ? two_shot_step(p, t, sequence, in + at, out + at, n)
                   : n > 8    ? one_shot_step(p, t, sequence, in + at, out + at, n)
                              : small_step(p, t.world, sequence, in + at, out + at, n);
        if (!done) {
            break;
        }
        control->epoch = sequence;
    }
    if (t.streaming) {
        stream_fence();
    }
}

/* World 1: a rounding copy, which makes every NaN canonical. */
RF_INLINE void copy_alone(const rf_params *p, rf_tactic t)
{
    rf_fold f;
    f.bytes = p->count * sizeof(rf_element), f.rank = 0, f.out = p->out, f.from[0] = p->in;
    fold(&f, t);
    if (t.streaming) {
        stream_fence();
    }
}

RF_INLINE void all_reduce(const rf_params *p, rf_tactic t)
{
    rf_control *control = &region_of(p, p->rank)->control;
    if (__atomic_load_n(&control->poison, __ATOMIC_RELAXED)) {
        return; /* sticky; whoever poisoned has left the reason */
    }
    if (control->generation != p->generation) {
        p->host->fail(p, RF_FAULT_GENERATION, p->rank, RF_STEP_ENTRY, control->epoch,
                      control->generation, p->generation);
        return;
    }
    if (__atomic_exchange_n(&control->busy, 1, __ATOMIC_ACQUIRE)) {
        p->host->fail(p, RF_FAULT_BUSY, p->rank, RF_STEP_ENTRY, control->epoch, 0, 1);
        return;
    }
    if (t.world == 1) {
        copy_alone(p, t);
    } else {
        steps(p, t, control);
    }
    __atomic_store_n(&control->busy, 0, __ATOMIC_RELEASE);
}

#endif
