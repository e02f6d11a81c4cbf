/* Seeded schedules of the CUDA templates on the small machine: every run has to give the oracle's
 * bits and leave clean regions; a machine with one of the flaws has to be caught. `schedules SEED`
 * replays one seed. Threads of a block: 2, so that a tensor of a few packs keeps several blocks
 * busy. */
#define RF_SHARD_DTYPE 0
#include "cuda/two_shot.cuh"

#include "rankfold.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS   2
#define MAX_CALLS 7
#define MAX_COUNT 150

#define KERNELS(X, world)                                                                          \
    X(os, world, p.rank, 1, 0)                                                                     \
    X(os, world, p.rank, 2, 1) X(ts, world, p.rank, 1, 1) X(ts, world, p.rank, 2, 0)
#define KERNEL(algo, world, rank, unroll, dependent)                                               \
    static void algo##_w##world##_u##unroll(rf_params p)                                           \
    {                                                                                              \
        all_reduce_##algo(&p, world, rank, THREADS, unroll, dependent);                            \
    }
KERNELS(KERNEL, 2)
KERNELS(KERNEL, 3)
KERNELS(KERNEL, 4)
KERNELS(KERNEL, 5)

#define ROW(algo, world, rank, unroll, dependent) {algo##_w##world##_u##unroll, dependent},
static const struct entry {
    machine_kernel kernel;
    int dependent;
} entries[4][4] = {{KERNELS(ROW, 2)}, {KERNELS(ROW, 3)}, {KERNELS(ROW, 4)}, {KERNELS(ROW, 5)}};

typedef struct call {
    float in[RF_MAX_WORLD][MAX_COUNT], out[RF_MAX_WORLD][MAX_COUNT], want[MAX_COUNT];
    uint64_t count;
    int in_place;
} call;

static call calls[MAX_CALLS];

/* Payload differs in every word of every call, so that a stale or foreign word shows; with all-ones
 * words among it. */
static void call_fill(machine *m, call *c, uint32_t world)
{
    const void *in[RF_MAX_WORLD];
    c->count = 1 + machine_random(m, machine_random(m, 2) ? 12 : MAX_COUNT - 4);
    c->in_place = (int)machine_random(m, 2);
    for (uint32_t r = 0; r < world; r++) {
        for (uint64_t i = 0; i < c->count; i++) {
            c->in[r][i] = (float)(1 + machine_random(m, 1u << 20)) / 64;
            if (machine_random(m, 20) == 0) {
                memset(&c->in[r][i], 0xff, 4);
            }
        }
        in[r] = c->in[r];
    }
    rf_oracle_all_reduce(in, c->want, c->count, RF_F32, (int)world);
}

/* "" = all as it should be, else what was wrong. */
static const char *run(uint64_t seed, machine_flaw flaw)
{
    static char wrong[160];
    machine_config config = {.seed = seed, .world = 2 + (uint32_t)(seed % 4), .flaw = flaw};
    config.slot_bytes = 2 * (MAX_COUNT * 4 + 2 * 16 * RF_MAX_WORLD) * (uint64_t)config.world / 2;
    config.slot_bytes = (config.slot_bytes + 127) / 128 * 128;
    config.epoch = seed % 3 ? 0xfffffffdu : 0;
    machine *m = machine_create(&config);
    uint32_t n = 3 + machine_random(m, MAX_CALLS - 2);
    wrong[0] = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t grid = 1 + machine_random(m, 3), which = machine_random(m, 4);
        call_fill(m, &calls[k], config.world);
        for (uint32_t r = 0; r < config.world; r++) {
            float *out = calls[k].in_place ? calls[k].in[r] : calls[k].out[r];
            rf_params p = {.in = calls[k].in[r], .out = out, .count = calls[k].count};
            const struct entry *e = &entries[config.world - 2][which];
            machine_launch(m, r, e->kernel, grid, THREADS, e->dependent, p);
        }
    }
    int hang = machine_run(m);
    if (hang) {
        snprintf(wrong, sizeof wrong, "seed %llu: hang", (unsigned long long)seed);
    }
    for (uint32_t k = 0; k < n && !hang; k++) {
        for (uint32_t r = 0; r < config.world; r++) {
            const float *out = calls[k].in_place ? calls[k].in[r] : calls[k].out[r];
            if (memcmp(out, calls[k].want, calls[k].count * 4) != 0) {
                snprintf(wrong, sizeof wrong, "seed %llu: call %u on rank %u is wrong",
                         (unsigned long long)seed, k, r);
            }
            if (!machine_region_is_clean(m, r)) {
                snprintf(wrong, sizeof wrong, "seed %llu: region of rank %u is left unclean",
                         (unsigned long long)seed, r);
            }
        }
    }
    machine_destroy(m);
    return wrong;
}

static uint64_t runs(void)
{
    const char *n = getenv("RANKFOLD_SCHEDULES");
    return n ? strtoull(n, NULL, 10) : 1500;
}

static void every_schedule_gives_the_sum(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= runs(); seed++) {
        const char *wrong = run(seed, FLAW_NONE);
        if (wrong[0]) {
            fail_msg("%s", wrong);
        }
    }
}

static void is_found(machine_flaw flaw)
{
    for (uint64_t seed = 1; seed <= runs(); seed++) {
        if (run(seed, flaw)[0]) {
            return;
        }
    }
    fail_msg("%llu schedules did not show the flaw", (unsigned long long)runs());
}

static void one_slot_fewer_is_found(void **state)
{
    (void)state;
    is_found(FLAW_ONE_SLOT);
}

static void an_epoch_per_block_is_found(void **state)
{
    (void)state;
    is_found(FLAW_BLOCK_EPOCH);
}

static void a_push_before_the_wait_is_found(void **state)
{
    (void)state;
    is_found(FLAW_NO_WAIT);
}

static void slots_left_as_they_are_are_found(void **state)
{
    (void)state;
    is_found(FLAW_NO_REARM);
}

int main(int argc, char **argv)
{
    if (argc == 2) {
        const char *wrong = run(strtoull(argv[1], NULL, 10), FLAW_NONE);
        printf("%s\n", wrong[0] ? wrong : "ok");
        return wrong[0] != 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_gives_the_sum),
        cmocka_unit_test(one_slot_fewer_is_found),
        cmocka_unit_test(an_epoch_per_block_is_found),
        cmocka_unit_test(a_push_before_the_wait_is_found),
        cmocka_unit_test(slots_left_as_they_are_are_found),
    };
    return cmocka_run_group_tests_name("schedules", tests, NULL, NULL);
}
