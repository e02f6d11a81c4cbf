/* Ring (templates/cuda/ring.cuh): one lane. In each turn a rank, which has stored a chunk into its own
 * buffer of WINDOW chunks, waits at the block's barrier for what its peers announced LAG turns ago. Then
 * the announcer fences and raises the flag, while the workers store the next chunk, read the peers' chunk
 * of then, and in a two-shot, where they store the sum of that, the peers' sums of 2 LAG + 1 turns ago. A
 * lane of one chunk has a LAG of 1; turns that stored nothing are not announced. Calls take the halves of
 * the buffer in turns; how many chunks and which algorithm, the first rank to come picks. Calls never end:
 * epochs run modulo M.
 *
 * Stores are delayed, in any order but that of one word; a kernel ends when they are complete. Flags lie in
 * host memory, where all see a rank's own at once, or with PUSHED in each reader's memory, where they
 * arrive one by one, perhaps after the kernel's end. */
#ifndef WORLD
#define WORLD 2
#endif
#ifndef LAG
#define LAG 1
#endif
#ifndef WINDOW
#define WINDOW (2 * LAG + 2)
#endif
#ifndef HALVES
#define HALVES 2
#endif
#ifndef CHUNKS /* most of a call; a call has 1 or so many */
#define CHUNKS (WINDOW + 1)
#endif
#ifndef ALGOS
#define ALGOS 3
#endif
#define ONE_SHOT 1
#define TWO_SHOT 2
#define M        4 /* a multiple of HALVES, and ranks are never two calls apart */

/* Piece o of a chunk is what owner o reads; of the own copy, the sum. A one-shot has one piece. */
#if ALGOS == 1
#define PIECES 1
#else
#define PIECES WORLD
#endif
#define WORDS         (HALVES * WINDOW * PIECES) /* of a rank */
#define AT(q, c, o)   ((((q) * HALVES + k % HALVES) * WINDOW + (c) % WINDOW) * PIECES + (o))
#define INPUT(c)      (1 + ((k * CHUNKS + (c)) * 2))
#define SUM(c)        (2 + ((k * CHUNKS + (c)) * 2))
#define FLAG(reader, writer) ((reader) * WORLD + (writer))
#define REACHED(q)    ((q) == me || call[FLAG(me, q)] == k && turns[FLAG(me, q)] > t - lag || \
                       call[FLAG(me, q)] == (k + 1) % M)
#define SPEAKS(t)     ((t) < chunks[k] || algo[k] == TWO_SHOT && (t) > lag && (t) <= chunks[k] + lag)
#define ALL_REACHED   (t < lag || !SPEAKS(t - lag) || REACHED(0) && REACHED(1) && REACHED(WORLD - 1))

byte algo[M], chunks[M]; /* the plan of each call, 0 = not picked yet */
byte memory[WORLD * WORDS];
byte flying[WORLD * WORDS], behind[WORLD * WORDS]; /* stores on the way to each word, in order */
bit fenced[WORLD * WORDS];      /* the announcer waits for the first of them */
byte call[WORLD * WORLD], turns[WORLD * WORLD]; /* flags as readers see them: of which call, how many turns */
byte to_call[WORLD], raise[WORLD]; /* what the announcer is to raise its flags to, 0 = nothing */
#ifdef PUSHED
byte new_call[WORLD * WORLD], new_turns[WORLD * WORLD]; /* flags on the way, the last of each; 0 = none */
#endif
byte fencing[WORLD], pending[WORLD]; /* stores that the announcer waits for; all of them */

inline store(a, v) {
    pending[me]++;
    if
    :: flying[a] == 0 -> flying[a] = v
    :: else -> assert(behind[a] == 0 /* else the model's queue is too short */); behind[a] = v
    fi
}

proctype wire(byte src; byte a) {
end:
    do
    :: d_step {
        flying[a] != 0 ->
            memory[a] = flying[a];
            flying[a] = behind[a];
            behind[a] = 0;
            fencing[src] = fencing[src] - fenced[a];
            fenced[a] = 0;
            pending[src]--
       }
    od
}

inline announce() {
    i = 0;
    do
    :: i < WORLD ->
#ifdef PUSHED
        new_call[FLAG(i, me)] = to_call[me];
        new_turns[FLAG(i, me)] = raise[me];
#else
        call[FLAG(i, me)] = to_call[me];
        turns[FLAG(i, me)] = raise[me];
#endif
        i++
    :: else -> break
    od;
    i = 0;
    raise[me] = 0
}

