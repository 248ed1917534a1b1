/* What the thin operations share: vectors of floats, and a team of threads that works through the chunks of one operation at a time. Only GNU
   C's vectors are used, so any processor's will do. */

#ifndef THIN_H
#define THIN_H

#include <stdint.h>
#include <time.h>

#define LANES 8

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES), aligned(4)));

#define INLINE static inline __attribute__((always_inline))

/* As long as the processor's registers, where nothing but speed depends on it. */
#ifdef __AVX512F__
#define WIDTH 16
#else
#define WIDTH LANES
#endif

typedef float wide __attribute__((vector_size(4 * WIDTH), aligned(4)));
typedef uint32_t wide_bits __attribute__((vector_size(4 * WIDTH), aligned(4)));

/* (x - x: the compiler makes one broadcast of it, for either length) */
INLINE wide wide_splat(float value) { return value - (wide){0.0f}; }

INLINE int64_t min(int64_t one, int64_t other) { return one < other ? one : other; }

INLINE int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

INLINE lanes splat(float value) { return (lanes){value, value, value, value, value, value, value, value}; }

/* The lanes' sum, always in the same order. */
INLINE float sum_of(lanes values) {
    const lanes fours = values + __builtin_shuffle(values, (bits){4, 5, 6, 7, 0, 1, 2, 3});
    const lanes pairs = fours + __builtin_shuffle(fours, (bits){2, 3, 0, 1, 6, 7, 4, 5});
    return pairs[0] + pairs[1];
}

/* e^x to about 1e-7 of itself; 0 far below, the largest finite power far above. Each lane by itself: its place decides nothing.
   Source: Cody & Waite's reduction, and the Taylor polynomial of degree 7 over |r| <= ln(2) / 2 (error below 1e-8). */
