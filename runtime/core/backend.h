/* The seam to devices. The core knows memory, mappings, shards and launches only through this
 * table. */
#ifndef RANKFOLD_BACKEND_H
#define RANKFOLD_BACKEND_H

#include "abi.h"
#include "rankfold.h"

typedef struct rfi_device rfi_device; /* one per comm and rank, private to the backend */

#define RFI_CPU_MASK 128 /* 1024 cpus */
#define RFI_PLACE    32

#define RF_X(code, text, number) +1
enum { RFI_N_TRANSPORTS = RF_TRANSPORT_LIST(RF_X) };
#undef RF_X

typedef struct rfi_capabilities {
    char arch[24];                        /* "x86-64/avx512": part of the database key */
    uint32_t isa_mask;                    /* bit per code of RF_ISA_LIST that runs here */
    unsigned char cpu_mask[RFI_CPU_MASK]; /* bit per cpu that this rank may run on */
    uint64_t granularity;                 /* allocations are multiples of it */
    uint32_t max_grid;      /* blocks that run at once, whatever kernel; 0 = any grid will do */
    const char *hw_text;    /* "key=value\n" lines of this rank for hw_fp; owned by the device,
                               there after `join` */
    const char *env_text;   /* the same for env_fp */
    unsigned char uuid[16]; /* identity of the device; all zero = shareable between ranks (cpu) */
    char place[RFI_PLACE];  /* where it sits, for the other ranks; not part of any text */
    uint8_t
        distance[RF_MAX_WORLD]; /* to each rank: less is nearer, 0 = unknown; there after `join` */
} rfi_capabilities;

/* One exported allocation, and how another rank gets at it: a file descriptor that travels over the
 * control plane, or the plain pointer for ranks that are threads of one process. */
typedef struct rfi_memory {
    unsigned char *base; /* as this rank's kernels address it */
    unsigned char *host; /* as this process does; NULL = it cannot */
    size_t bytes;
    int fd; /* -1 = none */
} rfi_memory;

/* Of one channel of one rank. */
typedef struct rfi_layout {
    uint64_t slot_bytes;   /* a multiple of 4096 */
    uint64_t region_bytes; /* all that peers map */
    rf_footprint memory;   /* what that takes, and what is the rank's own */
} rfi_layout;

/* What a device has to know about its group. */
typedef struct rfi_group {
    int rank, world;
    uint32_t cpus;        /* that the ranks together may run on */
    int fd[RF_MAX_WORLD]; /* connection to each rank: closed at the far end = dead; -1 for self.
                             Copied by the device, which may outlive the comm */
    char place[RF_MAX_WORLD][RFI_PLACE];
} rfi_group;

typedef struct rfi_stream_info {
    uint64_t
        id; /* not 0, never reused within a process; NULL stream on cpu: the calling thread's */
    int capturing;
} rfi_stream_info;

/* What the tuner does by itself: a stream of its own, graphs of many calls, tensors. Handles belong
 * to the backend; NULL is fine to close. */
typedef struct rfi_workbench {
    rf_result (*open_stream)(rfi_device *device, void **stream, rf_error *err);
    rf_result (*wait)(rfi_device *device, void *stream); /* the first error since the last wait */
    void (*close_stream)(rfi_device *device, void *stream);
    rf_result (*begin_capture)(rfi_device *device, void *stream);
    rf_result (*end_capture)(rfi_device *device, void *stream, void **graph);
    /* Launches the graph so many times in a row, waits, and says how long they took together. */
    rf_result (*replay)(rfi_device *device, void *graph, void *stream, uint32_t times, double *ns);
    void (*close_graph)(rfi_device *device, void *graph);
    /* Memory for tensors, and copies to and from the host's; all NULL where tensors are host memory
     * and the NULL stream is synchronous. */
    rf_result (*open_tensor)(rfi_device *device, size_t bytes, unsigned char **tensor,
                             rf_error *err);
    rf_result (*copy)(rfi_device *device, void *to, const void *from, size_t bytes);
    void (*close_tensor)(rfi_device *device, unsigned char *tensor);
} rfi_workbench;

/* `transport`, here and there: a code of RF_TRANSPORT_LIST, one of the backend's. `channel`: the
 * channel's params on that transport, as the core linked and `bind` completed them. */
