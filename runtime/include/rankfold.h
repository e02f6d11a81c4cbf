/* Rankfold: all-reduce between the ranks of one machine, from kernels that were generated, compiled
 * and measured beforehand.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A *rank* is one participant: a process, or a thread of a process. All ranks form the *world*.
 * Each rank creates its end of a communicator (rf_comm), prepares the shapes that it will use
 * (collective, slow, does everything that can fail), and then calls rf_all_reduce (local, fast: one
 * table look-up and one launch).
 *
 *     RF_DECLARE_PACK(cpu);
 *     rf_bootstrap boot;
 *     rf_comm *comm;
 *     rf_error err = {0};
 *     const rf_pack *packs[] = { &rf_pack_cpu };
 *     rf_config cfg = RF_CONFIG_INIT;
 *     cfg.packs = packs, cfg.n_packs = 1;
 *     rf_shape shape = { RF_ALL_REDUCE, RF_BF16, RF_EAGER, 16, 4096 };
 *
 *     rf_bootstrap_env(&boot, &err);                             // RANK, WORLD_SIZE, ...
 *     rf_comm_create(&cfg, &boot, &comm, &err);                  // collective
 *     rf_bootstrap_free(&boot);
 *     rf_prepare(comm, 0, &shape, 1, &err);                      // collective: 16 rows of 4096
 *     rf_all_reduce(comm, 0, x, x, 16 * 4096, RF_BF16, NULL);    // in == out: in place
 *     rf_comm_close(comm, 5000, &err);                           // collective
 *     rf_comm_destroy(comm);
 *
 * Rules that hold everywhere, said once:
 *  - Collective means: every rank calls it, in the same order, with the same arguments. All ranks
 *    get the same verdict; where arguments differ between ranks, all get RF_E_MISMATCH and the text
 *    names a rank and the difference.
 *  - A collective that times out or loses a rank on the way (E_TIMEOUT, E_PEER) leaves the ranks at
 *    different places, so later collectives of that comm fail with the same error. Prepared calls
 *    go on as long as all ranks live; then destroy the comm and create another.
 *  - On failure nothing has changed, nothing is leaked, and out parameters are untouched, unless
 *    the function says otherwise. Errors are named without their RF_.
 *  - `rf_error *err` may be NULL. It is written only on failure.
 *  - The library never prints, exits, aborts, raises signals or installs handlers. No function
 *    touches a driver, starts a thread or opens a file before rf_comm_create or rf_store_open;
 *    `fork` after loading works. Comms, streams and stores belong to the process that made them: a
 *    child that closes or destroys its copy ends the parent's; and while a child lives, a parent's
 *    death shows by the deadline only (exec is fine).
 *  - Thread safety: different comms are independent. On one comm, rf_comm_abort, rf_comm_check and
 *    rf_status_json may be called from any thread at any time before rf_comm_destroy; all else from
 *    one thread at a time (different channels of a comm may launch concurrently).
 *  - Pointers passed in are borrowed for the call only, unless the function says otherwise.
 */
#ifndef RANKFOLD_H_7A1C
#define RANKFOLD_H_7A1C

#include <stddef.h> /* size_t */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RF_API __attribute__((visibility("default")))

/* What a struct that begins with its size starts as: all else zero, which means "the default". C++
 * has designated initialisers from C++20 on only. */
#ifdef __cplusplus
extern "C++" template <typename type> inline type rf_sized()
{
    type fresh = {};
    fresh.struct_size = sizeof fresh;
    return fresh;
}
#define RF_SIZED(type) ::rf_sized<type>()
#else
#define RF_SIZED(type)                                                                             \
    {                                                                                              \
        .struct_size = sizeof(type)                                                                \
    }
#endif

/* ========== version ========== */

#define RF_VERSION_MAJOR  0
#define RF_VERSION_MINOR  1
#define RF_VERSION_PATCH  0
#define RF_VERSION_NUMBER (RF_VERSION_MAJOR * 10000 + RF_VERSION_MINOR * 100 + RF_VERSION_PATCH)

/* Version of the linked library (compare with RF_VERSION_NUMBER) and its text. Never fail. */
RF_API uint32_t rf_version_number(void);
RF_API const char *rf_version_string(void);

/* ========== results ========== */

/* Groups have gaps; a value keeps its meaning. Everything from 10 up is an error; FALLBACK says
 * that nothing was done, and who has to do it. X(NAME, number, text) */