#define EXP_OF(NAME, FLOATS, BITS, SPLAT)                                                                   \
INLINE FLOATS NAME(FLOATS x) {                                                                              \
    const FLOATS low = SPLAT(-87.0f), high = SPLAT(88.0f);                                                  \
    const BITS too_low = (BITS)(x < low);                                                                   \
    x = (FLOATS)((too_low & (BITS)low) | (~too_low & (BITS)x));                                             \
    x = (FLOATS)(((BITS)(x > high) & (BITS)high) | (~(BITS)(x > high) & (BITS)x));                          \
    const FLOATS shift = SPLAT(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */               \
    const FLOATS shifted = x * SPLAT(1.44269504f) + shift;                                                  \
    const FLOATS n = shifted - shift;                                                                       \
    FLOATS r = x - n * SPLAT(0.693359375f);                                                                 \
    r = r - n * SPLAT(-2.12194440e-4f);                                                                     \
    FLOATS sum = SPLAT(1.0f / 5040.0f);                                                                     \
    sum = sum * r + SPLAT(1.0f / 720.0f);                                                                   \
    sum = sum * r + SPLAT(1.0f / 120.0f);                                                                   \
    sum = sum * r + SPLAT(1.0f / 24.0f);                                                                    \
    sum = sum * r + SPLAT(1.0f / 6.0f);                                                                     \
    sum = sum * r + SPLAT(0.5f);                                                                            \
    sum = sum * r + SPLAT(1.0f);                                                                            \
    sum = sum * r + SPLAT(1.0f);                                                                            \
    const BITS power = ((BITS)shifted << 23) + (127u << 23); /* the shift's own bits fall out at the top */ \
    return (FLOATS)((BITS)(sum * (FLOATS)power) & ~too_low);                                                \
}

EXP_OF(exp_of, lanes, bits, splat)
EXP_OF(exp_of_wide, wide, wide_bits, wide_splat)

typedef struct team team;
typedef void (*chunk_work)(const void *job, int64_t chunk);

/* From now on, until told otherwise, this many threads take part, the caller's among them: at least one, at most those the team was made of. The
   others sleep and are not woken. Between two operations, by their caller. */
void team_hold(team *all, int num_threads);

/* How many chunks to make of so many indivisible parts: enough that a late thread's share can be taken over. */
int64_t team_chunks(const team *all, int64_t num_parts);

/* Work through chunks 0 .. num_chunks - 1, in any order and place; returns when all are done. One caller at a time. */
void team_run(team *all, chunk_work work, const void *job, int64_t num_chunks);

/* Work that a helper does as a whole while the caller does something else (ahead.c); operations in it are shared with whoever has nothing else to
   do. False where there is no helper to do it. One errand at a time, and no other operation of the team meanwhile. */
typedef void (*errand_work)(void *of);
int team_send(team *all, errand_work work, void *of);

/* Take the errand back that no helper has begun; false where one has. */
int team_recall(team *all);

/* Take part in the errand's operations until *stage is at least `wanted`. */
void team_join(team *all, const _Atomic int *stage, int wanted);

/* In an errand: whether nobody wants its results any more. What is being computed may be left half done then. */
int errand_is_dropped(void);
void errand_watches(const _Atomic int *dropped); /* its thread's; null: it is over */

/* The operations; their structures are where they are defined, but for those that others fill in too. */
typedef struct thin_call thin_call;
typedef struct thin_layer thin_layer;
typedef struct thin_gate_call thin_gate_call;
typedef struct thin_chain thin_chain;
typedef struct thin_chain_call thin_chain_call;
typedef struct thin_ahead thin_ahead;

/* Numbers from which rows are shared out whose numbers are an instruction or two each: for fewer, a thread that comes for its share costs what it
   saves. Measured, two threads on Zen 4, us one -> two: norm and rounding of 16 rows of 384 0.77 -> 0.70, of 24 rows 1.15 -> 0.88. */
#define SHARED_NUMBERS 8192

INLINE int64_t pairs_of(int64_t inputs) { return (inputs + 1) / 2; }

/* From a row of PAIRS to the next. Rows a multiple of a kilobyte apart would all meet in a few places of a cache. As in thin_matrix.py. */
INLINE int64_t pairs_apart(int64_t inputs) {
    const int64_t pairs = pairs_of(inputs);
    return pairs % 256 ? pairs : pairs + 16;
}

#define PANEL 16 /* columns of a packed matrix that lie side by side */
#define MAX_ROWS 512 /* that go through the operations of a chain at once; thin_chain.py checks it too */

enum { FLOATS = 0, HALVES = 1, BYTES = 2, PAIRS = 3, QUADS = 4, FLOAT16 = 5, FIXED16 = 6, FIXED8 = 7 }; /* as in thin_product.py */

/* What stays the same from product to product; thin_product.py has the same fields in the same order. */
struct thin_call {
    const float *x;            /* [rows][inputs]; null: they are in `rounded` already */
    const void *panels;        /* [panels][inputs][PANEL], of PAIRS, QUADS, FLOAT16, FIXED16 and FIXED8 fewer inputs of several each */
    const float *column_scale; /* [outputs], of BYTES, QUADS, FLOAT16, FIXED16 and FIXED8; else null */
    const float *bias;         /* [outputs] or null */
    const float *scale;        /* [inputs] or null: of RMSNorm */
    float *normed;             /* [rows][inputs]: where RMSNorm puts its result, unless that is rounded to PAIRS; null without a scale */
    uint32_t *rounded;         /* where rows are kept that are rounded; null: none is. Of PAIRS [rows][pairs_apart], zeros behind the last pair; else see quads.c, float16.c and fixed16.c */
    float *out;                /* [rows][outputs] */
    const int32_t *listed;     /* [num_listed] ascending panels: nothing is computed of the others, whose results stay as they are; null: all are */
    int64_t inputs, outputs, num_listed;
    float epsilon;
    int32_t format, adds, is_streamed; /* is_streamed: the matrix is taken to come from memory, not from a cache */
};

/* A panel that comes from memory is taken slice by slice, each by all tiles of rows before the next: with what is fetched meanwhile it stays in the second
   cache, however many inputs there are. SLICE: steps of a line each, an input or a pair of them. */
#define SLICE 1024

/* What one tile takes: the steps [begin, end), what those before came to, and which part of the slice that comes next, or of the next panel's first, it
   fetches meanwhile. */
typedef struct {
    int64_t begin, end;
    float *kept; /* [rows of the tile][PANEL] */
    const char *fetch;
    int64_t fetch_step; /* bytes a step */
} thin_slice;

/* panel: its first line. */
INLINE thin_slice slice_of(const char *panel, int64_t line, int64_t begin, int64_t steps, int64_t tile, int64_t num_tiles, float *kept) {
    const int64_t end = min(begin + SLICE, steps);
    return (thin_slice){begin, end, kept, panel + end * line + tile * (end - begin) * line / num_tiles, line / num_tiles};
}

/* Panels that a product computes, by their places in a row. */
INLINE int64_t panels_of(const thin_call *call) { return call->listed ? call->num_listed : (call->outputs + PANEL - 1) / PANEL; }

INLINE int64_t panel_at(const thin_call *call, int64_t place) { return call->listed ? call->listed[place] : place; }

/* How many panels of the places [place, end) lie side by side from the first on, at most `most`. */
INLINE int64_t side_by_side(const thin_call *call, int64_t place, int64_t end, int64_t most) {
    int64_t found = min(most, end - place);
    while (call->listed && call->listed[place + found - 1] != call->listed[place] + found - 1) found--;
    return found;
}

/* thin_gate.py has the same fields in the same order. */
struct thin_gate_call {
    const float *gate_up; /* [rows][2][length] */
    float *out;           /* [rows][length] */
    uint16_t *halves;     /* [rows][pairs_apart(length)][2]: bfloat16, in place of `out`; or null */
    int64_t length;
};

/* One sequence of a step: its rows, the runs of pool slots that hold its keys in order, and a mask over the last of them. */
typedef struct {
    int64_t row_begin, row_end;
    const int64_t *runs; /* [num_runs][2], half-open */
    int64_t num_runs, num_keys;
    const float *mask; /* [rows][mask_len], 0 visible, less hidden; null: all visible */
    int64_t mask_len;
} thin_segment;

typedef struct {
    const int64_t *positions, *slots; /* [rows] */
    const thin_segment *segments;
    int64_t rows, num_segments;
} thin_step;

/* thin_program.py has the same fields in the same order. */
typedef struct {
    const void *operand; /* a thin_call, thin_layer or thin_gate_call */
    int32_t kind;
    int32_t step; /* of an attention: which of the steps it takes */
} thin_operation;

/* What biases and penalties bear on in a sequence; thin_touched.py has the same fields in the same order. */
typedef struct {
    const int32_t *ids;    /* [length], distinct */
    const int32_t *counts; /* [length], in the output; negative: seen nowhere, but biased */
    const double *biases;  /* [length] */
    int64_t length;
    double repetition, frequency, presence;
    const void *origin; /* its own address, which stays in copies */
} thin_touched;

/* thin_pick.py has the same fields in the same order. */
typedef struct {
    float *logits; /* [num_ids]; with `touched` changed for as long as it takes */
    uint64_t key;
    int64_t position;   /* of the token to be picked */
    double temperature; /* NaN: leave the row */
    double top_p, min_p_gap;
    int64_t top_k; /* 0: all; at most MAX_TOP_K */
    const thin_touched *touched; /* null: nothing is changed before the pick */
    int32_t *path;               /* [path_len] output that `touched` does not count; not looked at without */
    int64_t path_len;
    int32_t with_prob, with_second;
    int32_t token;  /* from here on what was found; LEFT: this does not decide it */
    float prob;     /* NaN: not asked for, or left */
    int32_t second; /* the next best; LEFT: not asked for, left, there is none, or it is none that matters */
    float behind;   /* how far its score lies behind the token's; NaN where it is LEFT */
} thin_pick_row;

/* A row's `touched` and path that last while those that they were copied from go on. */
typedef struct {
    thin_touched touched;
    void *memory;
    size_t room; /* bytes */
} kept_touched;

#define LEFT (-1)
#define MAX_TOP_K 256 /* as in thin_pick.py, which leaves rows of more */

/* Where a token stands among others: by logit, then by id. */
typedef struct {
    float value;
    int64_t token;
} place;

/* The first few of a row, in order. */
typedef struct {
    int64_t len;
    place at[MAX_TOP_K];
} head;

/* Those above -inf, at most `most`, which is at most MAX_TOP_K. */
void thin_find_head(const float *logits, int64_t num_ids, int64_t most, head *found);

/* The last few logits, and -inf behind them. */
lanes last_logits(const float *logits, int64_t num_left);

/* The logits from `at` on; those behind the last are -inf. */
INLINE lanes logits_at(const float *logits, int64_t at, int64_t num_ids) {
    return at + LANES <= num_ids ? *(const lanes *)(logits + at) : last_logits(logits + at, num_ids - at);
}

#define PART 1024 /* terms of a sum over logits in floats, before it goes into a double */

/* A token whose log-probability is wanted, and of how many best ones; thin_logprobs.py has the same fields in the same order. */
typedef struct {
    const float *logits; /* [num_ids] */
    int64_t token, num_top;
    float *logprob;
    int32_t *num_found; /* of the best, above -inf */
    int32_t *top_ids; /* [num_top] */
    float *top_logprobs; /* [num_top] */
} thin_scored_row;

#define MAX_WINDOWS 8 /* of a chain; thin_chain.py checks it */

/* What stays the same from chain to chain. */
struct thin_chain {
    const thin_operation *operations;
    const thin_call *head;  /* from `last` to `logits` */
    const float *embedding; /* [>= num_ids][hidden_len] */
    float *states, *last;   /* [most_rows][hidden_len]: where the operations begin and end; what the head reads */
    float *attended;        /* [most_rows][attended_len]: what the last attention leaves to the operations behind it */
    float *logits;          /* [most_rows][logits_len] */
    const int64_t *windows; /* [num_windows], by the steps' places; 0: all that went before */
    const int64_t *missing, *ends; /* ids that stand for nothing; ids that end a text */
    int64_t num_operations, last_attention; /* its place among them */
    int64_t hidden_len, attended_len, logits_len, most_rows, num_ids, num_windows, num_missing, num_ends;
};

/* One chain. It begins with rows that are fed for certain. */
struct thin_chain_call {
    const int64_t *slots; /* pool slot of each position */
    const int64_t *edges; /* [num_runs + 1], ascending: positions from one edge to the next lie side by side in the pool */
    int64_t num_runs;
    const int32_t *tokens; /* [num_tokens], at least one */
    int64_t num_tokens, position, most; /* position: of the first of them; most: picks */
    int64_t num_wanted; /* of the tokens, the last ones, how many are picked after: several only where nothing follows, `most` as many, and num_tokens
                           go through at once; those that are left are LEFT among the picks then */
    double stop_below;
    int64_t keeps_logits; /* whether somebody reads them behind the call, so that nothing may be computed ahead */
    thin_pick_row rule; /* its path, with `touched`: up to the last of the tokens, with room for the picks behind them */
    int32_t *picks; /* [most] */
    float *probs;   /* [most] */
    int32_t *seconds; /* [most], and how far they lie behind; written where the rule asks for them. LEFT: none */
    float *behinds;   /* [most] */
    int64_t num_found, is_left;   /* picks; whether what is behind the newest row, whose logits are there, is left */
    int64_t forward_ns, first_ns, spent_ns; /* from the beginning to the first rows' logits, to the pick after them, and to the end */
    int64_t hidden_ns; /* of spent_ns, what was spent before anybody asked (ahead.c) */
};

/* Rows as a product multiplies them, normed and rounded as the call wants it; returns where they are as floats. */
const float *thin_rows(team *all, const thin_call *call, int64_t rows);
void thin_quads_round(const thin_call *call, const float *x, int64_t row);
void thin_product(team *all, const thin_call *call, int64_t rows);
void thin_quads(team *all, const thin_call *call, int64_t rows);
void thin_float16_round(const thin_call *call, const float *x, int64_t row);
void thin_float16(team *all, const thin_call *call, int64_t rows);
void thin_fixed16_round(const thin_call *call, const float *x, int64_t row);
void thin_fixed16(team *all, const thin_call *call, int64_t rows);

/* Whether this processor multiplies tiles and this process may have it do so, which is asked for once, before the first product; whether products
   of a call go that way, of any number of rows. */
int thin_multiplies_tiles(void);
int thin_tiles_serve(const thin_call *call);
void thin_tiles(team *all, const thin_call *call, int64_t rows);

/* The product and the gate behind it in one, where they can be, and what takes the gated rows (`next`, or null) right behind them: how many of the three
   were done, 0, 2 or 3. `out` of the product is not written then, and with all three nobody else finds rows in `halves`. */
int thin_tiles_gate(team *all, const thin_call *call, const thin_gate_call *gate, const thin_call *next, int64_t rows);

/* This thread has no more of them for now: whoever gets its core need not carry its tiles along. */
void thin_tiles_rest(void);
void thin_attention(team *all, const thin_layer *layer, const thin_step *step);
void thin_gate(team *all, const thin_gate_call *call, int64_t rows);

/* PANEL columns of `rows` rows; gate, up: [rows][PANEL]. to: as bfloat16, `apart` of them from a row to the next. */
void thin_gate_tile(const float *gate, const float *up, int rows, uint16_t *to, int64_t apart);
void thin_program(team *all, const thin_operation *operations, int64_t num_operations, int64_t rows, const thin_step *const *steps);

/* Change the logits of a row as biases and penalties do; what stood there, for thin_untouch, which puts it back. */
float *thin_touch(const thin_pick_row *row);
void thin_untouch(const thin_pick_row *row, float *raw);

/* Let the row have copies, with room for so many more tokens on the path. What `kept` held before is gone. */
void thin_keep_touched(kept_touched *kept, thin_pick_row *row, int64_t num_more);
void thin_pick_one(thin_pick_row *row, int64_t num_ids);
void thin_logprobs(team *all, const thin_scored_row *rows, int64_t num_rows, int64_t num_ids);
void thin_pick(team *all, thin_pick_row *rows, int64_t num_rows, int64_t num_ids);
void thin_chain_follow(team *all, const thin_chain *chain, thin_chain_call *call);
void thin_ahead_follow(thin_ahead *ahead, int64_t part, thin_chain_call *call);

#endif
