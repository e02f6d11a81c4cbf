/* The ladder of answers to one question, the same for every store: a source says what rows it has,
 * the ladder says which of them answers and why. */
#ifndef RANKFOLD_LADDER_H
#define RANKFOLD_LADDER_H

#include "store/store.h"

/* One decision as a source holds it. */
typedef struct rfi_row {
    char variant[RFI_NAME]; /* RFI_BASELINE = fallback */
    unsigned char hash[16], env[16];
    uint32_t grid;
    uint64_t bucket, hidden;
    unsigned admits;
    double median_ns, baseline_ns;           /* as in rfi_decision */
    char day[11];                            /* of its campaign, "2026-11-29"; "" = unknown */
    uint64_t measured_rows, measured_hidden; /* as in rfi_decision */
} rfi_row;

/* Which row of (hw, arch, op, world, dtype, mode, admits, hidden): at the key's bucket, of the
 * key's environment or the latest of another one; or of the nearest smaller or larger bucket, in
 * the key's environment if there is a choice. */
typedef enum rfi_pick { RFI_SAME_ENV, RFI_OTHER_ENV, RFI_BELOW, RFI_ABOVE } rfi_pick;

typedef struct rfi_source {
    void *ctx;
    /* 1 = *out is filled, but for hidden and admits. */
    int (*fetch)(void *ctx, const rfi_key *key, rfi_pick pick, rfi_row *out);
    /* The text behind an environment's hash, valid until the next call; NULL = unknown. */
    const char *(*env_text)(void *ctx, const unsigned char env[16]);
    int shipped; /* every answer is of rung SHIPPED */
} rfi_source;

/* 1 = answered. 0: *out is untouched. */
int rfi_ladder(const rfi_source *source, const rfi_key *key, rfi_have_fn have, void *ctx,
               rfi_decision *out);

/* Nothing found: empties *out and says in its reason what to run. */
void rfi_ladder_missed(const rfi_key *key, rfi_decision *out);

/* Lists the fields in which two texts of "r0.field=value" lines differ, each change once:
 * "kernel 6.1
 * -> 6.2, driver 1 -> 2". At most `size` bytes with the terminator; a longer list ends in "...".
 * Pure. */
void rfi_text_difference(const char *then, const char *now, char *out, size_t size);

#endif