#define RF_RESULT_LIST(X)                                                                          \
    X(OK, 0, "ok")                                                                                 \
    X(FALLBACK, 1,                                                                                 \
      "left to the caller's own collective: it was measured faster, or this count was not "        \
      "prepared; the stream was not touched")                                                      \
    X(E_ARG, 10, "wrong argument")                                                                 \
    X(E_DTYPE, 11, "unknown or unsupported dtype")                                                 \
    X(E_ALIGN, 12, "pointer is not aligned to its element size")                                   \
    X(E_OVERLAP, 13, "input and output overlap without being equal")                               \
    X(E_CAPACITY, 14, "larger than the capacity of the comm")                                      \
    X(E_CHANNEL, 15, "no such channel")                                                            \
    X(E_SYSTEM, 20, "the operating system refused")                                                \
    X(E_MEMORY, 21, "out of memory")                                                               \
    X(E_BACKEND, 22, "the backend is not available here")                                          \
    X(E_PACK, 23, "a pack does not fit this runtime")                                              \
    X(E_VARIANT, 24, "no variant for this")                                                        \
    X(E_TIMEOUT, 30, "a rank did not arrive in time")                                              \
    X(E_PEER, 31, "a rank is gone")                                                                \
    X(E_MISMATCH, 32, "the ranks disagree")                                                        \
    X(E_REMOTE, 33, "another rank failed")                                                         \
    X(E_ABORTED, 34, "aborted")                                                                    \
    X(E_POISONED, 35, "an earlier call failed; the channel needs rf_comm_reset")                   \
    X(E_CLOSED, 36, "the comm is closed")                                                          \
    X(E_STREAM, 40, "the channel belongs to another stream")                                       \
    X(E_CAPTURE, 41, "not possible while the stream is capturing")                                 \
    X(E_GENERATION, 42, "a launch from an earlier generation of the comm")                         \
    X(E_DB, 50, "the tactic database cannot be used")                                              \
    X(E_DB_FOREIGN, 51, "not a Rankfold tactic database")                                          \
    X(E_DB_NEWER, 52, "the tactic database has a newer schema")                                    \
    X(E_DB_CORRUPT, 53, "the tactic database is damaged")                                          \
    X(E_DB_LOCKED, 54, "the tactic database is locked")                                            \
    X(E_DB_READONLY, 55, "the tactic database cannot be written")                                  \
    X(E_DB_FULL, 56, "no space left for the tactic database")                                      \
    X(E_DB_ABSENT, 57, "there is no tactic database")                                              \
    X(E_WRONG, 60, "a result differs from the oracle")

typedef enum rf_result {
#define RF_X(name, number, text) RF_##name = (number),
    RF_RESULT_LIST(RF_X)
#undef RF_X
} rf_result;

/* A short English sentence for any value, "unknown result" included. Static storage. */
RF_API const char *rf_strerror(rf_result result);

#define RF_ERROR_TEXT 480

/* What went wrong, where. `text` is one line, always terminated, and says what was found and what
 * was expected. */
typedef struct rf_error {
    rf_result code;
    int rank;         /* rank that failed or is to blame; -1 = this one, before ranks are known */
    const char *step; /* static: "bootstrap", "identity", "allocate", "map", "probe", "prepare",
                         "call", ... */
    char text[RF_ERROR_TEXT];
} rf_error;

/* ========== shapes ========== */

typedef enum rf_op { RF_ALL_REDUCE = 0 } rf_op; /* sum */
typedef enum rf_dtype { RF_F32 = 0, RF_BF16 = 1, RF_F16 = 2 } rf_dtype;
typedef enum rf_mode { RF_EAGER = 0, RF_GRAPH = 1 } rf_mode; /* how the call will be launched */

/* rows x hidden elements. hidden selects specialised kernels; {1, n} is a flat shape of n elements.
 */
typedef struct rf_shape {
    rf_op op;
    rf_dtype dtype;
    rf_mode mode;
    uint64_t rows, hidden;
} rf_shape;

/* Bytes of one element; 0 for an unknown dtype. */
RF_API size_t rf_dtype_size(rf_dtype dtype);
/* "f32", "bf16", "f16"; NULL for an unknown dtype. rf_dtype_parse: -1 for an unknown name. */
RF_API const char *rf_dtype_name(rf_dtype dtype);
RF_API int rf_dtype_parse(const char *name);

/* Defines right: out[i] = round(((in[0][i] + in[1][i]) + in[2][i]) ...) with every sum in fp32, in
 * rank order, one rounding to nearest even at the end, denormals kept, every NaN result 0x7FFF
 * (f32: 0x7FFFFFFF). Every tactic that is not marked otherwise gives these bits. `out` may equal
 * any in[r]. world 1 to 8. Errors: E_ARG, E_DTYPE. Pure. */
RF_API rf_result rf_oracle_all_reduce(const void *const *in, void *out, uint64_t count,
                                      rf_dtype dtype, int world);
/* The same for tactics of two islands (RF_REASSOC): the sum of the first half of `order`, in that
 * order, plus the sum of the second half, then the one rounding. Before the rounding it is within
 * world / 2 * 2^-24 * (|in[0][i]| + |in[1][i]| + ...) of the exact sum, to first order; rank order
 * within (world - 1) times that. order: every rank once, as rf_islands_query gives it; world even.
 * Errors: E_ARG, E_DTYPE. Pure. */
RF_API rf_result rf_oracle_islands(const void *const *in, void *out, uint64_t count, rf_dtype dtype,
                                   int world, const uint8_t *order);

/* ========== bootstrap ========== */

