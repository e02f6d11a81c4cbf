/* Seeded schedules of the CUDA templates on the small machine: every run has to give the oracle's
 * bits and leave clean regions; a machine with one of the flaws has to be caught.
 * `schedules peer_f32 SEED` replays one seed. */
#include "kernels.h"

#include "rankfold.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CALLS 60
#define MAX_COUNT 600
#define COUNT     150                   /* mostly: rings need more to go round */
#define ROOM      (4 * (MAX_COUNT + 4)) /* bytes of a tensor, not aligned for some */

/* What a series of runs is made of. */
typedef struct series {
    const char *name;
    const kernel_table *table;
    uint32_t first, kernels; /* of the table's */
    uint32_t runs, calls, count;
    uint64_t slot_bytes; /* 0: as calls need */
    uint32_t tag_mask;
    uint8_t worlds[8];
} series;

#define ALL_TAGS 0xffffffffu
#define MIXED                                                                                      \
    {                                                                                              \
        2, 3, 4, 5, 2, 3, 4, 8                                                                     \
    }
#define EVEN                                                                                       \
    {                                                                                              \
        4, 4, 6, 4, 4, 6, 4, 8                                                                     \
    }
static const series all_series[] = {
    {"peer_f32", &kernels_peer_f32, 0, KERNELS_PEER, 4000, 7, COUNT, 0, ALL_TAGS, MIXED},
    {"peer_bf16", &kernels_peer_bf16, 0, KERNELS_PEER, 1000, 7, COUNT, 0, ALL_TAGS, MIXED},
    {"peer_f16", &kernels_peer_f16, 0, KERNELS_PEER, 1000, 7, COUNT, 0, ALL_TAGS, MIXED},
    {"peer_nan", &kernels_peer_f32, 0, KERNELS_SLOTS, 400, 7, COUNT, 0, ALL_TAGS, MIXED},
    {"peer_ring", &kernels_peer_f32, KERNELS_SLOTS, KERNELS_RING, 400, 7, MAX_COUNT, 0, ALL_TAGS,
     MIXED},
    {"peer_turns", &kernels_peer_f32, KERNELS_SLOTS + KERNELS_RING, 2, 400, 7, COUNT, 0, ALL_TAGS,
     MIXED},
    {"islands_mixed", &kernels_peer_bf16, 0, KERNELS_PEER, 500, 7, COUNT, 0, ALL_TAGS, EVEN},
    /* the least room that there may be: world * (packs / (world / 2)) */
    {"islands_f32", &kernels_peer_f32, KERNELS_ISLANDS, 2, 600, 7, COUNT, 1280, ALL_TAGS, EVEN},
    {"islands_f16", &kernels_peer_f16, KERNELS_ISLANDS, 2, 300, 7, COUNT, 0, ALL_TAGS, EVEN},
    /* mostly fewer packs than places in an island */
    {"islands_few", &kernels_peer_bf16, 0, KERNELS_PEER, 500, 12, 12, 0, ALL_TAGS, EVEN},
    {"host_f32", &kernels_host_f32, 0, KERNELS_HOST, 3000, 7, COUNT, 0, ALL_TAGS, MIXED},
    {"host_bf16", &kernels_host_bf16, 0, KERNELS_HOST, 1000, 7, COUNT, 0, ALL_TAGS, MIXED},
    {"host_f16", &kernels_host_f16, 0, KERNELS_HOST, 1000, 7, COUNT, 0, ALL_TAGS, MIXED},
    {"host_e12", &kernels_host_f32, 0, KERNELS_SLOTS, 400, 7, COUNT, 0, ALL_TAGS, MIXED},
    {"host_ring", &kernels_host_f32, KERNELS_SLOTS, KERNELS_RING, 400, 7, MAX_COUNT, 0, ALL_TAGS,
     MIXED},
    /* four vectors in a slot, tags that come round after 16 calls */
    {"host_tags", &kernels_host_f32, 0, KERNELS_SLOTS, 150, MAX_CALLS, 12, 64, 15, MIXED},
};
#define N_SERIES (sizeof all_series / sizeof *all_series)

