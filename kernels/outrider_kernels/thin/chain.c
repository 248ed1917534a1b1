/* A sequence's next rows, the pick after the last of them, and the model's own picks followed: each is fed as the next row, picked after, and so
   on, all in one call.

   A row is what the program's operations make of it alone; the rows stand at the next positions, and each sees what its sequence holds up to
   there. Of rows behind which nothing is picked, what comes after the last attention has stored them is needed by nobody, and left out.
   thin_chain.py has the same structures. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "thin.h"

static int is_among(int64_t token, const int64_t *ids, int64_t num_ids) {
    for (int64_t at = 0; at < num_ids; at++)
        if (ids[at] == token) return 1;
    return 0;
}

/* The pool ranges of positions [first, end), in order. */
static int64_t place_runs(const thin_chain_call *call, int64_t first, int64_t end, int64_t *runs) {
    int64_t num_runs = 0;
    for (int64_t run = 0; run < call->num_runs && call->edges[run] < end; run++) {
        if (call->edges[run + 1] <= first) continue;
        const int64_t from = call->edges[run] > first ? call->edges[run] : first, to = min(call->edges[run + 1], end);
        runs[2 * num_runs] = call->slots[from];
        runs[2 * num_runs + 1] = call->slots[from] + to - from;
        num_runs++;
    }
    return num_runs;
}

/* What each of several rows sees of the last mask_len positions before `end`: those up to its own, of its window. */
static void place_mask(int64_t rows, int64_t end, int64_t window, int64_t mask_len, float *mask) {
    for (int64_t row = 0; row < rows; row++) {
        const int64_t own = end - rows + row;
        for (int64_t at = 0; at < mask_len; at++) {
            const int64_t key = end - mask_len + at;
            mask[row * mask_len + at] = key > own || (window && key <= own - window) ? -INFINITY : 0.0f;
        }
    }
}

/* Keys of `rows` rows from `position` on. A row alone sees all of them. */
static thin_segment keys_of(const thin_chain_call *call, int64_t position, int64_t rows, int64_t window, int64_t *runs, float *mask) {
    const int64_t end = position + rows, first = window && position + 1 > window ? position + 1 - window : 0;
    thin_segment segment = {0, rows, runs, place_runs(call, first, end, runs), end - first, 0, 0};
    if (rows > 1) {
        segment.mask = mask;
        segment.mask_len = window && end > window ? end - first : rows;
        place_mask(rows, end, window, segment.mask_len, mask);
    }
    return segment;
}

/* Floats of the mask of one kind of windows, of so many rows at once before `end`. */
static int64_t room_of_mask(const thin_chain *chain, int64_t rows, int64_t end) {
    if (rows == 1) return 0;
    for (int64_t at = 0; at < chain->num_windows; at++)
        if (chain->windows[at]) return rows * end;
    return rows * rows;
}

/* Room for the runs and the mask of every kind of windows. */
typedef struct {
    int64_t *runs;
    float *mask;
    int64_t mask_room; /* floats of each window */
} scratch;

/* The last attention of several rows, and what is behind it of the last of them alone, as many as are wanted. */
static void end_rows(team *all, const thin_chain *chain, const thin_chain_call *call, const thin_step *step, scratch room, int64_t wanted) {
    const thin_operation *last = chain->operations + chain->last_attention;
    const int64_t rows = step->rows, first = rows - wanted;
    thin_segment segment;
    thin_step own = {step->positions, step->slots, &segment, rows, wanted > 0};
    if (wanted) {
        segment = keys_of(call, step->positions[first], wanted, chain->windows[last->step], room.runs, room.mask);
        segment.row_begin = first;
        segment.row_end = rows;
    }
    thin_attention(all, last->operand, &own);
    if (!wanted) return;
    memmove(chain->attended, chain->attended + first * chain->attended_len, (size_t)(wanted * chain->attended_len) * sizeof(float));
    memmove(chain->states, chain->states + first * chain->hidden_len, (size_t)(wanted * chain->hidden_len) * sizeof(float));
    thin_program(all, last + 1, chain->num_operations - chain->last_attention - 1, wanted, 0);
}

/* Rows through the layers; the states of the last ones that are wanted are the first then. */
static void run_rows(team *all, const thin_chain *chain, const thin_chain_call *call, const int32_t *tokens, int64_t rows, int64_t position, scratch room, int64_t wanted) {
    thin_segment segments[MAX_WINDOWS];
    thin_step steps[MAX_WINDOWS];
    const thin_step *places[MAX_WINDOWS];
    int64_t positions[MAX_ROWS];
    for (int64_t row = 0; row < rows; row++) {
        positions[row] = position + row;
        memcpy(chain->states + row * chain->hidden_len, chain->embedding + tokens[row] * chain->hidden_len, (size_t)chain->hidden_len * sizeof(float));
    }
    for (int64_t at = 0; at < chain->num_windows; at++) {
        segments[at] = keys_of(call, position, rows, chain->windows[at], room.runs + at * 2 * call->num_runs, room.mask + at * room.mask_room);
        steps[at] = (thin_step){positions, call->slots + position, segments + at, rows, 1};
        places[at] = steps + at;
    }
    const int is_whole = rows == wanted;
    thin_program(all, chain->operations, is_whole ? chain->num_operations : chain->last_attention, rows, places);
    if (!is_whole) end_rows(all, chain, call, steps, room, wanted);
}

