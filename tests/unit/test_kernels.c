/* The kernels of the linked cpu pack against the oracle, bit for bit: every variant, every rank,
 * straight through its entry. Ranks are threads; the host's part (waiting, failing) is a few lines
 * here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sched.h>

#include "abi.h"
#include "../ranks.h"
#include "rankfold.h"

RF_DECLARE_PACK(cpu_small);
static const rf_pack *const pack = &rf_pack_cpu_small;

#define SLOT_BYTES (160u << 10) /* no power of two, room for all places of small steps */
#define REGION     (RF_REGION_HEADER + RF_SLOTS * SLOT_BYTES)
#define MOST       (96u << 10) /* elements of one call */
#define GUARD      64

/* ---- a host for kernels ---- */

typedef struct group {
    unsigned char *region[RF_MAX_WORLD];
} group;

static int host_wait(const rf_params *p, uint32_t peer, rf_flag *flag, uint64_t sequence,
                     rf_step step)
{
    (void)peer, (void)step;
    const rf_region *own = (const rf_region *)(const void *)p->peer[p->rank];
    while (__atomic_load_n(&flag->sequence, __ATOMIC_ACQUIRE) < sequence) {
        if (__atomic_load_n(&own->control.poison, __ATOMIC_ACQUIRE)) {
            return 1;
        }
        sched_yield();
    }
    return 0;
}

static void host_wake(rf_flag *flag)
{
    (void)flag;
}

static void host_fail(const rf_params *p, rf_fault_code code, uint32_t culprit, rf_step step,
                      uint64_t sequence, uint64_t expected, uint64_t found)
{
    const group *g = p->host_ctx;
    rf_region *own = (rf_region *)(void *)p->peer[p->rank];
    own->fault = (rf_fault){.code = code,
                            .culprit = culprit,
                            .step = step,
                            .sequence = sequence,
                            .expected = expected,
                            .found = found};
    for (int r = 0; r < RF_MAX_WORLD && g->region[r]; r++) {
        rf_region *region = (rf_region *)(void *)g->region[r];
        __atomic_store_n(&region->control.poison, RF_POISON(culprit, code), __ATOMIC_RELEASE);
    }
}

static const rf_cpu_host host = {host_wait, host_wake, host_fail, 100};

static group *group_open(int world)
{
    group *g = ranks_shared(sizeof *g);
    for (int r = 0; r < world; r++) {
        g->region[r] = ranks_shared(REGION);
    }
    return g;
}

static void group_close(group *g, int world)
{
    for (int r = 0; r < world; r++) {
        ranks_shared_free(g->region[r], REGION);
    }
    ranks_shared_free(g, sizeof *g);
}

static rf_region *region_of(const group *g, int rank)
{
    return (rf_region *)(void *)g->region[rank];
}

static rf_params params(group *g, int rank, int world, const rf_variant *v, const void *in,
                        void *out, uint64_t count, uint32_t grid)
{
    rf_params p = {.in = in,
                   .out = out,
                   .count = count,
                   .slot_bytes = SLOT_BYTES,
                   .tag = v->hash[0] ^ grid,
                   .deadline_ns = 10000000000u,
                   .rank = (uint32_t)rank,
                   .grid = grid,
                   .host = &host,
                   .host_ctx = g};
    for (int r = 0; r < world; r++) {
        p.peer[r] = g->region[r];
    }
    return p;
}

static int runs_here(const rf_variant *v)
{
    switch (v->isa) {
    case 0:
        return 1;
    case 1:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case 2:
        return __builtin_cpu_supports("avx512f");
    default:
        return 0;
    }
}

/* The i-th variant of a world that runs here, in the pack's order; NULL after the last. */
static const rf_variant *variant_of(int world, int dtype, size_t i)
{
    for (uint32_t s = 0; s < pack->n_shards; s++) {
        const rf_shard *shard = pack->shards[s];
        for (uint32_t k = 0; k < shard->n; k++) {
            const rf_variant *v = &shard->variants[k];
            if (v->world == world && (dtype < 0 || v->dtype == dtype) && runs_here(v) && i-- == 0) {
                return v;
            }
        }
    }
    return NULL;
}