/* How ranks find each other. Used inside rf_comm_create only, for a few hundred bytes.
 * allgather: every rank contributes `bytes` at `in`; out[r * bytes ..] receives rank r's. 0 = done;
 * else an errno value: ETIMEDOUT when `timeout_ms` passed. If it cannot name the missing rank, the
 * error says "unknown rank". */
typedef struct rf_bootstrap {
    void *ctx;
    int rank, world;
    int (*allgather)(void *ctx, const void *in, void *out, size_t bytes, int timeout_ms);
    void (*free_ctx)(void *ctx); /* NULL: nothing to free */
} rf_bootstrap;

/* Three ready ones; free each with rf_bootstrap_free after rf_comm_create returned (either way).
 *   socket:  ranks of one machine and network namespace that agree on a name; an abstract Unix
 *            socket, so nothing stays behind.
 *   env:     RANK and WORLD_SIZE as torchrun sets them, or OMPI_COMM_WORLD_*, or PMI_*. The name
 *            comes from RANKFOLD_BOOTSTRAP, else from what the launcher tells all its ranks
 *            (MASTER_ADDR, MASTER_PORT and TORCHELASTIC_RUN_ID; PMIX_NAMESPACE; PMI_JOBID),
 *            else, under MPI, from the launcher's process id.
 *   threads: fills out[0 .. world-1] for threads of this process.
 * A bootstrap from a callback needs no helper: fill the struct. */
RF_API rf_result rf_bootstrap_socket(const char *name, int rank, int world, rf_bootstrap *out,
                                     rf_error *err);
RF_API rf_result rf_bootstrap_env(rf_bootstrap *out, rf_error *err);
RF_API rf_result rf_bootstrap_threads(int world, rf_bootstrap *out, rf_error *err);
RF_API void rf_bootstrap_free(rf_bootstrap *boot);

/* ========== packs and stores ========== */

/* A static archive of kernels, librankfold_<sku>.a. Declare the ones that you link:
 * RF_DECLARE_PACK(cpu); then &rf_pack_cpu. */
typedef struct rf_pack rf_pack;
#ifdef __cplusplus
#define RF_DECLARE_PACK(sku) extern "C" const rf_pack rf_pack_##sku /* outside of functions */
#else
#define RF_DECLARE_PACK(sku) extern const rf_pack rf_pack_##sku
#endif
/* In librankfold.so only, where nobody names them: the packs that it holds, NULL behind the last.
 */
extern RF_API const rf_pack *const rf_packs[];

/* What a pack holds: variant i < rf_pack_count(pack), in the pack's order. Texts are the pack's.
 * algorithm: os = one-shot, ts = two-shot, pt = two-shot in which everybody stores to one rank at a
 * time, il = islands (rf_islands_info). wire: nan = stores into the peers' memory that show by
 * themselves that they are there, tag = the same in host memory, flag = stores into memory of one's
 * own, which the peers read when they are told. Pure. Errors: E_ARG; E_PACK: built for another
 * runtime (rf_pack_count is 0 then). */
typedef struct rf_variant_info {
    const char *name, *sku, *toolchain;
    char hash[33]; /* of parameters and source: what the database knows it by */
    rf_op op;
    rf_dtype dtype;
    int world;
    uint64_t hidden; /* 0 = any */
    const char *algorithm, *transport, *wire, *isa, *copy;
    unsigned unroll;
    int reassoc, lossy, dependent; /* opt-in, see rf_config.flags */
} rf_variant_info;
RF_API size_t rf_pack_count(const rf_pack *pack);
RF_API rf_result rf_pack_variant(const rf_pack *pack, size_t i, rf_variant_info *out);

/* Where decisions come from and measurements go. Opened by rf_store_open (librankfold_db.a, SQLite)
 * or taken from a C table that `rankfold db freeze` wrote (no SQLite). Must outlive the comms that
 * use it. Not shared between threads. */
typedef struct rf_store rf_store;
typedef struct rf_frozen rf_frozen;

/* path: the writable database; NULL = $RANKFOLD_DB, else $XDG_STATE_HOME/rankfold/tactics.db, else
 * $HOME/.local/state/rankfold/tactics.db. shipped: a read-only database below it; NULL = none. With
 * RF_STORE_READ nothing is created or written. An empty file is as good as none; one that cannot be
 * used is left untouched and the store answers from the next rung: the call succeeds and
 * rf_store_warning says what was wrong in one line. Fails only on E_ARG and E_MEMORY. */
#define RF_STORE_READ 1u
RF_API rf_result rf_store_open(const char *path, const char *shipped, uint32_t flags,
                               rf_store **out, rf_error *err);
/* Answers as the database does that the table was made from, read below another: every decision of
 * its hosts, under all their environments. Cannot be written. E_DB: of another runtime, or damaged.
 */
RF_API rf_result rf_store_frozen(const rf_frozen *table, rf_store **out, rf_error *err);
RF_API const char *
rf_store_warning(const rf_store *store);     /* NULL = all well; owned by the store */
RF_API void rf_store_close(rf_store *store); /* NULL is fine */

