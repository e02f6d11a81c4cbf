/* The seam to tactic databases: what the core and the tuner ask, and what an implementation
 * (SQLite, frozen table) answers. Only rank 0 holds a store. All calls come from one thread.
 * Implementations never print. */
#ifndef RANKFOLD_STORE_H
#define RANKFOLD_STORE_H

#include "abi.h"
#include "rankfold.h"

#define RFI_NAME 96 /* longest variant name, with terminator */

/* Name of the caller's own collective among the variants; its hash is all zero. */
#define RFI_BASELINE "baseline"

/* Tactics that run only where the caller admits them, all of them as RF_VARIANT_ flags; a set of
 * them is a number from 0 to this. */
#define RFI_OPT_INS 7u

/* XXH3-128 (canonical bytes) of `text`, and the text: lines "key=value\n", sorted by rank then key,
 * UTF-8, no bus addresses. */
typedef struct rfi_fingerprint {
    unsigned char hash[16];
    const char *text;
} rfi_fingerprint;

/* The question. bytes = rows * hidden * element size; implementations bucket it with rfi_bucket.
 * admits: the opt-in tactics that may run where it is asked. */
typedef struct rfi_key {
    const rfi_fingerprint *hw, *env;
    const char *arch; /* "x86-64/avx512", "cuda/sm90" */
    uint8_t op, world, dtype, mode, admits;
    uint64_t rows, hidden;
    uint64_t bytes;
} rfi_key;

/* Smallest power of two >= bytes, at least 64. */
uint64_t rfi_bucket(uint64_t bytes);

/* What the packs of the asking comm hold: 2 = this very variant, 1 = this name with another hash, 0
 * = neither (or not admitted). */
typedef int (*rfi_have_fn)(void *ctx, const unsigned char hash[16], const char *name);

/* The answer. `variant` empty and `fallback` set: the baseline won. */
typedef struct rfi_decision {
    char variant[RFI_NAME];
    unsigned char hash[16]; /* as recorded */
    uint32_t grid;
    int fallback;
    rf_rung rung; /* EXACT .. SHIPPED */
    uint64_t bucket;
    double median_ns;
    double baseline_ns; /* judged in the same sweep; 0 = not measured, infinite = it failed */
    uint64_t measured_rows, measured_hidden; /* the shape that was; 0 = unknown */
    char reason[256]; /* one line; also when nothing was found: the key that missed, what to run */
} rfi_decision;

/* Outcomes of a candidate: text as stored. X(NAME, "text") */
#define RFI_OUTCOME_LIST(X)                                                                        \
    X(OK, "ok")                                                                                    \
    X(WRONG, "wrong")                                                                              \
    X(TIMEOUT, "timeout") X(LAUNCH, "launch") X(INFEASIBLE, "infeasible") X(DROPPED, "dropped")

typedef enum rfi_outcome {
#define RF_X(name, text) RFI_##name,
    RFI_OUTCOME_LIST(RF_X)
#undef RF_X
} rfi_outcome;

/* Facts of a tuning session; strings are borrowed. */
typedef struct rfi_campaign {
    const rfi_fingerprint *hw, *env;
    const char *arch, *tool, *toolchain,
        *policy;    /* policy: rounds, iterations, budget, seed, as "key=value" text */
    uint8_t admits; /* of all its keys */
} rfi_campaign;

/* One candidate at one shape; times in ns per call, max over ranks. variant NULL = the baseline. */
typedef struct rfi_measurement {
    rfi_key key;
    const rf_variant *variant;
    uint32_t grid;
    rfi_outcome outcome;
    uint32_t n, order_index; /* samples; position within its round, for spotting order effects */
    double min_ns, p10_ns, median_ns, p90_ns, max_ns;
    double noise_ns; /* median absolute deviation over rounds */
} rfi_measurement;

typedef struct rfi_store_vtable {
    /* Best rung for `key`: exact hidden first, then hidden 0; what was decided for the very set of
     * opt-ins first, then for smaller ones. Returns 1 = answered, 0 = nothing (out->reason is set
     * all the same). Never fails: trouble with a file means the next rung, and
     * a line in *warning (kept by the store, NULL if none). `have` is not asked about a fallback.
     */
    int (*lookup)(rf_store *s, const rfi_key *key, rfi_have_fn have, void *ctx, rfi_decision *out);
    /* Is this shape completely swept already, on this hardware and environment (in whatever
     * grouping of a file, where reassoc is not admitted), by a campaign that admitted at least as
     * much? 1 = yes: lookup will answer EXACT, unless the packs no longer hold the winner (check
     * the rung). */
    int (*swept)(rf_store *s, const rfi_key *key);
    /* Latest recorded measurement of this candidate (variant NULL = the baseline) at exactly these
     * rows and hidden, on this hardware and environment, with this hash, as far back as it counts
     * for a sweep that finishes now (fold.h): since the last complete one, or by one that admitted
     * less. 1 = found (outcome and numbers filled in). Lets a killed session go on; what it returns
     * counts for the next finish_shape without being recorded again. */
    int (*measured)(rf_store *s, const rfi_key *key, const rf_variant *variant, uint32_t grid,
                    rfi_measurement *out);
    /* Opens a campaign; it gets 128 random bits as id. One at a time per store: one that an error
     * kept from its end stays as if killed. Creates the database if there is none. Errors: E_DB_*:
     * the file cannot be written, and says why. */
    rf_result (*begin)(rf_store *s, const rfi_campaign *campaign, rf_error *err);
    /* Appends facts: one short BEGIN IMMEDIATE transaction, all or none. */
    rf_result (*record)(rf_store *s, const rfi_measurement *m, size_t n, rf_error *err);
    /* Marks the shape as swept and re-folds the decisions of its key: hidden as asked, and 0, for
     * every subset of what is admitted. Only for a sweep that measured (or dropped, or found
     * infeasible) everything that may run, or knows it (measured): an incumbent that the sweep
     * doesn't hold counts as gone. So not after a filtered session. */
    rf_result (*finish_shape)(rf_store *s, const rfi_key *key, rf_error *err);
    /* Marks the campaign done. */
    rf_result (*end)(rf_store *s, rf_error *err);
    /* Changes whenever a decision changes. 0 = no database. */
    uint64_t (*generation)(rf_store *s);
    const char *(*warning)(const rf_store *s);
    void (*close)(rf_store *s);
} rfi_store_vtable;

/* Implementations begin with this. */
struct rf_store {
    const rfi_store_vtable *v;
};

/* ---- frozen tables (written by `rankfold db freeze`, compiled by the product) ---- */

typedef struct rfi_frozen_row {
    unsigned char hw[16];
    unsigned char env[16]; /* environment of the deciding campaign */
    const char *env_text;
    const char *arch;
    const char
        *transports; /* of the environment: its line of that name, "" = it has none; for a
                      * set with reassoc " islands=" and that line behind it, if there is one */
    uint8_t op, world, dtype, mode, admits;
    uint32_t grid;
    uint64_t hidden, bucket;
    unsigned char hash[16];
    const char *variant; /* "" = fallback */
    double median_ns;
} rfi_frozen_row;

/* Sorted by (hw, arch, op, world, dtype, mode, admits, transports, hidden, bucket), and where these
 * are equal the latest environment first: a frozen table is the only thing besides packs that names
 * this struct, and like them it references rfi_abi_<RF_ABI>. */
struct rf_frozen {
    uint32_t abi, row_size;
    const int *abi_witness;
    uint64_t generation;
    size_t n;
    const rfi_frozen_row *rows;
};

#endif
