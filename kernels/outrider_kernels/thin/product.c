/* Thin matrix products: few rows times a large matrix that was packed once.

   out[m][n] (+)= sum over k of y[m][k] * w[k][n] (+ bias[n]), where y is x, or x divided by its root mean square and times a scale (RMSNorm).
   The matrix lies in panels of PANEL columns, each [inputs][PANEL], as float, as bfloat16 (the upper half of a float's bits) or as int8, whose
   sums are multiplied by their column's scale at the end; products and sums are float always. Every element is one chain of fused
   multiply-adds over k = 0, 1, 2, ..., whatever the number of rows, their place and the number of threads: a row's bits depend on nothing but
   the row and the matrix. Where the processor multiplies bfloat16 numbers itself, a matrix may lie in PAIRS of inputs, [pairs][PANEL][2]: then
   y is rounded to bfloat16 too, and a chain takes two inputs at a time. How y comes about is in rows.c, products with a matrix in QUADS are in
   quads.c, with one in FLOAT16 in float16.c, with one in FIXED16 or FIXED8 in fixed16.c, with one in PAIRS by tiles in tiles.c. thin_product.py packs and calls. */

#include "thin.h"

/* With 512 bits a panel is one vector, and there are registers for more rows; what more than ten need, compilers spill. */
#ifdef __AVX512F__
#include <immintrin.h>
#define MAX_TILE_ROWS 10
#else
#define MAX_TILE_ROWS 6
#endif
#define VECTORS (PANEL / WIDTH) /* of a panel */

/* Inputs whose weights are fetched ahead: at a page's border the processor would begin anew. Measured, 512 bits: 96 to 128 beats 32 by a quarter
   and 256 by a fifth at few rows; 256 bits: 192, or 64 for one row. */
#define AHEAD 128
#define AHEAD_NARROW 192
#define AHEAD_NARROW_ONE_ROW 64
#define AHEAD_PAIRS 64

typedef int32_t integers __attribute__((vector_size(4 * WIDTH), aligned(4)));

INLINE int64_t size_of(const int format) { return format == FLOATS ? 4 : format == HALVES ? 2 : 1; }

#ifdef __AVX512F__
/* The PANEL weights at `at`. Halves come in the order they lie in: column 0, 8, 1, 9, ...; `in_order` undoes that, once a tile. */
INLINE void load_panel(const void *panels, int64_t at, const int format, wide *to) {
    if (format == HALVES) {
        const __m256i pairs = _mm256_loadu_si256((const __m256i *)((const uint16_t *)panels + at));
        to[0] = (wide)_mm512_slli_epi32(_mm512_cvtepu16_epi32(pairs), 16);
    } else if (format == BYTES) {
        to[0] = (wide)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)((const int8_t *)panels + at))));
    } else {
        to[0] = *(const wide *)((const float *)panels + at);
    }
}

INLINE wide in_order(wide sum, const int format) {
    const integers columns = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
    return format == HALVES ? __builtin_shuffle(sum, columns) : sum;
}
#else
/* Written out because compilers make one instruction of the list, and many of a conversion between vectors of such different elements. */
INLINE wide widened(const int8_t *from) {
    const integers values = {from[0], from[1], from[2], from[3], from[4], from[5], from[6], from[7]};
    return __builtin_convertvector(values, wide);
}

/* The PANEL weights at `at`. Halves lie in pairs, column n below column n + LANES, so that one load gives both. */
INLINE void load_panel(const void *panels, int64_t at, const int format, wide *to) {
    if (format == HALVES) {
        const bits pairs = *(const bits *)((const uint16_t *)panels + at);
        to[0] = (wide)(pairs << 16);
        to[1] = (wide)(pairs & 0xFFFF0000u);
    } else if (format == BYTES) {
        to[0] = widened((const int8_t *)panels + at);
        to[1] = widened((const int8_t *)panels + at + WIDTH);
    } else {
        to[0] = *(const wide *)((const float *)panels + at);
        to[1] = *(const wide *)((const float *)panels + at + WIDTH);
    }
}