/* ========== communicators ========== */

typedef struct rf_comm rf_comm;

/* cuda: streams are CUstream (or cudaStream_t), pointers device memory of the comm's device. The
 * driver (libcuda.so.1, Linux 550 or newer) is opened by rf_comm_create; nothing of CUDA is needed
 * to build or link. */
typedef enum rf_backend_kind { RF_BACKEND_CPU = 0, RF_BACKEND_CUDA = 1 } rf_backend_kind;

/* level: 0 error, 1 warning, 2 info. One line, no newline. Called from the thread that called the
 * library. */
typedef void (*rf_log_fn)(void *ctx, int level, const char *line);

/* flags */
#define RF_REASSOC                                                                                 \
    1u /* admit tactics that sum in another order (results then depend on the tactic, and on which \
          ranks are near each other; equal on all ranks, and from run to run of one plan) */
#define RF_LOSSY 2u /* admit tactics that round on the wire; no SKU has one yet */
/* cuda: admit tactics that are launched before the stream's previous kernel has ended and wait for
 * it on the device (programmatic dependent launch, from sm_90 on). The caller promises that every
 * other kernel launched so on the channel's stream waits likewise before it reads or writes memory.
 */
#define RF_DEPENDENT 4u
/* cuda: several ranks on one GPU; as processes only under MPS (else each waits for its time slice).
 */
#define RF_SHARE_DEVICE 8u
/* Off unless the user asks for it: rf_comm_create fails with E_BACKEND on all ranks unless every
 * rank has RANKFOLD_DISABLE=0. */
#define RF_OPT_IN 16u
/* cuda: ranks do not store into each other's GPUs, but meet in host memory. NCCL_P2P_DISABLE does
 * the same. */
#define RF_NO_PEER 32u

/* Begins with struct_size, so that fields can be added: start from RF_CONFIG_INIT. Zero means "the
 * default" everywhere. Everything but log, store and device has to be equal on all ranks. */
typedef struct rf_config {
    size_t struct_size;
    rf_backend_kind backend;
    int device;                  /* cuda: ordinal, as the process sees it; cpu: ignored */
    const rf_pack *const *packs; /* borrowed until destroy */
    size_t n_packs;
    rf_store *store; /* borrowed until destroy; used on rank 0 only; NULL = class defaults */
    uint64_t capacity_bytes;    /* largest tensor; default 64 MiB */
    uint32_t channels;          /* 1 to 16; default 1 */
    uint32_t deadline_ms;       /* how long a call waits for its peers; default 30000 */
    uint32_t create_timeout_ms; /* how long create and prepare wait for the ranks; default 60000 */
    uint32_t flags;
    rf_log_fn log;
    void *log_ctx;
} rf_config;

#define RF_CONFIG_INIT RF_SIZED(rf_config)

/* What one rank will allocate at most, in bytes. cpu: a little more than twice the capacity for
 * each channel, at most 2 MiB, of host memory that the ranks share. cuda: for each channel four
 * times the capacity and up to 2 MiB, in whole granules of the driver (mostly 2 MiB), of device
 * memory that the peers map, unless RF_NO_PEER is set; and for each channel 4 MiB and three times
 * the capacity, at most 7 MiB, of pinned host memory. What turns out not to work is given back;
 * what the packs have no variant for is not allocated. */
typedef struct rf_footprint {
    uint64_t device_bytes, host_bytes;
} rf_footprint;
/* For this config at this world size. Pure. Errors: E_ARG. */
RF_API rf_result rf_footprint_query(const rf_config *config, int world, rf_footprint *out,
                                    rf_error *err);

/* Collective transaction: capability, identity, allocation, mapping and a functional probe of every
 * ordered pair are agreed by all ranks or undone by all. world 1 to 8; 1 is legal and copies. cuda:
 * the ranks meet in each other's device memory (peer) and in pinned host memory (host), whichever
 * the packs have variants for. One of the two that fails on any rank is off on all, with its reason
 * in rf_status_json and the log; where both are off, create fails and says why.
 * `boot` is used during the call only. Errors: all but the call-time ones; the text names the rank
 * that failed, the step and the reason, the same on every rank. */
RF_API rf_result rf_comm_create(const rf_config *config, const rf_bootstrap *boot, rf_comm **out,
                                rf_error *err);
/* All ranks from one thread: out[0 .. world-1]. What is collective and has no such form needs a
 * thread for every rank; rf_comm_destroy does not. cpu: calls from one thread need an rf_cpu_stream
 * for every rank, since with `stream` NULL the first one waits for ranks that cannot come. */
RF_API rf_result rf_comm_create_all(const rf_config *config, int world, rf_comm **out,
                                    rf_error *err);

/* The i-th kind of memory that the comm's ranks may meet in, best first, and why not; the same on
 * all ranks. Errors: E_ARG: NULL, or there are no more. */