/* ---- data ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30, x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27, x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static const uint32_t special_f32[] = {
    0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00800000, 0x80800000,
    0x3f800000, 0xbf800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
    0xffc00000, 0x7f800001, 0xffffffff, 0x33800000, 0x4b800000, 0xcb800001,
};
static const uint16_t special_bf16[] = {0,      0x8000, 1,      0x8001, 0x007f, 0x0080, 0x3f80,
                                        0xbf80, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffc0,
                                        0x7f81, 0xffff, 0x3b80, 0x4380, 0xc381};
static const uint16_t special_f16[] = {0,      0x8000, 1,      0x8001, 0x03ff, 0x0400, 0x3c00,
                                       0xbc00, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe00,
                                       0x7c01, 0xffff, 0x1000, 0x6800, 0xe801};

#define SPECIAL(table, x) ((table)[(x) % (sizeof(table) / sizeof(table)[0])])

/* One element in four is special, one in four any bits, the others are close to one another, so
 * that sums round and cancel. */
static uint32_t element(int dtype, uint64_t seed, int rank, uint64_t i)
{
    uint64_t x = mix(seed * 1000003 + (uint64_t)rank * 7919 + i * 0x9e3779b97f4a7c15u);
    uint32_t any = (uint32_t)(x >> 32), kind = x & 3;
    switch (dtype) {
    case RF_F32:
        return kind == 0   ? SPECIAL(special_f32, any)
               : kind == 1 ? any
                           : (any & 0x80ffffff) | 0x3f000000;
    case RF_BF16:
        return kind == 0   ? SPECIAL(special_bf16, any)
               : kind == 1 ? any & 0xffff
                           : (any & 0x83ff) | 0x3c00;
    default:
        return kind == 0   ? SPECIAL(special_f16, any)
               : kind == 1 ? any & 0xffff
                           : (any & 0x8fff) | 0x3000;
    }
}

static void fill(unsigned char *to, int dtype, uint64_t seed, int rank, uint64_t count)
{
    size_t size = rf_dtype_size((rf_dtype)dtype);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t e = element(dtype, seed, rank, i);
        memcpy(to + i * size, &e, size); /* little endian */
    }
}

/* ---- every variant against the oracle ---- */

typedef struct buffers {
    unsigned char *in[RF_MAX_WORLD], *out, *want;
} buffers;

static buffers buffers_open(int world)
{
    buffers b = {0};
    for (int r = 0; r < world; r++) {
        b.in[r] = malloc(MOST * 4 + 2 * GUARD);
    }
    b.out = malloc(MOST * 4 + 2 * GUARD);
    b.want = malloc(MOST * 4 + 2 * GUARD);
    return b;
}

static void buffers_close(buffers *b, int world)
{
    for (int r = 0; r < world; r++) {
        free(b->in[r]);
    }
    free(b->out);
    free(b->want);
}

/* One call by all ranks, checked on each: sums, nothing written around them, input left alone. */
static void call_and_check(group *g, buffers *b, int rank, int world, const rf_variant *v,
                           uint64_t count, uint32_t grid, size_t shift, int in_place, uint64_t seed)
{
    size_t size = rf_dtype_size((rf_dtype)v->dtype), bytes = count * size,
           at = GUARD + shift * size;
    const void *in[RF_MAX_WORLD];
    for (int r = 0; r < world; r++) {
        memset(b->in[r], 0xee, bytes + at + GUARD);
        fill(b->in[r] + at, v->dtype, seed, r, count);
        in[r] = b->in[r] + at;
    }
    memset(b->want, 0xee, bytes + at + GUARD);
    RANK_CHECK(rf_oracle_all_reduce(in, b->want + at, count, (rf_dtype)v->dtype, world) == RF_OK,
               "oracle");
    memset(b->out, 0xee, bytes + at + GUARD);
    unsigned char *out = in_place ? b->in[rank] : b->out;
    rf_params p = params(g, rank, world, v, in[rank], out + at, count, grid);
    v->entry(&p);
    const rf_fault *fault = &region_of(g, rank)->fault;
    RANK_CHECK(fault->code == 0, "%s: fault %u, rank %u", v->name, fault->code, fault->culprit);
    RANK_CHECK(memcmp(out, b->want, bytes + at + GUARD) == 0,
               "%s: %llu elements, grid %u, shift %zu, in place %d: not the oracle's bits", v->name,
               (unsigned long long)count, grid, shift, in_place);
    if (!in_place) {
        fill(b->want + at, v->dtype, seed, rank, count);
        RANK_CHECK(memcmp(b->in[rank], b->want, bytes + at + GUARD) == 0, "%s: input changed",
                   v->name);
    }
    rank_barrier(); /* shared inputs are not shared: but the next call may be another variant's */
}

