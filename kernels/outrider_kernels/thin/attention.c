/* Attention of few rows over a paged cache, from projected heads to what the rows attend to: turn, store, score, weigh, mix.

   A row's bits depend on the row and on the keys and values it sees, in the order of their slots: what it does not see (siblings in a tree,
   what lies before its window) is passed over, and how the sequence lies in the pool decides nothing. thin_attention.py has the same structures. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "thin.h"

#define MAX_QUERIES 4 /* scored side by side: they share the loads of a key */
#define MAX_DIM 256
#define COMMON_DIM 64    /* of most small models' heads: loops of known length keep the queries in registers */
#define MAX_VECTORS (8 * LANES / WIDTH) /* of a value, mixed at a time */

/* A layer's share of what stays the same from step to step. */
struct thin_layer {
    float *heads;           /* [rows][num_heads + 2 num_kv_heads][dim]: queries, keys, values */
    float *attended;        /* [rows][num_heads][dim] */
    float *pool;            /* [2][num_kv_heads][num_slots][dim] */
    const float *rotations; /* [positions][dim / 2][2]: cosine and sine, for neighbouring pairs */
    const float *qk_scale;  /* [num_heads + num_kv_heads][dim], or null: of the norm of queries and keys */
    int64_t num_heads, num_kv_heads, dim, num_slots;
    float scaling, epsilon; /* of scores; of the norm, times dim */
};

typedef struct {
    const thin_layer *layer;
    const thin_step *step;
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

static void turn_and_store(const thin_layer *layer, const thin_step *step) {
    const int64_t dim = layer->dim, num_turned = layer->num_heads + layer->num_kv_heads, num_all = num_turned + layer->num_kv_heads;
    for (int64_t row = 0; row < step->rows; row++) {
        float *heads = layer->heads + row * num_all * dim;
        const float *rotation = layer->rotations + step->positions[row] * dim;
        for (int64_t head = 0; head < num_turned; head++)
            turn(layer, heads + head * dim, rotation, layer->qk_scale ? layer->qk_scale + head * dim : 0);
        for (int64_t at = 0; at < layer->num_heads * dim; at++) heads[at] *= layer->scaling;
        for (int64_t head = 0; head < 2 * layer->num_kv_heads; head++)
            memcpy(layer->pool + (head * layer->num_slots + step->slots[row]) * dim, heads + (layer->num_heads + head) * dim, (size_t)dim * sizeof(float));
    }
}

/* Products of 2 * LANES elements, summed to LANES. */
typedef struct {
    wide part[2 * LANES / WIDTH];
} products;

/* scores[q][key] of `count` queries against the keys of a run; count is a constant wherever this is expanded, and dim mostly. */
INLINE void score_run(const float *const *queries, const int count, const float *keys, int64_t num_keys, const int64_t dim, float *const *scores) {
    for (int64_t key = 0; key < num_keys; key++) {
        products sums[MAX_QUERIES];
        for (int q = 0; q < count; q++)
            for (int at = 0; at < 2 * LANES / WIDTH; at++) sums[q].part[at] = wide_splat(0.0f);
        const float *k = keys + key * dim;
        int64_t at = 0;
        for (; at + 2 * LANES <= dim; at += 2 * LANES) {
            for (int n = 0; n < 2 * LANES / WIDTH; n++) {
                const wide elements = *(const wide *)(k + at + n * WIDTH);
                for (int q = 0; q < count; q++) sums[q].part[n] += elements * *(const wide *)(queries[q] + at + n * WIDTH);
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
   them, one that is not to none, so that the order depends on what is seen alone. scores hold room for a multiple of LANES. */
static float weigh(float *scores, int64_t num_keys, const float *mask, int64_t mask_len) {
    const int64_t num_masked = mask ? mask_len : 0, begin = num_keys - num_masked;
    for (int64_t at = 0; at < num_masked; at++) scores[begin + at] += mask[at];
    const lanes top = splat(greatest(scores, num_keys));
    for (int64_t key = num_keys; key % LANES; key++) scores[key] = 0.0f;
    for (int64_t key = 0; key < num_keys; key += LANES) *(lanes *)(scores + key) = exp_of(*(const lanes *)(scores + key) - top);
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

static void attend_rows(const thin_layer *layer, const thin_segment *segment, int64_t head, int64_t row, int count, float *scratch) {
    const int64_t dim = layer->dim, row_len = (layer->num_heads + 2 * layer->num_kv_heads) * dim;
    const int64_t kv_head = head / (layer->num_heads / layer->num_kv_heads), room = (segment->num_keys + LANES - 1) / LANES * LANES;
    const float *keys = layer->pool + kv_head * layer->num_slots * dim, *values = keys + layer->num_kv_heads * layer->num_slots * dim;
    const float *queries[MAX_QUERIES];
    float *scores[MAX_QUERIES];
    for (int q = 0; q < count; q++) {
        queries[q] = layer->heads + (row + q) * row_len + head * dim;
        scores[q] = scratch + q * room;
    }
    for (int64_t run = 0; run < segment->num_runs; run++) {
        const int64_t begin = segment->runs[2 * run], length = segment->runs[2 * run + 1] - begin;
        score(queries, count, keys + begin * dim, length, dim, scores);
        for (int q = 0; q < count; q++) scores[q] += length;
    }
    float sums[MAX_QUERIES][MAX_DIM], totals[MAX_QUERIES], *to[MAX_QUERIES];
    const float *weights[MAX_QUERIES];
    for (int q = 0; q < count; q++) {
        const float *mask = segment->mask ? segment->mask + (row + q - segment->row_begin) * segment->mask_len : 0;
        totals[q] = weigh(scratch + q * room, segment->num_keys, mask, segment->mask_len);
        memset(sums[q], 0, (size_t)dim * sizeof(float));
        weights[q] = scratch + q * room;
        to[q] = sums[q];
    }
    for (int64_t run = 0; run < segment->num_runs; run++) {
        const int64_t begin = segment->runs[2 * run], length = segment->runs[2 * run + 1] - begin;
        mix(weights, count, values + begin * dim, length, dim, to);
        for (int q = 0; q < count; q++) weights[q] += length;
    }
    for (int q = 0; q < count; q++) {
        float *out = layer->attended + ((row + q) * layer->num_heads + head) * dim;
        for (int64_t at = 0; at < dim; at++) out[at] = sums[q][at] / totals[q];
    }
}

/* A chunk is one query head of one sequence. */
static void attend_chunk(const void *argument, int64_t chunk) {
    const job_of_layer *job = argument;
    const thin_layer *layer = job->layer;
    const thin_segment *segment = job->step->segments + chunk / layer->num_heads;
    const int64_t head = chunk % layer->num_heads, room = (segment->num_keys + LANES - 1) / LANES * LANES;
    float *scratch = malloc((size_t)(MAX_QUERIES * room) * sizeof(float));
    if (!scratch) abort(); /* a few kilobytes: the process is lost anyway */
    for (int64_t row = segment->row_begin; row < segment->row_end; row += MAX_QUERIES) {
        const int64_t left = segment->row_end - row;
        attend_rows(layer, segment, head, row, left < MAX_QUERIES ? (int)left : MAX_QUERIES, scratch);
    }
    free(scratch);
}

void thin_attention(team *all, const thin_layer *layer, const thin_step *step) {
    turn_and_store(layer, step);
    const job_of_layer job = {layer, step};
    team_run(all, attend_chunk, &job, step->num_segments * layer->num_heads);
}
