/* A waiter that sleeps on the futex of a flag, and the owner that publishes: no sleep is for ever.
 * The owner's store sits in its store buffer until it is drained (x86: any later load may overtake
 * it), unless a full barrier stands between the store and the look at `sleepers`. Rankfold has no
 * such barrier, and sleeps in slices instead. */
bit sequence, buffered, sleepers, asleep;

proctype owner() {
#ifdef NO_FENCE
    buffered = 1; /* a plain or release store */
#else
    sequence = 1; /* seq_cst: drained before the next load */
#endif
    if
    :: sleepers -> asleep = 0
    :: else
    fi
}

proctype store_buffer() {
end:
    do
    :: atomic { buffered -> buffered = 0; sequence = 1 }
    od
}

proctype waiter() {
    sleepers = 1; /* a locked instruction: its own barrier */
#ifdef LATE_COUNT /* broken: looks first, counts itself in afterwards */
    sleepers = 0;
    if
    :: sequence -> goto done
    :: else
    fi;
    sleepers = 1;
    asleep = 1;
#else
    /* futex_wait compares and goes to sleep in one step */
    if
    :: atomic { sequence == 0 -> asleep = 1 }
    :: sequence -> goto done
    fi;
#endif
#ifdef SLICES /* the sleep ends by itself, and the waiter looks again */
    sequence;
#else
    !asleep;
#endif
done:
    skip
}

init {
    atomic {
        run owner();
        run store_buffer();
        run waiter()
    }
}
