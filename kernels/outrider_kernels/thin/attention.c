/* Attention of few rows over a paged cache, from projected heads to what the rows attend to: turn, store, score, weigh, mix.

   A row's bits depend on the row and on the keys and values it sees, in the order of their slots: what it does not see (siblings in a tree,
   what lies before its window) is passed over, and how the sequence lies in the pool decides nothing. thin_attention.py has the same structures. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "thin.h"

#define MAX_QUERIES 4 /* scored side by side: they share the loads of a key */
#define MAX_SETS 8     /* of so many, that go through the keys together, a block at a time: what one set loaded is still near for the next */
#define BLOCK_KEYS 64  /* 16 KB of keys of COMMON_DIM */
#define FEW_KEYS 16    /* fewer would make a slow block of their own: they go with the one before */
#define MAX_DIM 256
#define COMMON_DIM 64    /* of most small models' heads: loops of known length keep the queries in registers */
#define MAX_VECTORS (8 * LANES / WIDTH) /* of a value, mixed at a time */

/* A layer's share of what stays the same from step to step. */
struct thin_layer {
    float *heads;           /* [rows][num_heads + 2 num_kv_heads][dim]: queries, keys, values */
    float *attended;        /* [rows][num_heads][dim] */
    void *pool;             /* [2][num_kv_heads][num_slots][dim]: floats, or the upper halves of floats, rounded (bfloat16) */
    const float *rotations; /* [positions][dim / 2][2]: cosine and sine, for neighbouring pairs */
    const float *qk_scale;  /* [num_heads + num_kv_heads][dim], or null: of the norm of queries and keys */
    int64_t num_heads, num_kv_heads, dim, num_slots, holds_halves;
    float scaling, epsilon; /* of scores; of the norm, times dim */
};

typedef struct {
    const thin_layer *layer;
    const thin_step *step;
    int64_t num_shares; /* of all rows; then, of the readers of one sequence and key-value head */
} job_of_layer;

static void turn(const thin_layer *layer, float *head, const float *rotation, const float *scale) {
    const int64_t dim = layer->dim;
    if (scale) {
        lanes squares = splat(0.0f);
        for (int64_t at = 0; at < dim; at += LANES) squares += *(const lanes *)(head + at) * *(const lanes *)(head + at);
        const float factor = 1.0f / sqrtf(sum_of(squares) + layer->epsilon);
        for (int64_t at = 0; at < dim; at++) head[at] *= factor * scale[at];
    }
    for (int64_t at = 0; at < dim; at += 2) {
        const float left = head[at], right = head[at + 1], cosine = rotation[at], sine = rotation[at + 1];
        head[at] = left * cosine - right * sine;
        head[at + 1] = left * sine + right * cosine;
    }
}

/* The nearest of the floats whose lower half is zero, to even where two are as near; what is no number stays none. */
static void round_to_halves(const float *from, uint16_t *to, int64_t length) {
    for (int64_t at = 0; at < length; at++) {
        uint32_t own;
        memcpy(&own, from + at, sizeof own);
        const uint32_t nearest = (own + 0x7FFFu + (own >> 16 & 1u)) >> 16, none = own >> 16 | 0x40u;
        to[at] = (uint16_t)((own & 0x7FFFFFFFu) > 0x7F800000u ? none : nearest);
    }
}

typedef uint16_t wide_shorts __attribute__((vector_size(2 * WIDTH), aligned(2)));
typedef uint16_t shorts __attribute__((vector_size(2 * LANES), aligned(2)));

/* length: a multiple of LANES */
static void floats_of(const uint16_t *from, float *to, int64_t length) {
    int64_t at = 0;
    for (; at + WIDTH <= length; at += WIDTH) *(wide_bits *)(to + at) = __builtin_convertvector(*(const wide_shorts *)(from + at), wide_bits) << 16;
    if (at < length) *(bits *)(to + at) = __builtin_convertvector(*(const shorts *)(from + at), bits) << 16;
}

