/* The comm, as its own files see it. */
#ifndef RANKFOLD_COMM_H
#define RANKFOLD_COMM_H

#include <pthread.h>

#include "core/config.h"
#include "core/control.h"
#include "core/group.h"
#include "core/islands.h"
#include "core/plan_table.h"

#define RFI_CHANNEL_NAME 32

/* How calls were answered; ours: by a launch. X(NAME, text, ours) */
#define RFI_PATH_LIST(X)                                                                           \
    X(PREPARED, "prepared", 1)                                                                     \
    X(NEAREST, "nearest", 1)                                                                       \
    X(CLASS, "class", 1)                                                                           \
    X(DIRECT, "direct", 1)                                                                         \
    X(FALLBACK, "fallback", 0)                                                                     \
    X(BASELINE, "baseline", 0)                                                                     \
    X(FAILED, "failed", 0)

typedef enum rfi_path {
#define RF_X(name, text, ours) RFI_PATH_##name,
    RFI_PATH_LIST(RF_X)
#undef RF_X
        RFI_N_PATHS
} rfi_path;

typedef struct rfi_channel {
    _Alignas(RF_LINE) rf_params params[RFI_N_TRANSPORTS]; /* all but the call itself; by code */
    uint64_t stream; /* id of the stream that owns it; 0 = the next one will */
    int told;        /* the cause of its poison was returned once */
    char name[RFI_CHANNEL_NAME];
    rfi_plan_table plans;
    uint64_t calls[RFI_N_PATHS]; /* one writer; read by any thread */
} rfi_channel;

/* One kind of memory that the ranks meet in. */
typedef struct rfi_transport {
    int on;
    rf_error why; /* of being off, the same on all ranks; code RF_OK = not the backend's */
    rfi_layout layout;
    rfi_memory own, import[RF_MAX_WORLD]; /* import[rank] is empty */
} rfi_transport;

#define RFI_DTYPES  3
#define RFI_CLASSES 8 /* most size classes of class.c */

struct rf_comm {
    int rank, world;
    rf_config config;
    const rfi_backend *backend;
    rfi_device *device;
    rfi_control control;
    rfi_transport transport[RFI_N_TRANSPORTS]; /* by code */
    uint32_t generation;

    /* Guards what status, check and abort read from other threads: plans while they are replaced,
     * mappings while they go, the last error. Calls take it only when they fail. */
    pthread_mutex_t lock;
    int closed;
    int tuning;
    rf_error error;

    uint32_t n_channels;   /* open */
    rfi_channel *channels; /* config.channels of them */
    uint64_t max_count[RFI_DTYPES];
    /* What a call takes that nothing prepared comes near to, by dtype and size class. */
    rfi_plan class_plan[RFI_DTYPES][RFI_CLASSES];

    /* Group facts. */
    uint32_t isa_mask; /* of all ranks */
    uint8_t admits;    /* flags of the opt-in variants that may run */
    uint32_t max_grid; /* blocks of one channel's kernel that surely run at once on every rank */
    rfi_topology topology; /* of the file */
    rf_islands_info islands;
    int regrouped; /* by the file: the links part the ranks otherwise */
    char arch[24];
    char *hw_text, *env_text, *toolchain;
    rfi_fingerprint hw, env;
    const rf_variant **variants; /* of this world, in pack order */
    const rf_variant **by_hash;
    size_t n_variants;
    rf_baseline baseline; /* all_reduce NULL: none, and the name is the reason */

    uint64_t store_generation; /* of the last prepare, and what the store had to say */
    char store_warning[256];
};

/* rf_comm_create with a backend of the caller's: tests decorate one to inject faults. */
rf_result rfi_comm_create_on(const rfi_backend *backend, const rf_config *config,
                             const rf_bootstrap *boot, rf_comm **out, rf_error *err);

/* create.c: everything that the comm holds, locally. Never blocks. */
void rfi_comm_free(rf_comm *comm);

/* variants.c: the comm's variants and what may run. E_MEMORY. */
rf_result rfi_variants_open(rf_comm *comm, rf_error *err);
void rfi_variants_close(rf_comm *comm);
/* Loads it; again costs nothing. */
rf_result rfi_variant_ready(const rf_comm *comm, const rf_variant *variant, rf_error *err);
/* May it run in this comm at all, whatever the shape? NULL = yes. */
const char *rfi_refusal_here(const rf_comm *comm, const rf_variant *variant);
/* Finds comm->admits: a caller may admit what its packs or transports don't have, which the log
 * says. */
void rfi_variants_admit(rf_comm *comm);

/* transports.c: builds every transport that works on all ranks. Collective. What does not work is
 * taken down again and keeps its reason; fails where nothing is left. */
rf_result rfi_transports_open(rf_comm *comm, rf_error *err);
/* The i-th best of those that are on, as a code; -1 = there are no more. */
int rfi_transport_on(const rf_comm *comm, int i);
/* "peer is off: rank 1: ...": of all that were tried and are off; empty = none. */
void rfi_transports_off(const rf_comm *comm, char *buf, size_t size);
unsigned char *rfi_region(const rf_comm *comm, int transport, int rank, int channel);

/* probe.c: stores and loads of every ordered pair, verified at the far end. Collective. */
rf_result rfi_probe(rf_comm *comm, int transport, uint32_t timeout_ms, rf_error *err);

/* class.c: what runs well on hardware of this class, nothing measured. 0 = no variant at all. */
typedef struct rfi_class_choice {
    const rf_variant *variant;
    uint32_t grid;
    rf_rung rung; /* CLASS or GENERIC */
} rfi_class_choice;
int rfi_class_choose(const rf_comm *comm, const rf_shape *shape, rfi_class_choice *out);
/* Size classes are numbered from 0; the last has no upper end. */
int rfi_class_count(void);
int rfi_class_of(uint64_t bytes);
uint64_t rfi_class_bytes(int size_class); /* its largest size; of the last, a size inside */
uint32_t rfi_class_grid(uint64_t bytes);

/* channel.c: fills the params of all channels, and clears the own regions. */
void rfi_channels_link(rf_comm *comm);
rf_result rfi_channels_clear(rf_comm *comm, rf_error *err);

/* plan.c: fills class_plan and loads its variants. */
rf_result rfi_class_plans(rf_comm *comm, rf_error *err);

/* call.c: what a call takes, and by which path; NULL = nothing can run it. */
const rfi_plan *rfi_plan_resolve(const rf_comm *comm, const rfi_channel *channel, rf_dtype dtype,
                                 rf_mode mode, uint64_t count, rfi_path *path);

#endif
