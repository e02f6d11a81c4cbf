/* One element of the shard's dtype, to and from fp32 by integer arithmetic: what every instruction
 * set has to agree with, and all that steps of a few bytes need. */
#ifndef RANKFOLD_CPU_ELEMENT_H
#define RANKFOLD_CPU_ELEMENT_H

#include "abi.h"

/* Kernels are specialised by inlining: every helper has the target attribute of its shard. */
#define RF_INLINE static inline __attribute__((always_inline)) RF_TARGET

#define NAN_F32  0x7fffffff /* the one NaN that leaves a kernel */
#define NAN_HALF 0x7fff     /* the same for both 16-bit types */
#define INF_F32  0x7f800000u

RF_INLINE float float_of(uint32_t bits)
{
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

RF_INLINE uint32_t bits_of(float value)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}

RF_INLINE int is_nan(uint32_t bits)
{
    return (bits & 0x7fffffffu) > INF_F32;
}

#if RF_SHARD_DTYPE == 0 /* f32 */

typedef uint32_t rf_element;

RF_INLINE float element_widen(rf_element e)
{
    return float_of(e);
}

RF_INLINE rf_element element_round(float value)
{
    uint32_t x = bits_of(value);
    return is_nan(x) ? NAN_F32 : x;
}

#elif RF_SHARD_DTYPE == 1 /* bf16 */

typedef uint16_t rf_element;

RF_INLINE float element_widen(rf_element e)
{
    return float_of((uint32_t)e << 16);
}

RF_INLINE rf_element element_round(float value)
{
    uint32_t x = bits_of(value);
    return is_nan(x) ? NAN_HALF : (rf_element)((x + 0x7fffu + (x >> 16 & 1)) >> 16);
}

#elif RF_SHARD_DTYPE == 2 /* f16 */

typedef uint16_t rf_element;

RF_INLINE float element_widen(rf_element e)
{
    uint32_t sign = (uint32_t)(e & 0x8000u) << 16, rest = (uint32_t)(e & 0x7fffu) << 13;
    if (rest >= 0x7c00u << 13) { /* infinity, NaN */
        return float_of(sign | rest | INF_F32);
    }
    if (rest >= 0x0400u << 13) { /* normal: the exponent's bias grows by 112 */
        return float_of(sign | (rest + (112u << 23)));
    }
    /* Denormal, a multiple of 2^-24: the integer becomes a float exactly, its exponent drops. */
    uint32_t x = bits_of((float)(int32_t)(e & 0x3ffu));
    return float_of(sign | (x ? x - (24u << 23) : 0));
}

RF_INLINE rf_element element_round(float value)
{
    uint32_t x = bits_of(value), sign = x >> 16 & 0x8000u, a = x & 0x7fffffffu;
    if (a > INF_F32) {
        return NAN_HALF;
    }
    if (a >= 0x477ff000u) { /* from 65520 on: infinity */
        return (rf_element)(sign | 0x7c00u);
    }
    if (a >= 0x38800000u) { /* from 2^-14 on: normal */
        uint32_t r = a - (112u << 23);
        return (rf_element)(sign | (r + 0xfffu + (r >> 13 & 1)) >> 13);
    }
    if (a < 0x33000000u) { /* below half of the smallest denormal, 2^-25 */
        return (rf_element)sign;
    }
    uint32_t shift = 126 - (a >> 23), m = (a & 0x7fffffu) | 0x800000u;
    uint32_t q = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
    return (rf_element)(sign | (q + (rest > half || (rest == half && (q & 1)))));
}

#else
#error "RF_SHARD_DTYPE is none of RF_DTYPE_LIST"
#endif

#endif