static void turn_and_store(const thin_layer *layer, const thin_step *step, int64_t begin, int64_t end) {
    const int64_t dim = layer->dim, num_turned = layer->num_heads + layer->num_kv_heads, num_all = num_turned + layer->num_kv_heads;
    for (int64_t row = begin; row < end; row++) {
        float *heads = layer->heads + row * num_all * dim;
        const float *rotation = layer->rotations + step->positions[row] * dim;
        for (int64_t head = 0; head < num_turned; head++)
            turn(layer, heads + head * dim, rotation, layer->qk_scale ? layer->qk_scale + head * dim : 0);
        for (int64_t at = 0; at < layer->num_heads * dim; at++) heads[at] *= layer->scaling;
        for (int64_t head = 0; head < 2 * layer->num_kv_heads; head++) {
            const float *from = heads + (layer->num_heads + head) * dim;
            const int64_t to = (head * layer->num_slots + step->slots[row]) * dim;
            if (layer->holds_halves) round_to_halves(from, (uint16_t *)layer->pool + to, dim);
            else memcpy((float *)layer->pool + to, from, (size_t)dim * sizeof(float));
        }
    }
}

/* A chunk is a share of the rows. */
static void turn_chunk(const void *argument, int64_t chunk) {
    const job_of_layer *job = argument;
    const int64_t rows = job->step->rows;
    turn_and_store(job->layer, job->step, chunk * rows / job->num_shares, (chunk + 1) * rows / job->num_shares);
}

static void turn_rows(team *all, const thin_layer *layer, const thin_step *step) {
    const int64_t numbers = step->rows * (layer->num_heads + 2 * layer->num_kv_heads) * layer->dim;
    const job_of_layer job = {layer, step, numbers < SHARED_NUMBERS ? 1 : team_chunks(all, step->rows)};
    team_run(all, turn_chunk, &job, job.num_shares);
}

/* Products of 2 * LANES elements, summed to LANES. */
typedef struct {
    wide part[2 * LANES / WIDTH];
} products;

#ifdef __AVX512F__
#include <immintrin.h>
#define KEYS_AT_ONCE 16

/* one * other + sum, rounded once, as `score_keys` has it, whatever a compiler is told to make of vectors. */
INLINE wide fused(wide one, wide other, wide sum) { return (wide)_mm512_fmadd_ps((__m512)one, (__m512)other, (__m512)sum); }

/* The sums of sixteen vectors' lanes, in the order of the vectors: the very additions of `sum_of`, of several vectors at a time. */
INLINE __m512 sums_of(__m512 *of) {
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    for (int n = 0; n < 8; n++) /* eight lanes are left: those of n in the lower half, of n + 8 in the upper */
        of[n] = _mm512_add_ps(_mm512_shuffle_f32x4(of[n], of[n + 8], 0x44), _mm512_shuffle_f32x4(of[n], of[n + 8], 0xEE));
    for (int n = 0; n < 4; n++) /* four: of n, n + 8, n + 4, n + 12 */
        of[n] = _mm512_add_ps(_mm512_shuffle_f32x4(of[n], of[n + 4], 0x88), _mm512_shuffle_f32x4(of[n], of[n + 4], 0xDD));
    for (int n = 0; n < 2; n++) { /* two */
        const __m512d one = _mm512_castps_pd(of[n]), other = _mm512_castps_pd(of[n + 2]);
        of[n] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(one, other)), _mm512_castpd_ps(_mm512_unpackhi_pd(one, other)));
    }
    return _mm512_permutexvar_ps(order, _mm512_add_ps(_mm512_shuffle_ps(of[0], of[1], 0x88), _mm512_shuffle_ps(of[0], of[1], 0xDD)));
}