typedef struct call {
    unsigned char in[RF_MAX_WORLD][ROOM] __attribute__((aligned(16)));
    unsigned char out[RF_MAX_WORLD][ROOM] __attribute__((aligned(16)));
    unsigned char want[ROOM];
    uint64_t count;
    uint32_t offset; /* of the tensors from where they would be aligned */
    int in_place;
} call;

static call calls[MAX_CALLS];

static unsigned char *result_of(call *c, uint32_t rank)
{
    return (c->in_place ? c->in[rank] : c->out[rank]) + c->offset;
}

/* Payload differs in every word of every call, so that a stale or foreign word shows; with all-ones
 * words among it, and in 16 bits every pattern. */
static void call_fill(machine *m, call *c, const series *s, uint32_t world, const uint8_t *order)
{
    const void *in[RF_MAX_WORLD];
    uint32_t bytes = (uint32_t)rf_dtype_size((rf_dtype)s->table->dtype);
    uint32_t count = machine_random(m, 2) && s->count > 12 ? 12 : s->count;
    c->count = 1 + machine_random(m, count);
    c->in_place = (int)machine_random(m, 2);
    c->offset = machine_random(m, 4) ? 0 : bytes;
    for (uint32_t r = 0; r < world; r++) {
        for (uint64_t i = 0; i < c->count; i++) {
            float f = (float)(1 + machine_random(m, 1u << 20)) / 64;
            uint16_t half = (uint16_t)(1 + machine_random(m, 0xffff));
            unsigned char *at = c->in[r] + c->offset + i * bytes;
            memcpy(at, bytes == 4 ? (void *)&f : (void *)&half, bytes);
            if (machine_random(m, 20) == 0) {
                memset(at, 0xff, bytes);
            }
        }
        in[r] = c->in[r] + c->offset;
    }
    if (order) {
        rf_oracle_islands(in, c->want, c->count, (rf_dtype)s->table->dtype, (int)world, order);
    } else {
        rf_oracle_all_reduce(in, c->want, c->count, (rf_dtype)s->table->dtype, (int)world);
    }
}

/* Any grouping will do. */
static void shuffle(machine *m, uint8_t order[RF_MAX_WORLD], uint32_t world)
{
    for (uint32_t i = 0; i < world; i++) {
        uint32_t at = machine_random(m, i + 1);
        order[i] = order[at];
        order[at] = (uint8_t)i;
    }
}

static const kernel_row *pick(machine *m, const series *s, uint32_t world, uint32_t *which)
{
    const kernel_row *row;
    do {
        *which = s->first + machine_random(m, s->kernels);
        row = &s->table->row[world][*which];
    } while (!row->kernel);
    return row;
}

#define NOBODY RF_MAX_WORLD

/* Has everybody else been told that `absent` did not come? */
static int is_blamed(const machine *m, uint32_t world, uint32_t absent)
{
    for (uint32_t r = 0; r < world; r++) {
        const rf_page *page = machine_page(m, r);
        if (r != absent && (page->poison != RF_POISON(absent, RF_FAULT_DEADLINE) ||
                            page->fault.code != RF_FAULT_DEADLINE ||
                            page->fault.culprit != absent || !machine_is_poisoned(m, r))) {
            return 0;
        }
    }
    return 1;
}

/* A run of one seed. With `leaves`, one rank stays away from some call on. "" = all as it should
 * be, else what was wrong. */
