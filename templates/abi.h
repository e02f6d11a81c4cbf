/* What kernels and runtime share. Plain C, read by cc and nvcc alike; includes nothing of either.
 *
 * A launch is a pure function of (entry, grid, params). Everything that a kernel may touch is in
 * rf_params or in the channel regions that it points to. Changing anything here changes RF_ABI:
 * packs reference the symbol rfi_abi_<RF_ABI>, so that a pack built for another runtime fails at
 * link with a readable name. */
#ifndef RANKFOLD_ABI_H
#define RANKFOLD_ABI_H

#include <stddef.h> /* size_t, offsetof */
#include <stdint.h>

#define RF_ABI       4
#define RF_MAX_WORLD 8

/* Lists that the generator (gen/tactics.lua) and the runtime must agree on: X(CODE, text, number).
 * tests/codegen compares the Lua side with these lines. */
#define RF_OP_LIST(X)    X(ALL_REDUCE, "ar", 0)
#define RF_DTYPE_LIST(X) X(F32, "f32", 0) X(BF16, "bf16", 1) X(F16, "f16", 2)
#define RF_ALGO_LIST(X)                                                                            \
    X(ONE_SHOT, "os", 0) X(TWO_SHOT, "ts", 1) X(ISLANDS, "il", 2) X(PERMUTED, "pt", 3)
#define RF_TRANSPORT_LIST(X) X(CPU, "cpu", 0) X(PEER, "peer", 1) X(HOST, "host", 2)
#define RF_WIRE_LIST(X)      X(FLAG, "flag", 0) X(NAN, "nan", 1) X(TAG, "tag", 2)
#define RF_ISA_LIST(X)                                                                             \
    X(SCALAR, "scalar", 0)                                                                         \
    X(AVX2, "avx2", 1)                                                                             \
    X(AVX512, "avx512", 2)                                                                         \
    X(SM75, "sm75", 8)                                                                             \
    X(SM80, "sm80", 9)                                                                             \
    X(SM86, "sm86", 10)                                                                            \
    X(SM89, "sm89", 11)                                                                            \
    X(SM90, "sm90", 12)                                                                            \
    X(SM100, "sm100", 13)                                                                          \
    X(SM120, "sm120", 14)
#define RF_COPY_LIST(X) X(CACHED, "ca", 0) X(STREAMING, "nt", 1)

/* ---- the channel region of one rank (cpu transport)
 * ------------------------------------------------------------- Every rank owns one region per
 * channel; all ranks map it. The header is RF_REGION_HEADER bytes, then RF_SLOTS slots of
 * slot_bytes each. Only the owner stores into its region, with three exceptions: any rank may set
 * `poison` (compare and swap from 0), any rank may count itself into `sleepers`, and in a two-shot
 * step the owner of a part replaces that part of every peer's slot by the sum. */

#define RF_REGION_HEADER 4096
#define RF_SLOTS         2
#define RF_LINE          128 /* two cache lines: the adjacent-line prefetcher pairs them */

/* One step as its rank announced it; lies on the line of the sequence number that publishes it, so
 * that a mismatch between ranks is caught at no cost. Indexed by sequence & (RF_SLOTS - 1), like
 * the slots. */
typedef struct rf_call {
    uint64_t count; /* elements of the whole call */
    uint64_t tag;   /* first 8 bytes of the variant's hash, xor grid */
    uint64_t small; /* one-shot steps of at most 8 bytes: the input itself, no slot is touched */
} rf_call;

/* A sequence number that its owner advances and that peers wait for: 64 bit, so that it never
 * wraps. All that peers read with it lies on its cache line. The owner never loads from that line,
 * since peers have always just taken it away; hence `sleepers` lies on the next one. */
typedef struct rf_flag {
    uint64_t sequence;
    rf_call call[RF_SLOTS];
    unsigned char pad[RF_LINE / 2 - 8 - RF_SLOTS * 24];
    uint32_t sleepers; /* waiters that sleep on the futex at the low half of `sequence` */
    unsigned char pad2[RF_LINE / 2 - 4];
} rf_flag;