/* Scores of one query against KEYS_AT_ONCE keys, each the very float that `score_run` finds key by key; dim is a multiple of WIDTH. */
INLINE void score_keys(const float *query, const float *keys, const int64_t dim, float *scores) {
    __m512 sums[KEYS_AT_ONCE];
    for (int key = 0; key < KEYS_AT_ONCE; key++) sums[key] = _mm512_setzero_ps();
    for (int64_t at = 0; at < dim; at += WIDTH) {
        const __m512 elements = _mm512_loadu_ps(query + at);
        for (int key = 0; key < KEYS_AT_ONCE; key++) sums[key] = _mm512_fmadd_ps(_mm512_loadu_ps(keys + key * dim + at), elements, sums[key]);
    }
    _mm512_storeu_ps(scores, sums_of(sums));
}

/* How many of a run's keys are scored that way: all or none. What is left after the last sixteen is found together with its neighbours again. */
INLINE int64_t score_together(const float *const *queries, int count, const float *keys, int64_t num_keys, const int64_t dim, float *const *scores) {
    if (dim % WIDTH || num_keys < KEYS_AT_ONCE) return 0;
    for (int64_t key = 0; key < num_keys; key += KEYS_AT_ONCE) {
        const int64_t first = min(key, num_keys - KEYS_AT_ONCE);
        for (int q = 0; q < count; q++) score_keys(queries[q], keys + first * dim, dim, scores[q] + first);
    }
    return num_keys;
}
#else
INLINE wide fused(wide one, wide other, wide sum) { return sum + one * other; }

INLINE int64_t score_together(const float *const *queries, int count, const float *keys, int64_t num_keys, const int64_t dim, float *const *scores) {
    (void)queries, (void)count, (void)keys, (void)num_keys, (void)dim, (void)scores;
    return 0;
}
#endif

/* scores[q][key] of `count` queries against the keys of a run; count is a constant wherever this is expanded, and dim mostly. */
INLINE void score_run(const float *const *queries, const int count, const float *keys, int64_t num_keys, const int64_t dim, float *const *scores) {
    for (int64_t key = score_together(queries, count, keys, num_keys, dim, scores); key < num_keys; key++) {
        products sums[MAX_QUERIES];
        for (int q = 0; q < count; q++)
            for (int at = 0; at < 2 * LANES / WIDTH; at++) sums[q].part[at] = wide_splat(0.0f);
        const float *k = keys + key * dim;
        int64_t at = 0;
        for (; at + 2 * LANES <= dim; at += 2 * LANES) {
            for (int n = 0; n < 2 * LANES / WIDTH; n++) {
                const wide elements = *(const wide *)(k + at + n * WIDTH);
                for (int q = 0; q < count; q++) sums[q].part[n] = fused(elements, *(const wide *)(queries[q] + at + n * WIDTH), sums[q].part[n]);
            }
        }
        for (int q = 0; q < count; q++) {
            lanes halves[2];
            memcpy(halves, &sums[q], sizeof halves);
            if (at < dim) halves[0] += *(const lanes *)(k + at) * *(const lanes *)(queries[q] + at);
            scores[q][key] = sum_of(halves[0] + halves[1]);
        }
    }
}

INLINE void score_dim(const float *const *queries, int count, const float *keys, int64_t num_keys, const int64_t dim, float *const *scores) {
    switch (count) {
        case 1: score_run(queries, 1, keys, num_keys, dim, scores); return;
        case 2: score_run(queries, 2, keys, num_keys, dim, scores); return;
        case 3: score_run(queries, 3, keys, num_keys, dim, scores); return;
        default: score_run(queries, MAX_QUERIES, keys, num_keys, dim, scores); return;
    }
}

static void score(const float *const *queries, int count, const float *keys, int64_t num_keys, int64_t dim, float *const *scores) {
    if (dim == COMMON_DIM) score_dim(queries, count, keys, num_keys, COMMON_DIM, scores);
    else score_dim(queries, count, keys, num_keys, dim, scores);
}

INLINE lanes greater(lanes one, lanes other) {
    const bits is_one = (bits)(one > other);
    return (lanes)((is_one & (bits)one) | (~is_one & (bits)other));
}

