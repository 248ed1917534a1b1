/* Thin products of whole numbers of 16 bits: a matrix in pairs of inputs, [panels][pairs][PANEL][2], each column a power of two times them, and rows
   that are rounded by blocks of BLOCK inputs to whole multiples of the block's largest magnitude over LARGEST. Or a matrix of int8 in that order
   (FIXED8), each column its scale times them: half the bytes, widened as they are read, and rows that keep all of their 16 bits.

   Without 512 bits (with them: fixed16_wide.c) a processor multiplies and adds eight floats in an instruction; one for whole numbers multiplies sixteen and adds neighbours, and
   another adds to the sums, so that as many products take two thirds of the time or less. Sums of a block stay within 32 bits: BLOCK products of at
   most LARGEST and 2^14 (thin_matrix.py), or LARGEST_OF_BYTES and 127. They are exact, whatever their order; then they become floats, and one
   multiply-add with the block's scale adds them up. A block of its own scale is why a row with outliers loses nothing but beside them: what is
   rounded is 2^-13 of the largest of 32 neighbours, where bfloat16 rounds each number by up to 2^-9 of itself; with int8, 2^-16. The column's power
   of two comes last, so sums are 2^14 times what they stand for meanwhile, and that must be a float. A row's bits depend on nothing but the row and
   the matrix.
   Source: block floating point, Wilkinson, Rounding Errors in Algebraic Processes, 1963, section 1.2. */

#include "fixed16.h"

int thin_multiplies_fixed16(void) {
#if defined(__AVX2__) && defined(__FMA__)
    return 1;
#else
    return 0;
#endif
}

int thin_vector_len(void) { return WIDTH; }

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

#define LARGEST 4095.0f
#define LEAST_LARGEST 1.5e-35f /* of a block; LARGEST over less is no float, and what is less becomes zero */
#define LARGEST_OF_BYTES 32767.0f /* the same two of rows that meet int8 */
#define LEAST_OF_BYTES 1.5e-34f
#define TALL_ROWS 6
#define GROUP_LEN 4 /* panels side by side, for one row; two for up to NARROW_ROWS, and one for more: as many sums as there are registers for */
#define NARROW_ROWS 2
#define AHEAD_PAIRS 96
#define AHEAD_ONE_ROW 32

/* The same of a matrix that comes from memory: further ahead, and by all tiles alike, or the first of a panel would wait for memory, and memory for the
   others. Measured on Zen 3, two threads, 1,536 x 17,920, thousand million multiply-adds a second: 1 row 11 -> 13, 7 rows 43 -> 57, 8 rows 50 -> 63,
   16 rows 66 -> 77. Matrices that a cache has are up to a quarter slower so, and int8, half as long, waits for multiplications anyway. */
#define STREAMED_AHEAD 384
#define STREAMED_ONE_ROW 128

/* Tiles of rows, from two to so many, that go by slices though a cache has the matrix: 7 and 13 rows take a tenth less time so, 12 and 16 a twentieth, 24
   the same, and from 48 on more. */
#define MOST_CACHED_TILES 4

typedef struct {
    const thin_call *call;
    int64_t rows, pairs, num_groups, num_chunks; /* groups of panels; chunks of groups */
    int64_t ahead;                               /* pairs from what is multiplied to what is fetched */
    int group_len, size, is_sliced;              /* size: bytes of a pair of weights */
} product;

/* BLOCK numbers, to multiples of their largest over `most_of`; returns their scale. Of numbers that are none the scale is none. */
INLINE float round_block(const float *x, float most_of, float least, uint32_t *to) {
    const __m256i no_sign = _mm256_set1_epi32(0x7FFFFFFF);
    __m256 values[BLOCK / LANES];
    __m256i most = _mm256_setzero_si256();
    for (int at = 0; at < BLOCK / LANES; at++) {
        values[at] = _mm256_loadu_ps(x + LANES * at);
        most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(values[at]), no_sign));
    }
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1));
    const float largest = _mm_cvtss_f32(_mm_castsi128_ps(four));
    const __m256 factor = _mm256_set1_ps(largest >= least ? most_of / largest : 0.0f);
    for (int at = 0; at < BLOCK / LANES; at += 2) {
        const __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(values[at], factor)), second = _mm256_cvtps_epi32(_mm256_mul_ps(values[at + 1], factor));
        _mm256_storeu_si256((__m256i *)(to + LANES / 2 * at), _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xD8));
    }
    return largest - largest == 0.0f ? largest / most_of : largest - largest;
}

#if defined(__AVX512BW__) && defined(__AVX512VL__)
#define TOGETHER 4 /* blocks whose scales are found side by side */

