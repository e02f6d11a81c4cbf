/* Announcing a step and waiting for the others to announce theirs. */
#ifndef RANKFOLD_CPU_FLAGS_H
#define RANKFOLD_CPU_FLAGS_H

RF_INLINE rf_region *region_of(const rf_params *p, uint32_t rank)
{
    return (rf_region *)(void *)p->peer[rank];
}

/* Everything stored before is visible to whoever reads `sequence` from the flag. Nothing keeps the
 * look at `sleepers` behind the store: a waiter that falls asleep just now may be missed, and finds
 * out by itself (host->wait sleeps in slices). A fence here would cost every call. */
RF_INLINE void publish(const rf_params *p, rf_flag *flag, uint64_t sequence)
{
    __atomic_store_n(&flag->sequence, sequence, __ATOMIC_RELEASE);
    if (__builtin_expect(__atomic_load_n(&flag->sleepers, __ATOMIC_RELAXED) != 0, 0)) {
        p->host->wake(flag);
    }
}

RF_INLINE void arrive(const rf_params *p, uint64_t sequence, uint64_t small)
{
    rf_flag *flag = &region_of(p, p->rank)->arrive;
    flag->call[sequence & (RF_SLOTS - 1)] = (rf_call){p->count, p->tag, small};
    publish(p, flag, sequence);
}

RF_INLINE rf_flag *flag_of(const rf_params *p, uint32_t rank, rf_step step)
{
    rf_region *region = region_of(p, rank);
    return step == RF_STEP_ARRIVE ? &region->arrive : &region->answer;
}

RF_INLINE int reached(const rf_params *p, uint32_t rank, uint64_t sequence, rf_step step)
{
    return __atomic_load_n(&flag_of(p, rank, step)->sequence, __ATOMIC_ACQUIRE) >= sequence;
}

/* Waits until every other rank's flag has reached `sequence`: 1, or 0 when the channel is poisoned.
 * All flags are loaded in each turn, so that their ways here overlap. */
RF_INLINE int await(const rf_params *p, uint32_t world, uint64_t sequence, rf_step step)
{
    for (uint32_t polls = 0; polls <= p->host->spin; polls++) {
        int all = 1;
        UNROLL for (uint32_t r = 0; r < world; r++)
        {
            all &= r == p->rank || reached(p, r, sequence, step);
        }
        if (__builtin_expect(all, 1)) {
            return 1;
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    for (uint32_t r = 0; r < world; r++) {
        if (r != p->rank && !reached(p, r, sequence, step) &&
            p->host->wait(p, r, flag_of(p, r, step), sequence, step) != 0) {
            return 0;
        }
    }
    return 1;
}

RF_INLINE const rf_call *call_of(const rf_params *p, uint32_t rank, uint64_t sequence)
{
    return &region_of(p, rank)->arrive.call[sequence & (RF_SLOTS - 1)];
}

/* Did every rank make the same call? A record stays until its rank's step after next, which needs
 * our next arrival. */
RF_INLINE int same_call(const rf_params *p, uint32_t world, uint64_t sequence)
{
    for (uint32_t r = 0; r < world; r++) {
        const rf_call *call = call_of(p, r, sequence);
        if (r == p->rank) {
            continue;
        }
        if (call->count != p->count) {
            p->host->fail(p, RF_FAULT_MISMATCH, r, RF_STEP_ARRIVE, sequence, p->count, call->count);
            return 0;
        }
        if (call->tag != p->tag) {
            p->host->fail(p, RF_FAULT_MISMATCH, r, RF_STEP_ARRIVE, sequence, p->tag, call->tag);
            return 0;
        }
    }
    return 1;
}

#endif
