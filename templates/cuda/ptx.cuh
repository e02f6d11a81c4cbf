/* Everything that a kernel asks of the machine: the only file with PTX in it.
 *
 * The sources beside it are C in the subset that nvcc and cc share, and reach memory that others
 * see only through these functions, so that a CPU shim can stand in for them (blocks of fibres,
 * stores that tear and linger). Every asm is volatile with a memory clobber: program order is kept
 * by the compiler; what the hardware may still reorder is said beside each use. Stores to peers and
 * polls are `relaxed.sys`: there is no acquire in any loop that polls (it would invalidate L1 each
 * turn), and no fence on the path of a call but the ring's, one per announcement. */
#ifndef RANKFOLD_CUDA_PTX_CUH
#define RANKFOLD_CUDA_PTX_CUH

#include "abi.h"

#define RF_DEVICE static __device__ __forceinline__
/* Not static: nvcc names such functions after the path of the file, and the same source would give
 * other bytes in another folder. */
#define RF_COLD                  extern "C" __device__ __noinline__
#define RF_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads, 1) name
#define RF_PARAMS                const __grid_constant__ rf_params

typedef struct __attribute__((aligned(16))) rf_pack16 {
    uint32_t w[4];
} rf_pack16;

/* ---- where this thread is ---- */

RF_DEVICE uint32_t thread_index(void)
{
    return threadIdx.x;
}

RF_DEVICE uint32_t block_index(void)
{
    return blockIdx.x;
}

RF_DEVICE uint32_t grid_size(void)
{
    return gridDim.x;
}

/* ---- 16 bytes, or some of them: plain for the caller's tensors and for re-arming, sys for what
 * crosses between devices ---- */

RF_DEVICE rf_pack16 load_plain(const void *at)
{
    rf_pack16 v;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                 : "l"(at)
                 : "memory");
    return v;
}

RF_DEVICE void store_plain(void *at, rf_pack16 v)
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.w[0]), "r"(v.w[1]),
                 "r"(v.w[2]), "r"(v.w[3])
                 : "memory");
}

/* Three words, 4-byte aligned; the fourth is 0. */
RF_DEVICE rf_pack16 load_plain12(const void *at)
{
    rf_pack16 v;
    v.w[3] = 0;
    asm volatile("ld.global.b32 %0, [%3];\n\tld.global.b32 %1, [%3 + 4];\n\t"
                 "ld.global.b32 %2, [%3 + 8];"
                 : "=&r"(v.w[0]), "=&r"(v.w[1]), "=&r"(v.w[2])
                 : "l"(at)
                 : "memory");
    return v;
}

RF_DEVICE void store_plain12(void *at, rf_pack16 v)
{
    asm volatile("st.global.b32 [%0], %1;\n\tst.global.b32 [%0 + 4], %2;\n\t"
                 "st.global.b32 [%0 + 8], %3;" ::"l"(at),
                 "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2])
                 : "memory");
}

RF_DEVICE uint32_t load_plain2(const void *at)
{
    uint32_t v;
    asm volatile("ld.global.u16 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}

RF_DEVICE void store_plain2(void *at, uint32_t v)
{
    asm volatile("st.global.u16 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}

RF_DEVICE rf_pack16 load_sys(const void *at)
{
    rf_pack16 v;
    asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                 : "l"(at)
                 : "memory");
    return v;
}

RF_DEVICE void store_sys(void *at, rf_pack16 v)
{
    asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.w[0]),
                 "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
                 : "memory");
}

/* ---- single words: control page, abort word, fault record ---- */

RF_DEVICE uint32_t load_word_sys(const void *at)
{
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}

RF_DEVICE void store_word_sys(void *at, uint32_t v)
{
    asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}

RF_DEVICE uint64_t load_u64_sys(const void *at)
{
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
}

RF_DEVICE void store_u64_sys(void *at, uint64_t v)
{
    asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}

/* old = *at; *at = old >= limit ? 0 : old + 1; returns old. */
RF_DEVICE uint32_t increment_gpu(void *at, uint32_t limit)
{
    uint32_t old;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(at), "r"(limit)
                 : "memory");
    return old;
}

RF_DEVICE uint32_t exchange_if_gpu(void *at, uint32_t expected, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(old)
                 : "l"(at), "r"(expected), "r"(v)
                 : "memory");
    return old;
}

/* ---- order and time ---- */

RF_DEVICE void block_barrier(void)
{
    asm volatile("bar.sync 0;" ::: "memory");
}

/* Does it hold for any thread of the block? All threads ask, and wait for each other. */
RF_DEVICE uint32_t block_any(uint32_t holds)
{
    uint32_t any;
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, 0, p; "
                 "selp.u32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"(holds)
                 : "memory");
    return any;
}

/* Waits until all that this thread has stored, or seen stored by others of its block, is there for
 * everybody: one crossing and back. One thread of a block, once per announcement, and where a call
 * has failed. */
RF_DEVICE void fence_sys(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* Behind the poll of a flag, before what it announces is read. ptxas 13.0 makes nonsense of
 * fence.acquire below sm_90. */
RF_DEVICE void fence_acquire_sys(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.acquire.sys;" ::: "memory");
#else
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

RF_DEVICE uint64_t time_ns(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

RF_DEVICE void pause(uint32_t clocks)
{
    uint32_t begin, now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(begin)::"memory");
    do {
        asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    } while (now - begin < clocks);
}

/* Waits until the stream's earlier kernels are complete and their stores visible. */
RF_DEVICE void dependents_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the stream's next kernel be placed; what it may touch, its own wait decides. */
RF_DEVICE void dependents_launch(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- numbers: exact widening, rounding to nearest even; denormals kept, every NaN becomes the
 * canonical one ---- */

RF_DEVICE float float_of_bits(uint32_t bits)
{
    return __uint_as_float(bits);
}

RF_DEVICE uint32_t bits_of_float(float f)
{
    return __float_as_uint(f);
}

RF_DEVICE float float_sum(float a, float b)
{
    return a + b;
}

RF_DEVICE float float_of_f16(uint32_t low_half)
{
    float f;
    asm("{ .reg .b16 h, unused; mov.b32 {h, unused}, %1; cvt.f32.f16 %0, h; }"
        : "=f"(f)
        : "r"(low_half));
    return f;
}

RF_DEVICE uint32_t f16x2_of_floats(float low, float high)
{
    uint32_t w;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
#else
    asm("{ .reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h}; }"
        : "=r"(w)
        : "f"(low), "f"(high));
#endif
    return w;
}

RF_DEVICE uint32_t bf16x2_of_floats(float low, float high)
{
#if __CUDA_ARCH__ >= 800
    uint32_t w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
#else
    uint32_t l = bits_of_float(low), h = bits_of_float(high);
    l = (l & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (l + 0x7fffu + (l >> 16 & 1u)) >> 16;
    h = (h & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (h + 0x7fffu + (h >> 16 & 1u)) >> 16;
    return l | h << 16;
#endif
}

#endif