/* Rows through the model, to the logits of the last ones, as many as are wanted. */
static void feed(team *all, const thin_chain *chain, const thin_chain_call *call, const int32_t *tokens, int64_t rows, int64_t wanted, int64_t position, scratch room) {
    for (int64_t at = 0; at < rows; at += chain->most_rows) {
        const int64_t count = min(chain->most_rows, rows - at);
        run_rows(all, chain, call, tokens + at, count, position + at, room, at + count == rows ? wanted : 0);
    }
    memcpy(chain->last, chain->states, (size_t)(wanted * chain->hidden_len) * sizeof(float));
    thin_product(all, chain->head, wanted);
    for (int64_t row = 0; row < wanted; row++)
        for (int64_t at = 0; at < chain->num_missing; at++) chain->logits[row * chain->logits_len + chain->missing[at]] = -INFINITY;
}

/* What was found after a row. */
static void note_pick(thin_chain_call *call, const thin_pick_row *found, int64_t at) {
    call->picks[at] = found->token;
    call->probs[at] = found->with_prob ? found->prob : 1.0f;
    if (!found->with_second) return;
    call->seconds[at] = found->second;
    call->behinds[at] = found->behind;
}

/* The pick after the newest row, at `position`; false where it is left. */
static int pick_next(const thin_chain *chain, thin_chain_call *call, int64_t position) {
    thin_pick_row *rule = &call->rule;
    rule->logits = chain->logits;
    rule->position = position;
    thin_pick_one(rule, chain->num_ids);
    if (rule->token == LEFT) return 0;
    note_pick(call, rule, call->num_found);
    if (rule->touched) rule->path[rule->path_len++] = rule->token;
    call->num_found++;
    return 1;
}

/* The picks after each of the rows that are wanted; false where any is left. */
static int pick_all(team *all, const thin_chain *chain, thin_chain_call *call) {
    thin_pick_row rows[MAX_ROWS];
    const int64_t first = call->position + call->num_tokens - call->num_wanted + 1;
    for (int64_t row = 0; row < call->num_wanted; row++) {
        rows[row] = call->rule;
        rows[row].logits = chain->logits + row * chain->logits_len;
        rows[row].position = first + row;
        rows[row].path_len -= call->num_wanted - 1 - row;
    }
    thin_pick(all, rows, call->num_wanted, chain->num_ids);
    int is_decided = 1;
    for (int64_t row = 0; row < call->num_wanted; row++) {
        note_pick(call, rows + row, row);
        is_decided &= rows[row].token != LEFT;
    }
    call->num_found = call->num_wanted;
    return is_decided;
}

/* Whether the newest pick is to be fed. */
static int goes_on(const thin_chain *chain, const thin_chain_call *call) {
    const int64_t newest = call->num_found - 1;
    if (call->num_found >= call->most || is_among(call->picks[newest], chain->ends, chain->num_ends)) return 0;
    return !((double)call->probs[newest] < call->stop_below);
}

void thin_chain_follow(team *all, const thin_chain *chain, thin_chain_call *call) {
    const int64_t began_ns = now_ns(), rows = call->num_tokens, end = call->position + rows;
    const int64_t runs_room = chain->num_windows * 2 * call->num_runs, mask_room = room_of_mask(chain, min(rows, chain->most_rows), end);
    int64_t *runs = malloc((size_t)runs_room * sizeof(int64_t) + (size_t)(chain->num_windows * mask_room) * sizeof(float));
    if (!runs) abort(); /* a few kilobytes: the process is lost anyway */
    const scratch room = {runs, (float *)(runs + runs_room), mask_room};
    call->num_found = 0;
    feed(all, chain, call, call->tokens, rows, call->num_wanted, call->position, room);
    call->forward_ns = now_ns() - began_ns;
    call->is_left = !(call->num_wanted == 1 ? pick_next(chain, call, end) : pick_all(all, chain, call));
    call->first_ns = now_ns() - began_ns;
    while (!call->is_left && goes_on(chain, call) && !errand_is_dropped()) {
        const int64_t position = end + call->num_found - 1;
        feed(all, chain, call, call->picks + call->num_found - 1, 1, 1, position, room);
        call->is_left = !pick_next(chain, call, position + 1);
    }
    call->spent_ns = now_ns() - began_ns;
    thin_tiles_rest();
    free(runs);
}
