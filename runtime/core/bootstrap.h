/* What the ready-made bootstraps share. */
#ifndef RANKFOLD_BOOTSTRAP_H
#define RANKFOLD_BOOTSTRAP_H

#include "rankfold.h"

/* Their ctx begins with this. */
typedef struct rfi_bootstrap_state {
    uint32_t missing; /* bit per rank that did not come to the allgather that failed */
    /* A rank that came with another world size than rank 0's, where the allgather failed for that
     * (EPROTO); other_world 0 = none. */
    uint32_t other_rank, other_world, first_world;
} rfi_bootstrap_state;

int rfi_bootstrap_socket_allgather(void *ctx, const void *in, void *out, size_t bytes,
                                   int timeout_ms);
int rfi_bootstrap_threads_allgather(void *ctx, const void *in, void *out, size_t bytes,
                                    int timeout_ms);

/* What a failed allgather knows; NULL: a callback of the caller's. */
const rfi_bootstrap_state *rfi_bootstrap_state_of(const rf_bootstrap *boot);

#endif
