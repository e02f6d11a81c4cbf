/* Host-staged transport of P3: a rank stores once into its own words of pinned host memory, and the
 * others poll them there. Stores are delayed, in order per word only (ORDERED: altogether), and
 * complete when the kernel retires (NO_FLUSH: not even then).
 *
 * Sentinel wire: on entry and before its push a rank re-arms what it wrote two calls ago. With
 * EPOCH_WIRE every word carries its call's epoch instead (wire tag), and nothing is re-armed.
 *
 * Word w of source src in a slot: the source's input, or the sum if the source owns w in a two-shot. */
#ifndef SLOTS
#define SLOTS 4
#endif
#include "gpu.h"

#define N             (WORLD * SLOTS * PACKS)
#define WORD(src, w)  (((src) * SLOTS + e % SLOTS) * PACKS + (w))

byte memory[N];
#ifdef ORDERED
#define WIRES 1
chan flying[WORLD] = [2 * PACKS + 1] of {byte, byte}; /* stores on the way: word, value */
#else
#define WIRES (N / WORLD) /* per rank */
byte flying[N], behind[N], last[N]; /* stores on the way to each word, in order: value + 1 */
#endif
#ifndef EPOCH_WIRE
bit wrote[N]; /* the extent of the call that used the slot last */
#endif

#ifdef ORDERED
inline store(a, v) {
    assert(nfull(flying[me]) /* else the model's queue is too short */);
    flying[me]!a, v;
    pending[me]++
}

proctype wire(byte src; byte first) {
    byte a;
end:
    do
    :: d_step { flying[src]?a, memory[a]; pending[src]--; a = 0 }
    od
}
#else
inline store(a, v) {
    if
    :: flying[a] == 0 -> flying[a] = (v) + 1
    :: flying[a] != 0 && behind[a] == 0 -> behind[a] = (v) + 1
    :: else -> assert(last[a] == 0 /* else the model's queue is too short */); last[a] = (v) + 1
    fi;
#ifndef NO_FLUSH
    pending[me]++
#endif
}

proctype wire(byte src; byte a) {
end:
    do
    :: d_step {
        flying[a] != 0 ->
            memory[a] = flying[a] - 1;
            flying[a] = behind[a];
            behind[a] = last[a];
            last[a] = 0;
#ifndef NO_FLUSH
            pending[src]--
#endif
       }
    od
}
#endif

#ifdef EPOCH_WIRE
#define CALL_OF(v)           (((v) - 1) % M)
#define HERE(v, expected)    ((v) != EMPTY && (CALL_OF(v) + M - CALL_OF(expected)) % M < M / 2)
#define PUSH(w, v)           store(WORD(me, w), v)
#else
#define HERE(v, expected)    ((v) != EMPTY)
#define PUSH(w, v)           wrote[WORD(me, w)] = 1; store(WORD(me, w), v)
#endif

inline take(src, w, expected) {
    d_step { HERE(memory[WORD(src, w)], expected) -> assert(memory[WORD(src, w)] == expected) }
}

#ifndef EPOCH_WIRE
/* Blocks share a slot's words by number, whatever the grid of the earlier call was. */
#ifdef LATE_REARM /* broken: what the last call wrote, behind the polls of this one, in which a block may have received nothing */
#define BEFORE(w) ((me * SLOTS + (e + M - 1) % SLOTS) * PACKS + (w))
#else
#define BEFORE(w) ((me * SLOTS + (e + M - 2) % SLOTS) * PACKS + (w))
#endif
inline rearm() {
    w = 0;
    do
    :: w < PACKS ->
        if
#ifdef THIS_EXTENT /* broken: as many as this call has, instead of as many as that call had */
        :: w % grid[k] == b && w < packs[k] && wrote[BEFORE(w)] ->
#else
        :: w % grid[k] == b && wrote[BEFORE(w)] ->
#endif
            wrote[BEFORE(w)] = 0;
            store(BEFORE(w), EMPTY)
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
        enter();
        d_step {
#ifdef EPOCH_WIRE
            /* Real epochs have 32 bits: nothing two calls old looks like a later call. */
            w = me * (N / WORLD);
            do
            :: w < (me + 1) * (N / WORLD) ->
                if
                :: memory[w] != EMPTY && CALL_OF(memory[w]) == (k + M / 2) % M -> memory[w] = EMPTY
                :: else
                fi;
                w++
            :: else -> break
            od;
#endif
#if !defined(EPOCH_WIRE) && !defined(LATE_REARM)
            rearm();
#endif
            w = 0;
            do
            :: w < packs[k] ->
                if
                :: MINE(k, w) && (algo[k] == ONE_SHOT || OWNER(k, w) != me) -> PUSH(w, INPUT(k))
                :: else
                fi;
                w++
            :: else -> break
            od;
            w = 0;
            q = 0
        }
        arrive();
        do
        :: w < packs[k] && (!MINE(k, w) || (algo[k] == TWO_SHOT && OWNER(k, w) != me)) -> w++
        :: w < packs[k] && MINE(k, w) && (algo[k] == ONE_SHOT || OWNER(k, w) == me) ->
            do
            :: q < WORLD && q == me -> q++
            :: q < WORLD && q != me -> take(q, w, INPUT(k)); q++
            :: else -> break
            od;
            q = 0;
            d_step {
                if
                :: algo[k] == TWO_SHOT -> PUSH(w, SUM(k))
                :: else
                fi
            }
            w++
        :: else -> break
        od;
        w = 0;
        do
        :: algo[k] == TWO_SHOT && w < packs[k] ->
            if
            :: MINE(k, w) && OWNER(k, w) != me -> take(OWNER(k, w), w, SUM(k))
            :: else
            fi;
            w++
        :: else -> break
        od;
        w = 0;
#ifdef LATE_REARM
        d_step { rearm(); w = 0 }
#endif
        atomic { busy[me] = busy[me] & ~(1 << b) }
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
            :: i < WIRES -> run wire(r, r * WIRES + i); i++
            :: else -> break
            od;
            r++
        :: else -> break
        od
    }
}
