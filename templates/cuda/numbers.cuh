/* The numerics contract on packs of 16 bytes: sums in fp32 in rank order from rank 0's value, one
 * rounding at the end. */
#ifndef RANKFOLD_CUDA_NUMBERS_CUH
#define RANKFOLD_CUDA_NUMBERS_CUH

#include "cuda/ptx.cuh"

/* RF_SHARD_DTYPE: code of RF_DTYPE_LIST, fixed for a whole shard. */
#if RF_SHARD_DTYPE == 0
#define RF_ELEMENT_BYTES 4
typedef uint32_t rf_element; /* its bits */
#else
#define RF_ELEMENT_BYTES 2
typedef uint16_t rf_element;
#endif
#define RF_LANES      (16 / RF_ELEMENT_BYTES) /* elements of a pack */
#define RF_SUMS_PACKS (RF_LANES / 4)          /* packs that its sums take in fp32 */

typedef struct rf_sums {
    float f[RF_LANES];
} rf_sums;

RF_DEVICE rf_sums widen(rf_pack16 v)
{
    rf_sums s;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if RF_SHARD_DTYPE == 0
        s.f[i] = float_of_bits(v.w[i]);
#elif RF_SHARD_DTYPE == 1
        s.f[2 * i] = float_of_bits(v.w[i] << 16);
        s.f[2 * i + 1] = float_of_bits(v.w[i] & 0xffff0000u);
#else
        s.f[2 * i] = float_of_f16(v.w[i]);
        s.f[2 * i + 1] = float_of_f16(v.w[i] >> 16);
#endif
    }
    return s;
}

RF_DEVICE rf_sums add(rf_sums a, rf_pack16 v)
{
    rf_sums b = widen(v);
#pragma unroll
    for (int i = 0; i < RF_LANES; i++) {
        a.f[i] = float_sum(a.f[i], b.f[i]);
    }
    return a;
}

/* No word of the result is the sentinel: NaNs come out canonical. */
RF_DEVICE rf_pack16 narrow(rf_sums s)
{
    rf_pack16 v;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if RF_SHARD_DTYPE == 0
        v.w[i] = bits_of_float(s.f[i]);
#elif RF_SHARD_DTYPE == 1
        v.w[i] = bf16x2_of_floats(s.f[2 * i], s.f[2 * i + 1]);
#else
        v.w[i] = f16x2_of_floats(s.f[2 * i], s.f[2 * i + 1]);
#endif
    }
    return v;
}

/* For a world of one: there no sum makes a NaN canonical. */
RF_DEVICE rf_sums canonical(rf_sums s)
{
#pragma unroll
    for (int i = 0; i < RF_LANES; i++) {
        s.f[i] = s.f[i] == s.f[i] ? s.f[i] : float_of_bits(0x7fffffffu);
    }
    return s;
}

/* The sums over all ranks: of the own pack and, at v[q], rank q's. */
RF_DEVICE rf_sums sums_of(uint32_t world, uint32_t rank, rf_pack16 own, const rf_pack16 *v)
{
    rf_sums sums = widen(rank == 0 ? own : v[0]);
#pragma unroll
    for (uint32_t q = 1; q < world; q++) {
        sums = add(sums, q == rank ? own : v[q]);
    }
    return world == 1 ? canonical(sums) : sums;
}

RF_DEVICE rf_pack16 sum_of(uint32_t world, uint32_t rank, rf_pack16 own, const rf_pack16 *v)
{
    return narrow(sums_of(world, rank, own, v));
}

/* Pack `number` of RF_SUMS_PACKS of the sums as they are. A sum that is NaN is the canonical one,
 * so no word is the sentinel. */
RF_DEVICE rf_pack16 pack_of_sums(const rf_sums *s, uint32_t number)
{
    rf_pack16 v;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v.w[i] = bits_of_float(s->f[4 * number + i]);
    }
    return v;
}

RF_DEVICE rf_sums add_sums(rf_sums a, const rf_pack16 *v)
{
#pragma unroll
    for (int i = 0; i < RF_LANES; i++) {
        a.f[i] = float_sum(a.f[i], float_of_bits(v[i / 4].w[i % 4]));
    }
    return a;
}

#endif
