/* Log-probabilities of tokens and of the best few of their rows: log-softmax of logits as they are, nothing of a pick in it. */

#include <math.h>

#include "thin.h"

/* All powers of e relative to the largest logit. */
static double mass_of(const float *logits, int64_t num_ids, float best) {
    double total = 0.0;
    for (int64_t begin = 0; begin < num_ids; begin += PART) {
        const int64_t end = min(begin + PART, num_ids);
        lanes sums = splat(0.0f);
        for (int64_t at = begin; at < end; at += LANES) sums += exp_of(logits_at(logits, at, num_ids) - splat(best));
        total += (double)sum_of(sums);
    }
    return total;
}

static void score(const thin_scored_row *row, int64_t num_ids) {
    head best;
    thin_find_head(row->logits, num_ids, row->num_top ? row->num_top : 1, &best);
    *row->num_found = (int32_t)min(best.len, row->num_top);
    if (!best.len) return; /* all are at -inf, or no numbers: there is no pick either */
    const double normaliser = (double)best.at[0].value + log(mass_of(row->logits, num_ids, best.at[0].value));
    *row->logprob = (float)((double)row->logits[row->token] - normaliser);
    for (int64_t at = 0; at < *row->num_found; at++) {
        row->top_ids[at] = (int32_t)best.at[at].token;
        row->top_logprobs[at] = (float)((double)best.at[at].value - normaliser);
    }
}

typedef struct {
    const thin_scored_row *rows;
    int64_t num_ids;
} score_job;

static void score_chunk(const void *argument, int64_t chunk) {
    const score_job *job = argument;
    score(job->rows + chunk, job->num_ids);
}

void thin_logprobs(team *all, const thin_scored_row *rows, int64_t num_rows, int64_t num_ids) {
    const score_job job = {rows, num_ids};
    team_run(all, score_chunk, &job, num_rows);
}
