/* Thin products of whole numbers: a matrix of int8 in QUADS of inputs, [panels][quads][PANEL][4], times rows that are rounded to 16 bits.

   A row is divided by its largest magnitude over LARGEST and rounded to nearest; each whole number is two digits, 256 * high + low, both in
   [-128, 127], so that one instruction adds four products of a digit a lane, without rounding. The matrix lies as value + OFFSET, for one of
   the two factors is without a sign there; the sums begin with what takes that back. At the end come one float for the row and one for the
   column. Sums of whole numbers have no order: a row's bits depend on nothing but the row and the matrix. */

#include "avx512.h"

int thin_multiplies_quads(void) {
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
    return 1;
#else
    return 0;
#endif
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define LARGEST 32639.0f /* 127 * 256 + 127: the greatest of two digits. thin_product.py bounds the inputs, so that no sum leaves 32 bits */
#define OFFSET 128
#define TAIL 4 /* behind the digits of a row: its scale, what the sums of either digit begin with, and one to spare */
#define TALL_ROWS 3 /* of a tile: with GROUP_LEN panels and two digits, as many sums as there is room for in registers */
#define GROUP_LEN 4
#define AHEAD_QUADS 32

typedef struct {
    const thin_call *call;
    int64_t rows, quads, num_groups, num_chunks; /* groups of panels that are computed side by side; chunks of groups */
} product;

/* A row as it lies in `rounded`. */
typedef struct {
    const uint32_t *high, *low; /* [quads] */
    float scale;
    int32_t high_start, low_start; /* what the sums begin with, for OFFSET's sake */
} digits;

INLINE int64_t quads_of(int64_t inputs) { return (inputs + 3) / 4; }

INLINE int64_t row_len(int64_t quads) { return 2 * quads + TAIL; }

INLINE digits digits_of(const product *job, int64_t row) {
    const uint32_t *high = job->call->rounded + row * row_len(job->quads), *tail = high + 2 * job->quads;
    return (digits){high, high + job->quads, ((const float *)tail)[0], ((const int32_t *)tail)[1], ((const int32_t *)tail)[2]};
}

INLINE float largest_of(const float *x, int64_t inputs) {
    return _mm512_cvtss_f32(_mm512_castsi512_ps(_mm512_set1_epi32(largest_bits_of(x, inputs))));
}

static void round_row(const float *x, int64_t inputs, int64_t quads, uint32_t *to) {
    const float largest = largest_of(x, inputs), factor = largest > 0.0f ? LARGEST / largest : 0.0f;
    const __m512i half = _mm512_set1_epi32(OFFSET);
    uint8_t *high = (uint8_t *)to, *low = (uint8_t *)(to + quads);
    __m512i highs = _mm512_setzero_si512(), lows = highs;
    for (int64_t at = 0; at < inputs; at += WIDTH) {
        const __mmask16 some = some_of(4 * quads - at); /* zeros behind the last input */
        const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(some_of(inputs - at), x + at), _mm512_set1_ps(factor));
        const __m512i value = _mm512_cvtps_epi32(scaled), first = _mm512_srai_epi32(_mm512_add_epi32(value, half), 8);
        const __m512i second = _mm512_sub_epi32(value, _mm512_slli_epi32(first, 8));
        highs = _mm512_add_epi32(highs, first);
        lows = _mm512_add_epi32(lows, second);
        _mm512_mask_cvtepi32_storeu_epi8(high + at, some, first);
        _mm512_mask_cvtepi32_storeu_epi8(low + at, some, second);
    }
    uint32_t *tail = to + 2 * quads;
    ((float *)tail)[0] = largest / LARGEST;
    tail[1] = (uint32_t)-OFFSET * (uint32_t)_mm512_reduce_add_epi32(highs); /* of what is no number they may leave 32 bits; its scale tells */
    tail[2] = (uint32_t)-OFFSET * (uint32_t)_mm512_reduce_add_epi32(lows);
}

/* Sums of PANEL columns from `column` on, or of as many as there are, to where they belong. */
INLINE void put(const thin_call *call, __m512i high, __m512i low, float row_scale, int64_t row, int64_t column) {
    const __mmask16 some = some_of(call->outputs - column);
    float *to = call->out + row * call->outputs + column;
    const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(low));
    const __m512 scale = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, call->column_scale + column), _mm512_set1_ps(row_scale));
    __m512 start = call->adds ? _mm512_maskz_loadu_ps(some, to) : _mm512_setzero_ps();
    if (call->bias) start = _mm512_add_ps(start, _mm512_maskz_loadu_ps(some, call->bias + column));
    _mm512_mask_storeu_ps(to, some, _mm512_fmadd_ps(sum, scale, start));
}

