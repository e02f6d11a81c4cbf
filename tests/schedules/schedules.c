/* Seeded schedules of the CUDA templates on the small machine: every run has to give the oracle's
 * bits and leave clean regions; a machine with one of the flaws has to be caught.
 * `schedules peer_f32 SEED` replays one seed. */
#define _GNU_SOURCE
#include "kernels.h"

#include "rankfold.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_CALLS 60
#define MAX_COUNT 600
#define COUNT     150                   /* mostly: rings need more to go round */
#define ROOM      (4 * (MAX_COUNT + 8)) /* bytes of a tensor and what is beside it */

/* What a series of runs is made of. */
typedef struct series {
    const char *name;
    const kernel_table *table;
    uint32_t first, kernels; /* of the table's */
    uint32_t runs, calls, count;
    uint64_t slot_bytes; /* 0: as calls need */
    uint32_t tag_mask;
    uint32_t grid; /* most blocks */
    uint8_t worlds[8];
} series;

#define ALL_TAGS 0xffffu
#define MIXED                                                                                      \
    {                                                                                              \
        2, 3, 4, 5, 2, 3, 4, 8                                                                     \
    }
#define EVEN                                                                                       \
    {                                                                                              \
        4, 4, 6, 4, 4, 6, 4, 8                                                                     \
    }
#define ALONE                                                                                      \
    {                                                                                              \
        1, 1, 1, 1, 1, 1, 1, 1                                                                     \
    }
static const series all_series[] = {
    {"alone_f32", &kernels_peer_f32, 0, 1, 50, 7, COUNT, 0, ALL_TAGS, 3, ALONE},
    {"alone_bf16", &kernels_peer_bf16, 0, 1, 50, 7, COUNT, 0, ALL_TAGS, 3, ALONE},
    {"alone_f16", &kernels_peer_f16, 0, 1, 50, 7, COUNT, 0, ALL_TAGS, 3, ALONE},
    {"peer_f32", &kernels_peer_f32, 0, KERNELS_PEER, 4000, 7, COUNT, 0, ALL_TAGS, 3, MIXED},
    {"peer_bf16", &kernels_peer_bf16, 0, KERNELS_PEER, 1000, 7, COUNT, 0, ALL_TAGS, 3, MIXED},
    {"peer_f16", &kernels_peer_f16, 0, KERNELS_PEER, 1000, 7, COUNT, 0, ALL_TAGS, 3, MIXED},
    {"peer_nan", &kernels_peer_f32, 0, KERNELS_SLOTS, 400, 7, COUNT, 0, ALL_TAGS, 3, MIXED},
    /* more blocks than lanes, now and then */
    {"peer_ring", &kernels_peer_f32, KERNELS_SLOTS, KERNELS_RING, 400, 7, MAX_COUNT, 0, ALL_TAGS, 6,
     MIXED},
    {"peer_turns", &kernels_peer_f32, KERNELS_SLOTS + KERNELS_RING, 2, 400, 7, COUNT, 0, ALL_TAGS,
     3, MIXED},
    {"islands_mixed", &kernels_peer_bf16, 0, KERNELS_PEER, 500, 7, COUNT, 0, ALL_TAGS, 3, EVEN},
    /* the least room that there may be: world * (packs / (world / 2)) */
    {"islands_f32", &kernels_peer_f32, KERNELS_ISLANDS, 2, 600, 7, COUNT, 1280, ALL_TAGS, 3, EVEN},
    {"islands_f16", &kernels_peer_f16, KERNELS_ISLANDS, 2, 300, 7, COUNT, 0, ALL_TAGS, 3, EVEN},
    /* mostly fewer packs than places in an island */
    {"islands_few", &kernels_peer_bf16, 0, KERNELS_PEER, 500, 12, 12, 0, ALL_TAGS, 3, EVEN},
    {"host_f32", &kernels_host_f32, 0, KERNELS_HOST, 3000, 7, COUNT, 0, ALL_TAGS, 3, MIXED},
    {"host_bf16", &kernels_host_bf16, 0, KERNELS_HOST, 1000, 7, COUNT, 0, ALL_TAGS, 3, MIXED},
    {"host_f16", &kernels_host_f16, 0, KERNELS_HOST, 1000, 7, COUNT, 0, ALL_TAGS, 3, MIXED},
    {"host_tag", &kernels_host_f32, 0, KERNELS_SLOTS, 400, 7, COUNT, 0, ALL_TAGS, 3, MIXED},
    {"host_ring", &kernels_host_f32, KERNELS_SLOTS, KERNELS_RING, 400, 7, MAX_COUNT, 0, ALL_TAGS, 6,
     MIXED},
    /* a slot of four places of one vector, or of five, and tags that come round after 32 calls */
    {"host_tags", &kernels_host_f32, 0, KERNELS_SLOTS, 150, MAX_CALLS, 12, 64, 31, 3, MIXED},
    {"host_tags_16", &kernels_host_bf16, 0, KERNELS_SLOTS, 150, MAX_CALLS, 140, 320, 31, 3, MIXED},
    /* one-shots of so many packs that they wait for the link: RF_SETTLE_KIB, 64 packs each */
    {"host_settle", &kernels_host_f32, 0, 2, 40, 4, MAX_COUNT, 0, ALL_TAGS, 64, MIXED},
};
#define N_SERIES (sizeof all_series / sizeof *all_series)

