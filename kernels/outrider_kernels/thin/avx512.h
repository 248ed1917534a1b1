/* What files share that are written for 512 bits. */

#ifndef THIN_AVX512_H
#define THIN_AVX512_H

#include "thin.h"

#ifdef __AVX512F__
#include <immintrin.h>

/* The first `left` of WIDTH numbers. */
INLINE __mmask16 some_of(int64_t left) { return left < WIDTH ? (__mmask16)((1u << left) - 1) : (__mmask16)0xFFFF; }

/* The largest magnitude of a row, as its bits; what is no number is larger than any. */
INLINE int32_t largest_bits_of(const float *x, int64_t inputs) {
    __m512i most = _mm512_setzero_si512();
    for (int64_t at = 0; at < inputs; at += WIDTH) {
        const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(_mm512_maskz_loadu_ps(some_of(inputs - at), x + at)), _mm512_set1_epi32(0x7FFFFFFF));
        most = _mm512_max_epi32(most, magnitude);
    }
    return _mm512_reduce_max_epi32(most);
}
#endif

#endif