static float greatest(const float *scores, int64_t num_keys) {
    float top = scores[0];
    int64_t key = 0;
    if (num_keys >= LANES) {
        lanes tops = *(const lanes *)scores;
        for (key = LANES; key + LANES <= num_keys; key += LANES) tops = greater(*(const lanes *)(scores + key), tops);
        for (int lane = 0; lane < LANES; lane++) top = tops[lane] > top ? tops[lane] : top;
    }
    for (; key < num_keys; key++) top = scores[key] > top ? scores[key] : top;
    return top;
}

/* Scores become weights, not yet divided by their sum, which is returned. The sum is of LANES sums: a key that is seen goes to the next of
   them, one that is not to none, so that the order depends on what is seen alone. scores hold room for a multiple of WIDTH. */
static float weigh(float *scores, int64_t num_keys, const float *mask, int64_t mask_len) {
    const int64_t num_masked = mask ? mask_len : 0, begin = num_keys - num_masked;
    for (int64_t at = 0; at < num_masked; at++) scores[begin + at] += mask[at];
    const float top = greatest(scores, num_keys);
    for (int64_t key = num_keys; key % WIDTH; key++) scores[key] = 0.0f;
    for (int64_t key = 0; key < num_keys; key += WIDTH) *(wide *)(scores + key) = exp_of_wide(*(const wide *)(scores + key) - wide_splat(top));
    lanes sums = splat(0.0f);
    int64_t key = 0;
    for (; key + LANES <= begin; key += LANES) sums += *(const lanes *)(scores + key);
    float parts[LANES];
    *(lanes *)parts = sums;
    for (int64_t seen = key; key < num_keys; key++) {
        if (key >= begin && mask[key - begin] < 0.0f) continue;
        parts[seen++ % LANES] += scores[key];
    }
    return sum_of(*(const lanes *)parts);
}

/* sums[q] += weights[q] times values, `vectors` vectors of a value from `first` on; count and vectors are constants wherever this is expanded. */
INLINE void mix_part(const float *const *weights, const int count, const float *values, int64_t num_keys, int64_t dim, float *const *sums, const int vectors) {
    wide parts[MAX_QUERIES][MAX_VECTORS];
    for (int q = 0; q < count; q++)
        for (int at = 0; at < vectors; at++) parts[q][at] = *(const wide *)(sums[q] + at * WIDTH);
    for (int64_t key = 0; key < num_keys; key++) {
        const float *value = values + key * dim;
        for (int q = 0; q < count; q++) {
            const wide weight = wide_splat(weights[q][key]);
            for (int at = 0; at < vectors; at++) parts[q][at] += weight * *(const wide *)(value + at * WIDTH);
        }
    }
    for (int q = 0; q < count; q++)
        for (int at = 0; at < vectors; at++) *(wide *)(sums[q] + at * WIDTH) = parts[q][at];
}

INLINE void mix_count(const float *const *weights, const int count, const float *values, int64_t num_keys, int64_t dim, float *const *sums) {
    float *to[MAX_QUERIES];
    int64_t first = 0;
    for (; first + MAX_VECTORS * WIDTH <= dim; first += MAX_VECTORS * WIDTH) {
        for (int q = 0; q < count; q++) to[q] = sums[q] + first;
        mix_part(weights, count, values + first, num_keys, dim, to, MAX_VECTORS);
    }
    for (; first + WIDTH <= dim; first += WIDTH) {
        for (int q = 0; q < count; q++) to[q] = sums[q] + first;
        mix_part(weights, count, values + first, num_keys, dim, to, 1);
    }
    if (first < dim) /* half a vector is left */
        for (int q = 0; q < count; q++) {
            lanes part = *(const lanes *)(sums[q] + first);
            for (int64_t key = 0; key < num_keys; key++) part += splat(weights[q][key]) * *(const lanes *)(values + key * dim + first);
            *(lanes *)(sums[q] + first) = part;
        }
}

