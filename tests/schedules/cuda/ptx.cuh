/* Stands in for templates/cuda/ptx.cuh: the same functions on the small machine of machine.h. */
#ifndef RANKFOLD_CUDA_PTX_CUH
#define RANKFOLD_CUDA_PTX_CUH

#include "machine.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* What the templates take from here where it is there. */
#undef RF_SLOTS
#define RF_SLOTS          machine_slots()
#define RF_CHECK_EVERY    32u
#define RF_TAG_MASK       machine_tag_mask()
#define RF_UPKEEP_EVERY   2
#define RF_UPKEEP_VECTORS machine_kept()
#define RF_SETTLE_KIB     1
#define RF_RING_WINDOW    (machine_flawed() == FLAW_WINDOW ? 5u : 6u)

#define RF_DEVICE                static inline __attribute__((unused))
#define RF_COLD                  static __attribute__((unused, noinline))
#define RF_KERNEL(name, threads) void name
#define RF_PARAMS                rf_params

RF_DEVICE uint32_t thread_index(void)
{
    return machine_thread();
}

RF_DEVICE uint32_t block_index(void)
{
    return machine_block();
}

RF_DEVICE uint32_t grid_size(void)
{
    return machine_grid();
}

RF_DEVICE rf_pack16 load_plain(const void *at)
{
    rf_pack16 v;
    assert((uintptr_t)at % 16 == 0); /* a GPU faults */
    machine_step();
    for (int i = 0; i < 4; i++) {
        v.w[i] = machine_load_own((const uint32_t *)at + i);
    }
    return v;
}

RF_DEVICE rf_pack16 load_plain12(const void *at)
{
    rf_pack16 v = {{0, 0, 0, 0}};
    assert((uintptr_t)at % 4 == 0);
    machine_step();
    memcpy(&v, at, 12);
    return v;
}

RF_DEVICE rf_pack16 load_sys(const void *at)
{
    rf_pack16 v;
    assert((uintptr_t)at % 16 == 0);
    machine_step();
    if (machine_load16(at, &v)) {
        return v;
    }
    for (int i = 0; i < 4; i++) {
        machine_step();
        v.w[i] = machine_load_sys((const uint32_t *)at + i);
    }
    if (machine_flawed() == FLAW_EARLY_CLEAR && machine_is_slot(at)) {
        for (int i = 0; i < 4; i++) {
            if (v.w[i] != 0xffffffffu) {
                machine_store((uint32_t *)at + i, 0xffffffffu);
            }
        }
    }
    return v;
}

RF_DEVICE void store_plain(void *at, rf_pack16 v)
{
    assert((uintptr_t)at % 16 == 0);
    machine_step();
    if (machine_flawed() == FLAW_NO_REARM && v.w[0] == 0xffffffffu) {
        return;
    }
    for (int i = 0; i < 4; i++) {
        machine_store((uint32_t *)at + i, v.w[i]);
    }
}

RF_DEVICE void store_plain12(void *at, rf_pack16 v)
{
    assert((uintptr_t)at % 4 == 0);
    machine_step();
    for (int i = 0; i < 3; i++) {
        machine_store((uint32_t *)at + i, v.w[i]);
    }
}

RF_DEVICE uint32_t load_plain2(const void *at)
{
    uint16_t v;
    assert((uintptr_t)at % 2 == 0);
    machine_step();
    memcpy(&v, at, 2);
    return v;
}

RF_DEVICE void store_plain2(void *at, uint32_t v)
{
    uint16_t half = (uint16_t)v;
    assert((uintptr_t)at % 2 == 0);
    machine_step();
    memcpy(at, &half, 2);
}

RF_DEVICE void store_sys(void *at, rf_pack16 v)
{
    assert((uintptr_t)at % 16 == 0);
    machine_step();
    if (machine_flawed() == FLAW_NO_UPKEEP && !(v.w[0] | v.w[1] | v.w[2])) {
        return;
    }
    if (machine_store16(at, v)) {
        return;
    }
    for (int i = 0; i < 4; i++) {
        machine_store((uint32_t *)at + i, v.w[i]);
    }
}

