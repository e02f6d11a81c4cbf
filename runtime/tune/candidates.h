/* The space that the tuner searches: pure functions of shape and packs, the same on every rank and
 * every day. */
#ifndef RANKFOLD_CANDIDATES_H
#define RANKFOLD_CANDIDATES_H

#include "core/group.h"

typedef struct rfi_tune_candidate {
    const rf_variant *variant;
    uint32_t grid;       /* 0 when refused */
    const char *refusal; /* NULL = may run; else why not, static */
} rfi_tune_candidate;

#define RFI_GRIDS 5 /* most grids of one variant */

/* cpu: step sizes in KiB worth trying for a payload: ascending, at least one; every one but the
 * last really cuts the payload. Returns how many. */
size_t rfi_grids(uint64_t bytes, uint32_t grids[RFI_GRIDS]);

/* peer: numbers of blocks around the usual one, ascending, from 1 to `most`. Returns how many. */
size_t rfi_block_grids(uint32_t usual, uint32_t most, uint32_t grids[RFI_GRIDS]);

/* host, ring: powers of two up to the blocks that have work, the largest ones, ascending; at most
 * `most`. Returns how many. */
size_t rfi_host_grids(uint32_t useful, uint32_t most, uint32_t grids[RFI_GRIDS]);

/* host, wire tag: numbers of blocks that give each about as many tiles - 1, 2, 3, 4, 6, 8,
 * 12 ... - the largest ones of at most `most`, ascending. tiles > 0. Returns how many. */
size_t rfi_even_grids(uint64_t tiles, uint32_t most, uint32_t grids[RFI_GRIDS]);

/* Every variant that could serve the shape, in pack order, with each of its grids; refused ones
 * once, with the reason; then the baseline, if the comm has one. filter: glob on names, NULL = all.
 * *out is the caller's to free; NULL when *n is 0. Errors: E_MEMORY. */
rf_result rfi_candidates(const rf_comm *comm, const rf_shape *shape, const char *filter,
                         rfi_tune_candidate **out, size_t *n, rf_error *err);

/* What to try first, where the time may not suffice for all: more is better. The baseline, then the
 * default of the class, then its neighbours. */
double rfi_promise(const rf_comm *comm, const rf_variant *variant, uint32_t grid, uint64_t bytes);

#endif