/* What a run adds to the sums of `count` queries. */
static void mix(const float *const *weights, int count, const float *values, int64_t num_keys, int64_t dim, float *const *sums) {
#if WIDTH > LANES
    switch (count) {
        case 1: mix_count(weights, 1, values, num_keys, dim, sums); return;
        case 2: mix_count(weights, 2, values, num_keys, dim, sums); return;
        case 3: mix_count(weights, 3, values, num_keys, dim, sums); return;
        default: mix_count(weights, MAX_QUERIES, values, num_keys, dim, sums); return;
    }
#else /* the sums of one query fill the registers */
    for (int q = 0; q < count; q++) mix_count(weights + q, 1, values, num_keys, dim, sums + q);
#endif
}

/* Queries of a sequence's rows that read the same keys: all heads of a key-value head, row by row. */
typedef struct {
    const thin_layer *layer;
    const thin_segment *segment;
    int64_t kv_head, group; /* group: query heads of it */
} readers;

INLINE int64_t row_of(const readers *all, int64_t query) { return all->segment->row_begin + query / all->group; }

INLINE int64_t head_of(const readers *all, int64_t query) { return all->kv_head * all->group + query % all->group; }

/* Floats of a query's scores. */
INLINE int64_t room_of(const thin_segment *segment) { return (segment->num_keys + WIDTH - 1) / WIDTH * WIDTH; }

/* Hidden keys behind the last one that any of the rows [first, end) of a segment sees: of a prompt's rows half of all. */
static int64_t num_behind(const thin_segment *segment, int64_t first, int64_t end) {
    int64_t behind = segment->mask ? segment->mask_len : 0;
    for (int64_t row = first; row < end && behind; row++) {
        const float *mask = segment->mask + (row - segment->row_begin) * segment->mask_len + segment->mask_len;
        int64_t hidden = 0;
        while (hidden < behind && mask[-1 - hidden] < 0.0f) hidden++;
        behind = hidden;
    }
    return behind;
}

/* Some of them, at most MAX_SETS * MAX_QUERIES, and where they are. num_keys: those that any of them sees, and what lies before. */
typedef struct {
    int num_queries;
    int64_t num_keys;
    const float *queries[MAX_SETS * MAX_QUERIES];
    float *scores[MAX_SETS * MAX_QUERIES]; /* then weights */
    float *block; /* room for a block's keys as floats, where the pool holds halves */
    float sums[MAX_SETS * MAX_QUERIES][MAX_DIM];
} part_of_readers;

enum { SCORING, MIXING };

/* Every key (or value) of the sequence up to the part's last, block by block, for every set of the part. */
INLINE void go_through(const readers *all, part_of_readers *part, const int what) {
    const thin_layer *layer = all->layer;
    const int64_t dim = layer->dim, head = what == SCORING ? all->kv_head : layer->num_kv_heads + all->kv_head;
    const int64_t first_of_head = head * layer->num_slots * dim;
    int64_t before = 0; /* keys of the blocks before */
    for (int64_t run = 0; run < all->segment->num_runs && before < part->num_keys; run++) {
        const int64_t run_begin = all->segment->runs[2 * run], end = min(all->segment->runs[2 * run + 1], run_begin + part->num_keys - before);
        for (int64_t begin = run_begin, length; begin < end; begin += length) {
            length = end - begin < BLOCK_KEYS + FEW_KEYS ? end - begin : BLOCK_KEYS;
            const int64_t at = first_of_head + begin * dim;
            if (layer->holds_halves) floats_of((const uint16_t *)layer->pool + at, part->block, length * dim);
            const float *keys = layer->holds_halves ? part->block : (const float *)layer->pool + at;
            for (int first = 0; first < part->num_queries; first += MAX_QUERIES) {
                const int count = (int)min(MAX_QUERIES, part->num_queries - first);
                float *scores[MAX_QUERIES], *sums[MAX_QUERIES];
                for (int q = 0; q < count; q++) scores[q] = part->scores[first + q] + before, sums[q] = part->sums[first + q];
                if (what == SCORING) score(part->queries + first, count, keys, length, dim, scores);
                else mix((const float *const *)scores, count, keys, length, dim, sums);
            }
            before += length;
        }
    }
}

