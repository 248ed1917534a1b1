/* Rows as a product multiplies them: divided by their root mean square and scaled where it has a norm (RMSNorm), in one pass with that rounded to
   bfloat16 for a matrix in PAIRS, and rounded for one in QUADS, FLOAT16, FIXED16 or FIXED8 (quads.c, float16.c,
   fixed16.c). Each row by itself, whatever stands beside it. */

#include <math.h>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

/* No product is fused into its sum here. Where it may be, a compiler decides that by the loop around it, and one row's bits could be others than
   those of four together. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#include "thin.h"

#define TOGETHER 4 /* rows whose squares are summed side by side: each addition of one alone waits for the one before */

typedef struct {
    const thin_call *call;
    int64_t rows, num_chunks;
} job_of_rows;

/* One over the root mean square of `count` rows from x on, every sum in one fixed order. The last row stands in for those that lack: alone it would
   wait as long. */
static __attribute__((noinline)) void factors_of(const thin_call *call, const float *x, int count, float *factors) {
    const int64_t inputs = call->inputs;
    const float *places[TOGETHER];
    lanes squares[TOGETHER];
    for (int row = 0; row < TOGETHER; row++) {
        places[row] = x + min(row, count - 1) * inputs;
        squares[row] = splat(0.0f);
    }
    int64_t k = 0;
    for (; k + LANES <= inputs; k += LANES)
        for (int row = 0; row < TOGETHER; row++) squares[row] += *(const lanes *)(places[row] + k) * *(const lanes *)(places[row] + k);
    for (int row = 0; row < count; row++) {
        float sum = 0.0f;
        for (int lane = 0; lane < LANES; lane++) sum += squares[row][lane];
        int64_t at = k;
        for (; at < inputs / 4 * 4; at++) sum += places[row][at] * places[row][at];
        for (; at < inputs; at++) sum = fmaf(places[row][at], places[row][at], sum); /* of odd lengths alone: as it was when compilers chose */
        factors[row] = 1.0f / sqrtf(sum / (float)inputs + call->epsilon);
    }
}

#ifdef __AVX512BF16__
/* To bfloat16 numbers, after the norm if there is one. Whole vectors are stored without a mask, which costs this processor several times as much. */
INLINE void round_to_pairs(const float *from, const float *scale, float factor, int64_t inputs, uint16_t *to) {
    const __m512 factors = _mm512_set1_ps(factor);
    int64_t at = 0;
    for (; at + WIDTH <= inputs; at += WIDTH) {
        __m512 y = _mm512_loadu_ps(from + at);
        if (scale) y = _mm512_mul_ps(_mm512_mul_ps(y, factors), _mm512_loadu_ps(scale + at));
        _mm256_storeu_si256((__m256i *)(to + at), (__m256i)_mm512_cvtneps_pbh(y));
    }
    if (at == inputs) return;
    const __mmask16 some = (__mmask16)((1u << (inputs - at)) - 1);
    __m512 y = _mm512_maskz_loadu_ps(some, from + at);
    if (scale) y = _mm512_mul_ps(_mm512_mul_ps(y, factors), _mm512_maskz_loadu_ps(some, scale + at));
    _mm256_mask_storeu_epi16(to + at, some, (__m256i)_mm512_cvtneps_pbh(y));
}
#else
INLINE void round_to_pairs(const float *from, const float *scale, float factor, int64_t inputs, uint16_t *to) {
    (void)from, (void)scale, (void)factor, (void)inputs, (void)to; /* thin_product.py packs no pairs here */
}
#endif

/* factor: where there is a norm. */
static void put_row(const thin_call *call, int64_t row, float factor) {
    const int64_t inputs = call->inputs;
    const float *x = call->x + row * inputs;
    if (call->format == PAIRS) {
        uint16_t *to = (uint16_t *)(call->rounded + row * pairs_apart(inputs));
        if (call->scale) round_to_pairs(x, call->scale, factor, inputs, to);
        else round_to_pairs(x, 0, 0.0f, inputs, to);
        return;
    }
    if (call->scale) {
        float *y = call->normed + row * inputs;
        for (int64_t k = 0; k < inputs; k++) y[k] = x[k] * factor * call->scale[k];
        x = y;
    }
    if (call->format == QUADS) thin_quads_round(call, x, row);
    if (call->format == FLOAT16) thin_float16_round(call, x, row);
    if (call->format == FIXED16 || call->format == FIXED8) thin_fixed16_round(call, x, row);
}

/* `count` rows, at most TOGETHER. */
static void put_rows(const thin_call *call, int64_t first, int count) {
    float factors[TOGETHER] = {0.0f};
    if (call->scale) factors_of(call, call->x + first * call->inputs, count, factors);
    for (int at = 0; at < count; at++) put_row(call, first + at, factors[at]);
}

static void run_chunk(const void *argument, int64_t chunk) {
    const job_of_rows *job = argument;
    const int64_t begin = chunk * job->rows / job->num_chunks, end = (chunk + 1) * job->rows / job->num_chunks;
    for (int64_t row = begin; row < end; row += TOGETHER) put_rows(job->call, row, (int)min(TOGETHER, end - row));
}

const float *thin_rows(team *all, const thin_call *call, int64_t rows) {
    if (!call->x || (!call->scale && !call->rounded)) return call->x;
    const int64_t num_chunks = rows * call->inputs < SHARED_NUMBERS ? 1 : team_chunks(all, (rows + TOGETHER - 1) / TOGETHER);
    const job_of_rows job = {call, rows, num_chunks};
    team_run(all, run_chunk, &job, num_chunks);
    return call->scale ? call->normed : call->x;
}
