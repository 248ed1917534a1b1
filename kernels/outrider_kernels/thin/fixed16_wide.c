/* FIXED16 (fixed16.c) with 512 bits: a pair of inputs of a whole panel is one vector, and AVX512_VNNI multiplies it, adds neighbours and adds that to
   the sums in one instruction, 32 products where one for floats has 16. Sums of whole numbers are exact in whatever order, and blocks are added up as
   there: the same bits as with 256.

   It is what a processor without instructions for bfloat16 computes such models with (Cascade Lake, Ice Lake, and virtual machines that show no more). */

#include "fixed16.h"

int thin_multiplies_fixed16_wide(void) {
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
    return 1;
#else
    return 0;
#endif
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include "avx512.h"

#define TALL_ROWS 12
#define GROUP_LEN 4       /* panels side by side, for up to NARROW_ROWS rows, */
#define SHORT_GROUP_LEN 2 /* and for more: two of few inputs stay in the nearest cache from tile to tile, and there are registers for TALL_ROWS of them */
#define NARROW_ROWS 4
#define AHEAD_PAIRS 64

/* PANEL columns from `column` on, or as many as there are, to where they belong. */
INLINE void put(const thin_call *call, __m512 sum, int64_t row, int64_t column) {
    const __mmask16 some = some_of(call->outputs - column);
    float *to = call->out + row * call->outputs + column;
    __m512 start = call->adds ? _mm512_maskz_loadu_ps(some, to) : _mm512_setzero_ps();
    if (call->bias) start = _mm512_add_ps(start, _mm512_maskz_loadu_ps(some, call->bias + column));
    _mm512_mask_storeu_ps(to, some, _mm512_fmadd_ps(sum, _mm512_maskz_loadu_ps(some, call->column_scale + column), start));
}

/* Two products a lane and their sum, added. Written out, because compilers copy every sum once a step for the intrinsic's sake. */
INLINE void add_products(__m512i *sums, __m512i weights, __m512i pair) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(*sums) : "v"(weights), "v"(pair));
}

/* `rows` rows from `row` on, `panels` panels from `first` on. rows and panels are constants wherever this is expanded. */
INLINE void tile(const pairs_product *job, int64_t row, int64_t first, const int rows, const int panels) {
    __m512 sums[TALL_ROWS][GROUP_LEN]; /* in the nearest cache; the blocks' take the registers */
    const int64_t pairs = job->pairs, stride = pairs * PANEL, fetched = min(pairs, AHEAD_PAIRS), len = fixed16_row_len(job->call->inputs);
    const uint32_t *y = job->call->rounded + row * len, *weights = (const uint32_t *)job->call->panels + first * stride;
    const float *scales = (const float *)(y + fixed16_blocks_of(job->call->inputs) * BLOCK_PAIRS);
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < panels; n++) sums[m][n] = _mm512_setzero_ps();
    for (int64_t k = 0; k < pairs;) {
        __m512i block[TALL_ROWS][GROUP_LEN];
        for (int m = 0; m < rows; m++)
            for (int n = 0; n < panels; n++) block[m][n] = _mm512_setzero_si512();
        const int64_t end = min(k + BLOCK_PAIRS, pairs), at_block = k / BLOCK_PAIRS;
        /* Each panel fetches its own rest ahead, then the beginning of the panel that takes its place. */
        const int64_t ahead = fetched * PANEL + (end <= pairs - fetched ? 0 : (panels - 1) * stride);
        for (; k < end; k++) {
            __m512i some[GROUP_LEN];
            for (int n = 0; n < panels; n++) {
                const uint32_t *at = weights + n * stride + k * PANEL;
                some[n] = _mm512_loadu_si512(at);
                __builtin_prefetch(at + ahead);
            }
            for (int m = 0; m < rows; m++) {
                const __m512i pair = _mm512_set1_epi32((int)y[m * len + k]);
                for (int n = 0; n < panels; n++) add_products(&block[m][n], some[n], pair);
            }
        }
        for (int m = 0; m < rows; m++) {
            const __m512 scale = _mm512_set1_ps(scales[m * len + at_block]);
            for (int n = 0; n < panels; n++) sums[m][n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(block[m][n]), scale, sums[m][n]);
        }
    }
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < panels; n++) put(job->call, sums[m][n], row + m, (first + n) * PANEL);
}

#define TILE(ROWS, PANELS) \
    case ROWS: tile(job, row, first, ROWS, PANELS); return;

static void four_panels(const pairs_product *job, int64_t row, int64_t first, int rows) {
    switch (rows) { TILE(1, 4) TILE(2, 4) TILE(3, 4) default: TILE(4, 4) }
}

static void two_panels(const pairs_product *job, int64_t row, int64_t first, int rows) {
    switch (rows) {
        TILE(1, 2) TILE(2, 2) TILE(3, 2) TILE(4, 2) TILE(5, 2) TILE(6, 2) TILE(7, 2) TILE(8, 2) TILE(9, 2) TILE(10, 2) TILE(11, 2) default: TILE(12, 2)
    }
}

static void one_panel(const pairs_product *job, int64_t row, int64_t first, int rows) {
    switch (rows) {
        TILE(1, 1) TILE(2, 1) TILE(3, 1) TILE(4, 1) TILE(5, 1) TILE(6, 1) TILE(7, 1) TILE(8, 1) TILE(9, 1) TILE(10, 1) TILE(11, 1) default: TILE(12, 1)
    }
}

static void tile_of(const pairs_product *job, int64_t row, int64_t first, int rows, int panels) {
    if (panels == GROUP_LEN) four_panels(job, row, first, rows);
    else if (panels == SHORT_GROUP_LEN) two_panels(job, row, first, rows);
    else one_panel(job, row, first, rows);
}

static void run_chunk(const void *job, int64_t chunk) { pairs_chunk(job, chunk, TALL_ROWS, tile_of); }

void thin_fixed16_wide(team *all, const thin_call *call, int64_t rows) {
    run_pairs(all, call, rows, rows <= NARROW_ROWS ? GROUP_LEN : SHORT_GROUP_LEN, run_chunk);
}
#else
void thin_fixed16_wide(team *all, const thin_call *call, int64_t rows) { (void)all, (void)call, (void)rows; } /* fixed16.c takes 256 bits here */
#endif
