/* The oracle: what an all-reduce has to give, bit for bit. Plain C over integers and single fp32
 * additions, sharing no code with the kernels, so that the two can be held against each other. */
#include "rankfold.h"
#include "abi.h"

#include <string.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#define NAN_F32     0x7fffffffu
#define NAN_HALF    0x7fffu /* both 16-bit types */
#define INF_F32     0x7f800000u
#define BLOCK       1024    /* elements whose sums are kept in a local array */
#define MXCSR_RESET 0x1f80u /* all exceptions masked, round to nearest, denormals kept */

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float bf16_widen(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

static uint16_t bf16_round(float value)
{
    uint32_t x = bits_of(value);
    if ((x & 0x7fffffffu) > INF_F32) {
        return NAN_HALF;
    }
    return (uint16_t)((x + 0x7fffu + (x >> 16 & 1)) >> 16);
}

static float f16_widen(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 0x3ffu;
    if (exponent == 31) {
        return float_of(sign | INF_F32 | mantissa << 13);
    }
    if (exponent == 0 && mantissa != 0) { /* denormal: all of them are normal in fp32 */
        uint32_t shift = (uint32_t)__builtin_clz(mantissa) - 21;
        return float_of(sign | (113 - shift) << 23 | (mantissa << shift & 0x3ffu) << 13);
    }
    return float_of(exponent == 0 ? sign : sign | (exponent + 112) << 23 | mantissa << 13);
}

static uint16_t f16_round(float value)
{
    uint32_t x = bits_of(value), sign = x >> 16 & 0x8000u, a = x & 0x7fffffffu;
    if (a > INF_F32) {
        return NAN_HALF;
    }
    if (a >= 0x477ff000u) { /* from 65520 on: rounds to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (a >= 0x38800000u) { /* from 2^-14 on: normal */
        uint32_t r = a - (112u << 23);
        return (uint16_t)(sign | (r + 0xfffu + (r >> 13 & 1)) >> 13);
    }
    if (a < 0x33000000u) { /* below 2^-25, half of the smallest denormal */
        return (uint16_t)sign;
    }
    uint32_t shift = 126 - (a >> 23), m = (a & 0x7fffffu) | 0x800000u;
    uint32_t q = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
    return (uint16_t)(sign | (q + (rest > half || (rest == half && (q & 1)))));
}

static uint32_t f32_canonical(float value)
{
    uint32_t x = bits_of(value);
    return (x & 0x7fffffffu) > INF_F32 ? NAN_F32 : x;
}

/* Loads n elements of one rank as fp32. */
static void widen(float *restrict to, const void *from, size_t at, size_t n, rf_dtype dtype)
{
    const unsigned char *src = (const unsigned char *)from + at * rf_dtype_size(dtype);
    if (dtype == RF_F32) {
        memcpy(to, src, n * sizeof *to);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, sizeof h);
        to[i] = dtype == RF_BF16 ? bf16_widen(h) : f16_widen(h);
    }
}

static void store(void *to, const float *from, size_t at, size_t n, rf_dtype dtype)
{
    unsigned char *dst = (unsigned char *)to + at * rf_dtype_size(dtype);
    for (size_t i = 0; i < n; i++) {
        if (dtype == RF_F32) {
            uint32_t x = f32_canonical(from[i]);
            memcpy(dst + 4 * i, &x, sizeof x);
        } else {
            uint16_t h = dtype == RF_BF16 ? bf16_round(from[i]) : f16_round(from[i]);
            memcpy(dst + 2 * i, &h, sizeof h);
        }
    }
}

/* sum = in[order[0]] + in[order[1]] ..., n of them. */
static void add_up(float *sum, const void *const *in, const uint8_t *order, int n, size_t at,
                   size_t count, rf_dtype dtype)
{
    float next[BLOCK];
    widen(sum, in[order[0]], at, count, dtype);
    for (int r = 1; r < n; r++) {
        widen(next, in[order[r]], at, count, dtype);
        for (size_t i = 0; i < count; i++) {
            sum[i] = sum[i] + next[i];
        }
    }
}

static rf_result check(const void *const *in, const void *out, uint64_t count, rf_dtype dtype,
                       int world)
{
    if (rf_dtype_size(dtype) == 0) {
        return RF_E_DTYPE;
    }
    if (world < 1 || world > RF_MAX_WORLD || count > SIZE_MAX / 8) {
        return RF_E_ARG;
    }
    if (count == 0) {
        return RF_OK;
    }
    if (!in || !out) {
        return RF_E_ARG;
    }
    for (int r = 0; r < world; r++) {
        if (!in[r]) {
            return RF_E_ARG;
        }
    }
    return RF_OK;
}

/* The sum of the first `first` ranks of the order, then that of the others added to it. */
static void sum_up(const void *const *in, void *out, uint64_t count, rf_dtype dtype, int world,
                   const uint8_t *order, int first)
{
#if defined(__SSE__)
    unsigned callers = _mm_getcsr(); /* the caller may flush denormals; the definition does not */
    _mm_setcsr(MXCSR_RESET);
#endif
    for (uint64_t at = 0; at < count; at += BLOCK) {
        float sum[BLOCK], others[BLOCK];
        size_t n = count - at < BLOCK ? (size_t)(count - at) : BLOCK;
        add_up(sum, in, order, first, at, n, dtype);
        if (first < world) {
            add_up(others, in, order + first, world - first, at, n, dtype);
            for (size_t i = 0; i < n; i++) {
                sum[i] = sum[i] + others[i];
            }
        }
        store(out, sum, at, n, dtype);
    }
#if defined(__SSE__)
    _mm_setcsr(callers);
#endif
}

rf_result rf_oracle_all_reduce(const void *const *in, void *out, uint64_t count, rf_dtype dtype,
                               int world)
{
    static const uint8_t order[RF_MAX_WORLD] = {0, 1, 2, 3, 4, 5, 6, 7};
    rf_result bad = check(in, out, count, dtype, world);
    if (!bad && count) {
        sum_up(in, out, count, dtype, world, order, world);
    }
    return bad;
}

rf_result rf_oracle_islands(const void *const *in, void *out, uint64_t count, rf_dtype dtype,
                            int world, const uint8_t *order)
{
    unsigned seen = 0;
    rf_result bad = check(in, out, count, dtype, world);
    if (bad) {
        return bad;
    }
    if (!order || world < 2 || world % 2) {
        return RF_E_ARG;
    }
    for (int i = 0; i < world; i++) {
        seen |= order[i] < world ? 1u << order[i] : 0;
    }
    if (seen != (1u << world) - 1) {
        return RF_E_ARG;
    }
    if (count) {
        sum_up(in, out, count, dtype, world, order, world / 2);
    }
    return RF_OK;
}