typedef struct call {
    unsigned char *in[RF_MAX_WORLD], *out[RF_MAX_WORLD];
    unsigned char want[ROOM];
    uint64_t count;
    int in_place;
    uint32_t grid;
    const kernel_row *row;
} call;

static call calls[MAX_CALLS];
#define UNTOUCHED  0x55
#define KIB_CLOCKS 3

/* Each tensor has ROOM bytes of its own, behind which nobody may read or write. */
static unsigned char *room_of(size_t number)
{
    static unsigned char *all;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 2 * RF_MAX_WORLD * MAX_CALLS;
    assert_true(ROOM <= page);
    if (!all) {
        all = mmap(NULL, 2 * n * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(all != MAP_FAILED);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(mprotect(all + (2 * i + 1) * page, page, PROT_NONE), 0);
        }
    }
    return all + (2 * number + 1) * page - ROOM;
}

/* A tensor of `size` bytes there: aligned, an element off that, or as near to the end as can be. */
static unsigned char *place(machine *m, unsigned char *room, uint64_t size, uint32_t element)
{
    uint64_t aligned = (size + 15) / 16 * 16;
    uint64_t from_end[] = {aligned, aligned, aligned + 16 - element, size};
    memset(room, UNTOUCHED, ROOM);
    return room + ROOM - from_end[machine_random(m, 4)];
}

static unsigned char *result_of(const call *c, uint32_t rank)
{
    return c->in_place ? c->in[rank] : c->out[rank];
}

/* Is all UNTOUCHED from `at` to `end`? */
static int is_untouched(const unsigned char *at, const unsigned char *end)
{
    while (at < end && *at == UNTOUCHED) {
        at++;
    }
    return at == end;
}

/* Payload differs in every word of every call, so that a stale or foreign word shows; with all-ones
 * words among it, and in 16 bits every pattern. `before`: the call whose results it takes, or NULL.
 */