RF_DEVICE uint32_t load_word_sys(const void *at)
{
    machine_step();
    return machine_load(at);
}

RF_DEVICE void store_word_sys(void *at, uint32_t v)
{
    machine_step();
    machine_store(at, v);
}

RF_DEVICE uint64_t load_u64_sys(const void *at)
{
    uint64_t v;
    machine_step();
    memcpy(&v, at, sizeof v);
    return v;
}

RF_DEVICE void store_u64_sys(void *at, uint64_t v)
{
    machine_step();
    machine_store_u64(at, v);
}

RF_DEVICE uint32_t increment_gpu(void *at, uint32_t limit)
{
    machine_step();
    uint32_t old = machine_load(at);
    machine_store_now(at, old >= limit ? 0 : old + 1);
    return machine_flawed() == FLAW_BLOCK_EPOCH ? limit : old;
}

RF_DEVICE uint32_t exchange_if_gpu(void *at, uint32_t expected, uint32_t v)
{
    machine_step();
    uint32_t old = machine_load(at);
    if (old == expected) {
        machine_store_now(at, v);
    }
    return old;
}

RF_DEVICE void block_barrier(void)
{
    machine_barrier(0);
}

RF_DEVICE uint32_t block_any(uint32_t holds)
{
    return (uint32_t)machine_barrier((int)holds);
}

RF_DEVICE void fence_sys(void)
{
    machine_step();
    machine_fence();
}

RF_DEVICE void fence_acquire_sys(void)
{
    machine_step();
    if (machine_flawed() != FLAW_NO_ACQUIRE) {
        machine_acquire();
    }
}

RF_DEVICE uint64_t time_ns(void)
{
    return machine_time();
}

RF_DEVICE void pause(uint32_t clocks)
{
    machine_pause(clocks);
}

RF_DEVICE void dependents_wait(void)
{
    if (machine_flawed() != FLAW_NO_WAIT) {
        machine_wait();
    }
}

RF_DEVICE void dependents_launch(void)
{
    machine_trigger();
}

RF_DEVICE float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

RF_DEVICE uint32_t bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* The GPU's sums are canonical, the host's are not. */
RF_DEVICE float float_sum(float a, float b)
{
    float f = a + b;
    return f != f ? float_of_bits(0x7fffffffu) : f;
}

RF_DEVICE float float_of_f16(uint32_t low_half)
{
    uint32_t exponent = low_half >> 10 & 31, mantissa = low_half & 1023;
    float f = exponent == 31  ? (mantissa ? NAN : INFINITY)
              : exponent == 0 ? ldexpf((float)mantissa, -24)
                              : ldexpf((float)(1024 + mantissa), (int)exponent - 25);
    return low_half & 0x8000 ? -f : f;
}

RF_DEVICE uint32_t f16_of_float(float f)
{
    float size = fabsf(f);
    uint32_t sign = signbit(f) ? 0x8000 : 0;
    int exponent;
    if (f != f) {
        return 0x7fff;
    }
    if (size >= 65520) {
        return sign | 0x7c00;
    }
    if (size < 0x1p-14f) {
        return sign | (uint32_t)nearbyintf(ldexpf(size, 24));
    }
    size = ldexpf(frexpf(size, &exponent), 11); /* 1024 to 2048 */
    return sign | ((uint32_t)(exponent + 13) * 1024 + (uint32_t)nearbyintf(size));
}

RF_DEVICE uint32_t f16x2_of_floats(float low, float high)
{
    return f16_of_float(low) | f16_of_float(high) << 16;
}

RF_DEVICE uint32_t bf16_of_float(float f)
{
    uint32_t bits = bits_of_float(f);
    return f != f ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

RF_DEVICE uint32_t bf16x2_of_floats(float low, float high)
{
    return bf16_of_float(low) | bf16_of_float(high) << 16;
}

#endif