/* The largest of each of TOGETHER vectors. */
INLINE __m128i largest_of_each(const __m512i *of) {
    __m512i pairs[2];
    for (int n = 0; n < 2; n++)
        pairs[n] = _mm512_max_epi32(_mm512_unpacklo_epi32(of[2 * n], of[2 * n + 1]), _mm512_unpackhi_epi32(of[2 * n], of[2 * n + 1]));
    const __m512i fours = _mm512_max_epi32(_mm512_unpacklo_epi64(pairs[0], pairs[1]), _mm512_unpackhi_epi64(pairs[0], pairs[1]));
    const __m256i halves = _mm256_max_epi32(_mm512_castsi512_si256(fours), _mm512_extracti64x4_epi64(fours, 1));
    return _mm_max_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

/* TOGETHER blocks, each as `round_block` has it: the same bits. */
INLINE void round_blocks(const float *x, float most_of, float least, uint32_t *to, float *scales) {
    const __m512i no_sign = _mm512_set1_epi32(0x7FFFFFFF), order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    __m512 values[2 * TOGETHER];
    __m512i most[TOGETHER];
    for (int at = 0; at < 2 * TOGETHER; at++) values[at] = _mm512_loadu_ps(x + WIDTH * at);
    for (int block = 0; block < TOGETHER; block++)
        most[block] = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(values[2 * block]), no_sign),
                                       _mm512_and_si512(_mm512_castps_si512(values[2 * block + 1]), no_sign));
    const __m128 largest = _mm_castsi128_ps(largest_of_each(most)), none = _mm_sub_ps(largest, largest);
    float factors[TOGETHER];
    _mm_storeu_ps(factors, _mm_maskz_div_ps(_mm_cmp_ps_mask(largest, _mm_set1_ps(least), _CMP_GE_OQ), _mm_set1_ps(most_of), largest));
    const __mmask8 is_finite = _mm_cmp_ps_mask(none, _mm_setzero_ps(), _CMP_EQ_OQ);
    _mm_storeu_ps(scales, _mm_mask_div_ps(none, is_finite, largest, _mm_set1_ps(most_of)));
    for (int block = 0; block < TOGETHER; block++) {
        const __m512 factor = _mm512_set1_ps(factors[block]);
        const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(values[2 * block], factor)), second = _mm512_cvtps_epi32(_mm512_mul_ps(values[2 * block + 1], factor));
        _mm512_storeu_si512(to + block * BLOCK_PAIRS, _mm512_permutexvar_epi64(order, _mm512_packs_epi32(first, second)));
    }
}

INLINE int64_t round_most(const float *x, int64_t whole, float most_of, float least, uint32_t *to, float *scales) {
    int64_t block = 0;
    for (; block + TOGETHER <= whole; block += TOGETHER) round_blocks(x + block * BLOCK, most_of, least, to + block * BLOCK_PAIRS, scales + block);
    return block;
}
#else
INLINE int64_t round_most(const float *x, int64_t whole, float most_of, float least, uint32_t *to, float *scales) {
    (void)x, (void)whole, (void)most_of, (void)least, (void)to, (void)scales;
    return 0;
}
#endif

/* x: a row as it is to be multiplied, after the norm if there is one. */
void thin_fixed16_round(const thin_call *call, const float *x, int64_t row) {
    const int64_t inputs = call->inputs, len = fixed16_row_len(inputs), whole = inputs / BLOCK, blocks = fixed16_blocks_of(inputs);
    uint32_t *to = call->rounded + row * len;
    const float most_of = call->format == FIXED8 ? LARGEST_OF_BYTES : LARGEST, least = call->format == FIXED8 ? LEAST_OF_BYTES : LEAST_LARGEST;
    float *scales = (float *)(to + blocks * BLOCK_PAIRS);
    for (int64_t block = round_most(x, whole, most_of, least, to, scales); block < whole; block++)
        scales[block] = round_block(x + block * BLOCK, most_of, least, to + block * BLOCK_PAIRS);
    if (whole < blocks) {
        float rest[BLOCK] = {0.0f};
        for (int64_t at = 0; at < inputs - whole * BLOCK; at++) rest[at] = x[whole * BLOCK + at];
        scales[whole] = round_block(rest, most_of, least, to + whole * BLOCK_PAIRS);
    }
}

/* The last columns, fewer than a vector's. */
static __attribute__((noinline)) void put_rest(const thin_call *call, const float *sums, float *to, int64_t column, int64_t left) {
    for (int64_t lane = 0; lane < left; lane++) {
        float start = call->adds ? to[lane] : 0.0f;
        if (call->bias) start += call->bias[column + lane];
        to[lane] = __builtin_fmaf(sums[lane], call->column_scale[column + lane], start);
    }
}

