/* A machine of a few GPUs, small enough to try every order: the threads of a kernel are fibres, one
 * runs at a time, and a seeded scheduler decides at each access who goes on. Words stored to a
 * region linger and arrive one by one, in any order but that of one address; stores of a kernel to
 * its own region have arrived when the kernel ends, or when a thread fences that knows of them by a
 * barrier; stores to peers may take longer. What has
 * arrived in a ring after a thread last acquired, it may still read as it was before. Wide accesses
 * are four words, but for those to slots of host memory. The same seed gives the same run. */
#ifndef RANKFOLD_TESTS_MACHINE_H
#define RANKFOLD_TESTS_MACHINE_H

#include "abi.h"

/* Smaller than the real ones, so that little goes a long way: a half is as large as the window of
 * one lane of two workers. */
#undef RF_HOST_HALF_BYTES
#define RF_HOST_HALF_BYTES machine_half()
#undef RF_PEER_HALF_BYTES
#define RF_PEER_HALF_BYTES(slot_bytes) ((void)(slot_bytes), machine_half())
#undef RF_RING_AT /* also where a flaw leaves one slot */
#define RF_RING_AT(slot_bytes) (RF_REGION_HEADER + 2 * (uint64_t)(slot_bytes))
#undef RF_RING_LANES
#define RF_RING_LANES 4
#undef RF_RING_SERVANTS
#define RF_RING_SERVANTS (2 * RF_MAX_WORLD)

typedef struct __attribute__((aligned(16))) rf_pack16 {
    uint32_t w[4];
} rf_pack16;

typedef void (*machine_kernel)(rf_params params);

/* What the machine may get wrong on purpose: each has to be found by some seed. */
typedef enum machine_flaw {
    FLAW_NONE,
    FLAW_ONE_SLOT,    /* both slots are one, both halves of the ring too */
    FLAW_BLOCK_EPOCH, /* every block advances the epoch, not the last one */
    FLAW_NO_WAIT,     /* dependent kernels do not wait for the one before */
    FLAW_NO_REARM,    /* what was read is not re-armed */
    FLAW_EARLY_CLEAR, /* what was read is re-armed at once, also where the rest has not come */
    FLAW_TEARING,     /* wide accesses to host memory are four words too */
    FLAW_NO_FENCE,    /* a fence does not wait for stores */
    FLAW_EARLY_FLAG,  /* ring: the announcer does not wait at barriers */
    FLAW_NO_TAG,      /* wire tag: the tag is always the same */
    FLAW_NO_UPKEEP,   /* wire tag: vectors that calls don't use keep their tags */
    FLAW_NO_ACQUIRE,  /* ring: what is behind a flag is read as it may be */
    FLAW_WINDOW,      /* ring: one chunk fewer than it needs */
    FLAW_GROUPING     /* islands: one rank takes another for its partner */
} machine_flaw;

typedef struct machine_config {
    uint64_t seed;
    uint32_t world;
    int host; /* regions are of the host transport */
    uint64_t slot_bytes;
    uint64_t epoch;    /* first epoch of every region and family */
    uint32_t tag_mask; /* wire tag: bits of the tag */
    uint32_t kept;     /* wire tag: vectors that a call looks after at a time */
    uint64_t deadline; /* in steps of the machine */
    uint32_t kib_clocks;
    machine_flaw flaw;
} machine_config;

typedef struct machine machine;

machine *machine_create(const machine_config *config);
void machine_destroy(machine *m);
/* Appends a kernel to the rank's stream. `params` gets peers, rank, grid, slots, deadline and
 * kib_clocks from the machine, whose control lines are of generation 1. */
void machine_launch(machine *m, uint32_t rank, machine_kernel kernel, uint32_t grid,
                    uint32_t threads, int dependent, rf_params params);
/* Runs all streams to their ends. 0, or -1: nothing moved for so long that it is a hang. */
int machine_run(machine *m);
uint32_t machine_random(machine *m, uint32_t below);
/* The hosts of these ranks, a bit each, set their abort words at that step. */
void machine_abort(machine *m, uint32_t ranks, uint64_t step);
/* 1 = the region is as a new one but for its epoch. */
int machine_region_is_clean(const machine *m, uint32_t rank);
int machine_is_poisoned(const machine *m, uint32_t rank); /* in all of its control lines */
const rf_page *machine_page(const machine *m, uint32_t rank);
/* 1 = a host was told of a poison before its fault record was complete, or that changed later. */
int machine_is_torn(const machine *m);
uint64_t machine_paused(const machine *m, uint32_t rank); /* clocks, all threads together */

/* ---- for the functions of cuda/ptx.cuh, from within a fibre ---- */
uint32_t machine_thread(void);
uint32_t machine_block(void);
uint32_t machine_grid(void);
void machine_step(void); /* somebody else may run now */
uint32_t machine_load(const uint32_t *at);
uint32_t machine_load_sys(const uint32_t *at); /* or, of a ring, what was there before */
uint32_t machine_load_own(const uint32_t *at); /* or what this thread stored last */
int machine_is_slot(const void *at);
void machine_store(uint32_t *at, uint32_t word);
/* Four words at once where the machine does that: 1, or 0 and nothing is done. */
int machine_load16(const void *at, rf_pack16 *v);
int machine_store16(void *at, rf_pack16 v);
void machine_store_now(uint32_t *at, uint32_t word);
void machine_store_u64(void *at, uint64_t v);
int machine_barrier(int holds); /* of the block; does it hold for any of its threads? */
void machine_fence(void);
void machine_acquire(void);
void machine_wait(void);
void machine_trigger(void);
void machine_pause(uint32_t clocks);
uint64_t machine_time(void);
machine_flaw machine_flawed(void);
uint32_t machine_slots(void);
uint32_t machine_half(void); /* of the ring, in bytes */
uint32_t machine_tag_mask(void);
uint32_t machine_kept(void);

#endif