/* Counts around lines, vectors and parts; 4096 B and 16 KiB are where places in the slot change. */
static const uint64_t counts[] = {1,  2,  3,  4,   5,   7,   8,   9,    15,   16,  17,
                                  31, 33, 64, 127, 129, 250, 513, 1024, 2049, 4100};

static void sums(int rank, int world, void *arg)
{
    group *g = arg;
    buffers b = buffers_open(world);
    const rf_variant *v;
    uint64_t seed = 0;
    for (size_t i = 0; (v = variant_of(world, -1, i)); i++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            uint64_t count = v->hidden ? counts[c] * v->hidden : counts[c];
            if (count <= MOST) {
                seed++;
                call_and_check(g, &b, rank, world, v, count, 64, seed % 3, seed & 1, seed);
            }
        }
    }
    buffers_close(&b, world);
}

static void many_steps(int rank, int world, void *arg)
{
    group *g = arg;
    buffers b = buffers_open(world);
    const rf_variant *v;
    for (size_t i = 0; (v = variant_of(world, -1, i)); i++) {
        uint64_t unit = v->hidden ? v->hidden : 1, most = MOST / 4 - MOST / 4 % unit;
        call_and_check(g, &b, rank, world, v, most, 1 + (uint32_t)i % 7, 0, i & 1, i);
        /* a step is never larger than the slot */
        call_and_check(g, &b, rank, world, v, MOST - MOST % unit, 1024, 0, ~i & 1, i);
    }
    buffers_close(&b, world);
}

static void each_world(rank_fn fn)
{
    for (int world = 1; world <= RF_MAX_WORLD; world++) {
        if (variant_of(world, -1, 0)) {
            group *g = group_open(world);
            RANKS_ASSERT(ranks_run_threads(world, fn, g, &(ranks_options){.deadline_ms = 60000}));
            group_close(g, world);
        }
    }
}

static void test_every_variant_gives_the_oracles_bits(void **state)
{
    (void)state;
    each_world(sums);
}

static void test_every_variant_cuts_a_call_into_steps(void **state)
{
    (void)state;
    each_world(many_steps);
}

/* ---- numbers ---- */

/* Every value of a 16-bit type, alone: widened and rounded back. */
static void test_every_16_bit_value_survives_alone(void **state)
{
    (void)state;
    static uint16_t in[65536], out[65536], want[65536];
    group *g = group_open(1);
    const rf_variant *v;
    size_t tried = 0;
    for (size_t i = 0; (v = variant_of(1, -1, i)); i++) {
        if (v->dtype == RF_F32) {
            continue;
        }
        for (uint32_t x = 0; x < 65536; x++) {
            uint32_t infinity = v->dtype == RF_BF16 ? 0x7f80 : 0x7c00;
            in[x] = (uint16_t)x;
            want[x] = (uint16_t)((x & 0x7fff) > infinity ? 0x7fff : x);
        }
        rf_params p = params(g, 0, 1, v, in, out, 65536, 64);
        v->entry(&p);
        assert_memory_equal(out, want, sizeof out);
        const void *ins[] = {in};
        assert_int_equal(rf_oracle_all_reduce(ins, out, 65536, (rf_dtype)v->dtype, 1), RF_OK);
        assert_memory_equal(out, want, sizeof out);
        tried++;
    }
    assert_true(tried > 0 || !variant_of(1, RF_BF16, 0));
    group_close(g, 1);
}