typedef struct rf_transport_info {
    const char *name; /* "cpu", "peer", "host"; static */
    int on;
    char reason[RF_ERROR_TEXT]; /* of being off; else empty */
} rf_transport_info;
RF_API rf_result rf_transport_query(const rf_comm *comm, size_t i, rf_transport_info *out);

/* How the ranks are parted into two islands of as many, near each other on one (by NVLink, a
 * switch, a socket), for tactics of two levels; the same on all ranks. From what the GPUs' links
 * are, or from the file that RANKFOLD_TOPOLOGY names, of which every line is a rank and the number
 * of its island ("0 0"; # begins a comment), the same on all ranks. Only RF_REASSOC lets such
 * tactics run. Errors: E_ARG. */
typedef struct rf_islands_info {
    int on;
    uint8_t order[8]; /* the ranks of the first island, then those of the second */
    char reason[160]; /* where that comes from, or why there are none */
} rf_islands_info;
RF_API rf_result rf_islands_query(const rf_comm *comm, rf_islands_info *out);

RF_API int rf_comm_rank(const rf_comm *comm);
RF_API int rf_comm_world(const rf_comm *comm);

/* Channel 0 exists. Others are opened by name (1 to 31 printable bytes of ASCII), collectively; the
 * same name gives the same channel. At most config.channels. Errors: E_ARG, E_CHANNEL (all in use),
 * E_MISMATCH, E_TIMEOUT, E_PEER. */
RF_API rf_result rf_channel_open(rf_comm *comm, const char *name, int *channel, rf_error *err);
/* Hands the channel to the next stream that launches on it. Local; the caller has ordered the
 * streams. On GPUs the same stream needs it on its way into and out of capture. Errors: E_ARG: comm
 * is NULL; E_CHANNEL. */
RF_API rf_result rf_channel_rebind(rf_comm *comm, int channel);

/* Collective. Resolves shapes to plans: rank 0 decides (database, else class default), every rank
 * verifies that it holds exactly that variant and loads it. Shapes add to those prepared before;
 * one of the same dtype, mode and number of elements again replaces the plan. n: up to 65536.
 * Nothing is measured. Where the caller's own collective was measured faster, be it in another
 * program, the plan is a fallback, and rf_all_reduce leaves that shape to the caller; on a comm
 * without a baseline a warning in the log counts them. On failure earlier plans stand. Errors:
 * E_ARG, E_CAPACITY, E_VARIANT, E_MISMATCH, E_TIMEOUT, E_PEER, E_REMOTE. */
RF_API rf_result rf_prepare(rf_comm *comm, int channel, const rf_shape *shapes, size_t n,
                            rf_error *err);
RF_API rf_result rf_prepare_all(rf_comm *const *comms, int world, int channel,
                                const rf_shape *shapes, size_t n, rf_error *err);

/* out = sum over ranks of in, `count` elements. in == out is fine; partial overlap is E_OVERLAP.
 * Any element-aligned pointer. Same count, dtype and channel on all ranks, in the same order. count
 * 0 is a no-op. A shape that was not prepared takes the nearest plan that prepare froze, else the
 * generic one; alike on all ranks. cpu: `stream` NULL runs on the calling thread and returns when
 * the sum is in `out`; else an rf_cpu_stream, asynchronous. No allocation, no system call before
 * the kernel, no lazy loading. FALLBACK, on all ranks alike, is no error and no sum either: the
 * plan says that the caller's own collective is faster, nothing was enqueued, `out` is as it was,
 * and the caller has to run that collective (rf_dispatch does, where rf_comm_baseline gave one).
 * After an error from a wait, `out` is undefined and the channel is poisoned (E_POISONED) until
 * rf_comm_reset. Results besides OK: FALLBACK, E_ARG, E_DTYPE, E_ALIGN, E_OVERLAP, E_CAPACITY,
 * E_CHANNEL, E_VARIANT, E_STREAM, E_POISONED, E_CLOSED; from a synchronous call also E_TIMEOUT,
 * E_PEER, E_MISMATCH, E_ABORTED, E_GENERATION. rf_comm_error has the text. */
RF_API rf_result rf_all_reduce(rf_comm *comm, int channel, const void *in, void *out,
                               uint64_t count, rf_dtype dtype, void *stream);

/* ---- the baseline: the caller's own collective ---- */

/* all_reduce: enqueues out = sum over ranks of in, `count` elements, on the stream, as
 * rf_all_reduce does (same arguments, same order on all ranks, in == out too, inside capture too).
 * RF_OK, or any error: then it stands for the call's result. For rf_tune an error is a candidate
 * that failed, and it goes on; but E_PEER, E_ABORTED, E_CLOSED, E_MEMORY and E_SYSTEM say that
 * nobody can, and end it: where only this collective does not work, return E_BACKEND. It may be
 * called by any function that calls or tunes on this comm, from the caller's thread. all_reduce
 * NULL: there is none, and `name` says why. */
