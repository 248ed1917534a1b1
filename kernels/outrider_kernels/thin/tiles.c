/* Thin products by tiles: where the processor multiplies tiles of bfloat16 numbers (AMX), up to sixteen rows meet sixteen columns and 32 inputs in
   one instruction, and up to sixteen rows take hardly longer than one. For matrices in PAIRS whose inputs fill whole tiles; others go by product.c.

   A sum over 32 inputs is made of one chain of multiply-adds for the even and one for the odd of them, and added to what was there: other bits than
   product.c's, but again the same ones whatever the number of rows, their place and the number of threads. So one row goes this way too.

   Of many rows it is not weights that are waited for but rows and sums: where a row has many inputs, it is multiplied a part of them at a time, all
   rows and some columns with one part before the next. Sums that are gated afterwards are gated before they leave, while the next ones are multiplied;
   and what is gated is laid down as the next product's tiles are read, for a row of it on a page of its own each is what takes longest. */

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
#define IN_TILE (2 * TILE_PAIRS) /* inputs of a tile's row */
#define GROUP_LEN 2  /* panels side by side: four are fetched from memory a seventh more slowly, and one leaves sums waiting for themselves */
#define ASK_FOR_STATE 0x1023 /* arch_prctl: ARCH_REQ_XCOMP_PERM */
#define TILE_DATA 18         /* of the tiles' own numbers, which a process has to ask for */

#define SHARE_ONE 256 /* a row, in parts of rows */
#define FEW_ROWS (2 * TILE_ROWS) /* that meet a group at once */
#define NEAR_PAIRS (256 * 1024) /* of rows that meet all groups before others do: a megabyte, half of what lies near */
#define DEEP_FROM 1536 /* pairs of inputs of rows that are multiplied a part at a time, if there are more than FEW_ROWS: */
#define DEEP_PAIRS 1024 /* so many, */
#define DEEP_ROWS 256 /* of so many rows at most; */
#define DEEP_TILES (DEEP_ROWS / FEW_ROWS * 8) /* and sums that wait for the next part: of so many pairs of tiles by groups, four kilobytes each */

