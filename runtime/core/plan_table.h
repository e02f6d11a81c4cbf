/* Plans of one channel, found by (dtype, mode, count). Pure but for its memory. */
#ifndef RANKFOLD_PLAN_TABLE_H
#define RANKFOLD_PLAN_TABLE_H

#include "abi.h"
#include "rankfold.h"

typedef struct rfi_plan {
    uint64_t count, tag; /* tag: what the kernel announces, rf_call.tag */
    const rf_variant *variant;
    uint32_t grid;
    uint8_t fallback; /* the baseline was measured faster; variant is NULL */
    rf_shape shape;
    rf_rung rung;
    double median_us;   /* 0 = unknown */
    double baseline_us; /* as in rf_plan_info */
    uint64_t measured_rows, measured_hidden;
    char reason[256];
} rfi_plan;

typedef struct rfi_plan_table {
    rfi_plan *plans;
    uint32_t *slots; /* index + 1 of a plan, 0 = free; mask + 1 of them, at most half in use */
    uint32_t n, room, mask;
} rfi_plan_table;

/* First 8 bytes of the hash, xor grid: equal on all ranks that launch the same. */
uint64_t rfi_plan_tag(const rf_variant *variant, uint32_t grid);

/* Adds *plan, or replaces the one of equal dtype, mode and count. 0 = no memory, nothing changed.
 */
int rfi_plan_put(rfi_plan_table *t, const rfi_plan *plan);
/* Room for `n` more, so that as many puts cannot fail. 0 = no memory. */
int rfi_plan_reserve(rfi_plan_table *t, uint32_t n);
void rfi_plan_free(rfi_plan_table *t);

/* The prepared plan of exactly this count: of this mode, else of the other; NULL = not prepared. */
const rfi_plan *rfi_plan_find(const rfi_plan_table *t, rf_dtype dtype, rf_mode mode,
                              uint64_t count);
/* For a count that was not prepared: the plan of this dtype that is nearest in size (by ratio; the
 * smaller one of two) and whose variant can run it. NULL = none. */
const rfi_plan *rfi_plan_nearest(const rfi_plan_table *t, rf_dtype dtype, rf_mode mode,
                                 uint64_t count);

#endif