/* `rows` rows from `row` on, `panels` panels from `first` on. rows and panels are constants wherever this is expanded. */
INLINE void tile(const product *job, int64_t row, int64_t first, const int rows, const int panels) {
    __m512i highs[TALL_ROWS][GROUP_LEN], lows[TALL_ROWS][GROUP_LEN];
    digits of[TALL_ROWS];
    const int64_t quads = job->quads, stride = quads * PANEL, fetched = min(quads, AHEAD_QUADS);
    const uint32_t *weights = (const uint32_t *)job->call->panels + first * stride;
    for (int m = 0; m < rows; m++) {
        of[m] = digits_of(job, row + m);
        for (int n = 0; n < panels; n++) {
            highs[m][n] = _mm512_set1_epi32(of[m].high_start);
            lows[m][n] = _mm512_set1_epi32(of[m].low_start);
        }
    }
    /* Each panel fetches its own rest ahead, then the beginning of the panel that takes its place. */
    int64_t k = 0;
#pragma GCC unroll 1 /* one loop for both parts: its addresses are what compilers make much of */
    for (int part = 0; part < 2; part++) {
        const int64_t end = part ? quads : quads - fetched;
        const uint32_t *here = weights + k * PANEL, *later = here + fetched * PANEL + (part ? (panels - 1) * stride : 0);
        for (; k < end; k++, here += PANEL, later += PANEL) {
            __m512i some[GROUP_LEN];
            for (int n = 0; n < panels; n++) {
                some[n] = _mm512_loadu_si512(here + n * stride);
                __builtin_prefetch(later + n * stride);
            }
            for (int m = 0; m < rows; m++) {
                const __m512i high = _mm512_set1_epi32((int)of[m].high[k]), low = _mm512_set1_epi32((int)of[m].low[k]);
                for (int n = 0; n < panels; n++) {
                    highs[m][n] = _mm512_dpbusd_epi32(highs[m][n], some[n], high);
                    lows[m][n] = _mm512_dpbusd_epi32(lows[m][n], some[n], low);
                }
            }
        }
    }
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < panels; n++) put(job->call, highs[m][n], lows[m][n], of[m].scale, row + m, (first + n) * PANEL);
}

#define TILES(ROWS)                                       \
    case ROWS:                                            \
        switch (panels) {                                 \
            case 1: tile(job, row, first, ROWS, 1); return; \
            case 2: tile(job, row, first, ROWS, 2); return; \
            case 3: tile(job, row, first, ROWS, 3); return; \
            default: tile(job, row, first, ROWS, 4); return; \
        }

static void tile_of(const product *job, int64_t row, int64_t first, int rows, int panels) {
    switch (rows) { TILES(1) TILES(2) default: TILES(3) }
}

static void run_chunk(const void *argument, int64_t chunk) {
    const product *job = argument;
    const int64_t num_tiles = (job->rows + TALL_ROWS - 1) / TALL_ROWS;
    const int64_t begin = chunk * job->num_groups / job->num_chunks, end = (chunk + 1) * job->num_groups / job->num_chunks;
    const int64_t last = min(end * GROUP_LEN, panels_of(job->call));
    for (int64_t place = begin * GROUP_LEN; place < last;) {
        const int64_t first = panel_at(job->call, place);
        const int panels = (int)side_by_side(job->call, place, last, GROUP_LEN);
        for (int64_t at = 0; at < num_tiles; at++) {
            const int64_t row = at * job->rows / num_tiles, next = (at + 1) * job->rows / num_tiles;
            tile_of(job, row, first, (int)(next - row), panels);
        }
        place += panels;
    }
}

/* x: a row as it is to be multiplied, after the norm if there is one. */
void thin_quads_round(const thin_call *call, const float *x, int64_t row) {
    const int64_t quads = quads_of(call->inputs);
    round_row(x, call->inputs, quads, call->rounded + row * row_len(quads));
}

/* Rows that are rounded already. */
void thin_quads(team *all, const thin_call *call, int64_t rows) {
    const int64_t quads = quads_of(call->inputs), num_groups = (panels_of(call) + GROUP_LEN - 1) / GROUP_LEN;
    const product job = {call, rows, quads, num_groups, team_chunks(all, num_groups)};
    team_run(all, run_chunk, &job, job.num_chunks);
}
#else
void thin_quads_round(const thin_call *call, const float *x, int64_t row) { (void)call, (void)x, (void)row; }
void thin_quads(team *all, const thin_call *call, int64_t rows) { (void)all, (void)call, (void)rows; } /* thin_product.py packs no quads here */
#endif