typedef struct rfi_backend {
    const char *name;
    /* The kinds of memory that its kernels may meet in, best first; a comm holds all that work. */
    uint8_t transports[RFI_N_TRANSPORTS], n_transports;
    /* No side effects beyond this process; fails with E_BACKEND and the reason where it cannot run.
     */
    rf_result (*open)(const rf_config *config, rfi_device **out, rf_error *err);
    void (*capabilities)(const rfi_device *device, rfi_capabilities *out);
    /* Once, after the ranks have met and before the first launch. */
    rf_result (*join)(rfi_device *device, const rfi_group *group, rf_error *err);
    /* For tensors up to this capacity. Pure; before `open` too. */
    rfi_layout (*layout)(uint8_t transport, uint64_t capacity_bytes);
    /* Why the variant cannot do so many bytes in slots of that size; NULL = it can. Pure. */
    const char *(*misfit)(const rf_variant *variant, uint64_t slot_bytes, uint64_t bytes);
    /* Does this rank's environment allow it? */
    rf_result (*permit)(rfi_device *device, uint8_t transport, rf_error *err);
    /* Memory that peers can map, cleared, placed next to this rank. */
    rf_result (*allocate)(rfi_device *device, uint8_t transport, size_t bytes, rfi_memory *out,
                          rf_error *err);
    /* Maps a peer's allocation; verifies size and seals of what arrived. same_process: the peer is
     * a thread of this process. */
    rf_result (*import)(rfi_device *device, uint8_t transport, const rfi_memory *theirs,
                        int same_process, rfi_memory *out, rf_error *err);
    /* Copies a few bytes by the means that kernels use: what the functional probe is made of. `at`
     * lies in a region that this rank maps. */
    rf_result (*put)(rfi_device *device, unsigned char *at, const void *from, size_t bytes);
    rf_result (*get)(rfi_device *device, const unsigned char *at, void *to, size_t bytes);
    /* Gives memory back, own or imported; what a launch in flight still uses goes when that has
     * ended. */
    void (*forget)(rfi_device *device, rfi_memory *memory);
    /* Makes a variant of the shard launchable without lazy loading; again costs nothing. shard
     * NULL: a variant that no pack holds. */
    rf_result (*load)(rfi_device *device, const rf_shard *shard, const rf_variant *variant,
                      rf_error *err);
    /* Fills in what only the backend knows (control, host, host_ctx) for all launches of a channel.
     */
    void (*bind)(rfi_device *device, uint8_t transport, int channel, rf_params *params);
    /* `params` is copied before return. Synchronous on the NULL cpu stream, else asynchronous.
     * E_POISONED: the channel was poisoned before; nothing ran. *err, whose text the caller has
     * emptied, is for failures that are not the protocol's. */
    rf_result (*launch)(rfi_device *device, const rf_variant *variant, const rf_params *params,
                        void *stream, rf_error *err);
    void (*stream_info)(rfi_device *device, void *stream, rfi_stream_info *out);
    /* Host view of a channel's poison word and fault record; no synchronisation. */
    void (*read_fault)(rfi_device *device, const rf_params *channel, uint32_t *poison,
                       rf_fault *out);
    /* Sets the poison word of a rank's region, if it is still 0, and wakes its sleepers. */
    void (*poison)(rfi_device *device, uint8_t transport, const rf_params *channel, int rank,
                   uint32_t word);
    /* Clears own region for a new start, in the generation of the params; the core has drained and
     * synchronised the ranks around it. */
    rf_result (*clear)(rfi_device *device, uint8_t transport, const rf_params *channel,
                       size_t bytes, rf_error *err);
    rf_result (*drain)(rfi_device *device,
                       uint32_t timeout_ms); /* all launches of this rank are done */
    /* Ends the device's launches for good (E_CLOSED). */
    void (*end)(rfi_device *device);
    /* Never blocks: launches in flight and graphs keep what they use, as with `forget`. */
    void (*close)(rfi_device *device);
    const rfi_workbench *workbench;
} rfi_backend;

/* Copies of the group's connections, which outlive the comm: the device closes them. E_SYSTEM:
 * some may be there. */
rf_result rfi_group_watch(const rfi_group *group, int fd[RF_MAX_WORLD], rf_error *err);

/* A fault code (rf_fault_code) as the result that a call returns, and in words that follow a rank:
 * "did not arrive within the deadline". */
rf_result rfi_fault_result(uint32_t code);
const char *rfi_fault_text(uint32_t code);

extern const rfi_backend rfi_backend_cpu, rfi_backend_cuda;
/* NULL = no such kind. */
const rfi_backend *rfi_backend_of(rf_backend_kind kind);

#endif
