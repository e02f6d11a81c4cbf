/* Vectors of 8 lanes: AVX2, and F16C for f16. */
#ifndef RANKFOLD_CPU_AVX2_H
#define RANKFOLD_CPU_AVX2_H

#include <immintrin.h>

#define RF_TARGET __attribute__((target("avx2,f16c,prfchw")))
#include "cpu/element.h"

typedef __m256 rf_vector;
#define RF_LANES 8

RF_INLINE rf_vector vector_add(rf_vector a, rf_vector b)
{
    return _mm256_add_ps(a, b);
}

/* All ones where a lane is NaN. */
RF_INLINE __m256i nan_mask(rf_vector v)
{
    return _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

#if RF_SHARD_DTYPE == 0

typedef __m256i rf_rounded;

RF_INLINE rf_vector vector_load(const unsigned char *from)
{
    return _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i_u *)from));
}

/* What vector_store wrote. */
RF_INLINE rf_rounded vector_reload(const unsigned char *from)
{
    return _mm256_loadu_si256((const __m256i_u *)from);
}

RF_INLINE rf_rounded vector_round(rf_vector v)
{
    return _mm256_blendv_epi8(_mm256_castps_si256(v), _mm256_set1_epi32(NAN_F32), nan_mask(v));
}

RF_INLINE void vector_store(unsigned char *to, rf_rounded v)
{
    _mm256_storeu_si256((__m256i_u *)to, v);
}

RF_INLINE void vector_stream(unsigned char *to, rf_rounded v)
{
    _mm256_stream_si256((__m256i *)(void *)to, v);
}

#else

typedef __m128i rf_rounded;

/* Also: what vector_store wrote. */
RF_INLINE rf_rounded vector_reload(const unsigned char *from)
{
    return _mm_loadu_si128((const __m128i_u *)from);
}

/* The low halves of 32-bit lanes, which are below 2^16, in order. */
RF_INLINE __m128i pack_lanes(__m256i v)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

RF_INLINE void vector_store(unsigned char *to, rf_rounded v)
{
    _mm_storeu_si128((__m128i_u *)to, v);
}

RF_INLINE void vector_stream(unsigned char *to, rf_rounded v)
{
    _mm_stream_si128((__m128i *)(void *)to, v);
}

#if RF_SHARD_DTYPE == 1

RF_INLINE rf_vector vector_load(const unsigned char *from)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(vector_reload(from)), 16));
}

RF_INLINE rf_rounded vector_round(rf_vector v)
{
    __m256i x = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(_mm256_add_epi32(x, _mm256_set1_epi32(0x7fff)), odd);
    __m256i top = _mm256_srli_epi32(up, 16);
    return pack_lanes(_mm256_blendv_epi8(top, _mm256_set1_epi32(NAN_HALF), nan_mask(v)));
}

#else

RF_INLINE rf_vector vector_load(const unsigned char *from)
{
    return _mm256_cvtph_ps(vector_reload(from));
}

RF_INLINE rf_rounded vector_round(rf_vector v)
{
    __m128i nan = _mm_packs_epi32(_mm256_castsi256_si128(nan_mask(v)),
                                  _mm256_extracti128_si256(nan_mask(v), 1));
    __m128i h = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm_blendv_epi8(h, _mm_set1_epi16(NAN_HALF), nan);
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