static const char *run(const series *s, uint64_t seed, machine_flaw flaw, int leaves)
{
    static char wrong[160];
    uint32_t world = s->worlds[seed % 8];
    machine_config config = {.seed = seed, .world = world, .flaw = flaw};
    config.host = s->table->host;
    config.tag_mask = s->tag_mask;
    config.deadline = leaves ? 800000 : UINT64_MAX / 4;
    config.slot_bytes = (s->count * 4 + 2 * 16 * RF_MAX_WORLD) * (uint64_t)world;
    config.slot_bytes = (config.slot_bytes + 127) / 128 * 128;
    config.slot_bytes = s->slot_bytes ? s->slot_bytes : config.slot_bytes;
    config.epoch = seed % 3 ? 0xfffffffdu : 0;
    machine *m = machine_create(&config);
    uint32_t n = s->calls / 2 + machine_random(m, s->calls / 2);
    uint32_t absent = leaves ? machine_random(m, world) : NOBODY;
    uint32_t last = leaves ? machine_random(m, n) : n; /* the first call that is not complete */
    uint8_t order[RF_MAX_WORLD] = {0};
    shuffle(m, order, world);
    wrong[0] = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t grid = 1 + machine_random(m, 3);
        uint32_t which;
        const kernel_row *row = pick(m, s, world, &which);
        int islands = !s->table->host && which >= KERNELS_ISLANDS;
        call_fill(m, &calls[k], s, world, islands ? order : NULL);
        for (uint32_t r = 0; r < world; r++) {
            rf_params p = {.in = calls[k].in[r] + calls[k].offset,
                           .out = result_of(&calls[k], r),
                           .count = calls[k].count};
            uint32_t turned = flaw == FLAW_GROUPING && r == 0 ? 1 : 0;
            for (uint32_t i = 0; i < world; i++) {
                p.order[i] = order[(i + turned) % world];
            }
            if (r != absent || k < last) {
                machine_launch(m, r, row->kernel, grid, row->threads, row->dependent, p);
            }
        }
    }
    int hang = machine_run(m);
    if (hang) {
        snprintf(wrong, sizeof wrong, "%s %llu: hang", s->name, (unsigned long long)seed);
    } else if (leaves && !is_blamed(m, world, absent)) {
        snprintf(wrong, sizeof wrong, "%s %llu: rank %u stayed away, not everybody says so",
                 s->name, (unsigned long long)seed, absent);
    }
    size_t bytes = rf_dtype_size((rf_dtype)s->table->dtype);
    for (uint32_t k = 0; k < last && !hang; k++) {
        for (uint32_t r = 0; r < world; r++) {
            if (memcmp(result_of(&calls[k], r), calls[k].want, calls[k].count * bytes) != 0) {
                snprintf(wrong, sizeof wrong, "%s %llu: call %u on rank %u is wrong", s->name,
                         (unsigned long long)seed, k, r);
            }
            if (!leaves && !machine_region_is_clean(m, r)) {
                snprintf(wrong, sizeof wrong, "%s %llu: region of rank %u is left unclean", s->name,
                         (unsigned long long)seed, r);
            }
        }
    }
    machine_destroy(m);
    return wrong;
}

static const series *series_of(const char *name)
{
    for (size_t i = 0; i < N_SERIES; i++) {
        if (!strcmp(all_series[i].name, name)) {
            return &all_series[i];
        }
    }
    fprintf(stderr, "no series '%s'\n", name);
    exit(2);
}

static uint64_t runs(const series *s)
{
    const char *n = getenv("RANKFOLD_SCHEDULES"); /* times as many */
    return s->runs * (n ? strtoull(n, NULL, 10) : 1);
}

static void gives_the_sum(void **state)
{
    const series *s = series_of(*state);
    for (uint64_t seed = 1; seed <= runs(s); seed++) {
        const char *wrong = run(s, seed, FLAW_NONE, 0);
        if (wrong[0]) {
            fail_msg("%s", wrong);
        }
    }
}

static void is_named(void **state)
{
    const series *s = series_of(*state);
    for (uint64_t seed = 1; seed <= runs(s) / 20; seed++) {
        const char *wrong = run(s, seed, FLAW_NONE, 1);
        if (wrong[0]) {
            fail_msg("%s", wrong);
        }
    }
}

typedef struct broken {
    const char *series;
    machine_flaw flaw;
} broken;

static void is_found(void **state)
{
    const broken *b = *state;
    const series *s = series_of(b->series);
    for (uint64_t seed = 1; seed <= runs(s); seed++) {
        if (run(s, seed, b->flaw, 0)[0]) {
            return;
        }
    }
    fail_msg("%llu schedules did not show the flaw", (unsigned long long)runs(s));
}

