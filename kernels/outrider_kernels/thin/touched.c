/* Biases and penalties on a row of logits, for as long as it is picked after: what they change is put back then.

   Each changed logit is computed in doubles and rounded once, as in processed_logits.py: its bias is added; where the token was seen, a positive
   value is divided by the repetition penalty and any other multiplied; then frequency penalty times count, then the presence penalty where the
   count is positive, are subtracted. A fused multiply-add would round once where this rounds twice. */

#include <stdlib.h>
#include <string.h>

#include "thin.h"

/* A product as itself: no compiler takes it into a fused multiply-add. */
INLINE double rounded(double product) {
    volatile double kept = product;
    return kept;
}

static float processed(const thin_touched *of, float logit, double bias, int32_t count) {
    double value = (double)logit + bias;
    if (count >= 0) value = value > 0.0 ? value / of->repetition : rounded(value * of->repetition);
    if (count > 0) value = value - rounded(of->frequency * (double)count) - of->presence;
    return (float)value;
}

/* The token's first place among ids; num_ids where it is none of them. */
static int64_t place_of(int32_t token, const int32_t *ids, int64_t num_ids) {
    int64_t at = 0;
    for (; at + LANES <= num_ids; at += LANES) {
        int32_t any = 0;
        for (int lane = 0; lane < LANES; lane++) any |= ids[at + lane] == token;
        if (any) break;
    }
    while (at < num_ids && ids[at] != token) at++;
    return at;
}

static int32_t times_in(int32_t token, const int32_t *ids, int64_t num_ids) {
    int32_t times = 0;
    for (int64_t at = 0; at < num_ids; at++) times += ids[at] == token;
    return times;
}

/* A token of the path besides, where it stands there for the last time: as often as it does. */
static void touch_path(const thin_pick_row *row, int64_t at, const float *raw, float *raw_of_path) {
    const thin_touched *of = row->touched;
    const int32_t token = row->path[at];
    const int64_t place = place_of(token, of->ids, of->length);
    const int is_known = place < of->length;
    const int32_t before = is_known && of->counts[place] > 0 ? of->counts[place] : 0;
    raw_of_path[at] = row->logits[token];
    row->logits[token] = processed(of, is_known ? raw[place] : raw_of_path[at], is_known ? of->biases[place] : 0.0, before + times_in(token, row->path, at + 1));
}

static int is_last(const thin_pick_row *row, int64_t at) { return place_of(row->path[at], row->path + at + 1, row->path_len - at - 1) == row->path_len - at - 1; }

float *thin_touch(const thin_pick_row *row) {
    const thin_touched *of = row->touched;
    float *raw = malloc((size_t)(of->length + row->path_len) * sizeof(float) + 1);
    if (!raw) abort(); /* a few kilobytes: the process is lost anyway */
    for (int64_t at = 0; at < of->length; at++) {
        raw[at] = row->logits[of->ids[at]];
        row->logits[of->ids[at]] = processed(of, raw[at], of->biases[at], of->counts[at]);
    }
    for (int64_t at = 0; at < row->path_len; at++)
        if (is_last(row, at)) touch_path(row, at, raw, raw + of->length);
    return raw;
}

void thin_untouch(const thin_pick_row *row, float *raw) {
    const thin_touched *of = row->touched;
    for (int64_t at = row->path_len - 1; at >= 0; at--)
        if (is_last(row, at)) row->logits[row->path[at]] = raw[of->length + at];
    for (int64_t at = 0; at < of->length; at++) row->logits[of->ids[at]] = raw[at];
    free(raw);
}

static void *copied(void **to, const void *from, size_t size) {
    void *copy = *to;
    memcpy(copy, from, size);
    *to = (char *)copy + size;
    return copy;
}

void thin_keep_touched(kept_touched *kept, thin_pick_row *row, int64_t num_more) {
    const thin_touched *of = row->touched;
    const size_t length = (size_t)of->length, path_len = (size_t)row->path_len;
    const size_t needed = length * (sizeof(double) + 2 * sizeof(int32_t)) + (path_len + (size_t)num_more) * sizeof(int32_t);
    if (kept->room < needed) {
        free(kept->memory);
        kept->room = 2 * needed;
        kept->memory = malloc(kept->room);
        if (!kept->memory) abort(); /* a few kilobytes: the process is lost anyway */
    }
    void *to = kept->memory;
    kept->touched = *of;
    kept->touched.biases = copied(&to, of->biases, length * sizeof(double));
    kept->touched.ids = copied(&to, of->ids, length * sizeof(int32_t));
    kept->touched.counts = copied(&to, of->counts, length * sizeof(int32_t));
    row->path = copied(&to, row->path, path_len * sizeof(int32_t));
    row->touched = &kept->touched;
}
