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

/* A product of a matrix whose inputs lie in pairs: all its rows, and the panels that are computed side by side. */
typedef struct {
    const thin_call *call;
    int64_t rows, pairs, num_groups, num_chunks; /* groups of panels; chunks of groups */
    int group_len;
} pairs_product;

/* `rows` rows from `row` on, `panels` panels from `first` on: job->group_len, two, or one. */
typedef void (*pairs_tile)(const pairs_product *job, int64_t row, int64_t first, int rows, int panels);

/* The groups of a chunk, tile by tile, each of at most tall_rows. */
INLINE void pairs_chunk(const pairs_product *job, int64_t chunk, const int64_t tall_rows, const pairs_tile tile_of) {
    const int64_t num_tiles = (job->rows + tall_rows - 1) / tall_rows;
    const int64_t begin = chunk * job->num_groups / job->num_chunks, end = (chunk + 1) * job->num_groups / job->num_chunks;
    const int64_t last = min(end * job->group_len, panels_of(job->call));
    for (int64_t place = begin * job->group_len; place < last;) {
        const int64_t first = panel_at(job->call, place), together = side_by_side(job->call, place, last, job->group_len);
        const int panels = together == job->group_len ? job->group_len : together >= 2 ? 2 : 1;
        for (int64_t at = 0; at < num_tiles; at++) {
            const int64_t row = at * job->rows / num_tiles;
            tile_of(job, row, first, (int)((at + 1) * job->rows / num_tiles - row), panels);
        }
        place += panels;
    }
}

/* The product, its panels in groups of group_len. work: a chunk of it. */
INLINE void run_pairs(team *all, const thin_call *call, int64_t rows, int group_len, chunk_work work) {
    const int64_t num_groups = (panels_of(call) + group_len - 1) / group_len;
    const pairs_product job = {call, rows, pairs_of(call->inputs), num_groups, team_chunks(all, num_groups), group_len};
    team_run(all, work, &job, job.num_chunks);
}
#endif

#endif