static void call_fill(machine *m, call *c, const series *s, uint32_t world, const uint8_t *order,
                      const call *before)
{
    const void *in[RF_MAX_WORLD];
    size_t number = (size_t)(c - calls) * 2 * RF_MAX_WORLD;
    uint32_t bytes = (uint32_t)rf_dtype_size((rf_dtype)s->table->dtype);
    uint32_t count = machine_random(m, 2) && s->count > 12 ? 12 : s->count;
    c->count = before ? before->count : 1 + machine_random(m, count);
    c->in_place = !before && machine_random(m, 2);
    for (uint32_t r = 0; r < world; r++) {
        c->in[r] = place(m, room_of(number++), c->count * bytes, bytes);
        c->out[r] = place(m, room_of(number++), c->count * bytes, bytes);
        for (uint64_t i = 0; i < c->count; i++) {
            float f = (float)(1 + machine_random(m, 1u << 20)) / 64;
            uint16_t half = (uint16_t)(1 + machine_random(m, 0xffff));
            unsigned char *at = c->in[r] + i * bytes;
            memcpy(at, bytes == 4 ? (void *)&f : (void *)&half, bytes);
            if (machine_random(m, 20) == 0) {
                memset(at, 0xff, bytes);
            }
        }
        in[r] = before ? before->want : c->in[r];
        c->in[r] = before ? result_of(before, r) : c->in[r];
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

/* What goes wrong with one rank, from some call on. */
typedef enum trouble {
    TROUBLE_NONE,
    TROUBLE_AWAY,  /* it does not launch */
    TROUBLE_ABORT, /* and the next one, or all others, are aborted before the deadline */
    TROUBLE_STALE  /* it launches with the params of another generation */
} trouble;

#define LATER 400000 /* steps in which all have come as far as they get */

/* Is this what rank r has to say of `call`, in which its culprit failed? Who is told by another of
 * its own threads may be the first to say it. */
static int is_record(const machine *m, uint32_t r, const call *c, uint64_t sequence, uint32_t code,
                     uint32_t culprit)
{
    const rf_page *page = machine_page(m, r);
    const rf_fault *f = &page->fault;
    uint32_t poison = RF_POISON(culprit, code);
    uint64_t limit = LATER + (f->step - RF_STEP_ARRIVE) * (LATER / 8);
    int told = f->expected == 0 && f->found == poison, waited = f->step >= RF_STEP_ARRIVE;
    int here = f->sequence == sequence && f->step <= c->row->waits;
    if (page->poison != poison || !machine_is_poisoned(m, r) || f->code != code ||
        f->culprit != culprit) {
        return 0;
    }
    switch (code) {
    case RF_FAULT_DEADLINE:
        return here && (told || (waited && f->expected == limit && f->found > limit));
    case RF_FAULT_ABORT:
        return here && (told || (waited && r == culprit && f->expected == 0 && f->found == 0));
    default: /* a generation: may come so soon that it ends the call before, too */
        return told || (here && r == culprit && !waited && f->expected == 1 && f->found == 2);
    }
}

/* Has everybody who was there been told so? */
static int is_blamed(const machine *m, uint32_t world, uint32_t absent, uint32_t culprits,
                     trouble t, const call *c, uint64_t sequence)
{
    uint32_t code = t == TROUBLE_ABORT   ? RF_FAULT_ABORT
                    : t == TROUBLE_STALE ? RF_FAULT_GENERATION
                                         : RF_FAULT_DEADLINE;
    for (uint32_t r = 0; r < world; r++) {
        uint32_t culprit = RF_POISON_CULPRIT(machine_page(m, r)->poison);
        if ((r != absent || t == TROUBLE_STALE) &&
            (culprit >= world || !(culprits >> culprit & 1) ||
             !is_record(m, r, c, sequence, code, culprit))) {
            return 0;
        }
    }
    return 1;
}

/* Has no rank stored any of its result? (In place, nobody knows.) */
static int is_left_alone(const call *c, uint32_t world, size_t element)
{
    int alone = 1;
    for (uint32_t r = 0; r < world && !c->in_place; r++) {
        alone &= is_untouched(c->out[r], c->out[r] + c->count * element);
    }
    return alone;
}

/* Is what lies beside the result of rank r as it was? */
static int is_within(const call *c, uint32_t r, size_t element)
{
    const unsigned char *at = result_of(c, r), *end = at + c->count * element;
    const unsigned char *room =
        room_of(((size_t)(c - calls) * RF_MAX_WORLD + r) * 2 + !c->in_place);
    return is_untouched(room, at) && is_untouched(end, room + ROOM);
}

/* Clocks that a rank has to wait for the link, all threads together. */
static uint64_t clocks_to_settle(const series *s, const call *c)
{
    uint64_t sent = c->grid * c->row->threads * c->row->unroll, packs = (c->count + 2) / 3;
    uint64_t kib = c->row->family == RF_CONTROL_SLOTS ? (sent < packs ? sent : packs) / 64 : 0;
    return s->table->host ? kib * KIB_CLOCKS * c->grid * c->row->threads : 0;
}

/* A run of one seed. "" = all as it should be, else what was wrong. */
static const char *run(const series *s, uint64_t seed, machine_flaw flaw, trouble t)
{
    static char wrong[160];
    uint32_t world = s->worlds[seed % 8];
    machine_config config = {.seed = seed, .world = world, .flaw = flaw};
    config.host = s->table->host;
    config.tag_mask = s->tag_mask;
    config.kept = config.host && s->slot_bytes ? (uint32_t)s->slot_bytes / 64 : 1;
    config.kib_clocks = KIB_CLOCKS;
    config.deadline = t == TROUBLE_AWAY ? LATER : UINT64_MAX / 4;
    config.slot_bytes = (s->count * 4 + 2 * 16 * RF_MAX_WORLD) * (uint64_t)world;
    config.slot_bytes = (config.slot_bytes + 127) / 128 * 128;
    config.slot_bytes = s->slot_bytes ? s->slot_bytes : config.slot_bytes;
    config.epoch = seed % 3 ? 0xfffffffdu : 0;
    machine *m = machine_create(&config);
    uint32_t n = s->calls / 2 + machine_random(m, s->calls / 2);
    uint32_t absent = machine_random(m, world);
    uint32_t all = (1u << world) - 1, next = 1u << (absent + 1) % world, only = 1u << absent;
    uint32_t culprits = t != TROUBLE_ABORT ? only : seed % 2 ? next : all & ~only;
    uint32_t last = t ? machine_random(m, n) : n; /* the first call that is not complete */
    uint64_t sequence[RF_CONTROLS] = {config.epoch, config.epoch}, clocks = 0;
    uint8_t order[RF_MAX_WORLD] = {0};
    shuffle(m, order, world);
    wrong[0] = 0;
    if (t == TROUBLE_ABORT) {
        machine_abort(m, culprits, LATER);
    }
    for (uint32_t k = 0; k < n; k++) {
        uint32_t grid = 1 + machine_random(m, s->grid);
        uint32_t which;
        const kernel_row *row = pick(m, s, world, &which);
        calls[k].row = row, calls[k].grid = grid;
        sequence[row->family] += k < last;
        int islands = !s->table->host && which >= KERNELS_ISLANDS;
        const call *before = k && machine_random(m, 4) == 0 ? &calls[k - 1] : NULL;
        call_fill(m, &calls[k], s, world, islands ? order : NULL, before);
        for (uint32_t r = 0; r < world; r++) {
            rf_params p = {.in = calls[k].in[r],
                           .out = result_of(&calls[k], r),
                           .count = calls[k].count,
                           .generation = t == TROUBLE_STALE && r == absent && k >= last ? 2 : 1};
            uint32_t turned = flaw == FLAW_GROUPING && r == 0 ? 1 : 0;
            for (uint32_t i = 0; i < world; i++) {
                p.order[i] = order[(i + turned) % world];
            }
            if (r != absent || k < last || t == TROUBLE_STALE) {
                machine_launch(m, r, row->kernel, grid, row->threads, row->dependent, p);
            }
        }
        clocks += clocks_to_settle(s, &calls[k]);
    }
    int hang = machine_run(m);
    if (hang) {
        snprintf(wrong, sizeof wrong, "%s %llu: hang", s->name, (unsigned long long)seed);
    } else if (t && !is_blamed(m, world, absent, culprits, t, &calls[last],
                               sequence[calls[last].row->family])) {
        snprintf(wrong, sizeof wrong, "%s %llu: trouble %d with rank %u, not everybody says so",
                 s->name, (unsigned long long)seed, (int)t, absent);
    } else if (machine_is_torn(m)) {
        snprintf(wrong, sizeof wrong, "%s %llu: a host was told by halves, or twice", s->name,
                 (unsigned long long)seed);
    }
    size_t bytes = rf_dtype_size((rf_dtype)s->table->dtype);
    for (uint32_t k = last + 1; k < n; k++) {
        if (!is_left_alone(&calls[k], world, bytes)) {
            snprintf(wrong, sizeof wrong, "%s %llu: call %u was carried out, poisoned in call %u",
                     s->name, (unsigned long long)seed, k, last);
        }
    }
    for (uint32_t k = 0; k + (t == TROUBLE_STALE) < last && !hang; k++) {
        for (uint32_t r = 0; r < world; r++) {
            if (memcmp(result_of(&calls[k], r), calls[k].want, calls[k].count * bytes) != 0) {
                snprintf(wrong, sizeof wrong, "%s %llu: call %u on rank %u is wrong", s->name,
                         (unsigned long long)seed, k, r);
            }
            if (!is_within(&calls[k], r, bytes)) {
                snprintf(wrong, sizeof wrong, "%s %llu: call %u wrote beside its tensor", s->name,
                         (unsigned long long)seed, k);
            }
            if (!t && !machine_region_is_clean(m, r)) {
                snprintf(wrong, sizeof wrong, "%s %llu: region of rank %u is left unclean", s->name,
                         (unsigned long long)seed, r);
            }
            if (!t && machine_paused(m, r) != clocks) {
                snprintf(wrong, sizeof wrong, "%s %llu: rank %u paused %llu clocks, not %llu",
                         s->name, (unsigned long long)seed, r,
                         (unsigned long long)machine_paused(m, r), (unsigned long long)clocks);
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
        const char *wrong = run(s, seed, FLAW_NONE, TROUBLE_NONE);
        if (wrong[0]) {
            fail_msg("%s", wrong);
        }
    }
}

static void parts_are_shares(void **state)
{
    const kernel_table *const tables[] = {&kernels_peer_f32, &kernels_host_f32};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const uint32_t whole = tables[i]->host ? RF_LINE / 16 : 1;
        for (uint32_t world = 2; world <= RF_MAX_WORLD; world++) {
            for (uint32_t packs = 1; packs < 200; packs++) {
                uint32_t part = tables[i]->part_of(packs, world);
                assert_int_equal(part % whole, 0);
                assert_true(part * world >= packs && (part - whole) * world < packs);
            }
        }
    }
}

static void is_named(void **state)
{
    const series *s = series_of(*state);
    static const struct {
        trouble trouble;
        uint32_t share; /* of the runs, those in which everybody waits are long */
    } kinds[] = {{TROUBLE_AWAY, 20}, {TROUBLE_ABORT, 100}, {TROUBLE_STALE, 10}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (uint64_t seed = 1; seed <= runs(s) / kinds[i].share; seed++) {
            const char *wrong = run(s, seed, FLAW_NONE, kinds[i].trouble);
            if (wrong[0]) {
                fail_msg("%s", wrong);
            }
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
        if (run(s, seed, b->flaw, TROUBLE_NONE)[0]) {
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
        "the rank to blame is named by all: " name, is_named, NULL, NULL, name                     \
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
        FOUND("payload as it was before its flag", plan, FLAW_NO_ACQUIRE),                         \
        FOUND("an epoch per block", plan, FLAW_BLOCK_EPOCH),                                       \
        FOUND("a store before the wait", plan, FLAW_NO_WAIT)

int main(int argc, char **argv)
{
    if (argc == 3) {
        const char *wrong =
            run(series_of(argv[1]), strtoull(argv[2], NULL, 10), FLAW_NONE, TROUBLE_NONE);
        printf("%s\n", wrong[0] ? wrong : "ok");
        return wrong[0] != 0;
    }
    const struct CMUnitTest tests[] = {
        SUM("alone_f32"),
        SUM("alone_bf16"),
        SUM("alone_f16"),
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
        SUM("host_tags_16"),
        SUM("host_settle"),
        cmocka_unit_test(parts_are_shares),
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
        FOUND("one slot fewer", "host_tag", FLAW_ONE_SLOT),
        FOUND("a store before the wait", "host_tag", FLAW_NO_WAIT),
        FOUND("a vector that tears", "host_tag", FLAW_TEARING),
        FOUND("a tag without epoch", "host_tag", FLAW_NO_TAG),
        FOUND("a tag that came round", "host_tags", FLAW_NO_UPKEEP),
        FOUND("one of five tags that came round", "host_tags_16", FLAW_NO_UPKEEP),
        RING_FLAWS("peer_ring"),
        RING_FLAWS("host_ring"),
    };
    return cmocka_run_group_tests_name("schedules", tests, NULL, NULL);
}
