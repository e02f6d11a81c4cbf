/* Vectors of 16 lanes: AVX-512F only. (The AVX512-BF16 instruction flushes denormals: unusable.) */
#ifndef RANKFOLD_CPU_AVX512_H
#define RANKFOLD_CPU_AVX512_H

#include <immintrin.h>

#define RF_TARGET __attribute__((target("avx512f,prfchw")))
#include "cpu/element.h"

typedef __m512 rf_vector;
#define RF_LANES 16

RF_INLINE rf_vector vector_add(rf_vector a, rf_vector b)
{
    return _mm512_add_ps(a, b);
}

/* v with the canonical NaN, widened to 32 bits, wherever `of` is NaN. */
RF_INLINE __m512i with_nan(__m512i v, rf_vector of, int nan)
{
    return _mm512_mask_mov_epi32(v, _mm512_cmp_ps_mask(of, of, _CMP_UNORD_Q),
                                 _mm512_set1_epi32(nan));
}

#if RF_SHARD_DTYPE == 0

typedef __m512i rf_rounded;

RF_INLINE rf_vector vector_load(const unsigned char *from)
{
    return _mm512_castsi512_ps(_mm512_loadu_si512(from));
}

/* What vector_store wrote. */
RF_INLINE rf_rounded vector_reload(const unsigned char *from)
{
    return _mm512_loadu_si512(from);
}

RF_INLINE rf_rounded vector_round(rf_vector v)
{
    return with_nan(_mm512_castps_si512(v), v, NAN_F32);
}

RF_INLINE void vector_store(unsigned char *to, rf_rounded v)
{
    _mm512_storeu_si512(to, v);
}

RF_INLINE void vector_stream(unsigned char *to, rf_rounded v)
{
    _mm512_stream_si512((__m512i *)(void *)to, v);
}

#else

typedef __m256i rf_rounded;

/* Also: what vector_store wrote. */
RF_INLINE rf_rounded vector_reload(const unsigned char *from)
{
    return _mm256_loadu_si256((const __m256i_u *)from);
}

RF_INLINE void vector_store(unsigned char *to, rf_rounded v)
{
    _mm256_storeu_si256((__m256i_u *)to, v);
}

RF_INLINE void vector_stream(unsigned char *to, rf_rounded v)
{
    _mm256_stream_si256((__m256i *)(void *)to, v);
}

#if RF_SHARD_DTYPE == 1

RF_INLINE rf_vector vector_load(const unsigned char *from)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(vector_reload(from)), 16));
}

RF_INLINE rf_rounded vector_round(rf_vector v)
{
    __m512i x = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_cvtepi32_epi16(with_nan(_mm512_srli_epi32(up, 16), v, NAN_HALF));
}

#else

RF_INLINE rf_vector vector_load(const unsigned char *from)
{
    return _mm512_cvtph_ps(vector_reload(from));
}

RF_INLINE rf_rounded vector_round(rf_vector v)
{
    __m256i h = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_cvtepi32_epi16(with_nan(_mm512_cvtepu16_epi32(h), v, NAN_HALF));
}

#endif
#endif

/* Streaming stores are not ordered by a release: whoever is told that `out` is ready must see it.
 */
RF_INLINE void stream_fence(void)
{
    _mm_sfence();
}

#endif
