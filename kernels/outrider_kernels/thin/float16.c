/* Thin products of float16 numbers: a matrix in pairs of inputs, [panels][pairs][PANEL][2], each column times a power of two, and rows that are
   rounded to float16 after a power of two of their own has brought their largest number between 1 and 2.

   A vector of 512 bits multiplies and adds 32 such numbers, twice as many as floats, where the processor has AVX512_FP16: on one whose bfloat16
   instruction is no faster than that for floats, more than twice as many rows in the time. Sums of float16 numbers would lose too much over a
   whole row, so they are chains of CHAIN multiply-adds, each rounded once, over the even and over the odd inputs; chains are added up as floats,
   the even and the odd ones apart, and those two sums at the end. Powers of two change no bit of a number: what is rounded is the row, to eleven
   bits where bfloat16 keeps eight, and each step of a chain, to eleven bits too. No chain leaves the range: CHAIN numbers below 2 times weights
   below 2^9 (thin_product.py) are below 2^15. A row's bits depend on nothing but the row and the matrix. */

#include "avx512.h"

int thin_multiplies_float16(void) {
#ifdef __AVX512FP16__
    return 1;
#else
    return 0;
#endif
}

#ifdef __AVX512FP16__
#define CHAIN 32    /* inputs of a chain, as in thin_product.py; half of them lose a seventh of the speed to adding chains up */
#define ROW_TAIL 16 /* numbers behind a row's pairs: its power of two, and what keeps rows at cache lines */
#define TALL_ROWS 8
#define GROUP_LEN 4       /* panels side by side, for up to NARROW_ROWS rows, */
#define SHORT_GROUP_LEN 2 /* and for more: as many chains as there are registers for */
#define NARROW_ROWS 6
#define AHEAD_PAIRS 64

INLINE int64_t row_len(int64_t pairs) { return (pairs + ROW_TAIL - 1) / ROW_TAIL * ROW_TAIL + ROW_TAIL; }

/* A float that is this power of two; its exponent as floats keep it. */
INLINE float power_of(int32_t exponent) {
    const union {
        int32_t bits;
        float value;
    } power = {exponent << 23};
    return power.value;
}

/* x: a row as it is to be multiplied, after the norm if there is one. Of numbers that are none the range does not matter; they stay so. */
void thin_float16_round(const thin_call *call, const float *x, int64_t row) {
    const int64_t inputs = call->inputs, pairs = pairs_of(inputs);
    uint32_t *to = call->rounded + row * row_len(pairs);
    const int32_t most = largest_bits_of(x, inputs) >> 23, exponent = most < 1 ? 1 : most > 253 ? 253 : most;
    const __m512 factor = _mm512_set1_ps(power_of(254 - exponent));
    uint16_t *numbers = (uint16_t *)to;
    int64_t at = 0;
    for (; at + WIDTH <= inputs; at += WIDTH)
        _mm256_storeu_si256((__m256i *)(numbers + at), _mm256_castph_si256(_mm512_cvtxps_ph(_mm512_mul_ps(_mm512_loadu_ps(x + at), factor))));
    if (at < inputs) {
        const __m512 rest = _mm512_mul_ps(_mm512_maskz_loadu_ps(some_of(inputs - at), x + at), factor);
        _mm256_mask_storeu_epi16(numbers + at, some_of(2 * pairs - at), _mm256_castph_si256(_mm512_cvtxps_ph(rest)));
    }
    *(float *)(to + row_len(pairs) - ROW_TAIL) = power_of(exponent);
}

/* Chains of PANEL columns, even and odd inputs beside each other, to the sums that were there. */
INLINE void add_chains(__m512h chains, __m512 *sums) {
    const __m512i values = _mm512_castph_si512(chains);
    sums[0] = _mm512_add_ps(sums[0], _mm512_cvtxph_ps(_mm256_castsi256_ph(_mm512_castsi512_si256(values))));
    sums[1] = _mm512_add_ps(sums[1], _mm512_cvtxph_ps(_mm256_castsi256_ph(_mm512_extracti64x4_epi64(values, 1))));
}

/* PANEL columns from `column` on, or as many as there are, to where they belong. */
INLINE void put(const thin_call *call, const __m512 *sums, float row_power, int64_t row, int64_t column) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const __m512 sum = _mm512_add_ps(_mm512_permutex2var_ps(sums[0], even, sums[1]), _mm512_permutex2var_ps(sums[0], odd, sums[1]));
    const __mmask16 some = some_of(call->outputs - column);
    float *to = call->out + row * call->outputs + column;
    const __m512 scale = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, call->column_scale + column), _mm512_set1_ps(row_power));
    __m512 start = call->adds ? _mm512_maskz_loadu_ps(some, to) : _mm512_setzero_ps();
    if (call->bias) start = _mm512_add_ps(start, _mm512_maskz_loadu_ps(some, call->bias + column));
    _mm512_mask_storeu_ps(to, some, _mm512_fmadd_ps(sum, scale, start));
}

