/* What every rank does alike during tuning: run one candidate on one shape. */
#ifndef RANKFOLD_WORKER_H
#define RANKFOLD_WORKER_H

#include "tune/data.h"

typedef struct rfi_worker {
    rf_comm *comm;
    int channel;
    rf_shape shape;
    rfi_data data;
    const rfi_workbench *bench; /* of the comm's device */
    rfi_device *device;
    unsigned char *tensors; /* the device's copy of data.in and data.out; NULL = they serve */
    void *stream;           /* NULL = calls are synchronous */
} rfi_worker;

/* Holds nothing yet. */
rfi_worker rfi_worker_of(rf_comm *comm, int channel);

/* Buffers for the shape. Errors: E_MEMORY, E_SYSTEM, E_BACKEND. */
rf_result rfi_worker_shape(rfi_worker *w, const rf_shape *shape, rf_error *err);

/* Runs the candidate on fresh data, special values among them, into poisoned output: out of place,
 * in place, and again the other way round (so that both meet every slot). *ns is the fastest of
 * these calls; *wrong says whether any result differed from the oracle (and the log says where).
 * Errors: of a call. */
rf_result rfi_worker_check(rfi_worker *w, const rf_variant *variant, uint32_t grid, uint64_t seed,
                           double *ns, int *wrong, rf_error *err);

/* Makes a candidate that hangs give up in seconds, until close. */
void rfi_worker_hurry(rfi_worker *w);

/* Ordinary numbers for measuring. Errors: E_BACKEND. */
rf_result rfi_worker_settle(rfi_worker *w, uint64_t seed, rf_error *err);

/* Time of one call in a row of `calls`, launched as the shape's mode says. variant NULL: by the
 * comm's plan, as a program calls. Errors: of a call. */
rf_result rfi_worker_measure(rfi_worker *w, const rf_variant *variant, uint32_t grid,
                             uint32_t calls, double *ns, rf_error *err);

/* Frees everything and gives channel and deadline back. */
void rfi_worker_close(rfi_worker *w);

#endif
