/* The NCCL-compatible shim, as its own files see it: shim.c stands in for NCCL's functions, comms.c
 * knows which communicator has a comm of ours behind it, setup.c makes that, order.c keeps a comm's
 * launches in order whatever their streams, real.c finds NCCL. */
#ifndef RANKFOLD_SHIM_H
#define RANKFOLD_SHIM_H

#include <pthread.h>
#include <stdint.h>

#include "nccl/nccl.h"
#include "rankfold.h"

/* ---- environment: what the shim reads beyond RF_ENV_LIST. X(NAME, what it does) ---- */

#define RFI_SHIM_ENV_LIST(X)                                                                       \
    X(RANKFOLD_NCCL, "absolute path of the real libnccl.so.2")                                     \
    X(RANKFOLD_TUNE, "1: communicators are tuned when they are made; or the dtypes: bf16,f32")     \
    X(RANKFOLD_TUNE_SECONDS, "most that one communicator's tuning takes; default 60")              \
    X(RANKFOLD_CAPACITY, "bytes of the largest tensor that is ours; default 8388608")              \
    X(RANKFOLD_LOG, "1: why it stays out of the way, once; 2: everything; on stderr")              \
    X(RANKFOLD_BACKEND, "cpu: tensors are host memory, streams are ignored (tests)")

typedef enum rfi_shim_variable {
#define RF_X(name, text) RFI_SHIM_##name,
    RFI_SHIM_ENV_LIST(RF_X)
#undef RF_X
} rfi_shim_variable;

/* NULL when unset or empty. */
const char *rfi_shim_env(rfi_shim_variable name);
const char *rfi_shim_env_text(rfi_shim_variable name); /* what it is called */

/* One line on stderr if RANKFOLD_LOG asks for it. level 0: always. 1: the first one of the process
 * only, unless RANKFOLD_LOG is 2. */
void rfi_shim_say(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- launches in order ---- */

/* Launches of one channel have to follow one another, while NCCL's callers may change streams as
 * they like: so a launch on another stream first waits for the one before. Captured launches have a
 * channel of their own, since their replays are unknown to the host. */
typedef struct rfi_lane {
    uint64_t stream; /* id of the stream that launched last; of a capture: its handle */
    uint64_t capture;
    void *event; /* after the last launch */
} rfi_lane;

#define RFI_LANES 2 /* rf_mode: eager calls, captured ones; also the channel's number */

typedef struct rfi_order {
    const struct rfi_driver *driver; /* NULL: cpu, every launch is synchronous */
    void *context;
    int device;
    rfi_lane lanes[RFI_LANES];
} rfi_order;

/* device: as cudaGetDevice counts. 0 = done, else why not. */
const char *rfi_order_open(rfi_order *o, int cpu, int device);
void rfi_order_close(rfi_order *o);
/* Which lane a call on this stream takes. */
rf_mode rfi_order_mode(const rfi_order *o, void *stream, uint64_t *capture);
/* Around a launch. 0 = done. */
int rfi_order_before(rfi_order *o, rf_mode mode, void *stream, uint64_t capture);
int rfi_order_after(rfi_order *o, rf_mode mode, void *stream);

/* ---- communicators ---- */

#define RFI_SHIM_DTYPES 3
#define RFI_SHIM_SIZES  48 /* powers of two */
#define RFI_SHIM_LEAST  11 /* smaller ones go by the decision for 2 KiB */

typedef struct rfi_entry {
    ncclComm_t key; /* NULL = free */
    pthread_mutex_t lock;
    uint64_t name;     /* equal on its ranks, and no other communicator's */
    uint32_t children; /* made of it so far */
    int pending;       /* NCCL is still making it */
    rf_comm *comm;     /* NULL: all is NCCL's */
    rf_store *store;
    rfi_order order;
    uint64_t capacity;
    /* By mode, dtype and size: was ours measured faster than NCCL? */
    unsigned char ours[RFI_LANES][RFI_SHIM_DTYPES][RFI_SHIM_SIZES];
    uint64_t n_ours, n_theirs, n_grouped; /* all-reduces that went which way */
} rfi_entry;

/* NULL: unknown. Lock-free; the entry may be given away before its lock is held. */
rfi_entry *rfi_entry_find(ncclComm_t comm);
/* A new entry, not locked; NULL: no room. */
rfi_entry *rfi_entry_add(ncclComm_t comm, uint64_t name);
/* Frees it, with what setup made. */
void rfi_entry_drop(rfi_entry *e);

/* ceil(log2(bytes)), at least RFI_SHIM_LEAST. */
int rfi_shim_size(uint64_t bytes);

/* ---- set-up ---- */

#define RFI_SHIM_FNV 0xcbf29ce484222325u
/* FNV-1a, chained through `hash`. */
uint64_t rfi_shim_hash(uint64_t hash, const void *data, size_t bytes);

/* Says to the other ranks of a communicator-to-be that this rank is here and has the shim: a
 * listening socket. -1 = none. Published before NCCL's own rendezvous, so that when that is over a
 * rank that is not to be found is not here at all: on another machine, or without the shim. */
int rfi_presence_open(uint64_t name, int rank);
void rfi_presence_close(int presence);

/* Collective over the communicator's ranks, if all of them have the shim: makes the comm behind the
 * entry and its decisions, or says why not, alike on all ranks. patience_ms: how long the others
 * may take to be present. */
void rfi_entry_set_up(rfi_entry *e, int world, int rank, uint32_t patience_ms);
/* The collective end of what set_up made; then all is NCCL's. */
void rfi_entry_finish(rfi_entry *e);
/* The other end: at once, alone; peers that wait come back. */
void rfi_entry_abort(rfi_entry *e);

#endif