typedef struct {
    const thin_call *call;
    const thin_gate_call *gate; /* what becomes of the sums; null: they are put to call->out */
    int64_t rows, pairs, num_groups, num_chunks; /* groups of panels; chunks of groups */
    int64_t step, beside; /* from a group to the next, and between a group's two panels: weights */
    int64_t rows_at_once; /* a multiple of FEW_ROWS */
    int64_t apart, ahead; /* rows: pairs from one to the next, and from a tile's to the tile's behind it */
    int is_deep, gives_tiles; /* gated sums lie as `ahead` and `apart` of whoever multiplies them: a tile's rows in one piece */
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
    return call->format == PAIRS && !call->listed && call->inputs % (2 * TILE_PAIRS) == 0 && atomic_load(&is_allowed) > 0;
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
    __asm__ volatile("" : : "r"(&of) : "memory"); /* compilers believe that it reads the first of these bytes only */
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

typedef float tile_sums[TILE_ROWS][PANEL];

/* Rows [m, m + rows) of a tile of sums by a group's two panels, which are rows from `row` on. */
INLINE void put_both(const product *job, const tile_sums *sums, int m, int64_t row, int rows, int64_t group) {
    if (job->gate) {
        const int64_t column = group * PANEL, apart = job->gives_tiles ? IN_TILE : 2 * pairs_apart(job->gate->length);
        uint16_t *to = job->gate->halves + row * apart + (job->gives_tiles ? column / IN_TILE * job->rows * IN_TILE + column % IN_TILE : column);
        thin_gate_tile(sums[0][m], sums[1][m], rows, to, apart);
        return;
    }
    put_rows(job->call, sums[0] + m, row, rows, group * GROUP_LEN * PANEL);
    put_rows(job->call, sums[1] + m, row, rows, (group * GROUP_LEN + 1) * PANEL);
}

/* Sums of two tiles of rows and a group that are still to be put: a few rows at a time, between the instructions that multiply the next ones. Put at
   once, they would be waited for, and the tiles for them. */
typedef struct {
    const tile_sums *sums; /* [2 * GROUP_LEN] */
    int64_t row, group;
    int upper, rows, done; /* rows of the first tile, of both, and how many of them were put */
} waiting;

static void put_until(const product *job, waiting *late, int end) {
    while (late->done < end) {
        const int is_lower = late->done >= late->upper, m = is_lower ? late->done - late->upper : late->done;
        const int rows = (is_lower ? end : (int)min(end, late->upper)) - late->done;
        put_both(job, late->sums + (is_lower ? GROUP_LEN : 0), m, late->row + late->done, rows, late->group);
        late->done += rows;
    }
}

/* In a turn of a loop of so many inputs: of the rows that wait, its share. When the loop is over, none waits. */
#define PUT_SOME put_until(job, late, (int)min(late->rows, (due += share) / SHARE_ONE));
#define SHARE_OF_TURNS(PAIRS) ((late->rows * SHARE_ONE * TILE_PAIRS + (PAIRS) - 1) / (PAIRS))

/* Whether sums go as they are to where they belong. */
INLINE int is_put_as_it_is(const product *job, int64_t last_panel) {
    return !job->gate && !job->call->bias && !job->call->adds && job->call->outputs >= (last_panel + 1) * PANEL;
}

/* Tiles are named by constants only. */
#define PUT_AS_IT_IS(SUMS, ROW, PANELS) \
    _tile_stored(SUMS, call->out + (ROW) * call->outputs + (PANELS) * PANEL, (size_t)call->outputs * sizeof(float))

#define PLACE_OF_TILES                                                                              \
    const thin_call *call = job->call;                                                              \
    const int64_t pairs = job->pairs, beside = job->beside, apart = job->apart, ahead = job->ahead;   \
    const size_t row_bytes = (size_t)apart * sizeof(uint32_t);                                      \
    const uint32_t *upper_rows = call->rounded + row * apart, *weights = (const uint32_t *)call->panels + group * job->step

#define OWN_SUMS tile_sums sums[GROUP_LEN] __attribute__((aligned(TILE_BYTES)))

/* One tile of rows and one panel, the last of an odd number. */
static void one_by_one(const product *job, int64_t row, int rows, int64_t group) {
    PLACE_OF_TILES;
    (void)beside;
    OWN_SUMS;
    take_shape(rows, 0);
    _tile_zero(0);
    for (int64_t k = 0; k < pairs; k += TILE_PAIRS) {
        _tile_loadd(4, upper_rows + k / TILE_PAIRS * ahead, row_bytes);
        _tile_loadd(6, weights + k * PANEL, TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, sums[0], TILE_BYTES);
    put_rows(call, sums[0], row, rows, group * GROUP_LEN * PANEL);
}

/* One tile of rows and a group. */
static void one_by_two(const product *job, int64_t row, int rows, int64_t group) {
    PLACE_OF_TILES;
    OWN_SUMS;
    take_shape(rows, 0);
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t k = 0; k < pairs; k += TILE_PAIRS) {
        const uint32_t *here = weights + k * PANEL;
        _tile_loadd(4, upper_rows + k / TILE_PAIRS * ahead, row_bytes);
        _tile_loadd(6, here, TILE_BYTES);
        _tile_loadd(7, here + beside, TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
    if (is_put_as_it_is(job, group * GROUP_LEN + 1)) {
        PUT_AS_IT_IS(0, row, group * GROUP_LEN);
        PUT_AS_IT_IS(1, row, group * GROUP_LEN + 1);
        return;
    }
    _tile_stored(0, sums[0], TILE_BYTES);
    _tile_stored(1, sums[1], TILE_BYTES);
    put_both(job, (const tile_sums *)sums, 0, row, rows, group);
}

/* What a pair of tiles of rows and a group add to their sums, for inputs [begin, end). The first rows that meet a group fetch its weights a tile
   ahead; the others find them near. */
#define ADD_ONCE                                                    \
    _tile_loadd(4, upper_at, row_bytes);                            \
    _tile_loadd(6, here, TILE_BYTES);                               \
    _tile_loadd(7, there, TILE_BYTES);                              \
    _tile_loadd(5, lower_at, row_bytes);                            \
    _tile_dpbf16ps(0, 4, 6);                                        \
    _tile_dpbf16ps(1, 4, 7);                                        \
    _tile_dpbf16ps(2, 5, 6);                                        \
    _tile_dpbf16ps(3, 5, 7);                                        \
    upper_at += ahead, lower_at += ahead, here += TILE_PAIRS * PANEL, there += TILE_PAIRS * PANEL;

#define ADD_TWO_BY_TWO(BEGIN, END, MEANWHILE)                                                            \
    const uint32_t *upper_at = upper_rows + (BEGIN) / TILE_PAIRS * ahead, *lower_at = upper_at + (lower ? upper : 0) * apart; \
    const uint32_t *here = weights + (BEGIN) * PANEL, *there = here + beside;                            \
    const uint32_t *const done = upper_rows + (END) / TILE_PAIRS * ahead;                                              \
    if (is_first) {                                                                                      \
        while (upper_at < done) {                                                                        \
            for (int line = TILE_PAIRS; line < 2 * TILE_PAIRS; line++) {                                 \
                __builtin_prefetch(here + line * PANEL);                                                 \
                __builtin_prefetch(there + line * PANEL);                                                \
            }                                                                                            \
            ADD_ONCE                                                                                     \
            MEANWHILE                                                                                    \
        }                                                                                                \
    } else {                                                                                             \
        while (upper_at < done) {                                                                        \
            ADD_ONCE                                                                                     \
            MEANWHILE                                                                                    \
        }                                                                                                \
    }

/* Two tiles of rows and a group. */
static void two_by_two(const product *job, int64_t row, int is_first, int upper, int lower, int64_t group, tile_sums *sums, waiting *late) {
    PLACE_OF_TILES;
    const int64_t share = SHARE_OF_TURNS(pairs);
    int64_t due = 0;
    take_shape(upper, lower);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    ADD_TWO_BY_TWO(0, pairs, PUT_SOME)
    if (is_put_as_it_is(job, group * GROUP_LEN + 1)) {
        PUT_AS_IT_IS(0, row, group * GROUP_LEN);
        PUT_AS_IT_IS(1, row, group * GROUP_LEN + 1);
        PUT_AS_IT_IS(2, row + upper, group * GROUP_LEN);
        PUT_AS_IT_IS(3, row + upper, group * GROUP_LEN + 1);
        return;
    }
    _tile_stored(0, sums[0], TILE_BYTES);
    _tile_stored(1, sums[1], TILE_BYTES);
    _tile_stored(2, sums[2], TILE_BYTES);
    _tile_stored(3, sums[3], TILE_BYTES);
    *late = (waiting){(const tile_sums *)sums, row, group, upper, upper + lower, 0};
}

/* A part of that; `kept` are the sums of the parts before, and what they are after it. */
static void add_part(
    const product *job, int64_t row, int is_first, int upper, int lower, int64_t group, int64_t begin, tile_sums *kept, waiting *late
) {
    PLACE_OF_TILES;
    const int64_t end = min(pairs, begin + DEEP_PAIRS), share = SHARE_OF_TURNS(end - begin);
    int64_t due = 0;
    take_shape(upper, lower);
    if (begin) {
        _tile_loadd(0, kept[0], TILE_BYTES);
        _tile_loadd(1, kept[1], TILE_BYTES);
        _tile_loadd(2, kept[2], TILE_BYTES);
        _tile_loadd(3, kept[3], TILE_BYTES);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    ADD_TWO_BY_TWO(begin, end, PUT_SOME)
    _tile_stored(0, kept[0], TILE_BYTES);
    _tile_stored(1, kept[1], TILE_BYTES);
    _tile_stored(2, kept[2], TILE_BYTES);
    _tile_stored(3, kept[3], TILE_BYTES);
    if (end == pairs) *late = (waiting){(const tile_sums *)kept, row, group, upper, upper + lower, 0};
}

/* Of the rows from `row` on, how many make the next pair of tiles: whole tiles as long as there are, for a tile's shape is slow to change; *lower:
   of those the second tile's, 0 for one tile alone. */
INLINE int next_rows(int64_t row, int64_t end, int *lower) {
    const int left = (int)min(end - row, 2 * TILE_ROWS), upper = left > TILE_ROWS ? (left + 1) / 2 : left;
    *lower = left - upper;
    return upper;
}

/* Rows [first, end) as pairs of tiles, and groups [begin, last): so many that their sums may wait. */
static void run_block(const product *job, int64_t first, int64_t end, int64_t begin, int64_t last) {
    tile_sums kept[DEEP_TILES][2 * GROUP_LEN] __attribute__((aligned(TILE_BYTES)));
    waiting late = {0};
    for (int64_t k = 0; k < job->pairs; k += DEEP_PAIRS) {
        tile_sums (*place)[2 * GROUP_LEN] = kept;
        for (int64_t group = begin; group < last; group++) {
            for (int64_t row = first, next; row < end; row = next) {
                int lower;
                const int upper = next_rows(row, end, &lower);
                next = row + upper + lower;
                add_part(job, row, row == first, upper, lower, group, k, *place++, &late);
            }
        }
    }
    put_until(job, &late, late.rows);
}

/* Rows [first, end), and a group of so many panels. */
static void run_group(const product *job, int64_t first, int64_t end, int64_t group, int panels, tile_sums *sums, waiting *late) {
    for (int64_t row = first; row < end;) {
        int lower;
        const int upper = next_rows(row, end, &lower);
        if (panels < GROUP_LEN) {
            one_by_one(job, row, upper, group);
            if (lower) one_by_one(job, row + upper, lower, group);
        } else if (lower) {
            two_by_two(job, row, row == first, upper, lower, group, sums, late);
        } else {
            one_by_two(job, row, upper, group);
        }
        row += upper + lower;
    }
}

/* Rows [first, end), and groups [begin, last), the last of which may be short of a panel. */
static void run_rows(const product *job, int64_t first, int64_t end, int64_t begin, int64_t last) {
    const int64_t num_whole = (job->call->outputs + PANEL - 1) / PANEL / GROUP_LEN, len = DEEP_TILES / ((end - first + FEW_ROWS - 1) / FEW_ROWS);
    const int64_t deep_end = job->is_deep ? min(last, num_whole) : begin;
    for (int64_t group = begin; group < deep_end; group += len) run_block(job, first, end, group, min(group + len, deep_end));
    tile_sums sums[2 * GROUP_LEN] __attribute__((aligned(TILE_BYTES)));
    waiting late = {0};
    for (int64_t group = deep_end > begin ? deep_end : begin; group < last; group++)
        run_group(job, first, end, group, group < num_whole ? GROUP_LEN : 1, sums, &late);
    put_until(job, &late, late.rows);
}

static void run_chunk(const void *argument, int64_t chunk) {
    const product *job = argument;
    const int64_t begin = chunk * job->num_groups / job->num_chunks, last = (chunk + 1) * job->num_groups / job->num_chunks;
    for (int64_t row = 0; row < job->rows; row += job->rows_at_once)
        run_rows(job, row, min(row + job->rows_at_once, job->rows), begin, last);
}

void thin_tiles_rest(void) {
    if (!shape_now.upper) return;
    _tile_release();
    shape_now.upper = shape_now.lower = 0;
}

/* Rows that are rounded already. gate: what their sums are halves of, gates and what those are for, or null. takes_tiles, gives_tiles: rows, or what is
   gated, lie tile by tile, [inputs / IN_TILE][rows][IN_TILE], where writing many rows of many inputs touches few pages. */
static void multiply(team *all, const thin_call *call, const thin_gate_call *gate, int64_t rows, int takes_tiles, int gives_tiles) {
    const int64_t num_panels = (call->outputs + PANEL - 1) / PANEL, num_groups = (num_panels + GROUP_LEN - 1) / GROUP_LEN;
    const int64_t pairs = call->inputs / 2, panel = pairs * PANEL, near_rows = NEAR_PAIRS / pairs / FEW_ROWS * FEW_ROWS;
    const int is_deep = rows > FEW_ROWS && pairs > DEEP_FROM;
    const product job = {
        call, gate, rows, pairs, num_groups, team_chunks(all, num_groups), gate ? panel : GROUP_LEN * panel, gate ? num_groups * panel : panel,
        is_deep ? DEEP_ROWS : near_rows ? near_rows : FEW_ROWS,
        takes_tiles ? TILE_PAIRS : pairs_apart(call->inputs), takes_tiles ? rows * TILE_PAIRS : TILE_PAIRS, is_deep, gives_tiles,
    };
    team_run(all, run_chunk, &job, job.num_chunks);
}

void thin_tiles(team *all, const thin_call *call, int64_t rows) { multiply(all, call, 0, rows, 0, 0); }

int thin_tiles_gate(team *all, const thin_call *call, const thin_gate_call *gate, const thin_call *next, int64_t rows) {
    const int fits = gate->gate_up == call->out && gate->halves && 2 * gate->length == call->outputs && gate->length % PANEL == 0;
    if (!fits || call->bias || call->adds || !thin_tiles_serve(call)) return 0;
    const int is_next = next && !next->x && (const void *)next->rounded == gate->halves && next->inputs == gate->length && thin_tiles_serve(next);
    const int by_tiles = is_next && rows > FEW_ROWS;
    thin_rows(all, call, rows);
    multiply(all, call, gate, rows, 0, by_tiles);
    if (by_tiles) multiply(all, next, 0, rows, 1, 0);
    return by_tiles ? 3 : 2;
}
#else
int thin_multiplies_tiles(void) { return 0; }
int thin_tiles_serve(const thin_call *call) { return (void)call, 0; }
void thin_tiles_rest(void) {}
void thin_tiles(team *all, const thin_call *call, int64_t rows) { (void)all, (void)call, (void)rows; } /* nobody is served by it */
int thin_tiles_gate(team *all, const thin_call *call, const thin_gate_call *gate, const thin_call *next, int64_t rows) {
    return (void)all, (void)call, (void)gate, (void)next, (void)rows, 0;
}
#endif