#define RF_BASELINE_NAME 160
typedef struct rf_baseline {
    char name[RF_BASELINE_NAME]; /* "nccl 2.28.9": for status and records */
    rf_result (*all_reduce)(void *ctx, const void *in, void *out, uint64_t count, rf_dtype dtype,
                            void *stream);
    void *ctx; /* borrowed until destroy */
} rf_baseline;

/* Collective. From now on rf_tune measures the baseline like any variant (its results have to be
 * right within the rounding of its own order of summation), records it, and lets it win;
 * rf_dispatch runs it. One rank without (NULL, or all_reduce NULL) and no rank has one: E_BACKEND
 * on all, and the comm works on without; status says why. Replaces the one before. */
RF_API rf_result rf_comm_baseline(rf_comm *comm, const rf_baseline *baseline, rf_error *err);

/* Fills *out with ncclAllReduce on this communicator (an ncclComm_t of the same ranks, which
 * outlives the comm), from the libnccl.so.2 that the process has loaded, else from the one that the
 * system finds. Local. Errors: E_ARG; E_BACKEND: no NCCL, or not usable; *out says why then and
 * goes to rf_comm_baseline all the same, so that all ranks learn that there is none. */
RF_API rf_result rf_baseline_nccl(void *nccl_comm, rf_baseline *out, rf_error *err);

/* What an engine's dispatcher does: ours where exactly this count was prepared and the plan is not
 * a fallback, else the baseline: for other counts, and beyond the capacity. One decision on all
 * ranks. FALLBACK where there is no baseline: the stream was not touched. Otherwise as
 * rf_all_reduce. */
RF_API rf_result rf_dispatch(rf_comm *comm, int channel, const void *in, void *out, uint64_t count,
                             rf_dtype dtype, void *stream);

/* Can this comm do it at all (op, dtype, size)? Whether it is worth it, the plan says. Pure. */
RF_API int rf_supports(const rf_comm *comm, const rf_shape *shape);

/* Rungs of the look-up ladder, best first. X(NAME, number, text) */
#define RF_RUNG_LIST(X)                                                                            \
    X(FORCED, 0, "forced by RANKFOLD_TACTIC")                                                      \
    X(EXACT, 1, "measured here")                                                                   \
    X(SESSION, 2, "measured by this comm alone, no decision of a database")                        \
    X(OTHER_ENV, 3, "measured on this hardware in another environment (stale)")                    \
    X(OTHER_HASH, 4, "measured with an earlier build of this variant (stale)")                     \
    X(PARTIAL, 5, "measured here, but not all tactics that are admitted now")                      \
    X(NEAREST, 6, "nearest measured size")                                                         \
    X(SHIPPED, 7, "shipped decision")                                                              \
    X(CLASS, 8, "default of the hardware class, not measured")                                     \
    X(GENERIC, 9, "generic variant")

typedef enum rf_rung {
#define RF_X(name, number, text) RF_RUNG_##name = (number),
    RF_RUNG_LIST(RF_X)
#undef RF_X
} rf_rung;

RF_API const char *rf_rung_text(rf_rung rung);

/* What rf_all_reduce of `count` elements would do, eager or captured, and why. Errors: E_ARG: NULL,
 * count 0 or no mode; E_CHANNEL, E_DTYPE, E_CAPACITY; E_VARIANT: no pack has one that runs here. */
typedef struct rf_plan_info {
    char variant[96]; /* name */
    uint32_t grid;
    rf_rung rung;
    int fallback;     /* the baseline was measured faster */
    double median_us; /* as measured; 0 = unknown */
    char reason[256]; /* one line: key, rung, what is stale, what to run */
    /* The baseline's time in the same measurement; 0 = not measured, infinite = it failed. */
    double baseline_us;
    /* The shape that was measured, as rows and hidden; 0 = unknown. Sizes count in powers of two:
     * one measured shape decides for all between two of them. */
    uint64_t measured_rows, measured_hidden;
} rf_plan_info;
RF_API rf_result rf_plan_query(const rf_comm *comm, int channel, uint64_t count, rf_dtype dtype,
                               rf_mode mode, rf_plan_info *out);

/* ---- health and ends ---- */

typedef struct rf_health {
    rf_result code;    /* RF_OK = healthy */
    int channel;       /* first unhealthy one */
    int culprit;       /* rank to blame, -1 = unknown */
    uint64_t sequence; /* protocol step that failed */
    uint64_t calls;    /* launches of this rank, all channels (replays not included) */
} rf_health;
/* Reads health on the host without synchronising: what replays cannot return. Any thread. */
RF_API rf_result rf_comm_check(const rf_comm *comm, rf_health *out);
/* Last error of a call on this comm; code RF_OK if there was none. What fails later in a stream or
 * a replay is not in it: rf_comm_check has that. Owned by the comm; valid until its next failing
 * call. */
RF_API const rf_error *rf_comm_error(const rf_comm *comm);
/* Frees waiting kernels of this rank, and of its peers: they return E_ABORTED naming this rank. Any
 * thread; sticky. */
