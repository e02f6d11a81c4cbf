/* How decisions follow from measurements. Pure: the same facts give the same choices, whatever the
 * order in which they reached the database. */
#ifndef RANKFOLD_FOLD_H
#define RANKFOLD_FOLD_H

#include "core/hash.h"
#include "store/store.h"

typedef struct rfi_candidate {
    char name[RFI_NAME];
    unsigned char hash[16];
    uint32_t grid;
    unsigned flags; /* of the variant */
    rfi_outcome outcome;
    double median_ns, noise_ns;
} rfi_candidate;

/* One shape in one campaign. */
typedef struct rfi_trial {
    char campaign[RFI_HEX], env[RFI_HEX];
    uint32_t shape_no;
    uint64_t rows, hidden;
    unsigned admits;     /* opt-ins of the campaign */
    int swept;           /* completely measured */
    size_t first, count; /* its candidates, in the order they were measured */
} rfi_trial;

/* Indices into the fold's input. */
typedef struct rfi_choice {
    size_t trial;                          /* the sweep that made or confirmed it */
    const rfi_candidate *best, *runner_up; /* runner_up NULL: there was no other */
    const rfi_candidate *baseline;         /* whatever its outcome; NULL: not measured */
} rfi_choice;

/* Is `challenger` faster than `incumbent` beyond the noise of the two? */
int rfi_beats(const rfi_candidate *challenger, const rfi_candidate *incumbent);

/* How far back measurements count for a sweep: complete sweeps of its shape, from itself on
 * backwards in time, are told to this one after the other, for the candidates with `flags`. 1 =
 * what is from this one or from before it is settled, and counts no more: it admitted all that one
 * of those after it did, which therefore measured anew. *looked is 0 at the start, and remembers.
 */
int rfi_settles(unsigned *looked, unsigned flags, unsigned admits);

/* Folds the trials of one key, sorted by (start of the campaign, campaign, shape_no), for a caller
 * that admits `admits`; candidates are in trial order. out has room for n: one choice per
 * environment, sorted by environment. Returns their number; SIZE_MAX: out of memory.
 *
 * The rule:
 *  - A sweep is judged when it is complete, for every subset of what it admitted, among the
 *    candidates that the subset admits. They are what was measured at this shape in this
 *    environment since the last complete sweep there (so a killed session counts), the latest
 *    measurement of each (name, grid). One that admitted less did not look at all of them: it
 *    counts like a killed session (rfi_settles).
 *  - Medians of different sweeps are never compared: shape, weather and build differ. The incumbent
 *    is judged by its own measurement in this very sweep, under the same name and grid.
 *  - It stays unless the fastest beats it beyond the noise (rfi_beats). If it failed in this sweep
 *    or isn't in it, it is gone, and the fastest takes over.
 *  - Ties: smaller median, then name, then grid, then hash.
 *  - The incumbent is carried from one environment to the next; each environment keeps the choice
 *    of its own last sweep. */
size_t rfi_fold(const rfi_trial *trials, size_t n, const rfi_candidate *candidates, unsigned admits,
                rfi_choice *out);

#endif