INLINE wide in_order(wide sum, const int format) {
    (void)format;
    return sum;
}
#endif

typedef struct {
    thin_call call;
    int64_t rows, num_groups, num_chunks; /* groups of panels; chunks of groups */
    int group_len, is_sliced;             /* panels that are computed side by side */
} product;

/* The last columns, fewer than a vector's. */
static __attribute__((noinline)) void put_rest(const thin_call *call, const float *sums, float *to, int64_t column, int64_t left) {
    for (int64_t lane = 0; lane < left; lane++) {
        if (call->format == BYTES) {
            float start = call->adds ? to[lane] : 0.0f;
            if (call->bias) start += call->bias[column + lane];
            to[lane] = sums[lane] * call->column_scale[column + lane] + start;
        } else {
            float value = sums[lane];
            if (call->bias) value += call->bias[column + lane];
            to[lane] = call->adds ? to[lane] + value : value;
        }
    }
}

/* Sums of WIDTH columns from `column` on, or of as many as there are, to where they belong. With a scale it is one multiply-add, whatever
   stands around it: bits must not depend on where a compiler finds two operations to fuse. */
INLINE void put(const thin_call *call, wide sum, int64_t row, int64_t column, const int format) {
    float *to = call->out + row * call->outputs + column;
    const int64_t left = call->outputs - column;
    if (left < WIDTH) {
        put_rest(call, (const float *)&sum, to, column, left);
    } else if (format == BYTES) {
        wide start = call->adds ? *(wide *)to : wide_splat(0.0f);
        if (call->bias) start += *(const wide *)(call->bias + column);
        *(wide *)to = sum * *(const wide *)(call->column_scale + column) + start;
    } else {
        if (call->bias) sum += *(const wide *)(call->bias + column);
        if (call->adds) sum += *(wide *)to;
        *(wide *)to = sum;
    }
}

/* `rows` rows from x on, `panels` panels from `first` on; of: null for all inputs, or one panel's slice. rows, panels, format and whether it is null are
   constants wherever this is expanded. */
INLINE void tile(const product *job, int64_t row, int64_t first, const thin_slice *of, const int rows, const int panels, const int format) {
    wide sums[MAX_TILE_ROWS][4 * VECTORS], weights[VECTORS];
    const thin_call *call = &job->call;
    const int64_t inputs = call->inputs, stride = inputs * PANEL;
    const float *x = call->x + row * inputs;
    const int64_t base = first * stride, fetched = min(inputs, WIDTH == 16 ? AHEAD : rows == 1 ? AHEAD_NARROW_ONE_ROW : AHEAD_NARROW);
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < VECTORS * panels; n++) sums[m][n] = of && of->begin ? *(wide *)(of->kept + m * PANEL + n * WIDTH) : wide_splat(0.0f);
    const char *fetch = of ? of->fetch : 0;
    int64_t k = of ? of->begin : 0;
    for (int part = of ? 1 : 0; part < 2; part++) {
        /* Each panel fetches its own rest ahead, then the beginning of the panel that takes its place. */
        const int64_t end = of ? of->end : part ? inputs : inputs - fetched, ahead = fetched * PANEL + (part ? (panels - 1) * stride : 0);
        for (; k < end; k++) {
            for (int panel = 0; panel < panels; panel++) {
                const int64_t at = base + panel * stride + k * PANEL;
                load_panel(call->panels, at, format, weights);
                __builtin_prefetch(of ? fetch : (const char *)call->panels + (at + ahead) * size_of(format));
                if (of) fetch += of->fetch_step;
                for (int m = 0; m < rows; m++) {
                    const wide value = wide_splat(x[m * inputs + k]);
                    for (int n = 0; n < VECTORS; n++) sums[m][VECTORS * panel + n] += value * weights[n];
                }
            }
        }
    }
    if (of && of->end < inputs) {
        for (int m = 0; m < rows; m++)
            for (int n = 0; n < VECTORS * panels; n++) *(wide *)(of->kept + m * PANEL + n * WIDTH) = sums[m][n];
        return;
    }
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < VECTORS * panels; n++) put(call, in_order(sums[m][n], format), row + m, first * PANEL + n * WIDTH, format);
}

