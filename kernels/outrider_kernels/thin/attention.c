/* Attention of few rows over a paged cache, from projected heads to what the rows attend to: turn, store, score, weigh, mix.

   A row's bits depend on the row and on the keys and values it sees, in the order of their slots: what it does not see (siblings in a tree,
   what lies before its window) is passed over, and how the sequence lies in the pool decides nothing. thin_attention.py has the same structures. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "thin.h"

#define MAX_QUERIES 4 /* scored side by side: they share the loads of a key */
#define MAX_DIM 256

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

/* scores[q][key] of `count` queries against the keys of a run; count is a constant wherever this is expanded. */
INLINE void score_run(const float *const *queries, const int count, const float *keys, int64_t num_keys, int64_t dim, float *const *scores) {
    for (int64_t key = 0; key < num_keys; key++) {
        lanes sums[MAX_QUERIES][2];
        for (int q = 0; q < count; q++) sums[q][0] = sums[q][1] = splat(0.0f);
        const float *k = keys + key * dim;
        int64_t at = 0;
        for (; at + 2 * LANES <= dim; at += 2 * LANES) {
            const lanes left = *(const lanes *)(k + at), right = *(const lanes *)(k + at + LANES);
            for (int q = 0; q < count; q++) {
                sums[q][0] += left * *(const lanes *)(queries[q] + at);
                sums[q][1] += right * *(const lanes *)(queries[q] + at + LANES);
            }
        }
        if (at < dim)
            for (int q = 0; q < count; q++) sums[q][0] += *(const lanes *)(k + at) * *(const lanes *)(queries[q] + at);
        for (int q = 0; q < count; q++) scores[q][key] = sum_of(sums[q][0] + sums[q][1]);
    }
}

static void score(const float *const *queries, int count, const float *keys, int64_t num_keys, int64_t dim, float *const *scores) {
    switch (count) {
        case 1: score_run(queries, 1, keys, num_keys, dim, scores); return;
        case 2: score_run(queries, 2, keys, num_keys, dim, scores); return;
        case 3: score_run(queries, 3, keys, num_keys, dim, scores); return;
        default: score_run(queries, MAX_QUERIES, keys, num_keys, dim, scores); return;
    }
}

/* Scores become weights (not yet divided by their sum); scores hold room for a multiple of LANES. */
static void weigh(float *scores, int64_t num_keys, const float *mask, int64_t mask_len) {
    if (mask)
        for (int64_t at = 0; at < mask_len; at++) scores[num_keys - mask_len + at] += mask[at];
    float top = scores[0];
    for (int64_t key = 1; key < num_keys; key++) top = scores[key] > top ? scores[key] : top;
    for (int64_t key = 0; key < num_keys; key += LANES) *(lanes *)(scores + key) = exp_of(*(const lanes *)(scores + key) - splat(top));
}

/* sums += weights times values, 8 vectors of a value at a time; returns the weights' sum. */
static float mix_run(const float *weights, const float *values, int64_t num_keys, int64_t dim, float *sums, float total) {
    for (int64_t first = 0; first < dim; first += 8 * LANES) {
        const int num_vectors = dim - first >= 8 * LANES ? 8 : (int)((dim - first) / LANES);
        lanes parts[8];
        for (int at = 0; at < num_vectors; at++) parts[at] = *(const lanes *)(sums + first + at * LANES);
        if (num_vectors == 8) {
            for (int64_t key = 0; key < num_keys; key++) {
                const lanes weight = splat(weights[key]);
                const float *value = values + key * dim + first;
                for (int at = 0; at < 8; at++) parts[at] += weight * *(const lanes *)(value + at * LANES);
            }
        } else {
            for (int64_t key = 0; key < num_keys; key++) {
                const lanes weight = splat(weights[key]);
                const float *value = values + key * dim + first;
                for (int at = 0; at < num_vectors; at++) parts[at] += weight * *(const lanes *)(value + at * LANES);
            }
        }
        for (int at = 0; at < num_vectors; at++) *(lanes *)(sums + first + at * LANES) = parts[at];
    }
    for (int64_t key = 0; key < num_keys; key++) total += weights[key];
    return total;
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
    for (int q = 0; q < count; q++) {
        float *weights = scratch + q * room, *out = layer->attended + ((row + q) * layer->num_heads + head) * dim;
        const float *mask = segment->mask ? segment->mask + (row + q - segment->row_begin) * segment->mask_len : 0;
        for (int64_t key = segment->num_keys; key < room; key++) weights[key] = 0.0f;
        weigh(weights, segment->num_keys, mask, segment->mask_len);
        float sums[MAX_DIM] = {0.0f}, total = 0.0f;
        const float *weight = weights;
        for (int64_t run = 0; run < segment->num_runs; run++) {
            const int64_t begin = segment->runs[2 * run], length = segment->runs[2 * run + 1] - begin;
            total = mix_run(weight, values + begin * dim, length, dim, sums, total);
            weight += length;
        }
        for (int64_t at = 0; at < dim; at++) out[at] = sums[at] / total;
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