/* The page that one load reads before a kernel does anything. */
typedef struct rf_control {
    uint64_t epoch; /* sequence number of the last step that this rank finished; only the owner
                       reads or writes it */
    uint32_t
        generation; /* params of another generation are refused: a replay from before a resume */
    uint32_t
        poison; /* 0 = healthy, else RF_POISON(culprit, code): sticky until the collective reset */
    uint32_t busy; /* cpu: set while a kernel runs on the channel: overlap poisons;
                      cuda: blocks of this call that have arrived */
    uint32_t told; /* cuda: a thread of this rank has taken it on to tell the host of the poison */
    unsigned char pad[RF_LINE - 24];
} rf_control;

/* Why a kernel gave up. Written once by the kernel (or its wait hook) before it returns, read by
 * the host. */
typedef struct rf_fault {
    uint32_t code;    /* rf_fault_code */
    uint32_t culprit; /* rank to blame */
    uint32_t step;    /* rf_step in which this rank noticed */
    uint32_t unused;
    uint64_t sequence; /* step's sequence number */
    uint64_t expected, found;
    unsigned char pad[RF_LINE - 40];
} rf_fault;

typedef enum rf_fault_code {
    RF_FAULT_NONE = 0,
    RF_FAULT_DEADLINE = 1,   /* the culprit did not arrive in time */
    RF_FAULT_DEAD = 2,       /* the culprit's control socket is closed */
    RF_FAULT_MISMATCH = 3,   /* the culprit called with another count or variant */
    RF_FAULT_ABORT = 4,      /* rf_comm_abort here or on the culprit */
    RF_FAULT_GENERATION = 5, /* params from before a resume or a reset */
    RF_FAULT_BUSY = 6        /* two kernels at once on one channel */
} rf_fault_code;

/* RELAY: an answer that itself waits for an answer. In a permuted two-shot, which goes on to
 * higher numbers: ARRIVE and the steps that the culprit had to wait for before its own. */
typedef enum rf_step {
    RF_STEP_ENTRY = 0,
    RF_STEP_ARRIVE = 1,
    RF_STEP_ANSWER = 2,
    RF_STEP_RELAY = 3
} rf_step;

#define RF_POISON(culprit, code) (((uint32_t)(code) << 8) | ((uint32_t)(culprit) + 1u))
#define RF_POISON_CULPRIT(word)  (((word)&0xffu) - 1u)
#define RF_POISON_CODE(word)     ((word) >> 8)

typedef struct rf_region {
    rf_control control;
    rf_flag arrive; /* input of step `sequence` is in the slot */
    rf_flag answer; /* two-shot: the owned part's sum is in the slot */
    rf_fault fault;
} rf_region;

/* ---- cuda
 * A region has a header, slots and a ring. The families of kernels - that of the slots and the ring
 * - have an epoch each, in an rf_control of their own: rf_params.control[RF_CONTROL_*], all zero
 * but for the generation when cleared.
 *
 * Ring: flags say how far a rank has come in each lane. Behind them lie two halves of raw chunks,
 * in turns by the epoch; only the region's owner stores there, and the others read.
 *
 * ---- cuda: peer transport
 * A rank's region lies in its device memory:
 *
 * - RF_REGION_HEADER bytes, of which the first are the control lines
 * - RF_SLOTS slots of slot_bytes, which peers store into
 * - RF_RING_LANES x RF_MAX_WORLD rf_ring_flags: of each rank, which stores them
 * - two halves of RF_PEER_HALF_BYTES
 *
 * Cleared: zero, but for the slots, which are all ones.
 *
 * ---- cuda: host transport
 * A rank's region lies in pinned host memory that every device maps; only its owner stores into it,
 * but for the poison word, and all the others read:
 *
 * - RF_REGION_HEADER bytes: an rf_control of which `poison` alone is used; peers set it
 * - RF_SLOTS slots of slot_bytes, wire tag: vectors of RF_TAG_PACK_BYTES of a tensor and a tag.
 *   Vector i is pack i of the owner's tensor, or where the owner sums pack i of a two-shot, the sum
 * - RF_RING_LANES rf_ring_flags: the owner's
 * - two halves of RF_HOST_HALF_BYTES
 *
 * Cleared: all zero bytes (no tag is 0 before the upkeep has replaced them). What only the owner
 * uses - the control lines - lies in its device memory, where entering costs less. */