#ifdef __AVX512BF16__
/* `tile` of weights and rows that are both bfloat16: two inputs an instruction, and so half as many for the same product. */
INLINE void pair_tile(const product *job, int64_t row, int64_t first, const int rows, const int panels) {
    __m512 sums[MAX_TILE_ROWS][4];
    const thin_call *call = &job->call;
    const int64_t pairs = pairs_of(call->inputs), stride = pairs * PANEL, base = first * stride, fetched = min(pairs, AHEAD_PAIRS);
    const int64_t apart = pairs_apart(call->inputs);
    const uint32_t *y = call->rounded + row * apart, *weights = (const uint32_t *)call->panels;
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < panels; n++) sums[m][n] = _mm512_setzero_ps();
    int64_t k = 0;
    for (int part = 0; part < 2; part++) {
        const int64_t end = part ? pairs : pairs - fetched, ahead = fetched * PANEL + (part ? (panels - 1) * stride : 0);
        for (; k < end; k++) {
            for (int panel = 0; panel < panels; panel++) {
                const int64_t at = base + panel * stride + k * PANEL;
                const __m512bh pair = (__m512bh)_mm512_loadu_si512(weights + at);
                __builtin_prefetch(weights + at + ahead);
                for (int m = 0; m < rows; m++)
                    sums[m][panel] = _mm512_dpbf16_ps(sums[m][panel], (__m512bh)_mm512_set1_epi32((int)y[m * apart + k]), pair);
            }
        }
    }
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < panels; n++) put(call, (wide)sums[m][n], row + m, (first + n) * PANEL, PAIRS);
}

#define PAIR_TILE(ROWS, PANELS) \
    case PAIRS: pair_tile(job, row, first, ROWS, PANELS); return;
#else
#define PAIR_TILE(ROWS, PANELS) /* thin_product.py packs no pairs here */
#endif

int thin_multiplies_pairs(void) {
#ifdef __AVX512BF16__
    return 1;
#else
    return 0;
#endif
}

#define TILE(ROWS, PANELS)                                                       \
    case ROWS:                                                                   \
        switch (job->call.format) {                                              \
            case BYTES: tile(job, row, first, 0, ROWS, PANELS, BYTES); return;   \
            case HALVES: tile(job, row, first, 0, ROWS, PANELS, HALVES); return; \
            PAIR_TILE(ROWS, PANELS)                                              \
            default: tile(job, row, first, 0, ROWS, PANELS, FLOATS); return;     \
        }

#if WIDTH == 16
/* Panels side by side, for tiles of so many rows: enough sums that none waits for itself, and not more than there are registers. */
INLINE int group_len_of(int64_t rows) { return rows <= 4 ? 4 : 2; }

static void four_panels(const product *job, int64_t row, int64_t first, int rows) {
    switch (rows) { TILE(1, 4) TILE(2, 4) TILE(3, 4) default: TILE(4, 4) }
}

static void two_panels(const product *job, int64_t row, int64_t first, int rows) {
    switch (rows) {
        TILE(1, 2) TILE(2, 2) TILE(3, 2) TILE(4, 2) TILE(5, 2) TILE(6, 2) TILE(7, 2) TILE(8, 2) TILE(9, 2) default: TILE(10, 2)
    }
}

