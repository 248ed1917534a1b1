/* Thin products by tiles: where the processor multiplies tiles of bfloat16 numbers (AMX), up to sixteen rows meet sixteen columns and 32 inputs in
   one instruction, and up to sixteen rows take hardly longer than one. For matrices in PAIRS whose inputs fill whole tiles; others go by product.c.

   A sum over 32 inputs is made of one chain of multiply-adds for the even and one for the odd of them, and added to what was there: other bits than
   product.c's, but again the same ones whatever the number of rows, their place and the number of threads. So one row goes this way too. */

#include "thin.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__linux__)
#include <immintrin.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILE_ROWS 16
#define TILE_PAIRS 16
#define TILE_BYTES 64 /* of a tile's row */
#define GROUP_LEN 2  /* panels side by side: four are fetched from memory a seventh more slowly, and one leaves sums waiting for themselves */
#define ASK_FOR_STATE 0x1023 /* arch_prctl: ARCH_REQ_XCOMP_PERM */
#define TILE_DATA 18         /* of the tiles' own numbers, which a process has to ask for */

typedef struct {
    const thin_call *call;
    int64_t rows, pairs, num_groups, num_chunks; /* groups of panels; chunks of groups */
} product;

/* As the processor reads it: tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 weights. */
typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} shapes;

static _Atomic int is_allowed;

int thin_multiplies_tiles(void) {
    if (!atomic_load(&is_allowed)) atomic_store(&is_allowed, syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0 ? 1 : -1);
    return atomic_load(&is_allowed) > 0;
}

int thin_tiles_serve(const thin_call *call) {
    return call->format == PAIRS && call->inputs % (2 * TILE_PAIRS) == 0 && atomic_load(&is_allowed) > 0;
}

/* What this thread's tiles are made for: taking a shape costs as much as a few of them, so a thread keeps it from chunk to chunk. */
static __thread struct {
    int upper, lower;
} shape_now;

/* For `upper` rows, and `lower` ones behind them. */
static void take_shape(int upper, int lower) {
    if (shape_now.upper == upper && shape_now.lower == lower) return;
    shape_now.upper = upper;
    shape_now.lower = lower;
    shapes of;
    memset(&of, 0, sizeof(of));
    of.palette = 1;
    for (int tile = 0; tile < 8; tile++) of.row_bytes[tile] = TILE_BYTES;
    of.rows[0] = of.rows[1] = of.rows[4] = (uint8_t)upper;
    of.rows[2] = of.rows[3] = of.rows[5] = (uint8_t)(lower ? lower : upper);
    of.rows[6] = of.rows[7] = TILE_ROWS;
    _tile_loadconfig(&of);
}

/* Sums that came out of a tile, where something is added to them or a panel ends early. */
static void put_rows(const thin_call *call, const float (*sums)[PANEL], int64_t row, int rows, int64_t column) {
    const int64_t left = call->outputs - column;
    const __mmask16 some = left < PANEL ? (__mmask16)((1u << left) - 1) : (__mmask16)0xFFFF;
    const __m512 bias = call->bias ? _mm512_maskz_loadu_ps(some, call->bias + column) : _mm512_setzero_ps();
    for (int m = 0; m < rows; m++) {
        float *to = call->out + (row + m) * call->outputs + column;
        __m512 value = _mm512_load_ps(sums[m]);
        if (call->bias) value = _mm512_add_ps(value, bias);
        if (call->adds) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(some, to));
        _mm512_mask_storeu_ps(to, some, value);
    }
}

/* Tiles are named by constants only. */
#define PUT(SUMS, ROW, ROWS, COLUMN)                                                                         \
    do {                                                                                                     \
        if (!call->bias && !call->adds && call->outputs - (COLUMN) >= PANEL) {                               \
            _tile_stored(SUMS, call->out + (ROW) * call->outputs + (COLUMN), (size_t)call->outputs * sizeof(float)); \
        } else {                                                                                             \
            _tile_stored(SUMS, sums, TILE_BYTES);                                                            \
            put_rows(call, (const float(*)[PANEL])sums, ROW, ROWS, COLUMN);                                  \
        }                                                                                                    \
    } while (0)

#define PLACE_OF_TILES                                                                                           \
    const thin_call *call = job->call;                                                                           \
    const int64_t pairs = job->pairs, stride = pairs * PANEL;                                                    \
    const size_t row_bytes = (size_t)pairs * sizeof(uint32_t);                                                   \
    const uint32_t *upper_rows = call->rounded + row * pairs, *weights = (const uint32_t *)call->panels + first * stride; \
    float sums[TILE_ROWS][PANEL] __attribute__((aligned(TILE_BYTES)))

