/* Rank 0's search for the best candidate of one shape: check all against the oracle, measure them
 * in interleaved rounds, halve the field as the rounds go, record what was found. */
#ifndef RANKFOLD_SWEEP_H
#define RANKFOLD_SWEEP_H

#include "tune/session.h"

typedef enum rfi_trial_state {
    RFI_MISSING,
    RFI_CHECKED, /* right, waiting for its first round */
    RFI_RUNNING, /* being measured */
    RFI_SETTLED, /* outcome is known, not yet recorded */
    RFI_RECORDED
} rfi_trial_state;

typedef struct rfi_tune_trial {
    const rf_variant *variant;
    uint32_t grid;
    double promise;  /* the most promising run first */
    double guess_ns; /* of one call; 0 = not yet run */
    double *samples; /* one a round, `n` of them */
    uint32_t n;
    uint32_t order_index; /* position in its latest round */
    int known;            /* from an earlier session */
    rfi_trial_state state;
    rfi_measurement result; /* from SETTLED on */
} rfi_tune_trial;

typedef struct rfi_sweep {
    rfi_session *session;
    uint32_t shape; /* index */
    rfi_key key;
    int warm;               /* the store answers; no trials then */
    int unmatched;          /* the filter leaves nothing that may run */
    int finished;           /* the store holds it completely and decides by it */
    rfi_tune_trial *trials; /* refused candidates are settled as infeasible */
    size_t n, missing;      /* trials; those that have to be run */
    double *samples;
    double planned, spent; /* steps of work, for the progress */
} rfi_sweep;

/* Enumerates and asks the store what is known. Measures nothing. Errors: E_MEMORY. */
rf_result rfi_sweep_open(rfi_session *s, uint32_t shape, rfi_sweep *out, rf_error *err);
void rfi_sweep_close(rfi_sweep *w);

/* Samples that a candidate needs, or what is measured of it does not count: one sample has no
 * noise, and on a busy machine is wrong by any factor. Those that are dropped need none. */
uint32_t rfi_sweep_enough(const rfi_sweep *w);
/* Is there something that was not run, because the time was up? */
int rfi_sweep_is_unfinished(const rfi_sweep *w);

/* Closes a trial: statistics of its samples, to be recorded. */
void rfi_sweep_settle(const rfi_sweep *w, rfi_tune_trial *t, rfi_outcome outcome);
/* Records what was settled since the last time: one transaction. Errors: E_DB_*, E_MEMORY. */
rf_result rfi_sweep_record(rfi_sweep *w, rf_error *err);
/* Records the rest and, if nothing is missing, has the store decide. */
rf_result rfi_sweep_finish(rfi_sweep *w, rf_error *err);

/* search.c: runs what is missing until `until` (rfi_seconds), the most promising first, and records
 * it; one candidate at least, however late it is. Adds to the session's summary. done, share: of
 * the whole session's work, what was done before, and what this shape is. Errors: E_DB_* (the store
 * is lost; results so far are in the trials), E_MEMORY, or what ended the session on all ranks. */
rf_result rfi_sweep_run(rfi_sweep *w, double until, double done, double share, rf_error *err);

/* As in rfi_decision. */
double rfi_sweep_baseline_ns(const rfi_sweep *w);
/* Fastest trial that was measured to the end, NULL if none. */
const rfi_tune_trial *rfi_sweep_best(const rfi_sweep *w);
/* Was any variant of ours measured, so that a baseline has been compared with something? */
int rfi_sweep_has_ours(const rfi_sweep *w);

#endif