/* `rows` rows from `row` on, `panels` panels from `first` on. rows and panels are constants wherever this is expanded. */
INLINE void tile(const pairs_product *job, int64_t row, int64_t first, const int rows, const int panels) {
    __m512 sums[TALL_ROWS][GROUP_LEN][2]; /* in the nearest cache; the chains take the registers */
    const int64_t pairs = job->pairs, stride = pairs * PANEL, fetched = min(pairs, AHEAD_PAIRS), len = row_len(pairs);
    const uint32_t *y = job->call->rounded + row * len, *weights = (const uint32_t *)job->call->panels + first * stride;
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < panels; n++) sums[m][n][0] = sums[m][n][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < pairs;) {
        __m512h chains[TALL_ROWS][GROUP_LEN];
        for (int m = 0; m < rows; m++)
            for (int n = 0; n < panels; n++) chains[m][n] = _mm512_setzero_ph();
        const int64_t end = min(k + CHAIN, pairs);
        /* Each panel fetches its own rest ahead, then the beginning of the panel that takes its place. */
        const int64_t ahead = fetched * PANEL + (end <= pairs - fetched ? 0 : (panels - 1) * stride);
        for (; k < end; k++) {
            for (int n = 0; n < panels; n++) {
                const uint32_t *at = weights + n * stride + k * PANEL;
                const __m512h pair = _mm512_castsi512_ph(_mm512_loadu_si512(at));
                __builtin_prefetch(at + ahead);
                for (int m = 0; m < rows; m++)
                    chains[m][n] = _mm512_fmadd_ph(_mm512_castsi512_ph(_mm512_set1_epi32((int)y[m * len + k])), pair, chains[m][n]);
            }
        }
        for (int m = 0; m < rows; m++)
            for (int n = 0; n < panels; n++) add_chains(chains[m][n], sums[m][n]);
    }
    for (int m = 0; m < rows; m++) {
        const float row_power = *(const float *)(y + (m + 1) * len - ROW_TAIL);
        for (int n = 0; n < panels; n++) put(job->call, sums[m][n], row_power, row + m, (first + n) * PANEL);
    }
}

#define TILE(ROWS, PANELS) \
    case ROWS: tile(job, row, first, ROWS, PANELS); return;

static void four_panels(const pairs_product *job, int64_t row, int64_t first, int rows) {
    switch (rows) { TILE(1, 4) TILE(2, 4) TILE(3, 4) TILE(4, 4) TILE(5, 4) default: TILE(6, 4) }
}

static void two_panels(const pairs_product *job, int64_t row, int64_t first, int rows) {
    switch (rows) { TILE(1, 2) TILE(2, 2) TILE(3, 2) TILE(4, 2) TILE(5, 2) TILE(6, 2) TILE(7, 2) default: TILE(8, 2) }
}

static void one_panel(const pairs_product *job, int64_t row, int64_t first, int rows) {
    switch (rows) { TILE(1, 1) TILE(2, 1) TILE(3, 1) TILE(4, 1) TILE(5, 1) TILE(6, 1) TILE(7, 1) default: TILE(8, 1) }
}

static void tile_of(const pairs_product *job, int64_t row, int64_t first, int rows, int panels) {
    if (panels == GROUP_LEN) four_panels(job, row, first, rows);
    else if (panels == SHORT_GROUP_LEN) two_panels(job, row, first, rows);
    else one_panel(job, row, first, rows);
}

static void run_chunk(const void *job, int64_t chunk) { pairs_chunk(job, chunk, TALL_ROWS, tile_of); }

/* Rows that are rounded already. */
void thin_float16(team *all, const thin_call *call, int64_t rows) {
    const int64_t num_tiles = (rows + TALL_ROWS - 1) / TALL_ROWS;
    run_pairs(all, call, rows, (rows + num_tiles - 1) / num_tiles <= NARROW_ROWS ? GROUP_LEN : SHORT_GROUP_LEN, run_chunk);
}
#else
void thin_float16_round(const thin_call *call, const float *x, int64_t row) { (void)call, (void)x, (void)row; }
void thin_float16(team *all, const thin_call *call, int64_t rows) { (void)all, (void)call, (void)rows; } /* thin_product.py packs no such here */
#endif
