/* What tests of several ranks have in common: comms of the small cpu pack, data, and checks. All of
 * it runs inside ranks (RANK_CHECK), but group_name. */
#ifndef RANKFOLD_TESTS_GROUP_H
#define RANKFOLD_TESTS_GROUP_H

#include "../ranks.h"
#include "core/comm.h"

RF_DECLARE_PACK(cpu_small);

/* A name for rf_bootstrap_socket that no other run uses: call it in the parent, once per run. */
const char *group_name(void);

/* The small pack, 256 KiB, deadline 20 s. */
rf_config group_config(void);
/* Creates the comm of this rank through a socket bootstrap; fails the rank if that fails. */
rf_comm *group_create(const char *name, const rf_config *config, int rank, int world);
/* The same with any outcome, on any backend. */
rf_result group_try(const rfi_backend *backend, const char *name, const rf_config *config, int rank,
                    int world, rf_comm **out, rf_error *err);
void group_close(rf_comm *comm);

/* The small pack's generic one-shot of f32 in plain C: the work of kernels that misbehave besides.
 */
rf_cpu_entry group_honest(uint32_t world);

/* The i-th element of rank r's input of call `seed`, as bits: a quarter special values (-0, NaN,
 * infinities, denormals, all ones), a quarter any bits, the rest close to one another. */
uint32_t group_element(rf_dtype dtype, uint64_t seed, int rank, uint64_t i);
void group_fill(void *to, rf_dtype dtype, uint64_t seed, int rank, uint64_t count);
/* What every rank has to get. */
void group_expect(void *to, rf_dtype dtype, uint64_t seed, int world, uint64_t count);

/* One call with data of `seed`, launched by `variant` and grid, or by the plan if NULL,
 * synchronous; the result must be the oracle's bits. shift: elements that the tensors lie off a
 * 64-byte line. */
void group_call(rf_comm *comm, int channel, const rf_variant *variant, uint32_t grid,
                rf_dtype dtype, uint64_t count, uint64_t seed, int shift, int in_place);

/* Of a store that has nothing to say. */
const char *group_no_warning(const rf_store *s);
uint64_t group_one_generation(rf_store *s);

/* Open file descriptors (sockets among them: abstract ones end with their last descriptor) and
 * memfd mappings of this process. */
int group_fds(void);
int group_mappings(void);

#endif
