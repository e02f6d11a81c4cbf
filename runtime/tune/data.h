/* Buffers and numbers for checking and measuring one shape. Inputs are a pure function of (seed,
 * rank, index), so that every rank knows the right sum without exchanging anything. They repeat
 * with a prime period: the oracle is asked for one period only, and yet no element of a slot, step
 * or row meets its own value again. */
#ifndef RANKFOLD_DATA_H
#define RANKFOLD_DATA_H

#include "core/group.h"

#define RFI_PERIOD 16381u /* largest prime below 2^14 */

typedef struct rfi_data {
    rf_dtype dtype;
    int rank, world;
    uint64_t count, period;
    unsigned char *in, *out;             /* count elements each, aligned to RF_LINE */
    size_t bytes;                        /* from `in` to behind `out` and its guard */
    unsigned char *inputs[RF_MAX_WORLD]; /* one period of each rank's */
    unsigned char *expected;             /* one period of the sum */
    void *block;                         /* what is freed */
} rfi_data;

/* Allocates and touches the buffers. *d is written on success only. Errors: E_MEMORY. */
rf_result rfi_data_open(rfi_data *d, rf_dtype dtype, uint64_t count, int rank, int world,
                        rf_error *err);
void rfi_data_close(rfi_data *d); /* a zeroed one is fine */

/* New inputs and sums; `out` is poisoned. order: of summation, as rfi_sum_order says. special: one
 * value in eight is a zero, an infinity, a NaN, a denormal, a largest number ...; else all are
 * ordinary (what is timed). */
void rfi_data_fill(rfi_data *d, uint64_t seed, int special, const uint8_t *order);

typedef enum rfi_verdict {
    RFI_DATA_RIGHT,
    RFI_DATA_WRONG,  /* an element of out differs from the oracle */
    RFI_DATA_BEYOND, /* something was written behind out */
    RFI_DATA_INPUT   /* the input was changed */
} rfi_verdict;

/* Judges `out`, bit for bit; *index is the first bad element. in_place: the input was overwritten
 * rightly. rounded: sums of ordinary numbers in any order, rounded at each step, are right too. */
rfi_verdict rfi_data_judge(const rfi_data *d, int in_place, int rounded, uint64_t *index);

#endif