/* LANES columns from `column` on, or as many as there are, to where they belong. */
INLINE void put(const thin_call *call, __m256 sum, int64_t row, int64_t column) {
    float *to = call->out + row * call->outputs + column;
    const int64_t left = call->outputs - column;
    if (left < LANES) {
        put_rest(call, (const float *)&sum, to, column, left);
        return;
    }
    __m256 start = call->adds ? _mm256_loadu_ps(to) : _mm256_setzero_ps();
    if (call->bias) start = _mm256_add_ps(start, _mm256_loadu_ps(call->bias + column));
    _mm256_storeu_ps(to, _mm256_fmadd_ps(sum, _mm256_loadu_ps(call->column_scale + column), start));
}

/* Two products a lane and their sum. Written out, because compilers put many products before the first addition, and then lack registers. */
INLINE void add_products(__m256i *sums, __m256i weights, __m256i pair) {
    __m256i products;
    __asm__("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(*sums), "=&x"(products) : "x"(weights), "x"(pair));
}

/* LANES pairs of weights, of `size` bytes a pair. */
INLINE __m256i load_pairs(const char *at, const int size) {
    return size == 4 ? _mm256_loadu_si256((const __m256i *)at) : _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)at));
}

/* `rows` rows from `row` on, `panels` panels from `first` on. rows, panels, size and sliced are constants wherever this is expanded. */
INLINE void tile(const product *job, int64_t row, int64_t first, const thin_slice *of, const int rows, const int panels, const int size, const int sliced) {
    __m256 sums[TALL_ROWS][2 * GROUP_LEN]; /* in the nearest cache; the blocks' take the registers */
    const int64_t pairs = job->pairs, stride = pairs * PANEL, len = fixed16_row_len(job->call->inputs), fetched = min(pairs, job->ahead);
    const uint32_t *y = job->call->rounded + row * len;
    const char *weights = (const char *)job->call->panels + first * stride * size;
    const float *scales = (const float *)(y + fixed16_blocks_of(job->call->inputs) * BLOCK_PAIRS);
    const int64_t begin = sliced ? of->begin : 0, last = sliced ? of->end : pairs, fetch_step = sliced ? of->fetch_step : 0;
    const char *fetch = sliced ? of->fetch : 0;
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < 2 * panels; n++) sums[m][n] = begin ? _mm256_loadu_ps(of->kept + m * PANEL + n * LANES) : _mm256_setzero_ps();
    for (int64_t k = begin; k < last;) {
        __m256i block[TALL_ROWS][2 * GROUP_LEN];
        for (int m = 0; m < rows; m++)
            for (int n = 0; n < 2 * panels; n++) block[m][n] = _mm256_setzero_si256();
        const int64_t end = min(k + BLOCK_PAIRS, last), at_block = k / BLOCK_PAIRS;
        /* Each panel fetches its own rest ahead, then the beginning of the panel that takes its place. */
        const int64_t ahead = fetched * PANEL + (end <= pairs - fetched ? 0 : (panels - 1) * stride);
        for (; k < end; k++) {
            for (int n = 0; n < panels; n++) {
                const char *at = weights + (n * stride + k * PANEL) * size;
                __m256i low = load_pairs(at, size), high = load_pairs(at + LANES * size, size);
                __asm__("" : "+x"(low), "+x"(high)); /* in registers: a compiler would read them again for each row */
                if (sliced) {
                    __builtin_prefetch(fetch);
                    fetch += fetch_step;
                } else {
                    __builtin_prefetch(at + ahead * size);
                }
                for (int m = 0; m < rows; m++) {
                    const __m256i pair = _mm256_set1_epi32((int)y[m * len + k]);
                    add_products(&block[m][2 * n], low, pair);
                    add_products(&block[m][2 * n + 1], high, pair);
                }
            }
        }
        for (int m = 0; m < rows; m++) {
            const __m256 scale = _mm256_set1_ps(scales[m * len + at_block]);
            for (int n = 0; n < 2 * panels; n++) sums[m][n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(block[m][n]), scale, sums[m][n]);
        }
    }
    if (sliced && last < pairs) {
        for (int m = 0; m < rows; m++)
            for (int n = 0; n < 2 * panels; n++) _mm256_storeu_ps(of->kept + m * PANEL + n * LANES, sums[m][n]);
        return;
    }
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < 2 * panels; n++) put(job->call, sums[m][n], row + m, first * PANEL + n * LANES);
}

#define TILE(ROWS, PANELS)                                               \
    case ROWS:                                                           \
        if (job->size == 2) tile(job, row, first, 0, ROWS, PANELS, 2, 0); \
        else tile(job, row, first, 0, ROWS, PANELS, 4, 0);               \
        return;

