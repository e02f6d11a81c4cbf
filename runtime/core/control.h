/* The control plane: one connection between every two ranks, made inside create and kept until the
 * end. Carries the collectives of prepare, tune, reset and close; its end-of-file names a dead
 * rank.
 *
 * Each rank listens on a random abstract Unix socket; names and tokens travel through the
 * bootstrap. Both ends of a connection check the other's user (SO_PEERCRED) and show the token that
 * the other published there, so that strangers who read /proc/net/unix get nowhere.
 *
 * A collective that fails on the way (time-out, dead rank, different steps) leaves the ranks at
 * different places, so the plane is broken for good: later collectives fail with the same error,
 * and the peers are told instead of being left to wait. A verdict (rfi_agree) is not such a
 * failure. */
#ifndef RANKFOLD_CONTROL_H
#define RANKFOLD_CONTROL_H

#include "abi.h"
#include "rankfold.h"

#define RFI_TOKEN 16
#define RFI_STEP  24 /* longest step name with terminator */

typedef struct rfi_link {
    int fd;           /* -1 = none (self, or closed) */
    int same_process; /* as the kernel says */
} rfi_link;

typedef struct rfi_control {
    int rank, world;
    uint64_t sequence; /* of the next collective */
    rf_error broken;   /* code RF_OK = whole */
    unsigned char token[RF_MAX_WORLD][RFI_TOKEN];
    rfi_link link[RF_MAX_WORLD];
} rfi_control;

/* Meets the other ranks. `mine`: this rank's own verdict so far, with its text; every rank leaves
 * with the same one. Nothing stays open on failure. */
rf_result rfi_control_open(rfi_control *c, const rf_bootstrap *boot, rf_result mine,
                           const rf_error *mine_err, uint32_t timeout_ms, rf_error *err);
/* Peers see the end-of-file at once, copies of the descriptors notwithstanding. */
void rfi_control_shutdown(const rfi_control *c);
void rfi_control_close(rfi_control *c);

rf_result rfi_control_allgather(rfi_control *c, const char *step, const void *in, void *out,
                                size_t bytes, uint32_t timeout_ms, rf_error *err);
rf_result rfi_control_broadcast(rfi_control *c, const char *step, void *buf, size_t bytes,
                                uint32_t timeout_ms, rf_error *err);
rf_result rfi_control_agree(rfi_control *c, const char *step, rf_result mine,
                            const rf_error *mine_err, uint32_t timeout_ms, rf_error *err);
/* Hands `fd` to every rank of another process; out[r] = what rank r handed over, -1 for own and
 * same-process ranks. The caller owns what arrives. */
rf_result rfi_control_exchange_fd(rfi_control *c, const char *step, int fd, int out[RF_MAX_WORLD],
                                  uint32_t timeout_ms, rf_error *err);

#endif