RF_API void rf_comm_abort(rf_comm *comm);
/* Collective: drain, barrier, clear, barrier. Revives poisoned channels; plans stay. Graphs that
 * were captured before are void: capture them again. Replayed they end in E_GENERATION and poison
 * the channel. Errors: E_TIMEOUT, E_PEER, and what a device met: still poisoned, and nothing is
 * left but to destroy the comm and create another. */
RF_API rf_result rf_comm_reset(rf_comm *comm, uint32_t timeout_ms, rf_error *err);
/* Collective, ordered: drain, unmap imports, agree, free exports. The comm can only be destroyed
 * afterwards. A second call is a no-op (RF_OK). Errors: E_TIMEOUT and E_PEER name the missing rank;
 * the comm is closed all the same. Graphs captured on it must not be replayed any more. */
RF_API rf_result rf_comm_close(rf_comm *comm, uint32_t timeout_ms, rf_error *err);
/* Local: never communicates, never blocks. NULL is fine. Without close before it, peers that wait
 * see E_PEER. */
RF_API void rf_comm_destroy(rf_comm *comm);

/* One line of JSON, null for no comm. Writes at most `size` bytes, terminated; returns the length
 * needed without the terminator, as snprintf. Any thread. Texts are null where there is none. Keys:
 *   version, rank, world, capacity_bytes, deadline_ms
 *   backend      "cpu" or "cuda"
 *   arch, hw, env  architecture; fingerprints of hardware and environment, as the database has them
 *   generation   1, and one more with every rf_comm_reset
 *   transports   [{name, on}], best first; of one that is off also rank, step and reason
 *   islands      {ranks, reason}: "0,1|2,3"
 *   health       {code, text, channel, culprit, sequence, calls}: rf_health
 *   store        {here, generation, warning}. here: this rank has one. generation: of rank 0's when
 *                shapes were last prepared; it changes with the decisions in it, 0: no database
 *   baseline     {name, reason}
 *   channels     [{name, calls, plans}]. calls: how many took which path: {prepared, nearest, class
 *                (nothing prepared would serve), direct (of the tuner and rf_verify),
 *                fallback (RF_FALLBACK was returned), baseline, failed}. plans: [{rows, hidden,
 *                dtype, mode ("eager", "graph"), variant, grid, fallback, rung, median_us,
 *                baseline_us (null: it failed), reason}]
 *   not_in_use   [{tactic, reason}]: what the packs have and no plan uses */
RF_API size_t rf_status_json(const rf_comm *comm, char *buf, size_t size);

/* ========== tuning ========== */

typedef struct rf_tune_progress {
    const char *phase; /* "check", "measure", "decide" */
    rf_shape shape;
    size_t shape_index, n_shapes;
    const char *variant; /* being measured; NULL between candidates */
    uint32_t grid;
    double done;        /* 0 .. 1, of the whole session */
    double eta_seconds; /* to its end */
} rf_tune_progress;

/* flags */
#define RF_TUNE_FORCE 1u /* measure again what is in the database already */

/* Zero means default. Equal on all ranks but for progress. */
typedef struct rf_tune_options {
    size_t struct_size;
    uint32_t budget_ms; /* whole session; default 60000 */
    uint32_t rounds;    /* interleaved rounds; default 7 */
    uint32_t flags;
    uint64_t seed;              /* order and data */
    const char *variant_filter; /* glob on names, "baseline" among them: * and ?; NULL = all */
    void (*progress)(void *ctx, const rf_tune_progress *p);
    void *progress_ctx;
} rf_tune_options;

#define RF_TUNE_OPTIONS_INIT RF_SIZED(rf_tune_options)

typedef struct rf_tune_summary {
    uint32_t shapes, warm; /* warm: answered from the database, nothing measured */
    uint32_t unmatched;    /* shapes for which nothing that may run passes variant_filter */
    /* Shapes of which something was not measured because the time was up: the database does not
     * decide by them yet. The next session goes on with them (one with RF_TUNE_FORCE begins anew).
     */
    uint32_t unfinished;
    uint32_t measured, wrong, timeout, infeasible; /* candidates by outcome */
    uint32_t resets; /* of the comm, after candidates that failed: see rf_comm_reset about graphs */
    double seconds;
} rf_tune_summary;

/* Collective. Measures every feasible candidate for each shape (checked against the oracle first),
 * records every measurement in the store, derives decisions and prepares the shapes with them. What
 * the database already answers is not measured. A candidate that times out is tried once more after
 * a reset of the comm, since a rank that was held up looks the same; the second time it is
 * recorded, the comm is reset and the tuner goes on. A session whose budget runs out is RF_OK: what
 * has min(3, rounds) samples is recorded, shapes that are not complete (`unfinished`) have plans by
 * that (RF_RUNG_SESSION) for this comm only, unless the database decides by another sweep, and
 * every session completes one candidate at least, if need be beyond its budget, so that those that
 * follow come to an end. Losing the database mid-way (full disk) ends with E_DB_*; what was
 * measured stays in use for this comm. One that cannot be written from the start is E_DB_* before
 * anything is measured (E_DB_READONLY: it was opened for reading), and earlier plans stand; where
 * nothing has to be measured it need not be written. Without a store all is measured, for this comm
 * only. A comm with a poisoned channel is E_POISONED: no candidate is to blame for that. `out` may
 * be NULL. */
