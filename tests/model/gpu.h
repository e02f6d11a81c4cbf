/* What the models of the GPU transports share: calls, kernels and blocks. Included by peer.pml and
 * host.pml, which say what a store to another rank is.
 *
 * A kernel starts when its predecessor on the same rank has retired; its blocks run independently.
 * Calls never end: epochs run modulo M. Each call's algorithm, packs and grid are whatever the first
 * rank to come picks, so that every mix is covered, also fewer packs than ranks or blocks. */
#ifndef WORLD
#define WORLD 2
#endif
#ifndef BLOCKS /* most blocks of a call */
#define BLOCKS 1
#endif
#ifndef PACKS /* most packs of a call */
#define PACKS 2
#endif
#ifndef ONE_SIZE /* all calls have PACKS packs */
#define ONE_SIZE 0
#endif
#ifndef ALGOS
#define ALGOS 3
#endif
#define ONE_SHOT 1
#define TWO_SHOT 2
#define ISLANDS  4 /* peer.pml only: ranks 0 to WORLD / 2 - 1, and the others */

/* A multiple of SLOTS, so large that neither a rank in the previous call nor a stale word is taken for this call's. */
#if SLOTS == 1
#define M 4
#else
#define M (2 * SLOTS)
#endif
#define EMPTY    0 /* the sentinel, and "nothing on the way" */
#define INPUT(k) (1 + (k))
#define SUM(k)   (1 + M + (k))
#define HALF(k)  (1 + 2 * M + (k)) /* an island's sum */

byte algo[M], packs[M], grid[M]; /* the plan of each call */
byte call[WORLD];                /* that the rank's running kernel belongs to */
byte busy[WORLD];                /* bit per block that still runs */
byte epoch[WORLD], arrived[WORLD];
byte pending[WORLD]; /* stores that have to be complete before the rank's kernel retires */

inline pick(k) {
    if
    :: algo[k] == 0 ->
        algo[(k + M / 2) % M] = 0;
        if
        :: ALGOS & ONE_SHOT -> algo[k] = ONE_SHOT
        :: ALGOS & TWO_SHOT -> algo[k] = TWO_SHOT
        :: ALGOS & ISLANDS -> algo[k] = ISLANDS
        fi;
        if
        :: packs[k] = PACKS
        :: PACKS > 1 && !ONE_SIZE -> packs[k] = 1
        fi;
        if
        :: grid[k] = BLOCKS
        :: BLOCKS > 1 -> grid[k] = 1
        fi
    :: else
    fi
}

/* Runs the calls of one rank. */
proctype stream(byte me) {
    do
    :: atomic {
        busy[me] == 0 && pending[me] == 0 ->
            call[me] = (call[me] + 1) % M;
            pick(call[me]);
            busy[me] = (1 << grid[call[me]]) - 1
       }
    od
}

#define SHARERS(k)  (algo[k] == ISLANDS -> WORLD / 2 : WORLD)
#define PART(k)     ((packs[k] + SHARERS(k) - 1) / SHARERS(k))
#define OWNER(k, w) ((w) / PART(k) + me - me % SHARERS(k)) /* on the own island */
/* The block that handles pack w in both phases. */
#define MINE(k, w)  ((algo[k] == ONE_SHOT -> (w) : (w) % PART(k)) % grid[k] == b)

inline arrive() {
    d_step {
        arrived[me]++;
        if
        :: arrived[me] == grid[k] -> arrived[me] = 0; epoch[me] = (epoch[me] + 1) % M
        :: else
        fi
    }
}

/* e: the epoch that this block goes by. */
inline enter() {
#ifdef PER_BLOCK_EPOCH /* broken: hangs when the grid changes */
    e = (e + 1) % M
#else
    e = (epoch[me] + 1) % M
#endif
}
