/* The cpu transport (templates/cpu/all_reduce.h): every rank owns a region of SLOTS slots and two
 * flags. It stores its input there; peers read it, and the owner of a word in a two-shot stores the
 * sum over it. Calls never end here: sequence numbers run modulo M, so that what
 * holds for this model holds for any number of calls. Each call is one-shot or two-shot over one or
 * two words, whichever the first rank to come picks: every mix of algorithms and sizes, and ranks
 * that own nothing. Stores of
 * one rank are seen in order (release and acquire on the flags). */
#ifndef WORLD
#define WORLD 2
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef ALGOS /* bit 0: one-shot, bit 1: two-shot */
#define ALGOS 3
#endif
#define WORDS 2 /* of a slot; word w belongs to rank w */
#define M 4 /* a multiple of SLOTS, and ranks are never two calls apart */

#define INPUT(k)          (1 + (k))
#define SUM(k)            (1 + M + (k))
#define OLD               M
#define REACHED(flag, k)  ((flag) != OLD && ((flag) + M - (k)) % M < M / 2)
#define WORD(rank, k, w)  data[((rank) * SLOTS + (k) % SLOTS) * WORDS + (w)]
#define RECORD(rank, k)   record[(rank) * SLOTS + (k) % SLOTS]
#define ONE_SHOT          1
#define TWO_SHOT          2

byte data[WORLD * SLOTS * WORDS]; /* what lies in a slot's word: INPUT or SUM of which call */
byte record[WORLD * SLOTS];       /* rf_flag.call: the call as announced */
byte arrive[WORLD], answer[WORLD]; /* of which call; OLD: of one that nobody can wait for */
byte algo[M], words[M]; /* the plan of each call, 0 = not picked yet */

inline pick(k) {
    atomic {
        if
        :: algo[k] == 0 ->
            algo[(k + M / 2) % M] = 0; /* a plan of two calls ago */
            words[(k + M / 2) % M] = 0;
            if
            :: ALGOS & ONE_SHOT -> algo[k] = ONE_SHOT
            :: ALGOS & TWO_SHOT -> algo[k] = TWO_SHOT
            fi;
            if
            :: words[k] = 1 /* fewer words than ranks: some own nothing */
            :: words[k] = WORDS
            fi
        :: else
        fi;
        if
        :: answer[me] == (k + M / 2) % M -> answer[me] = OLD
        :: else
        fi
    }
}

proctype rank(byte me) {
    byte k = 0, w, q;
    answer[me] = OLD;
    do
    ::  k = (k + 1) % M;
        pick(k);
        w = 0;
        do
        :: w < words[k] -> WORD(me, k, w) = INPUT(k); w++
        :: else -> break
        od;
        RECORD(me, k) = k;
        d_step {
            /* nobody reads behind the call's words: forget what earlier calls left there */
            do
            :: w < WORDS -> WORD(me, k, w) = 0; w++
            :: else -> break
            od
        }
        arrive[me] = k;
        q = 0;
        do
        :: q < WORLD && q != me ->
#ifndef NO_ARRIVE /* broken: the input of a peer is read without waiting for it */
            REACHED(arrive[q], k);
            assert(RECORD(q, k) == k);
#endif
            w = 0;
            do
            :: w < words[k] ->
                /* the owner of word w is rank w: part is 1 */
                assert(!(algo[k] == ONE_SHOT || w == me) || WORD(q, k, w) == INPUT(k));
                w++
            :: else -> break
            od;
            q++
        :: q < WORLD && q == me -> q++
        :: else -> break
        od;
        if
        :: algo[k] == TWO_SHOT ->
            /* the owner's sum goes over the inputs, into the slots of the others */
            q = 0;
            do
            :: me < words[k] && q < WORLD && q != me -> WORD(q, k, me) = SUM(k); q++
            :: me < words[k] && q < WORLD && q == me -> q++
            :: else -> break
            od;
            answer[me] = k;
            q = 0;
            do
            :: q < WORLD && q != me ->
#ifndef NO_ANSWER /* broken: the sum of an owner is read without waiting for it */
                REACHED(answer[q], k);
#endif
                assert(q >= words[k] || WORD(me, k, q) == SUM(k));
                q++
            :: q < WORLD && q == me -> q++
            :: else -> break
            od
        :: else
        fi
    od
}

init {
    atomic {
        byte r = 0;
        do
        :: r < WORLD -> run rank(r); r++
        :: else -> break
        od
    }
}
