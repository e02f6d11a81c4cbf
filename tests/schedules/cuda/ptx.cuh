/* Stands in for templates/cuda/ptx.cuh: the same functions on the small machine of machine.h. */
#ifndef RANKFOLD_CUDA_PTX_CUH
#define RANKFOLD_CUDA_PTX_CUH

#include "machine.h"

#include <string.h>

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
    machine_step();
    memcpy(&v, at, sizeof v);
    return v;
}

RF_DEVICE rf_pack16 load_sys(const void *at)
{
    rf_pack16 v;
    for (int i = 0; i < 4; i++) {
        machine_step();
        v.w[i] = machine_load((const uint32_t *)at + i);
    }
    return v;
}

RF_DEVICE void store_plain(void *at, rf_pack16 v)
{
    machine_step();
    if (machine_flawed() == FLAW_NO_REARM && v.w[0] == 0xffffffffu) {
        return;
    }
    for (int i = 0; i < 4; i++) {
        machine_store((uint32_t *)at + i, v.w[i]);
    }
}

RF_DEVICE void store_sys(void *at, rf_pack16 v)
{
    machine_step();
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
    machine_store_now(at, v);
}

RF_DEVICE void store_u64_sys(void *at, uint64_t v)
{
    machine_step();
    machine_store(at, (uint32_t)v);
    machine_store((uint32_t *)at + 1, (uint32_t)(v >> 32));
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
    machine_barrier();
}

RF_DEVICE void fence_sys(void)
{
    machine_step();
}

RF_DEVICE uint64_t time_ns(void)
{
    return machine_time();
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
    return f != f ? 0x7fffffffu : bits; /* the GPU's sums are canonical, the host's are not */
}

#endif
