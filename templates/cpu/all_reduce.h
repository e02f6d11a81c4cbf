/* All-reduce between ranks that map each other's channel region. */
#ifndef RANKFOLD_CPU_ALL_REDUCE_H
#define RANKFOLD_CPU_ALL_REDUCE_H

#include "abi.h"
#include "cpu/vector.h"

RF_INLINE rf_region *region_of(const rf_params *p, uint32_t rank)
{
    return (rf_region *)(void *)p->peer[rank];
}

RF_INLINE rf_element *slot_of(const rf_params *p, uint32_t rank, uint64_t sequence)
{
    return (rf_element *)(void *)(p->peer[rank] + RF_REGION_HEADER +
                                  (sequence & (RF_SLOTS - 1)) * p->slot_bytes);
}

RF_INLINE void publish(const rf_params *p, rf_flag *flag, uint64_t sequence)
{
    rf_call *call = &flag->call[sequence & (RF_SLOTS - 1)];
    call->count = p->count;
    call->tag = p->tag;
    __atomic_store_n(&flag->sequence, sequence, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&flag->sleepers, __ATOMIC_RELAXED)) {
        p->host->wake(flag);
    }
}

RF_INLINE int await(const rf_params *p, uint32_t peer, rf_flag *flag, uint64_t sequence,
                    rf_step step)
{
    for (uint32_t i = 0; __atomic_load_n(&flag->sequence, __ATOMIC_ACQUIRE) < sequence; i++) {
        if (i == p->host->spin) {
            return p->host->wait(p, peer, flag, sequence, step);
        }
        __builtin_ia32_pause();
    }
    return 0;
}

RF_INLINE int same_call(const rf_params *p, uint32_t peer, const rf_flag *flag, uint64_t sequence)
{
    const rf_call *call = &flag->call[sequence & (RF_SLOTS - 1)];
    if (call->count != p->count) {
        p->host->fail(p, RF_FAULT_MISMATCH, peer, RF_STEP_ARRIVE, sequence, p->count, call->count);
        return 0;
    }
    if (call->tag != p->tag) {
        p->host->fail(p, RF_FAULT_MISMATCH, peer, RF_STEP_ARRIVE, sequence, p->tag, call->tag);
        return 0;
    }
    return 1;
}

RF_INLINE int one_shot_step(const rf_params *p, uint32_t world, uint64_t sequence,
                            const rf_element *in, rf_element *out, uint64_t n)
{
    rf_element *mine = slot_of(p, p->rank, sequence);
    for (uint64_t i = 0; i < n; i++) {
        mine[i] = in[i];
    }
    publish(p, &region_of(p, p->rank)->arrive, sequence);
    const rf_element *from[RF_MAX_WORLD];
    for (uint32_t r = 0; r < world; r++) {
        rf_flag *flag = &region_of(p, r)->arrive;
        from[r] = r == p->rank ? in : slot_of(p, r, sequence);
        if (r != p->rank && (await(p, r, flag, sequence, RF_STEP_ARRIVE) != 0 ||
                             !same_call(p, r, flag, sequence))) {
            return 0;
        }
    }
    for (uint64_t i = 0; i < n; i++) {
        rf_vector sum = vector_load(from[0] + i);
        for (uint32_t r = 1; r < world; r++) {
            sum = vector_add(sum, vector_load(from[r] + i));
        }
        vector_store(out + i, sum);
    }
    return 1;
}

RF_INLINE void all_reduce_os(const rf_params *p, uint32_t world, uint32_t hidden, uint32_t unroll,
                             int streaming)
{
    (void)hidden, (void)unroll, (void)streaming;
    rf_control *control = &region_of(p, p->rank)->control;
    if (__atomic_load_n(&control->poison, __ATOMIC_RELAXED)) {
        return;
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
    uint64_t step = (uint64_t)p->grid * 1024;
    step = (step < p->slot_bytes ? step : p->slot_bytes) / sizeof(rf_element);
    for (uint64_t at = 0; at < p->count; at += step) {
        uint64_t n = p->count - at < step ? p->count - at : step;
        if (!one_shot_step(p, world, control->epoch + 1, (const rf_element *)p->in + at,
                           (rf_element *)p->out + at, n)) {
            break;
        }
        control->epoch++;
    }
    __atomic_store_n(&control->busy, 0, __ATOMIC_RELEASE);
}

#endif