static void four_panels(const product *job, int64_t row, int64_t first, int rows) {
    switch (rows) { default: TILE(1, 4) }
}

static void two_panels(const product *job, int64_t row, int64_t first, int rows) {
    switch (rows) { TILE(1, 2) default: TILE(2, 2) }
}

static void one_panel(const product *job, int64_t row, int64_t first, int rows) {
    switch (rows) { TILE(1, 1) TILE(2, 1) TILE(3, 1) TILE(4, 1) TILE(5, 1) default: TILE(6, 1) }
}

#define SLICED_TILE(ROWS) \
    case ROWS: tile(job, row, first, of, ROWS, 1, 4, 1); return;

/* No fewer rows than half of the tallest tile, for there are several. */
static void sliced_panel(const product *job, int64_t row, int64_t first, const thin_slice *of, int rows) {
    switch (rows) { SLICED_TILE(3) SLICED_TILE(4) SLICED_TILE(5) default: SLICED_TILE(6) }
}

static void by_slices(const product *job, int64_t first) {
    float kept[MAX_ROWS * PANEL];
    const int64_t num_tiles = (job->rows + TALL_ROWS - 1) / TALL_ROWS, line = PANEL * job->size;
    const char *panel = (const char *)job->call->panels + first * job->pairs * line;
    for (int64_t begin = 0; begin < job->pairs; begin += SLICE)
        for (int64_t at = 0; at < num_tiles; at++) {
            const int64_t row = at * job->rows / num_tiles, next = (at + 1) * job->rows / num_tiles;
            const thin_slice of = slice_of(panel, line, begin, job->pairs, at, num_tiles, kept + row * PANEL);
            sliced_panel(job, row, first, &of, (int)(next - row));
        }
}

static void by_tiles(const product *job, int64_t first, int panels) {
    const int64_t num_tiles = (job->rows + TALL_ROWS - 1) / TALL_ROWS;
    for (int64_t at = 0; at < num_tiles; at++) {
        const int64_t row = at * job->rows / num_tiles;
        const int rows = (int)((at + 1) * job->rows / num_tiles - row);
        if (panels == GROUP_LEN) four_panels(job, row, first, rows);
        else if (panels == 2) two_panels(job, row, first, rows);
        else one_panel(job, row, first, rows);
    }
}

static void run_chunk(const void *argument, int64_t chunk) {
    const product *job = argument;
    const int64_t begin = chunk * job->num_groups / job->num_chunks, end = (chunk + 1) * job->num_groups / job->num_chunks;
    const int64_t last = min(end * job->group_len, panels_of(job->call));
    for (int64_t place = begin * job->group_len; place < last;) {
        const int64_t first = panel_at(job->call, place), together = side_by_side(job->call, place, last, job->group_len);
        const int panels = together == job->group_len ? job->group_len : together >= 2 ? 2 : 1;
        if (job->is_sliced) by_slices(job, first);
        else by_tiles(job, first, panels);
        place += panels;
    }
}

/* Rows that are rounded already. */
void thin_fixed16(team *all, const thin_call *call, int64_t rows) {
    if (call->format == FIXED16 && thin_multiplies_fixed16_wide()) {
        thin_fixed16_wide(all, call, rows);
        return;
    }
    const int64_t num_tiles = (rows + TALL_ROWS - 1) / TALL_ROWS, num_panels = panels_of(call);
    const int64_t tallest = (rows + num_tiles - 1) / num_tiles;
    const int group_len = tallest == 1 ? GROUP_LEN : tallest <= NARROW_ROWS ? 2 : 1;
    const int64_t num_groups = (num_panels + group_len - 1) / group_len;
    const int size = call->format == FIXED8 ? 2 : 4, is_streamed = call->is_streamed && size == 4;
    const int64_t ahead = rows == 1 ? is_streamed ? STREAMED_ONE_ROW : AHEAD_ONE_ROW : is_streamed ? STREAMED_AHEAD : AHEAD_PAIRS;
    const product job = {call, rows, pairs_of(call->inputs), num_groups, team_chunks(all, num_groups), ahead, group_len, size,
                         size == 4 && num_tiles > 1 && (is_streamed ? rows <= MAX_ROWS : num_tiles <= MOST_CACHED_TILES)};
    team_run(all, run_chunk, &job, job.num_chunks);
}
#else
void thin_fixed16_round(const thin_call *call, const float *x, int64_t row) { (void)call, (void)x, (void)row; }
void thin_fixed16(team *all, const thin_call *call, int64_t rows) { (void)all, (void)call, (void)rows; } /* thin_product.py packs no such here */
#endif