#define RF_CONTROL_SLOTS 0
#define RF_CONTROL_RING  1
#define RF_CONTROLS      2

#define RF_HOST_TAG_BYTES (1u << 20) /* wire tag is for tensors up to here */

/* Whole elements, and two bytes of 16 are left for the tag. */
#define RF_TAG_PACK_BYTES(element_bytes) (14 / (element_bytes) * (element_bytes))

/* Bytes of a slot of a host region: depends on the capacity only, and has room for the smaller
 * packs. */
#define RF_HOST_SLOT_BYTES(capacity)                                                               \
    (((((capacity) < RF_HOST_TAG_BYTES ? (uint64_t)(capacity) : RF_HOST_TAG_BYTES) +               \
       RF_TAG_PACK_BYTES(4) - 1) /                                                                 \
          RF_TAG_PACK_BYTES(4) * 16 +                                                              \
      4095) /                                                                                      \
     4096 * 4096)

typedef struct rf_ring_flag {
    uint64_t turns; /* epoch << RF_RING_TURN_BITS | turns of this call that are done */
    unsigned char pad[RF_LINE - 8];
} rf_ring_flag;
#define RF_RING_TURN_BITS 22
#define RF_RING_PACKS     (1u << 28) /* most of a tensor, so that its turns can be counted */
#define RF_RING_LANES     64         /* most blocks that have work */
#define RF_RING_SERVANTS  64         /* threads of a block that move no data */

/* A half: of host memory so much that it stays in the last-level cache; of a device's as much as
 * the capacity needs, up to where slots and ring are four times the capacity and 2 MiB. */
#define RF_HOST_HALF_BYTES (2u << 20)
#define RF_PEER_HALF_MOST  (896u << 10)
#define RF_PEER_HALF_BYTES(slot_bytes)                                                             \
    ((slot_bytes) / 2 < RF_PEER_HALF_MOST ? (uint32_t)((slot_bytes) / 2) : RF_PEER_HALF_MOST)

/* Where the ring begins, the bytes of its flags, and of whole regions. */
#define RF_RING_AT(slot_bytes)   (RF_REGION_HEADER + RF_SLOTS * (uint64_t)(slot_bytes))
#define RF_HOST_RING_FLAGS_BYTES (RF_RING_LANES * RF_LINE)
#define RF_PEER_RING_FLAGS_BYTES (RF_RING_LANES * RF_MAX_WORLD * RF_LINE)
#define RF_HOST_REGION_BYTES(slot_bytes)                                                           \
    (RF_RING_AT(slot_bytes) + RF_HOST_RING_FLAGS_BYTES + 2 * RF_HOST_HALF_BYTES)
#define RF_PEER_REGION_BYTES(slot_bytes)                                                           \
    (RF_RING_AT(slot_bytes) + RF_PEER_RING_FLAGS_BYTES + 2 * RF_PEER_HALF_BYTES(slot_bytes))

/* cuda: what a channel shares with the host, in host memory that the device maps. The device writes
 * all but `abort`. */
typedef struct rf_page {
    uint32_t abort;  /* not 0: waiting kernels give up and blame this rank */
    uint32_t poison; /* copy of rf_control.poison, written after the fault */
    unsigned char pad[RF_LINE - 8];
    rf_fault fault;
} rf_page;

/* cuda: what the kernels of the functional probe get by value. */
#define RF_PROBE_WORDS 16
typedef struct rf_probe {
    unsigned char *at; /* in a region that this rank maps */
    uint32_t *to;      /* get: RF_PROBE_WORDS of host memory */
    uint32_t words;
    uint32_t word[RF_PROBE_WORDS]; /* put */
} rf_probe;

/* ---- kernels
 * -----------------------------------------------------------------------------------------------------*/

struct rf_params;