RF_API rf_result rf_tune(rf_comm *comm, int channel, const rf_shape *shapes, size_t n,
                         const rf_tune_options *options, rf_tune_summary *out, rf_error *err);
/* Collective. Runs the shape's plan in and out of place on test data of the library's own, special
 * values among them, and compares with rf_oracle_all_reduce, or rf_oracle_islands where the plan's
 * tactic sums in that order (a baseline: within rounding). Errors:
 * RF_E_WRONG, those of a call, E_MEMORY; RF_FALLBACK where the plan is a baseline that the comm
 * does not have. Takes the channel from its stream, as rf_channel_rebind does. */
RF_API rf_result rf_verify(rf_comm *comm, int channel, const rf_shape *shape, uint64_t seed,
                           rf_error *err);
/* Collective. Takes `n` samples of the shape's plan: us[i] = microseconds of one call in a row of
 * about `calls`, captured and replayed where the shape's mode says so, on the slowest rank. Errors
 * and channel as for rf_verify. */
RF_API rf_result rf_time(rf_comm *comm, int channel, const rf_shape *shape, uint32_t calls,
                         double *us, size_t n, rf_error *err);
/* 1 while a tuning session of exactly this comm is open. There is no process-wide tuner state. Any
 * thread. */
RF_API int rf_can_profile(const rf_comm *comm);

/* ========== cpu streams ========== */

/* A queue with a thread of its own, for engines that drive all ranks from one thread, and for
 * capture and replay. */
typedef struct rf_cpu_stream rf_cpu_stream;
typedef struct rf_cpu_graph rf_cpu_graph;

/* Errors: E_ARG, E_MEMORY, E_SYSTEM: no thread. */
RF_API rf_result rf_cpu_stream_create(rf_cpu_stream **out, rf_error *err);
/* Waits until all that was launched before is done. Returns the first error of a launch since the
 * last synchronize. Errors: E_ARG; E_CAPTURE: it is capturing; E_STREAM: from a function that runs
 * in it. */
RF_API rf_result rf_cpu_stream_synchronize(rf_cpu_stream *stream);
/* Waits for the queue, ends the thread; not from a function that runs in it. NULL is fine. */
RF_API void rf_cpu_stream_destroy(rf_cpu_stream *stream);
/* Between begin and end, launches are recorded instead of run. A graph is queued whole or, on an
 * error, not at all. Errors: E_ARG, E_MEMORY; E_CAPTURE: begin and launch: the stream is capturing;
 * end: it is not. */
RF_API rf_result rf_cpu_capture_begin(rf_cpu_stream *stream);
RF_API rf_result rf_cpu_capture_end(rf_cpu_stream *stream, rf_cpu_graph **out);
RF_API rf_result rf_cpu_graph_launch(const rf_cpu_graph *graph, rf_cpu_stream *stream);
RF_API void
rf_cpu_graph_destroy(rf_cpu_graph *graph); /* after its replays are done; NULL is fine */
/* A pause of `microseconds` in the queue: skew, for tests and benchmarks. Errors: E_ARG, E_MEMORY.
 */
RF_API rf_result rf_cpu_stream_delay(rf_cpu_stream *stream, uint32_t microseconds);
/* Calls `function` in the queue: for a baseline on a cpu stream. It may be called as long as a
 * graph that recorded it lives, of which nobody tells: `arg` is best something that lives as long
 * as the comm. What it returns is the launch's result. Errors: E_ARG, E_MEMORY. */
RF_API rf_result rf_cpu_stream_call(rf_cpu_stream *stream, rf_result (*function)(void *arg),
                                    void *arg);

/* ========== environment ========== */

/* All variables of its own that the library reads, and NCCL's, all optional. X(NAME, what it does)
 */
#define RF_ENV_LIST(X)                                                                             \
    X(RANKFOLD_DB, "path of the writable tactic database")                                         \
    X(RANKFOLD_TACTIC, "force this variant name, or glob of names, where it is feasible")          \
    X(RANKFOLD_DISABLE,                                                                            \
      "1: rf_comm_create fails with E_BACKEND on all ranks; 0: opts in where the program asks "    \
      "(RF_OPT_IN)")                                                                               \
    X(RANKFOLD_DEADLINE_MS, "overrides rf_config.deadline_ms")                                     \
    X(RANKFOLD_BOOTSTRAP, "name for rf_bootstrap_env")                                             \
    X(RANKFOLD_TOPOLOGY, "path of a file that says which ranks are near each other: see "          \
                         "rf_islands_info")                                                        \
    X(NCCL_P2P_DISABLE, "not 0, on any rank: no stores between GPUs; the ranks meet in host "      \
                        "memory")

#ifdef __cplusplus
}
#endif

#endif
