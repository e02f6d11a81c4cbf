/* The seam between the core and the tuner: collectives over the control plane, and launches that
 * bypass plans. */
#ifndef RANKFOLD_GROUP_H
#define RANKFOLD_GROUP_H

#include "backend.h"
#include "store/store.h"

/* Formats *err (NULL is fine) and returns code. rank -1 = unknown. */
rf_result rfi_fail(rf_error *err, rf_result code, int rank, const char *step, const char *format,
                   ...) __attribute__((format(printf, 5, 6)));

/* Allgather over the control sockets: out[r * bytes] = rank r's. Detects dead ranks at once.
 * E_TIMEOUT, E_PEER name the rank. */
rf_result rfi_allgather(rf_comm *comm, const char *step, const void *in, void *out, size_t bytes,
                        uint32_t timeout_ms, rf_error *err);
/* Rank 0's bytes to all, any size. */
rf_result rfi_broadcast(rf_comm *comm, const char *step, void *buf, size_t bytes,
                        uint32_t timeout_ms, rf_error *err);
/* All ranks bring their verdict; all leave with the same: RF_OK, or the first failing rank's code
 * and text. */
rf_result rfi_agree(rf_comm *comm, const char *step, rf_result mine, const rf_error *mine_err,
                    uint32_t timeout_ms, rf_error *err);

/* A value that has to be equal on all ranks. */
#define RFI_TERMS 16
typedef struct rfi_term {
    const char *name;
    uint64_t value;
} rfi_term;
/* Compares up to RFI_TERMS of them, the same list on all ranks. E_MISMATCH names the first that
 * differs, and a rank. */
rf_result rfi_same(rf_comm *comm, const char *step, const rfi_term *mine, size_t n, rf_error *err);

/* Launches one variant, or the baseline, on a channel outside of any plan, with the same checks as
 * rf_all_reduce. */
rf_result rfi_launch(rf_comm *comm, int channel, const rf_variant *variant, uint32_t grid,
                     const void *in, void *out, uint64_t count, rf_dtype dtype, void *stream);

#define RFI_SHAPES_MAX 65536 /* that one call prepares or tunes */

/* May this comm run this variant for this shape? NULL = yes, else a static reason (isa, world,
 * hidden, opt-in flags ...). */
const char *rfi_refusal(const rf_comm *comm, const rf_variant *variant, const rf_shape *shape);
/* Variants of the comm's packs for its world, in pack order; i < rfi_variant_count. */
size_t rfi_variant_count(const rf_comm *comm);
const rf_variant *rfi_variant_at(const rf_comm *comm, size_t i);
const rf_variant *rfi_variant_by_hash(const rf_comm *comm, const unsigned char hash[16]);
const rf_variant *rfi_variant_by_name(const rf_comm *comm, const char *name);

/* In which order it sums: NULL = of the ranks, else that of rf_oracle_islands. */
const uint8_t *rfi_sum_order(const rf_comm *comm, const rf_variant *variant);

/* Flags of the opt-in variants that may run here. */
uint8_t rfi_admits(const rf_comm *comm);

/* Stands for the comm's baseline wherever a variant is meant; its hash is all zero, its grid 0. */
extern const rf_variant rfi_baseline;
int rfi_has_baseline(const rf_comm *comm);
const char *rfi_baseline_name(const rf_comm *comm);

/* Bytes of a tensor that its kernels move at once. */
uint32_t rfi_pack_bytes(const rf_variant *variant);

/* The grid to launch `variant` with when nothing is measured. */
uint32_t rfi_usual_grid(const rf_comm *comm, const rf_variant *variant, uint64_t bytes);
/* How like it is to what would run when nothing is measured: more is more alike, whatever the
 * dtype.
 */
int rfi_class_score(const rf_comm *comm, const rf_variant *variant, uint64_t bytes);
/* Blocks of one kernel that surely run at once on every rank; cpu: no limit. */
uint32_t rfi_max_grid(const rf_comm *comm);

/* Freezes a plan without asking the store: what the tuner has measured and could not record (no
 * store, or it was lost). Local, loads the shard; the tuner calls it on every rank with the same
 * arguments. Rung EXACT. */
rf_result rfi_plan_set(rf_comm *comm, int channel, const rf_shape *shape, const rf_variant *variant,
                       uint32_t grid, double median_us, double baseline_us, rf_error *err);

/* What carries the comm out, for work of the tuner's own. */
const rfi_workbench *rfi_workbench_of(const rf_comm *comm, rfi_device **device);

/* rows * hidden * element size. The caller has checked the shape. */
uint64_t rfi_shape_bytes(const rf_shape *shape);
/* What the store is asked about such a shape; as long as the comm. */
rfi_key rfi_key_of(const rf_comm *comm, const rf_shape *shape);

/* Group facts, equal on all ranks after create. */
const rfi_fingerprint *rfi_hw(const rf_comm *comm);
const rfi_fingerprint *rfi_env(const rf_comm *comm);
const char *rfi_arch(const rf_comm *comm);
const char *rfi_toolchain(const rf_comm *comm); /* of the packs, joined by "; " */
rf_store *rfi_store(const rf_comm *comm);       /* rank 0; NULL elsewhere */
uint64_t rfi_capacity(const rf_comm *comm);
uint32_t rfi_timeout_ms(const rf_comm *comm); /* config.create_timeout_ms */
void rfi_log(const rf_comm *comm, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Replaces a channel's deadline for candidates under test; 0 restores the config's. */
void rfi_set_deadline(rf_comm *comm, int channel, uint32_t deadline_ms);
/* Marks the tuning session of this comm as open (1) or closed (0): what rf_can_profile answers. */
void rfi_set_tuning(rf_comm *comm, int open);

#endif