/* What a cpu kernel may ask of its host. `wait` is entered after `spin` fruitless polls: it yields,
 * sleeps, watches deadline, abort, poison and dead peers; 0 = reached, else the channel is
 * poisoned, the fault is recorded and the kernel returns at once. `wake` wakes the sleepers of a
 * flag. `fail` records a fault, poisons every rank and wakes them. */
typedef struct rf_cpu_host {
    int (*wait)(const struct rf_params *p, uint32_t peer, rf_flag *flag, uint64_t sequence,
                rf_step step);
    void (*wake)(rf_flag *flag);
    void (*fail)(const struct rf_params *p, rf_fault_code code, uint32_t culprit, rf_step step,
                 uint64_t sequence, uint64_t expected, uint64_t found);
    uint32_t spin;
} rf_cpu_host;

/* Passed by value to every kernel. */
typedef struct rf_params {
    const void *in; /* count elements, element-aligned; may equal out, never overlaps it partly */
    void *out;
    uint64_t count;
    unsigned char
        *peer[RF_MAX_WORLD]; /* channel region of each rank as mapped here; peer[rank] is our own */
    uint64_t slot_bytes;     /* bytes of one slot, a multiple of 4096; the same on all ranks */
    uint64_t tag;            /* what rf_call.tag has to be */
    uint64_t deadline_ns;    /* bound of one call, from its first fruitless check */
    uint32_t rank;
    uint32_t
        grid; /* cuda: blocks; cpu: KiB of payload per step (a step never exceeds slot_bytes) */
    uint32_t generation;
    uint32_t kib_clocks;     /* cuda, host transport: SM clocks that the link to the host takes for
                                1 KiB; 0 = unknown */
    rf_control *control;     /* cuda: own RF_CONTROLS control lines, in device memory; peer
                                transport: the beginning of peer[rank] */
    const rf_cpu_host *host; /* cpu only */
    void *host_ctx;          /* cpu: for the host's functions; cuda: the channel's rf_page, in host
                                memory that the device maps */
    /* islands: the ranks of the first one, then those of the second; the same on all ranks */
    uint8_t order[RF_MAX_WORLD];
} rf_params;

typedef void (*rf_cpu_entry)(const rf_params *params);

/* ---- registry
 * ----------------------------------------------------------------------------------------------------*/

#define RF_VARIANT_REASSOC 1u /* sums in another order than rank order: opt-in */
#define RF_VARIANT_LOSSY   2u /* rounds on the wire: opt-in */
/* cuda: launched before the previous kernel of the stream has ended, and waits for it first.
 * Opt-in: the caller promises that every kernel launched so waits before it reads what an earlier
 * one wrote. */
#define RF_VARIANT_DEPENDENT 4u

/* One specialised kernel. Fields are codes of the lists above. */
typedef struct rf_variant {
    unsigned char hash[16]; /* XXH3-128, canonical (big-endian) byte order */
    const char *name;
    uint8_t op, world, dtype, algo, transport, wire, isa, copy;
    uint16_t threads, unroll;
    uint32_t hidden;    /* 0 = generic; else count is a multiple of it */
    uint32_t flags;     /* RF_VARIANT_* */
    rf_cpu_entry entry; /* cpu only */
    uint8_t by_rank;    /* cuda: 1 = one kernel per rank, named name + "_r" + rank; 0 = one kernel,
                           named name */
} rf_variant;

/* One compiled file of kernels; a process loads only the shards of its world. */
typedef struct rf_shard {
    const char *name;
    uint32_t world;
    uint32_t n;
    const rf_variant *variants; /* sorted by name */
    const void *image;          /* cuda: the fatbin of its kernels; NULL on cpu */
} rf_shard;

/* One static archive of shards. Reached through its named symbol rf_pack_<sku>, handed over in
 * rf_config.packs. */
typedef struct rf_pack {
    uint32_t abi;  /* RF_ABI of its build */
    uint32_t size; /* sizeof(rf_pack) */
    const char *sku;
    const char *toolchain;  /* compiler and version, for the campaign's facts */
    const int *abi_witness; /* &rfi_abi_<RF_ABI>: fails at link when the runtime is another */
    uint32_t n_shards;
    uint32_t n_variants;
    const rf_shard *const *shards; /* sorted by name */
} rf_pack;

#endif