/* Every value of a 16-bit type plus small and large fractions of it: exact ties, near ties,
 * denormals, overflow. */
static void roundings(int rank, int world, void *arg)
{
    group *g = arg;
    static uint16_t in[2][65536];
    uint16_t *out = malloc(sizeof in[0]), *want = malloc(sizeof in[0]);
    const rf_variant *v;
    for (size_t i = 0; (v = variant_of(world, -1, i)); i++) {
        if (v->dtype == RF_F32) {
            continue;
        }
        for (uint32_t below = 0; below < 14; below++) {
            rank_barrier();
            uint32_t digits = v->dtype == RF_BF16 ? 7 : 10;
            for (uint32_t x = rank == 0 ? 0 : 65536; x < 65536; x++) {
                uint32_t exponent = below << digits, magnitude = x & 0x7fff;
                uint32_t y = magnitude > exponent ? magnitude - exponent : magnitude & 3;
                in[0][x] = (uint16_t)x;
                in[1][x] = (uint16_t)((x * 0x9e37 & 0x8000) | (below & 1 ? y & ~3u : y));
            }
            rank_barrier();
            rf_params p = params(g, rank, world, v, in[rank], out, 65536, 64);
            v->entry(&p);
            const void *ins[] = {in[0], in[1]};
            rf_oracle_all_reduce(ins, want, 65536, (rf_dtype)v->dtype, 2);
            RANK_CHECK(memcmp(out, want, sizeof in[0]) == 0, "%s: rounds otherwise than the oracle",
                       v->name);
        }
    }
    free(out);
    free(want);
}

static void test_every_variant_rounds_as_the_oracle(void **state)
{
    (void)state;
    group *g = group_open(2);
    RANKS_ASSERT(ranks_run_threads(2, roundings, g, &(ranks_options){.deadline_ms = 60000}));
    group_close(g, 2);
}

/* What the oracle says, from numbers worked out by hand. */
static void test_oracle_of_known_sums(void **state)
{
    (void)state;
    static const struct {
        int dtype;
        uint32_t in[3], want;
    } known[] = {
        {RF_F32, {0x80000000, 0x80000000, 0x80000000}, 0x80000000}, /* -0 stays */
        {RF_F32, {0x80000000, 0, 0x80000000}, 0},
        {RF_F32, {0x00000001, 0x00000001, 0x80000003}, 0x80000001}, /* denormals are kept */
        {RF_F32, {0x7f800000, 0xff800000, 0}, 0x7fffffff},          /* inf - inf */
        {RF_F32, {0xffc00123, 0, 0}, 0x7fffffff},
        {RF_F32, {0x7f800001, 0, 0}, 0x7fffffff},
        {RF_F32, {0x7f7fffff, 0x7f7fffff, 0}, 0x7f800000},
        {RF_F32, {0x4b800000, 0x3f800000, 0xcb800000}, 0}, /* 2^24 + 1 - 2^24, in this order */
        {RF_F32, {0x4b800000, 0xcb800000, 0x3f800000}, 0x3f800000},
        {RF_BF16, {0x3f80, 0x3b80, 0}, 0x3f80},      /* 1 + 2^-8: a tie, to even */
        {RF_BF16, {0x3f81, 0x3b80, 0}, 0x3f82},      /* 1 + 2^-7 + 2^-8: a tie, to even */
        {RF_BF16, {0x3f80, 0x3b80, 0x3400}, 0x3f81}, /* fp32 keeps what tips the tie */
        {RF_BF16, {0x0001, 0x0001, 0x8003}, 0x8001}, /* denormals are kept */
        {RF_BF16, {0x7f7f, 0x7f7f, 0}, 0x7f80},
        {RF_BF16, {0xffc1, 0, 0}, 0x7fff},
        {RF_F16, {0x3c00, 0x1000, 0}, 0x3c00},      /* 1 + 2^-11: a tie, to even */
        {RF_F16, {0x3c01, 0x1000, 0}, 0x3c02},      /* 1 + 2^-10 + 2^-11 */
        {RF_F16, {0x3c00, 0x1000, 0x0002}, 0x3c01}, /* fp32 keeps what tips the tie */
        {RF_F16, {0x03ff, 0x0001, 0}, 0x0400},      /* denormal to normal */
        {RF_F16, {0x0001, 0x0001, 0x8003}, 0x8001},
        {RF_F16, {0x7bff, 0x4c00, 0}, 0x7c00}, /* 65504 + 16: halfway to 2^16, to infinity */
        {RF_F16, {0x7bff, 0x4bff, 0}, 0x7bff},
        {RF_F16, {0x7c00, 0xfc00, 0}, 0x7fff},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const void *in[] = {&known[i].in[0], &known[i].in[1], &known[i].in[2]};
        uint32_t out = 0;
        assert_int_equal(rf_oracle_all_reduce(in, &out, 1, (rf_dtype)known[i].dtype, 3), RF_OK);
        if (out != known[i].want) {
            fail_msg("row %zu: %x, expected %x", i, out, known[i].want);
        }
    }
}

