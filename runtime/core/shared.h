/* Shared memory without names: sealed memfds, mapped by every process that gets the descriptor,
 * with all pages present. Ranks that are threads of one process use one mapping; the last to let go
 * of it unmaps it. */
#ifndef RANKFOLD_SHARED_H
#define RANKFOLD_SHARED_H

#include <stddef.h>

#include "rankfold.h"

/* node: of NUMA, where the pages should lie if that node has memory; -1 = wherever. *base is
 * mapped, *fd is for the other ranks. E_MEMORY, E_SYSTEM. */
rf_result rfi_shared_create(size_t bytes, int node, unsigned char **base, int *fd, rf_error *err);
/* Maps what another process created; verifies size and seals. E_MISMATCH, E_MEMORY, E_SYSTEM. */
rf_result rfi_shared_map(int fd, size_t bytes, unsigned char **base, rf_error *err);
/* One user more of a mapping of this process. E_MISMATCH: there is no such one. */
rf_result rfi_shared_join(unsigned char *base, size_t bytes, rf_error *err);
/* One user less: the last one calls what at_end said, then unmaps. */
void rfi_shared_leave(unsigned char *base);
void rfi_shared_at_end(unsigned char *base, void (*end)(void *ctx, unsigned char *base), void *ctx);

#endif