/* One tile of rows and one panel. */
static void one_by_one(const product *job, int64_t row, int rows, int64_t first) {
    PLACE_OF_TILES;
    _tile_zero(0);
    for (int64_t k = 0; k < pairs; k += TILE_PAIRS) {
        _tile_loadd(4, upper_rows + k, row_bytes);
        _tile_loadd(6, weights + k * PANEL, TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
    }
    PUT(0, row, rows, first * PANEL);
}

/* One tile of rows and GROUP_LEN panels. */
static void one_by_two(const product *job, int64_t row, int rows, int64_t first) {
    PLACE_OF_TILES;
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t k = 0; k < pairs; k += TILE_PAIRS) {
        const uint32_t *here = weights + k * PANEL;
        _tile_loadd(4, upper_rows + k, row_bytes);
        _tile_loadd(6, here, TILE_BYTES);
        _tile_loadd(7, here + stride, TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
    PUT(0, row, rows, first * PANEL);
    PUT(1, row, rows, (first + 1) * PANEL);
}

/* Two tiles of rows and GROUP_LEN panels. */
static void two_by_two(const product *job, int64_t row, int upper, int lower, int64_t first) {
    PLACE_OF_TILES;
    const uint32_t *lower_rows = upper_rows + upper * pairs;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < pairs; k += TILE_PAIRS) {
        const uint32_t *here = weights + k * PANEL;
        for (int line = TILE_PAIRS; line < 2 * TILE_PAIRS; line++) {
            __builtin_prefetch(here + line * PANEL);
            __builtin_prefetch(here + stride + line * PANEL);
        }
        _tile_loadd(4, upper_rows + k, row_bytes);
        _tile_loadd(6, here, TILE_BYTES);
        _tile_loadd(7, here + stride, TILE_BYTES);
        _tile_loadd(5, lower_rows + k, row_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    PUT(0, row, upper, first * PANEL);
    PUT(1, row, upper, (first + 1) * PANEL);
    PUT(2, row + upper, lower, first * PANEL);
    PUT(3, row + upper, lower, (first + 1) * PANEL);
}

/* All rows, and `panels` panels from `first` on. */
static void run_group(const product *job, int64_t first, int panels) {
    const int64_t num_tiles = (job->rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t at = 0; at < num_tiles;) {
        const int64_t row = at * job->rows / num_tiles, next = (at + 1) * job->rows / num_tiles;
        const int upper = (int)(next - row), goes_by_two = panels == GROUP_LEN && at + 1 < num_tiles;
        const int lower = goes_by_two ? (int)((at + 2) * job->rows / num_tiles - next) : 0;
        take_shape(upper, lower);
        if (goes_by_two) two_by_two(job, row, upper, lower, first);
        else if (panels == GROUP_LEN) one_by_two(job, row, upper, first);
        else one_by_one(job, row, upper, first);
        at += goes_by_two ? 2 : 1;
    }
}

static void run_chunk(const void *argument, int64_t chunk) {
    const product *job = argument;
    const int64_t num_panels = (job->call->outputs + PANEL - 1) / PANEL;
    const int64_t begin = chunk * job->num_groups / job->num_chunks, end = (chunk + 1) * job->num_groups / job->num_chunks;
    for (int64_t group = begin; group < end; group++) {
        const int64_t first = group * GROUP_LEN;
        run_group(job, first, (int)min(GROUP_LEN, num_panels - first));
    }
}

void thin_tiles_rest(void) {
    if (!shape_now.upper) return;
    _tile_release();
    shape_now.upper = shape_now.lower = 0;
}

/* Rows that are rounded already. */
void thin_tiles(team *all, const thin_call *call, int64_t rows) {
    const int64_t num_groups = (call->outputs + GROUP_LEN * PANEL - 1) / (GROUP_LEN * PANEL);
    const product job = {call, rows, call->inputs / 2, num_groups, team_chunks(all, num_groups)};
    team_run(all, run_chunk, &job, job.num_chunks);
}
#else
int thin_multiplies_tiles(void) { return 0; }
int thin_tiles_serve(const thin_call *call) { return (void)call, 0; }
void thin_tiles_rest(void) {}
void thin_tiles(team *all, const thin_call *call, int64_t rows) { (void)all, (void)call, (void)rows; } /* nobody is served by it */
#endif