static void test_oracle_refuses_wrong_arguments(void **state)
{
    (void)state;
    float x = 1;
    const void *in[] = {&x, NULL};
    assert_int_equal(rf_oracle_all_reduce(in, &x, 1, (rf_dtype)7, 1), RF_E_DTYPE);
    assert_int_equal(rf_oracle_all_reduce(in, &x, 1, RF_F32, 0), RF_E_ARG);
    assert_int_equal(rf_oracle_all_reduce(in, &x, 1, RF_F32, 9), RF_E_ARG);
    assert_int_equal(rf_oracle_all_reduce(in, &x, 1, RF_F32, 2), RF_E_ARG);
    assert_int_equal(rf_oracle_all_reduce(in, NULL, 1, RF_F32, 1), RF_E_ARG);
    assert_int_equal(rf_oracle_all_reduce(NULL, NULL, 0, RF_F32, 1), RF_OK);
}

static void test_dtypes_have_names_and_sizes(void **state)
{
    (void)state;
    assert_int_equal(rf_dtype_size(RF_F32), 4);
    assert_int_equal(rf_dtype_size(RF_BF16), 2);
    assert_int_equal(rf_dtype_size((rf_dtype)3), 0);
    assert_int_equal(rf_dtype_size((rf_dtype)-1), 0);
    assert_string_equal(rf_dtype_name(RF_F16), "f16");
    assert_null(rf_dtype_name((rf_dtype)3));
    assert_int_equal(rf_dtype_parse("bf16"), RF_BF16);
    assert_int_equal(rf_dtype_parse("bf"), -1);
    assert_int_equal(rf_dtype_parse(NULL), -1);
}

/* ---- what a kernel refuses ---- */

/* Rank 1 has arrived with this or another call. */
static void arrive_as_rank_1(group *g, uint64_t count, uint64_t tag)
{
    rf_flag *flag = &region_of(g, 1)->arrive;
    flag->call[1] = (rf_call){.count = count, .tag = tag};
    flag->sequence = 1;
}

/* Launches the first variant of world 2 on rank 0 with something wrong; `out` must stay. */
static rf_fault refused(void (*spoil)(group *g, rf_params *p))
{
    group *g = group_open(2);
    float in[4] = {1, 2, 3, 4}, out[4] = {-1, -1, -1, -1};
    const rf_variant *v = variant_of(2, RF_F32, 0);
    rf_params p = params(g, 0, 2, v, in, out, 4, 64);
    spoil(g, &p);
    v->entry(&p);
    assert_true(out[0] == -1 && out[3] == -1);
    rf_fault fault = region_of(g, 0)->fault;
    group_close(g, 2);
    return fault;
}

static void spoil_generation(group *g, rf_params *p)
{
    arrive_as_rank_1(g, 4, p->tag);
    region_of(g, 0)->control.generation = 5;
    p->generation = 4;
}

static void test_another_generation_is_refused(void **state)
{
    (void)state;
    rf_fault f = refused(spoil_generation);
    assert_int_equal(f.code, RF_FAULT_GENERATION);
    assert_int_equal(f.expected, 5);
    assert_int_equal(f.found, 4);
}