/* What is left of a matrix with an odd number of panels: row by row. */
static void one_panel(const product *job, int64_t row, int64_t first, int rows) {
    for (const int64_t end = row + rows; row < end; row++) switch (job->call.format) {
            case BYTES: tile(job, row, first, 0, 1, 1, BYTES); break;
            case HALVES: tile(job, row, first, 0, 1, 1, HALVES); break;
#ifdef __AVX512BF16__
            case PAIRS: pair_tile(job, row, first, 1, 1); break;
#endif
            default: tile(job, row, first, 0, 1, 1, FLOATS);
        }
}
#else
INLINE int group_len_of(int64_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

static void four_panels(const product *job, int64_t row, int64_t first, int rows) {
    switch (rows) { default: TILE(1, 4) }
}

static void two_panels(const product *job, int64_t row, int64_t first, int rows) {
    switch (rows) { TILE(1, 2) default: TILE(2, 2) }
}

static void one_panel(const product *job, int64_t row, int64_t first, int rows) {
    switch (rows) { TILE(1, 1) TILE(2, 1) TILE(3, 1) TILE(4, 1) TILE(5, 1) default: TILE(6, 1) }
}

#define SLICED_TILE(ROWS)                                                                         \
    case ROWS:                                                                                    \
        if (job->call.format == HALVES) tile(job, row, first, of, ROWS, 1, HALVES);               \
        else tile(job, row, first, of, ROWS, 1, FLOATS);                                          \
        return;

/* No fewer rows than half of the tallest tile, for there are several. */
static void sliced_panel(const product *job, int64_t row, int64_t first, const thin_slice *of, int rows) {
    switch (rows) { SLICED_TILE(3) SLICED_TILE(4) SLICED_TILE(5) default: SLICED_TILE(6) }
}

static void by_slices(const product *job, int64_t first) {
    float kept[MAX_ROWS * PANEL];
    const int64_t num_tiles = (job->rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS, inputs = job->call.inputs, line = PANEL * size_of(job->call.format);
    const char *panel = (const char *)job->call.panels + first * inputs * line;
    for (int64_t begin = 0; begin < inputs; begin += SLICE)
        for (int64_t at = 0; at < num_tiles; at++) {
            const int64_t row = at * job->rows / num_tiles, next = (at + 1) * job->rows / num_tiles;
            const thin_slice of = slice_of(panel, line, begin, inputs, at, num_tiles, kept + row * PANEL);
            sliced_panel(job, row, first, &of, (int)(next - row));
        }
}
#endif

static void tile_of(const product *job, int64_t row, int64_t first, int rows, int panels) {
    if (panels == 4) four_panels(job, row, first, rows);
    else if (panels == 2) two_panels(job, row, first, rows);
    else one_panel(job, row, first, rows);
}

static void run_chunk(const void *argument, int64_t chunk) {
    const product *job = argument;
    const int64_t num_tiles = (job->rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS;
    const int64_t begin = chunk * job->num_groups / job->num_chunks, end = (chunk + 1) * job->num_groups / job->num_chunks;
    const int64_t last = min(end * job->group_len, panels_of(&job->call));
    for (int64_t place = begin * job->group_len; place < last;) {
        const int64_t first = panel_at(&job->call, place), together = side_by_side(&job->call, place, last, job->group_len);
        const int panels = together == job->group_len ? job->group_len : together >= 2 ? 2 : 1;
#if WIDTH == LANES
        if (job->is_sliced) by_slices(job, first);
        else
#endif
        for (int64_t at = 0; at < num_tiles; at++) {
            const int64_t row = at * job->rows / num_tiles, next = (at + 1) * job->rows / num_tiles;
            tile_of(job, row, first, (int)(next - row), panels);
        }
        place += panels;
    }
}

void thin_product(team *all, const thin_call *call, int64_t rows) {
    if (rows <= 0) return;
    const int64_t num_tiles = (rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS;
    product job = {*call, rows, 0, 0, group_len_of((rows + num_tiles - 1) / num_tiles), call->is_streamed && call->format != BYTES && num_tiles > 1 && rows <= MAX_ROWS};
    job.call.x = thin_rows(all, call, rows);
    if (call->format == QUADS) {
        thin_quads(all, &job.call, rows);
        return;
    }
    if (call->format == FLOAT16) {
        thin_float16(all, &job.call, rows);
        return;
    }
    if (call->format == FIXED16 || call->format == FIXED8) {
        thin_fixed16(all, &job.call, rows);
        return;
    }
    if (thin_tiles_serve(call)) {
        thin_tiles(all, &job.call, rows);
        return;
    }
    job.num_groups = (panels_of(call) + job.group_len - 1) / job.group_len;
    job.num_chunks = team_chunks(all, job.num_groups);
    team_run(all, run_chunk, &job, job.num_chunks);
}