proctype announcer(byte me) {
    byte i;
end:
    do
#ifdef NO_FENCE /* broken: the flag overtakes the chunk */
    :: d_step { raise[me] != 0 -> announce() }
#else
    :: d_step { raise[me] != 0 && fencing[me] == 0 -> announce() }
#endif
    od
}

#ifdef PUSHED
/* A flag that a later one has overtaken on the way is not seen, which is a schedule of its own. */
proctype link(byte flag) {
end:
    do
    :: d_step {
        new_turns[flag] != 0 ->
            call[flag] = new_call[flag];
            turns[flag] = new_turns[flag];
            new_turns[flag] = 0
       }
    od
}
#endif

inline pick() {
    atomic {
        k = (k + 1) % M;
        if
        :: chunks[k] == 0 ->
            chunks[(k + M / 2) % M] = 0;
            if
            :: ALGOS & ONE_SHOT -> algo[k] = ONE_SHOT
            :: ALGOS & TWO_SHOT -> algo[k] = TWO_SHOT
            fi;
            if
            :: chunks[k] = 1
            :: chunks[k] = CHUNKS
            fi
        :: else
        fi;
        lag = (chunks[k] == 1 -> 1 : LAG);
        announced = (algo[k] == ONE_SHOT -> chunks[k] : chunks[k] + lag + 1);
        t = 0;
        i = 0;
        do /* nobody reads what was there two calls ago */
        :: i < WINDOW * PIECES -> memory[AT(me, 0, 0) + i] = 0; i++
        :: else -> break
        od;
        i = 0
    }
}

inline send(c) {
    d_step {
        q = 0;
        do
        :: c < chunks[k] && q < PIECES ->
            if
            :: (algo[k] == ONE_SHOT && q == 0) || (algo[k] == TWO_SHOT && q != me) -> store(AT(me, c, q), INPUT(c))
            :: else
            fi;
            q++
        :: else -> break
        od;
        q = 0
    }
}

inline barrier() {
    d_step {
        raise[me] == 0 && ALL_REACHED ->
            if
            :: SPEAKS(t) ->
                do
                :: i < WORDS ->
                    fenced[me * WORDS + i] = flying[me * WORDS + i] != 0;
                    fencing[me] = fencing[me] + fenced[me * WORDS + i];
                    i++
                :: else -> break
                od;
                to_call[me] = k;
                raise[me] = t + 1
            :: else
            fi;
            i = 0
    }
}

inline reduce(c) {
    d_step {
        do
        :: q < WORLD ->
            assert(q == me || memory[AT(q, c, (algo[k] == ONE_SHOT -> 0 : me))] == INPUT(c));
            q++
        :: else -> break
        od;
        q = 0;
        if
        :: algo[k] == TWO_SHOT -> store(AT(me, c, me), SUM(c))
        :: else
        fi
    }
}

inline gather(c) {
    d_step {
        do
        :: q < WORLD -> assert(q == me || memory[AT(q, c, q)] == SUM(c)); q++
        :: else -> break
        od;
        q = 0
    }
}

proctype workers(byte me) {
    byte k, t, q, i, announced, lag;
    do
    ::  pick();
        send(0);
        do
        :: t < announced + lag ->
            barrier();
            send(t + 1);
            if
            :: t >= lag && t - lag < chunks[k] -> reduce(t - lag)
            :: else
            fi;
            if
            :: algo[k] == TWO_SHOT && t > 2 * lag -> gather(t - 2 * lag - 1)
            :: else
            fi;
            t++
        :: else -> break
        od;
        atomic { raise[me] == 0 && pending[me] == 0 -> t = 0 }
    od
}

init {
    atomic {
        byte r = 0, a = 0;
        do
        :: r < WORLD ->
            run workers(r);
            run announcer(r);
#ifdef PUSHED
            a = 0;
            do
            :: a < WORLD ->
                if
                :: a != r -> run link(FLAG(a, r))
                :: else
                fi;
                a++
            :: else -> break
            od;
#endif
            a = 0;
            do
            :: a < WORDS -> run wire(r, r * WORDS + a); a++
            :: else -> break
            od;
            r++
        :: else -> break
        od
    }
}