static void spoil_busy(group *g, rf_params *p)
{
    arrive_as_rank_1(g, 4, p->tag);
    region_of(g, 0)->control.busy = 1;
}

static void test_two_kernels_at_once_are_refused(void **state)
{
    (void)state;
    assert_int_equal(refused(spoil_busy).code, RF_FAULT_BUSY);
}

static void spoil_poison(group *g, rf_params *p)
{
    arrive_as_rank_1(g, 4, p->tag); /* all are there */
    region_of(g, 0)->control.poison = RF_POISON(1, RF_FAULT_DEAD);
}

static void test_a_poisoned_channel_is_left_alone(void **state)
{
    (void)state;
    assert_int_equal(refused(spoil_poison).code, RF_FAULT_NONE); /* whoever poisoned has said why */
}

static void spoil_count(group *g, rf_params *p)
{
    arrive_as_rank_1(g, 3, p->tag);
}

static void test_another_count_names_the_rank(void **state)
{
    (void)state;
    rf_fault f = refused(spoil_count);
    assert_int_equal(f.code, RF_FAULT_MISMATCH);
    assert_int_equal(f.culprit, 1);
    assert_int_equal(f.expected, 4);
    assert_int_equal(f.found, 3);
    assert_int_equal(f.sequence, 1);
}

static void spoil_tag(group *g, rf_params *p)
{
    arrive_as_rank_1(g, 4, p->tag + 1);
}

static void test_another_variant_names_the_rank(void **state)
{
    (void)state;
    rf_fault f = refused(spoil_tag);
    assert_int_equal(f.code, RF_FAULT_MISMATCH);
    assert_int_equal(f.culprit, 1);
}

/* A kernel that gave up has not left the channel busy. */
static void test_a_mismatch_leaves_the_channel_poisoned_not_busy(void **state)
{
    (void)state;
    group *g = group_open(2);
    float in[4] = {0}, out[4];
    const rf_variant *v = variant_of(2, RF_F32, 0);
    rf_params p = params(g, 0, 2, v, in, out, 4, 64);
    arrive_as_rank_1(g, 5, p.tag);
    v->entry(&p);
    assert_int_equal(region_of(g, 0)->control.busy, 0);
    assert_int_equal(region_of(g, 0)->control.epoch, 0);
    assert_int_equal(region_of(g, 1)->control.poison, RF_POISON(1, RF_FAULT_MISMATCH));
    group_close(g, 2);
}

/* Negative control: were the order of ranks wrong, the data above would show it. */
static void test_the_data_tells_rank_orders_apart(void **state)
{
    (void)state;
    static uint32_t in[3][4096], forward[4096], backward[4096];
    for (int r = 0; r < 3; r++) {
        fill((unsigned char *)in[r], RF_F32, 1, r, 4096);
    }
    const void *a[] = {in[0], in[1], in[2]}, *b[] = {in[2], in[1], in[0]};
    rf_oracle_all_reduce(a, forward, 4096, RF_F32, 3);
    rf_oracle_all_reduce(b, backward, 4096, RF_F32, 3);
    assert_memory_not_equal(forward, backward, sizeof forward);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oracle_of_known_sums),
        cmocka_unit_test(test_oracle_refuses_wrong_arguments),
        cmocka_unit_test(test_dtypes_have_names_and_sizes),
        cmocka_unit_test(test_the_data_tells_rank_orders_apart),
        cmocka_unit_test(test_every_variant_gives_the_oracles_bits),
        cmocka_unit_test(test_every_variant_cuts_a_call_into_steps),
        cmocka_unit_test(test_every_16_bit_value_survives_alone),
        cmocka_unit_test(test_every_variant_rounds_as_the_oracle),
        cmocka_unit_test(test_another_generation_is_refused),
        cmocka_unit_test(test_two_kernels_at_once_are_refused),
        cmocka_unit_test(test_a_poisoned_channel_is_left_alone),
        cmocka_unit_test(test_another_count_names_the_rank),
        cmocka_unit_test(test_another_variant_names_the_rank),
        cmocka_unit_test(test_a_mismatch_leaves_the_channel_poisoned_not_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
