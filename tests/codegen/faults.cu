/* Kernels that break a rule of tests/codegen/rules.lua each, the one that they are named after;
 * `sound` breaks none. */
#include "cuda/ptx.cuh"

#define MANY 24 /* packs: more than 64 registers hold */

RF_DEVICE void copy(unsigned char *p)
{
    store_plain(p + 64, load_plain(p));
}

RF_DEVICE void poll(unsigned char *p)
{
    rf_pack16 v;
    do {
        v = load_sys(p);
    } while ((v.w[0] & v.w[1] & v.w[2] & v.w[3]) == 0xffffffffu);
}

RF_KERNEL(sound, 32)(unsigned char *p)
{
    poll(p);
    copy(p);
    store_u64_sys(p + 128, 1);
}

RF_KERNEL(registers, 32)(unsigned char *p)
{
    rf_pack16 v[MANY];
    poll(p);
#pragma unroll
    for (int i = 0; i < MANY; i++) {
        v[i] = load_plain(p + 16 * i);
    }
#pragma unroll
    for (int i = 0; i < MANY; i++) {
        store_plain(p + 16 * i, v[MANY - 1 - i]);
    }
}

RF_KERNEL(no_local_memory, 32)(unsigned char *p)
{
    volatile uint32_t v[4];
    poll(p);
    v[thread_index() & 3] = 0;
    copy(p);
}

RF_KERNEL(wide_accesses, 32)(unsigned char *p)
{
    poll(p);
    ((uint32_t *)p)[1] = ((uint32_t *)p)[0];
}

RF_KERNEL(few_words, 32)(unsigned char *p)
{
    poll(p);
    store_word_sys(p, 1);
    store_word_sys(p + 4, 1);
}

RF_KERNEL(polls, 32)(unsigned char *p)
{
    copy(p);
}

RF_KERNEL(no_fence_in_polls, 32)(unsigned char *p)
{
    uint32_t w;
    do {
        asm volatile("ld.acquire.sys.global.b32 %0, [%1];" : "=r"(w) : "l"(p) : "memory");
    } while (w == 0xffffffffu);
}

RF_KERNEL(one_fence, 32)(unsigned char *p)
{
    poll(p);
    fence_sys();
    copy(p);
    fence_sys();
}

RF_KERNEL(waits_first, 32)(unsigned char *p)
{
    copy(p);
    dependents_wait();
    poll(p);
}

#ifdef SPILLS
RF_KERNEL(spills, 1024)(unsigned char *p)
{
    rf_pack16 v[MANY];
#pragma unroll
    for (int i = 0; i < MANY; i++) {
        v[i] = load_plain(p + 16 * i);
    }
#pragma unroll
    for (int i = 0; i < MANY; i++) {
        store_plain(p + 16 * i, v[MANY - 1 - i]);
    }
}
#endif
