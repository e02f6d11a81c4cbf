/* The inner loops: copying lines into and out of slots, and folding the inputs of all ranks. No
 * waiting here. All sizes and offsets are bytes. */
#ifndef RANKFOLD_CPU_FOLD_H
#define RANKFOLD_CPU_FOLD_H

/* Fixed at compile time: what a kernel is specialised for. */
typedef struct rf_tactic {
    uint32_t world;
    uint32_t hidden; /* count is a multiple of it; 0 = of anything */
    uint32_t unroll; /* vectors per turn of the loop */
    int two_shot;
    int streaming; /* non-temporal stores to out, where out is aligned to lines */
} rf_tactic;

#define LINE         64 /* bytes of one cache line */
#define VECTOR_BYTES (RF_LANES * sizeof(rf_element))
#define MOST_UNROLL  8

/* Loops over ranks and vectors vanish: both are constants. (clang needs no telling.) */
#if defined(__clang__)
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* Who reads a line, and then sees it written by another core, waits for the core that owns it; who
 * is going to write it asks for it ahead of time. (Stores do not overlap that wait well: a store to
 * a line that is shared starts it only when its turn comes.) */
RF_INLINE void own_line(const unsigned char *line)
{
    __builtin_prefetch(line, 1, 3);
}

RF_INLINE void copy_lines(unsigned char *to, const unsigned char *from, uint64_t bytes)
{
    uint64_t at = 0;
    for (; at + LINE <= bytes; at += LINE) {
        __builtin_memcpy(to + at, from + at, LINE);
    }
    __builtin_memcpy(to + at, from + at, bytes - at);
}

/* One fold. Slots may be read and written up to the end of their last vector, `own` input and `out`
 * may not; own may equal out. */
typedef struct rf_fold {
    uint64_t bytes;
    uint32_t rank;
    const unsigned char *from[RF_MAX_WORLD]; /* inputs in rank order; from[rank] is our own */
    unsigned char *out;
    unsigned char *slot[RF_MAX_WORLD - 1]; /* n_slots(t): two-shot: the peers', which receive the
                                              sum too; one-shot: our own of the next step */
} rf_fold;

RF_INLINE uint32_t n_slots(rf_tactic t)
{
    return t.two_shot ? t.world - 1 : t.world > 1;
}

/* How many bytes ahead slots are asked for: in a one-shot the first while the flags are under way,
 * so that both waits overlap. */
RF_INLINE uint64_t lead_of(rf_tactic t)
{
    return (t.two_shot ? 8 : 24) * LINE;
}

/* Asks for the lines of the slots from `at` on, as far as the fold goes. */
RF_INLINE void own_lines(const rf_fold *f, rf_tactic t, uint64_t at, uint64_t bytes)
{
    const uint64_t end = at + bytes < f->bytes ? at + bytes : f->bytes;
    for (; at < end; at += LINE) {
        UNROLL for (uint32_t i = 0; i < n_slots(t); i++)
        {
            own_line(f->slot[i] + at);
        }
    }
}

/* `vectors` vectors from `at` on: every load before any store, so that own may equal out. */
RF_INLINE void fold_turn(const rf_fold *f, rf_tactic t, uint32_t vectors, uint64_t at,
                         int streaming)
{
    rf_vector sum[MOST_UNROLL];
    UNROLL for (uint32_t v = 0; v < vectors; v++)
    {
        sum[v] = vector_load(f->from[0] + at + v * VECTOR_BYTES);
    }
    UNROLL for (uint32_t r = 1; r < t.world; r++)
    {
        UNROLL for (uint32_t v = 0; v < vectors; v++)
        {
            sum[v] = vector_add(sum[v], vector_load(f->from[r] + at + v * VECTOR_BYTES));
        }
    }
    UNROLL for (uint32_t v = 0; v < vectors; v++)
    {
        const rf_rounded rounded = vector_round(sum[v]);
        const uint64_t to = at + v * VECTOR_BYTES;
        if (t.two_shot) {
            UNROLL for (uint32_t i = 0; i < n_slots(t); i++)
            {
                vector_store(f->slot[i] + to, rounded);
            }
        }
        if (streaming) {
            vector_stream(f->out + to, rounded);
        } else {
            vector_store(f->out + to, rounded);
        }
    }
}

/* The last bytes, fewer than a vector: own and out by way of a vector of our own. */
RF_INLINE void fold_rest(const rf_fold *f, rf_tactic t, uint64_t at)
{
    unsigned char own[VECTOR_BYTES] = {0}, out[VECTOR_BYTES];
    rf_fold rest;
    __builtin_memcpy(own, f->from[f->rank] + at, f->bytes - at);
    UNROLL for (uint32_t r = 0; r < t.world; r++)
    {
        rest.from[r] = r == f->rank ? own : f->from[r] + at;
    }
    UNROLL for (uint32_t i = 0; i < n_slots(t); i++)
    {
        rest.slot[i] = f->slot[i] + at;
    }
    rest.out = out;
    fold_turn(&rest, t, 1, 0, 0);
    __builtin_memcpy(f->out + at, out, f->bytes - at);
}

RF_INLINE void fold_loop(const rf_fold *f, rf_tactic t, int streaming)
{
    const uint64_t turn = t.unroll * VECTOR_BYTES, lead = lead_of(t);
    uint64_t at = 0;
    for (; at + turn <= f->bytes; at += turn) {
        if (turn >= LINE || at % LINE == 0) {
            own_lines(f, t, at + lead, turn);
        }
        fold_turn(f, t, t.unroll, at, streaming);
    }
    if (!t.two_shot && t.hidden && t.hidden * sizeof(rf_element) % turn == 0) {
        return; /* whole rows are whole turns */
    }
    for (; t.unroll > 1 && at + VECTOR_BYTES <= f->bytes; at += VECTOR_BYTES) {
        fold_turn(f, t, 1, at, streaming);
    }
    if (VECTOR_BYTES > sizeof(rf_element) && at < f->bytes) {
        fold_rest(f, t, at);
    }
}

/* The first lines of the slots have been asked for by own_lines. */
RF_INLINE void fold(const rf_fold *f, rf_tactic t)
{
    if (t.streaming && (uintptr_t)f->out % LINE == 0) {
        fold_loop(f, t, 1);
    } else {
        fold_loop(f, t, 0);
    }
}

/* Sums out of our own slot, whose lines come back to us for the next step. */
RF_INLINE void collect(unsigned char *out, const unsigned char *slot, uint64_t bytes, rf_tactic t)
{
    const int stream = t.streaming && (uintptr_t)out % LINE == 0;
    const uint64_t lead = lead_of(t);
    uint64_t at;
    for (at = 0; at < bytes && at < lead; at += LINE) {
        own_line(slot + at);
    }
    for (at = 0; at + LINE <= bytes; at += LINE) {
        if (at + lead < bytes) {
            own_line(slot + at + lead);
        }
        if (stream) {
            UNROLL for (uint32_t v = 0; v < LINE; v += VECTOR_BYTES)
            {
                vector_stream(out + at + v, vector_reload(slot + at + v));
            }
        } else {
            __builtin_memcpy(out + at, slot + at, LINE);
        }
    }
    __builtin_memcpy(out + at, slot + at, bytes - at);
}

#endif