static void attend_part(const readers *all, int64_t first, int num_queries, float *scratch) {
    const thin_layer *layer = all->layer;
    const thin_segment *segment = all->segment;
    const int64_t dim = layer->dim, row_len = (layer->num_heads + 2 * layer->num_kv_heads) * dim;
    part_of_readers part;
    part.num_queries = num_queries;
    const int64_t behind = num_behind(segment, row_of(all, first), row_of(all, first + num_queries - 1) + 1);
    part.num_keys = segment->num_keys - behind;
    part.block = scratch;
    if (layer->holds_halves) scratch += (BLOCK_KEYS + FEW_KEYS) * dim;
    for (int q = 0; q < num_queries; q++) {
        part.queries[q] = layer->heads + row_of(all, first + q) * row_len + head_of(all, first + q) * dim;
        part.scores[q] = scratch + q * room_of(segment);
        memset(part.sums[q], 0, (size_t)dim * sizeof(float));
    }
    float totals[MAX_SETS * MAX_QUERIES];
    go_through(all, &part, SCORING);
    for (int q = 0; q < num_queries; q++) {
        const float *mask = segment->mask ? segment->mask + (row_of(all, first + q) - segment->row_begin) * segment->mask_len : 0;
        totals[q] = weigh(part.scores[q], part.num_keys, mask, segment->mask_len - behind);
    }
    go_through(all, &part, MIXING);
    for (int q = 0; q < num_queries; q++) {
        float *out = layer->attended + (row_of(all, first + q) * layer->num_heads + head_of(all, first + q)) * dim;
        for (int64_t at = 0; at < dim; at++) out[at] = part.sums[q][at] / totals[q];
    }
}

/* A chunk is a share of the readers of one sequence and key-value head. */
static void attend_chunk(const void *argument, int64_t chunk) {
    const job_of_layer *job = argument;
    const thin_layer *layer = job->layer;
    const int64_t place = chunk / job->num_shares, share = job->num_shares - 1 - chunk % job->num_shares; /* those who see most first */
    const thin_segment *segment = job->step->segments + place / layer->num_kv_heads;
    const readers all = {layer, segment, place % layer->num_kv_heads, layer->num_heads / layer->num_kv_heads};
    const int64_t num_queries = (segment->row_end - segment->row_begin) * all.group, num_sets = (num_queries + MAX_QUERIES - 1) / MAX_QUERIES;
    const int64_t begin = share * num_sets / job->num_shares * MAX_QUERIES, end = min(num_queries, (share + 1) * num_sets / job->num_shares * MAX_QUERIES);
    if (begin >= end) return;
    const int64_t most = min(end - begin, MAX_SETS * MAX_QUERIES);
    const int64_t block = layer->holds_halves ? (BLOCK_KEYS + FEW_KEYS) * layer->dim : 0;
    /* on lines, for a block that is not takes a tenth longer to attend to than floats in the pool */
    float *scratch = aligned_alloc(64, ((size_t)(most * room_of(segment) + block) * sizeof(float) + 63) / 64 * 64);
    if (!scratch) abort(); /* a few kilobytes: the process is lost anyway */
    for (int64_t first = begin; first < end; first += most) attend_part(&all, first, (int)min(most, end - first), scratch);
    free(scratch);
}

void thin_attention(team *all, const thin_layer *layer, const thin_step *step) {
    turn_rows(all, layer, step);
    if (!step->num_segments) return;
    const int64_t num_places = step->num_segments * layer->num_kv_heads;
    /* Half as many chunks as of work that is all alike, for each goes through all of its keys; of many rows, who do not see the same, a part each. */
    const int64_t queries = step->rows * layer->num_heads, wanted = team_chunks(all, queries) / 2;
    const int64_t parts = wanted ? queries / (MAX_SETS * MAX_QUERIES) : 0, num_chunks = parts > wanted ? parts : wanted;
    const job_of_layer job = {layer, step, num_chunks > num_places ? (num_chunks + num_places - 1) / num_places : 1};
    team_run(all, attend_chunk, &job, num_places * job.num_shares);
}
