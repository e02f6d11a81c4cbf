/* Peer transport of P3: stores go into the receiver's memory, each word separately delayed (in
 * order per word), receivers poll their own memory for words that are not EMPTY and re-arm what
 * they consumed. Re-arming stores are local but delayed too; they are done when the kernel retires.
 * COARSE, for four ranks: stores to peers arrive at once, over whatever is there (all of them are waited
 * for in the same call), and re-arming stores as late as can be, when the block ends. */
#ifndef SLOTS
#define SLOTS 2
#endif
#include "gpu.h"

#define N                  (WORLD * SLOTS * WORLD * PACKS)
#define WORD(dst, src, w)  ((((dst) * SLOTS + e % SLOTS) * WORLD + (src)) * PACKS + (w))

#ifdef SILENT /* broken: a rank that owns nothing in a two-shot does not send */
#define SENDS(rank, k) (algo[k] == ONE_SHOT || ((rank) % SHARERS(k)) * PART(k) < packs[k])
#else
#define SENDS(rank, k) true
#endif
#define PARTNER        ((me + WORLD / 2) % WORLD)
#define SAME(q)        (algo[k] != ISLANDS || (q) / (WORLD / 2) == me / (WORLD / 2))

byte memory[N];
byte flying[N], behind[N]; /* stores on the way to each word, in order */
bit clear[N];              /* a re-arming store on the way */
#ifdef NEXT_CALL
bit stale[N]; /* consumed, not re-armed yet */
#endif

inline store(a, v) {
    if
#ifdef COARSE
    :: true -> memory[a] = v
#else
    :: flying[a] == EMPTY -> flying[a] = v
    :: else -> assert(behind[a] == EMPTY /* the model's queue is too short */); behind[a] = v
#endif
    fi
}

proctype wire(byte a; byte dst) {
end:
    do
    :: d_step { flying[a] != EMPTY -> memory[a] = flying[a]; flying[a] = behind[a]; behind[a] = EMPTY }
    :: d_step { clear[a] -> memory[a] = EMPTY; clear[a] = 0; pending[dst]-- }
    od
}

/* Waits for the word of `src`, checks it, re-arms it. */
inline take(src, w, expected) {
#ifdef COARSE
    atomic {
#endif
    memory[WORD(me, src, w)] != EMPTY;
    d_step {
        assert(memory[WORD(me, src, w)] == expected);
#ifdef NEXT_CALL
        stale[WORD(me, src, w)] = 1
#else
        clear[WORD(me, src, w)] = 1;
#ifndef COARSE
        pending[me]++
#endif
#endif
    }
#ifdef COARSE
    }
#endif
}

#ifdef NEXT_CALL
inline rearm() {
    w = 0;
    do
    :: w < N / WORLD ->
        if
        :: stale[me * (N / WORLD) + w] && w % grid[k] == b ->
            stale[me * (N / WORLD) + w] = 0;
            clear[me * (N / WORLD) + w] = 1;
            pending[me]++
        :: else
        fi;
        w++
    :: else -> break
    od
}
#endif

proctype block(byte me; byte b) {
    byte k, e, w, q;
    do
    :: atomic { busy[me] & (1 << b) -> k = call[me] }
#ifdef COARSE
        atomic {
#endif
#ifdef NO_ENTRY_BARRIER /* broken: the epoch is read after another block may have advanced it */
        arrive();
        enter();
#else
        enter();
#endif
        d_step { /* the first push; the stores fly separately */
#ifdef NEXT_CALL
            rearm();
#endif
            w = 0;
            do
            :: w < packs[k] ->
                q = 0;
                do
                :: q < WORLD ->
                    if
                    :: q != me && SAME(q) && MINE(k, w) && SENDS(me, k) && (algo[k] == ONE_SHOT || OWNER(k, w) == q) ->
                        store(WORD(q, me, w), INPUT(k))
                    :: else
                    fi;
                    q++
                :: else -> break
                od;
                w++
            :: else -> break
            od;
            w = 0;
            q = 0
        }
#ifndef NO_ENTRY_BARRIER
        arrive();
#endif
#ifdef COARSE
        }
#endif
        /* own packs of a two-shot, or all packs of a one-shot */
        do
        :: w < packs[k] && (!MINE(k, w) || (algo[k] != ONE_SHOT && OWNER(k, w) != me)) -> w++
        :: w < packs[k] && MINE(k, w) && (algo[k] == ONE_SHOT || OWNER(k, w) == me) ->
            do
            :: q < WORLD && (q == me || !SAME(q)) -> q++
            :: q < WORLD && q != me && SAME(q) ->
                if
                :: SENDS(q, k) -> take(q, w, INPUT(k))
                :: else
                fi;
                q++
            :: else -> break
            od;
            q = 0;
            if
            :: algo[k] == ISLANDS ->
                d_step { store(WORD(PARTNER, me, w), HALF(k)) }
#ifndef DEAF /* broken: nobody waits for the other island */
                take(PARTNER, w, HALF(k))
#endif
            :: else
            fi;
            d_step { /* the second push, if any */
                do
                :: q < WORLD ->
                    if
                    :: q != me && SAME(q) && algo[k] != ONE_SHOT -> store(WORD(q, me, w), SUM(k))
                    :: else
                    fi;
                    q++
                :: else -> break
                od;
                q = 0
            }
            w++
        :: else -> break
        od;
        w = 0;
        do
        :: algo[k] != ONE_SHOT && w < packs[k] ->
            if
            :: MINE(k, w) && OWNER(k, w) != me -> take(OWNER(k, w), w, SUM(k))
            :: else
            fi;
            w++
        :: else -> break
        od;
#ifdef COARSE
        w = 0;
        d_step {
            do
            :: w < N / WORLD ->
                if
                :: clear[me * (N / WORLD) + w] -> memory[me * (N / WORLD) + w] = EMPTY; clear[me * (N / WORLD) + w] = 0
                :: else
                fi;
                w++
            :: else -> break
            od;
            w = 0
        }
#endif
        atomic { w = 0; busy[me] = busy[me] & ~(1 << b) }
    od
}

init {
    atomic {
        byte r = 0, i = 0;
        do
        :: r < WORLD ->
            run stream(r);
            i = 0;
            do
            :: i < BLOCKS -> run block(r, i); i++
            :: else -> break
            od;
            i = 0;
            do
            :: i < N / WORLD ->
                if
#ifdef COARSE
                :: false -> skip
#else
                :: (i / PACKS) % WORLD != r -> run wire(r * (N / WORLD) + i, r)
#endif
                :: else
                fi;
                i++
            :: else -> break
            od;
            r++
        :: else -> break
        od
    }
}