#define SUM(plan)                                                                                  \
    {                                                                                              \
        "every schedule of " plan " gives the sum", gives_the_sum, NULL, NULL, plan                \
    }
#define NAMED(name)                                                                                \
    {                                                                                              \
        "a rank that stays away is named by all: " name, is_named, NULL, NULL, name                \
    }
#define FOUND(what, plan, flaw)                                                                    \
    {                                                                                              \
        what " is found: " plan, is_found, NULL, NULL, &(broken)                                   \
        {                                                                                          \
            plan, flaw                                                                             \
        }                                                                                          \
    }

#define RING_FLAWS(plan)                                                                           \
    FOUND("one half", plan, FLAW_ONE_SLOT), FOUND("one chunk fewer", plan, FLAW_WINDOW),           \
        FOUND("a flag before its payload", plan, FLAW_NO_FENCE),                                   \
        FOUND("a flag before the barrier", plan, FLAW_EARLY_FLAG),                                 \
        FOUND("an epoch per block", plan, FLAW_BLOCK_EPOCH),                                       \
        FOUND("a store before the wait", plan, FLAW_NO_WAIT)

int main(int argc, char **argv)
{
    if (argc == 3) {
        const char *wrong = run(series_of(argv[1]), strtoull(argv[2], NULL, 10), FLAW_NONE, 0);
        printf("%s\n", wrong[0] ? wrong : "ok");
        return wrong[0] != 0;
    }
    const struct CMUnitTest tests[] = {
        SUM("peer_f32"),
        SUM("peer_bf16"),
        SUM("peer_f16"),
        SUM("islands_mixed"),
        SUM("islands_f32"),
        SUM("islands_f16"),
        SUM("islands_few"),
        SUM("peer_ring"),
        SUM("host_f32"),
        SUM("host_bf16"),
        SUM("host_f16"),
        SUM("host_ring"),
        SUM("host_tags"),
        NAMED("peer_f32"),
        NAMED("islands_f32"),
        NAMED("islands_few"),
        NAMED("host_f32"),
        FOUND("one slot fewer", "peer_nan", FLAW_ONE_SLOT),
        FOUND("an epoch per block", "peer_nan", FLAW_BLOCK_EPOCH),
        FOUND("a push before the wait", "peer_nan", FLAW_NO_WAIT),
        FOUND("a slot left as it is", "peer_nan", FLAW_NO_REARM),
        FOUND("a slot cleared too early", "peer_nan", FLAW_EARLY_CLEAR),
        FOUND("one slot fewer", "peer_turns", FLAW_ONE_SLOT),
        FOUND("an epoch per block", "peer_turns", FLAW_BLOCK_EPOCH),
        FOUND("a push before the wait", "peer_turns", FLAW_NO_WAIT),
        FOUND("a slot left as it is", "peer_turns", FLAW_NO_REARM),
        FOUND("one slot fewer", "islands_f32", FLAW_ONE_SLOT),
        FOUND("an epoch per block", "islands_f32", FLAW_BLOCK_EPOCH),
        FOUND("a push before the wait", "islands_f32", FLAW_NO_WAIT),
        FOUND("a slot left as it is", "islands_f32", FLAW_NO_REARM),
        FOUND("a slot cleared too early", "islands_f32", FLAW_EARLY_CLEAR),
        FOUND("another grouping on one rank", "islands_f32", FLAW_GROUPING),
        FOUND("one slot fewer", "host_e12", FLAW_ONE_SLOT),
        FOUND("a store before the wait", "host_e12", FLAW_NO_WAIT),
        FOUND("a vector that tears", "host_e12", FLAW_TEARING),
        FOUND("a tag without epoch", "host_e12", FLAW_NO_TAG),
        FOUND("a tag that came round", "host_tags", FLAW_NO_UPKEEP),
        RING_FLAWS("peer_ring"),
        RING_FLAWS("host_ring"),
    };
    return cmocka_run_group_tests_name("schedules", tests, NULL, NULL);
}
