/* A model's own picks, followed: each is fed as the next row of its sequence, picked after, and so on, all in one call.

   A row is what the program's operations make of it alone; the row stands at the next position and sees what its sequence holds up to there.
   thin_chain.py has the same structures. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "thin.h"

#define MAX_WINDOWS 8 /* thin_chain.py checks it */

/* What stays the same from chain to chain. */
struct thin_chain {
    const thin_operation *operations;
    const thin_call *head;  /* from `last` to `logits` */
    const float *embedding; /* [>= num_ids][hidden_len] */
    float *states, *last;   /* [hidden_len]: where the operations begin and end; what the head reads */
    float *logits;          /* [>= num_ids] */
    const int64_t *windows; /* [num_windows], by the steps' places; 0: all that went before */
    const int64_t *missing, *ends; /* ids that stand for nothing; ids that end a text */
    int64_t num_operations, hidden_len, num_ids, num_windows, num_missing, num_ends;
};

/* One chain. It begins with a token picked already, and its probability. */
struct thin_chain_call {
    const int64_t *slots; /* pool slot of each position */
    const int64_t *edges; /* [num_runs + 1], ascending: positions from one edge to the next lie side by side in the pool */
    int64_t num_runs;
    int64_t token, position, most; /* position: of that token; most: rows to feed */
    double prob, stop_below;
    thin_pick_row rule;
    int32_t *picks; /* [most] */
    float *probs;   /* [most] */
    int64_t num_found, is_left; /* picks; whether one more row was fed, whose logits are there and whose pick is left */
};

static int is_among(int64_t token, const int64_t *ids, int64_t num_ids) {
    for (int64_t at = 0; at < num_ids; at++)
        if (ids[at] == token) return 1;
    return 0;
}

/* The pool ranges of positions [first, end), in order. */
static void place_runs(const thin_chain_call *call, int64_t first, int64_t end, thin_segment *segment, int64_t *runs) {
    int64_t num_runs = 0;
    for (int64_t run = 0; run < call->num_runs && call->edges[run] < end; run++) {
        if (call->edges[run + 1] <= first) continue;
        const int64_t from = call->edges[run] > first ? call->edges[run] : first, to = call->edges[run + 1] < end ? call->edges[run + 1] : end;
        runs[2 * num_runs] = call->slots[from];
        runs[2 * num_runs + 1] = call->slots[from] + to - from;
        num_runs++;
    }
    *segment = (thin_segment){0, 1, runs, num_runs, end - first, 0, 0};
}

/* One row through the model, to its logits. */
static void feed(team *all, const thin_chain *chain, const thin_chain_call *call, int64_t token, int64_t position, int64_t *runs) {
    thin_segment segments[MAX_WINDOWS];
    thin_step steps[MAX_WINDOWS];
    const thin_step *places[MAX_WINDOWS];
    for (int64_t at = 0; at < chain->num_windows; at++) {
        const int64_t window = chain->windows[at], end = position + 1;
        place_runs(call, window && end > window ? end - window : 0, end, segments + at, runs + at * 2 * call->num_runs);
        steps[at] = (thin_step){&position, call->slots + position, segments + at, 1, 1};
        places[at] = steps + at;
    }
    const size_t row_bytes = (size_t)chain->hidden_len * sizeof(float);
    memcpy(chain->states, chain->embedding + token * chain->hidden_len, row_bytes);
    thin_program(all, chain->operations, chain->num_operations, 1, places);
    memcpy(chain->last, chain->states, row_bytes);
    thin_product(all, chain->head, 1);
    for (int64_t at = 0; at < chain->num_missing; at++) chain->logits[chain->missing[at]] = -INFINITY;
}

void thin_chain_follow(team *all, const thin_chain *chain, thin_chain_call *call) {
    int64_t *runs = malloc((size_t)(chain->num_windows * 2 * call->num_runs) * sizeof(int64_t));
    if (!runs) abort(); /* a few kilobytes: the process is lost anyway */
    int64_t token = call->token, found = 0;
    double prob = call->prob;
    call->is_left = 0;
    while (found < call->most && !is_among(token, chain->ends, chain->num_ends) && !(prob < call->stop_below)) {
        const int64_t position = call->position + found;
        feed(all, chain, call, token, position, runs);
        call->rule.logits = chain->logits;
        call->rule.position = position + 1;
        thin_pick_one(&call->rule, chain->num_ids);
        if (call->rule.token == LEFT) {
            call->is_left = 1;
            break;
        }
        token = call->rule.token;
        prob = call->rule.with_prob ? (double)call->rule.prob : 1.0;
        call->picks[found] = (int32_t)token;
        call->probs[found] = (float)prob;
        found++;
    }
    call->num_found = found;
    free(runs);
}
