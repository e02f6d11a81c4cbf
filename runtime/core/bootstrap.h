/* What the ready-made bootstraps share. */
#ifndef RANKFOLD_BOOTSTRAP_H
#define RANKFOLD_BOOTSTRAP_H

#include "rankfold.h"

/* Their ctx begins with this. */
typedef struct rfi_bootstrap_state {
    uint32_t missing; /* bit per rank that did not come to the allgather that failed */
} rfi_bootstrap_state;

int rfi_bootstrap_socket_allgather(void *ctx, const void *in, void *out, size_t bytes,
                                   int timeout_ms);
int rfi_bootstrap_threads_allgather(void *ctx, const void *in, void *out, size_t bytes,
                                    int timeout_ms);

/* Ranks that the failed allgather missed; 0 = unknown (a callback of the caller's). */
uint32_t rfi_bootstrap_missing(const rf_bootstrap *boot);

#endif
