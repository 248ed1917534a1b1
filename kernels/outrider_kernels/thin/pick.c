/* The token after a row of logits: the argmax of logit + temperature * Gumbel over what top-k, top-p and min-p leave, or plainly of the logits. Biases and
   penalties are in those while that lasts (touched.c).

   As outrider.engine.sampling.pick does it: which tokens could win at all takes one hash and one exponential each (an exponential race: with
   1 - u <= E = -log u the winner has 1 - u <= exp((logit - best) / T - bound)), those few are ordered by the library's logarithms, and what lies
   within a margin of a decision is LEFT to the definition. With top-k only the few tokens that it keeps are ordered, and no other is drawn for.
   So a row is decided as the definition decides it, or not at all. */

#include <math.h>

#include "thin.h"

/* Of outrider.noise.field. */
#define POSITION_STEP 0xD1342543DE82EF95ull
#define TOKEN_STEP 0x9E3779B97F4A7C15ull
#define MIX_FACTOR_1 0xBF58476D1CE4E5B9ull
#define MIX_FACTOR_2 0x94D049BB133111EBull
#define MAX_GUMBEL 36.75

/* Of outrider.engine.sampling: pick, survivors, single_pick. */
#define GUMBEL_MARGIN 4e-6
#define SCORE_MARGIN 1e-14
#define SLACK 1e-3
#define MIN_TEMPERATURE 1e-6
#define CLEAR_MARGIN 1e-3
#define MAX_NUCLEUS_TRIES 16
#define HEAD_MARGIN 1e-10 /* of sums of at most MAX_TOP_K doubles, far above their rounding and that of a library's exponential */

#define MAX_BEHIND 40.0 /* temperatures: a second choice further behind the first is none: the noise hardly ever closes so wide a gap */

#define GROUP (4 * LANES) /* tokens between two looks at whether any of them could win */
#define SPARSE_LOOKS 16
#define NOISE_BITS 24     /* of the hash that rule a token out: as many as a float holds */

typedef uint64_t words __attribute__((vector_size(32)));

/* A row in the midst of its pick. */
typedef struct {
    const thin_pick_row *row;
    int64_t num_ids, best_id;
    int is_sparse; /* whether most tokens seem to have no chance at all: it pays to look before weighing them */
    uint64_t subkey;
    float best, inverse, shift; /* a weight is exp((logit - best) * inverse - shift): 2^NOISE_BITS * exp((logit - best) / T - bound) */
    double bound, total;        /* what (score - best) / T must reach, loosened by SLACK; all weights */
} race;

typedef struct {
    place at;
    double score, next; /* its own, and the best of the others */
    int64_t next_id;    /* the token of that; -1: there is none. Every one that could be it is looked at only where seconds are wanted */
} leader;

INLINE lanes choose(bits mask, lanes yes, lanes no) { return (lanes)((mask & (bits)yes) | (~mask & (bits)no)); }

INLINE uint64_t any_of(bits mask) {
    const words all = (words)mask;
    return all[0] | all[1] | all[2] | all[3];
}

lanes last_logits(const float *logits, int64_t num_left) {
    lanes some = splat(-INFINITY);
    for (int64_t lane = 0; lane < num_left; lane++) some[lane] = logits[lane];
    return some;
}

/* Whether none of eight tokens can be picked, nor weighs anything. */
INLINE int are_none(lanes logits) { return !any_of((bits)(logits != splat(-INFINITY))); }

INLINE uint64_t mixed(uint64_t value) {
    value = (value ^ (value >> 30)) * MIX_FACTOR_1;
    value = (value ^ (value >> 27)) * MIX_FACTOR_2;
    return value ^ (value >> 31);
}

static uint64_t subkey_of(const thin_pick_row *row) { return mixed(row->key + (uint64_t)(row->position + 1) * POSITION_STEP); }

/* -log(-log u) of a token's uniform number. */
static double gumbel_of(uint64_t subkey, int64_t token) {
    const uint64_t noise = mixed(subkey + (uint64_t)(token + 1) * TOKEN_STEP);
    return -log(-log(((double)(noise >> 12) + 0.5) * 0x1p-52));
}

/* 1 - u of eight tokens in units of 2^-NOISE_BITS, rounded down: its upper bits, which the mix's last shift does not reach. counters: of the
   first four and the last four. */
INLINE lanes chances(words first, words last) {
    words both[2] = {first, last};
    for (int half = 0; half < 2; half++) {
        words value = both[half];
        value = (value ^ (value >> 30)) * MIX_FACTOR_1;
        value = (value ^ (value >> 27)) * MIX_FACTOR_2;
        both[half] = ~value >> (64 - NOISE_BITS);
    }
    const bits narrow = __builtin_shuffle((bits)both[0], (bits)both[1], (bits){0, 2, 4, 6, 8, 10, 12, 14});
    typedef int32_t integers __attribute__((vector_size(4 * LANES)));
    return __builtin_convertvector((integers)narrow, lanes);
}

/* Whether most of a few vectors of logits, evenly spread, are none: so it is of a head that was computed in part. Changes no result. */
static int seems_sparse(const float *logits, int64_t num_ids) {
    int num_none = 0;
    for (int look = 0; look < SPARSE_LOOKS; look++) num_none += are_none(logits_at(logits, look * num_ids / SPARSE_LOOKS, num_ids));
    return num_none > SPARSE_LOOKS / 2;
}

/* The first largest logit; false when it is no number, or infinite, or any other is no number. */
static int find_best(const float *logits, int64_t num_ids, float *best, int64_t *best_id) {
    lanes left = splat(-INFINITY), right = left;
    bits broken = (bits)splat(0.0f);
    for (int64_t at = 0; at < num_ids; at += 2 * LANES) {
        const lanes one = logits_at(logits, at, num_ids), two = logits_at(logits, at + LANES, num_ids);
        broken |= (bits)(one != one) | (bits)(two != two);
        left = choose((bits)(one > left), one, left);
        right = choose((bits)(two > right), two, right);
    }
    float most = left[0];
    for (int lane = 0; lane < LANES; lane++) {
        most = left[lane] > most ? left[lane] : most;
        most = right[lane] > most ? right[lane] : most;
    }
    if (any_of(broken) || !isfinite(most)) return 0;
    const lanes wanted = splat(most);
    int64_t at = 0;
    while (!any_of((bits)(logits_at(logits, at, num_ids) == wanted))) at += LANES;
    while (logits[at] != most) at++;
    *best = most;
    *best_id = at;
    return 1;
}

/* The first largest logit but for one token's; its token is -1 where there is none. No logit is no number. */
static place find_next(const float *logits, int64_t num_ids, int64_t but) {
    lanes all = splat(-INFINITY);
    for (int64_t at = 0; at < num_ids; at += LANES) {
        lanes some = logits_at(logits, at, num_ids);
        if (but >= at && but < at + LANES) some[but - at] = -INFINITY;
        all = choose((bits)(some > all), some, all);
    }
    float most = all[0];
    for (int lane = 1; lane < LANES; lane++) most = all[lane] > most ? all[lane] : most;
    if (most == -INFINITY) return (place){most, -1};
    for (int64_t at = 0;; at += LANES) {
        if (!any_of((bits)(logits_at(logits, at, num_ids) == splat(most)))) continue;
        for (int64_t token = at; token < at + LANES && token < num_ids; token++)
            if (logits[token] == most && token != but) return (place){most, token};
    }
}

INLINE lanes weights_of(const race *run, lanes logits) { return exp_of((logits - splat(run->best)) * splat(run->inverse) - splat(run->shift)); }

/* The weights of all tokens that stand before this one; of all tokens where there is none. */
static double mass_before(const race *run, const place *last) {
    typedef int32_t integers __attribute__((vector_size(4 * LANES)));
    const float *logits = run->row->logits;
    double total = 0.0;
    for (int64_t begin = 0; begin < run->num_ids; begin += PART) {
        const int64_t end = begin + PART < run->num_ids ? begin + PART : run->num_ids;
        lanes sums = splat(0.0f);
        for (int64_t at = begin; at < end; at += LANES) {
            const lanes some = logits_at(logits, at, run->num_ids);
            if (run->is_sparse && are_none(some)) continue;
            lanes weights = weights_of(run, some);
            if (last) {
                /* tokens of this vector whose id is lower: all, none, or the first few */
                const int64_t lower = last->token - at;
                const int32_t few = lower < 0 ? 0 : lower > LANES ? LANES : (int32_t)lower;
                const integers ids = {0, 1, 2, 3, 4, 5, 6, 7}, limit = {few, few, few, few, few, few, few, few};
                const lanes value = splat(last->value);
                weights = (lanes)((bits)weights & ((bits)(some > value) | ((bits)(some == value) & (bits)(ids < limit))));
            }
            sums += weights;
        }
        total += (double)sum_of(sums);
    }
    return total;
}

/* How far apart two scores must be to order the canonical ones. */
INLINE double score_margin(double temperature, double best) {
    return GUMBEL_MARGIN * temperature + SCORE_MARGIN * (fabs(best) + MAX_GUMBEL * temperature);
}

/* One token that may win joins the race; returns what the weights of those that may still win are to be multiplied by. to_second: what could
   be second may win too. */
INLINE float enter(const race *run, const place *barrier, leader *first, int64_t token, float factor, int to_second) {
    const thin_pick_row *row = run->row;
    const float value = row->logits[token];
    const double below = (double)run->best - (double)value;
    const int is_behind = barrier && !(value > barrier->value || (value == barrier->value && token < barrier->token));
    if (is_behind || !(below <= row->min_p_gap)) return factor;
    const double gumbel = gumbel_of(run->subkey, token), score = (double)value + row->temperature * gumbel;
    if (score > first->score) {
        first->next = first->score;
        first->next_id = first->at.token;
        first->score = score;
        first->at = (place){value, token};
    } else {
        if (!(score > first->next)) return factor;
        first->next = score;
        first->next_id = token;
        if (!to_second) return factor;
    }
    const double reached = to_second ? (first->next - (double)run->best) / row->temperature : gumbel - below / row->temperature;
    const float less = (float)exp(run->bound + SLACK - reached);
    return less < factor ? less : factor;
}

/* By how much more than the best of all what the second best could be is to be let into the race: it beats the second largest logit's score. */
static float open_to_second(const race *run) {
    const place second = find_next(run->row->logits, run->num_ids, run->best_id);
    if (second.token < 0) return 1.0f;
    const double reached = gumbel_of(run->subkey, second.token) - ((double)run->best - (double)second.value) / run->row->temperature;
    const double behind = run->bound + SLACK - reached;
    return behind > 0.0 ? (float)exp(behind < MAX_BEHIND ? behind : MAX_BEHIND) : 1.0f;
}

/* The best score among the tokens that stand before the barrier (null: all), whose first is always among them. Sums the weights on the way. */
INLINE leader lead(race *run, const place *barrier, int to_second) {
    const float *logits = run->row->logits;
    const double score = (double)run->best + run->row->temperature * gumbel_of(run->subkey, run->best_id);
    leader first = {{run->best, run->best_id}, score, -INFINITY, -1};
    words counters = {1, 2, 3, 4};
    counters = counters * TOKEN_STEP + run->subkey;
    float factor = to_second ? open_to_second(run) : 1.0f;
    run->total = 0.0;
    lanes sums = splat(0.0f);
    for (int64_t begin = 0; begin < run->num_ids; begin += GROUP) {
        bits may_win[GROUP / LANES], any = (bits)splat(0.0f);
        for (int part = 0; part < GROUP / LANES; part++, counters += LANES * TOKEN_STEP) {
            const lanes some = logits_at(logits, begin + part * LANES, run->num_ids);
            may_win[part] = (bits)splat(0.0f);
            if (run->is_sparse && are_none(some)) continue;
            const lanes weights = weights_of(run, some);
            sums += weights;
            may_win[part] = (bits)(chances(counters, counters + 4 * TOKEN_STEP) <= weights * splat(factor));
            any |= may_win[part];
        }
        if (any_of(any))
            for (int64_t token = begin; token < begin + GROUP && token < run->num_ids; token++)
                if (may_win[(token - begin) / LANES][(token - begin) % LANES] && token != run->best_id)
                    factor = enter(run, barrier, &first, token, factor, to_second);
        if ((begin + GROUP) % PART == 0) {
            run->total += (double)sum_of(sums);
            sums = splat(0.0f);
        }
    }
    run->total += (double)sum_of(sums);
    return first;
}

static leader find_leader(race *run, const place *barrier) { return lead(run, barrier, 0); }
static leader find_both(race *run, const place *barrier) { return lead(run, barrier, 1); }

/* How much too much weighs all that stands before a token, for the nucleus to hold it; what is nearer 0 than CLEAR_MARGIN is not clear. */
INLINE double excess_of(const race *run, const place *at) { return mass_before(run, at) / run->total - run->row->top_p; }

/* The second best of what the filters leave, where that is clear. first: the pick and the best of the others, those behind the barrier (null:
   none are) left out. */
static void note_second(thin_pick_row *row, race *run, leader first, const place *barrier) {
    place outside;
    for (int tries = 0; row->top_p < 1.0 && first.next_id >= 0 && first.next_id != run->best_id; tries++) {
        const place second = {row->logits[first.next_id], first.next_id};
        const double excess = excess_of(run, &second);
        if (excess < -CLEAR_MARGIN) break;
        if (!(excess > CLEAR_MARGIN) || tries == MAX_NUCLEUS_TRIES) return;
        outside = second;
        barrier = &outside;
        first = find_both(run, barrier);
    }
    const double behind = first.score - first.next;
    if (first.next_id < 0 || !(behind <= MAX_BEHIND * row->temperature)) return;
    row->second = (int32_t)first.next_id;
    row->behind = (float)behind;
}

static void pick_sampled(thin_pick_row *row, race *run) {
    const double temperature = row->temperature, margin = score_margin(temperature, run->best);
    if (margin > SLACK / 4 * temperature) return; /* so far from 0 that logits swallow the noise */
    run->subkey = subkey_of(row);
    run->bound = gumbel_of(run->subkey, run->best_id) - SLACK;
    run->inverse = (float)(1.0 / temperature);
    run->shift = (float)(run->bound - NOISE_BITS * 0.693147180559945309);
    leader (*const find)(race *, const place *) = row->with_second ? find_both : find_leader;
    const place *barrier = 0;
    place outside; /* the nucleus, as all that stand behind it */
    leader first = find(run, barrier);
    for (int tries = 0; row->top_p < 1.0 && first.at.token != run->best_id; tries++) {
        if (tries == MAX_NUCLEUS_TRIES) return;
        const double excess = excess_of(run, &first.at);
        if (excess < -CLEAR_MARGIN) break;
        if (!(excess > CLEAR_MARGIN)) return;
        outside = first.at;
        barrier = &outside;
        first = find(run, barrier);
    }
    if (!(first.score - first.next > margin)) return;
    row->token = (int32_t)first.at.token;
    if (row->with_prob) row->prob = (float)((double)weights_of(run, splat(first.at.value))[0] / run->total);
    if (row->with_second) note_second(row, run, first, barrier);
}

/* Ids ascend, so that a token whose logit is no larger than the last one's stands behind it. */
void thin_find_head(const float *logits, int64_t num_ids, int64_t most, head *found) {
    float least = -INFINITY;
    found->len = 0;
    for (int64_t begin = 0; begin < num_ids; begin += LANES) {
        if (!any_of((bits)(logits_at(logits, begin, num_ids) > splat(least)))) continue;
        for (int64_t token = begin; token < min(begin + LANES, num_ids); token++) {
            if (!(logits[token] > least)) continue;
            int64_t to = found->len < most ? found->len++ : most - 1;
            for (; to > 0 && found->at[to - 1].value < logits[token]; to--) found->at[to] = found->at[to - 1];
            found->at[to] = (place){logits[token], token};
            if (found->len == most) least = found->at[most - 1].value;
        }
    }
}

/* How many of these top-p leaves, too; -1 where that is too close to say. */
static int64_t nucleus_of(const thin_pick_row *row, const head *kept, double best) {
    double weights[MAX_TOP_K], total = 0.0, before = 0.0;
    if (!(row->top_p < 1.0)) return kept->len;
    for (int64_t at = 0; at < kept->len; at++) total += weights[at] = exp(((double)kept->at[at].value - best) / row->temperature);
    for (int64_t at = 0; at < kept->len; at++) {
        const double short_of = row->top_p * total - before;
        if (fabs(short_of) <= HEAD_MARGIN * total) return -1;
        if (short_of < 0.0) return at;
        before += weights[at];
    }
    return kept->len;
}

/* Among the first top_k tokens. */
static void pick_headed(thin_pick_row *row, race *run) {
    head kept;
    const double temperature = row->temperature, best = (double)run->best;
    thin_find_head(row->logits, run->num_ids, row->top_k, &kept);
    const int64_t len = nucleus_of(row, &kept, best);
    run->subkey = subkey_of(row);
    leader first = {kept.at[0], -INFINITY, -INFINITY, -1};
    for (int64_t at = 0; at < len && best - (double)kept.at[at].value <= row->min_p_gap; at++) {
        const place own = kept.at[at];
        const double score = (double)own.value + temperature * gumbel_of(run->subkey, own.token);
        if (score > first.score) {
            first = (leader){own, score, first.score, at ? first.at.token : -1};
        } else if (score > first.next) {
            first.next = score;
            first.next_id = own.token;
        }
    }
    if (!(first.score - first.next > score_margin(temperature, run->best))) return; /* nor where it was too close to say what is kept */
    row->token = (int32_t)first.at.token;
    if (row->with_prob) {
        run->inverse = (float)(1.0 / temperature);
        run->shift = 0.0f;
        row->prob = (float)((double)weights_of(run, splat(first.at.value))[0] / mass_before(run, 0));
    }
    const double behind = first.score - first.next;
    if (!row->with_second || first.next_id < 0 || !(behind <= MAX_BEHIND * temperature)) return;
    row->second = (int32_t)first.next_id;
    row->behind = (float)behind;
}

static void pick_greedy(thin_pick_row *row, race *run) {
    row->token = (int32_t)run->best_id;
    run->inverse = 1.0f;
    if (row->with_prob) row->prob = (float)(1.0 / mass_before(run, 0)); /* at temperature 1 */
    if (!row->with_second) return;
    const place second = find_next(row->logits, run->num_ids, run->best_id);
    if (second.token < 0) return;
    row->second = (int32_t)second.token;
    row->behind = (float)((double)run->best - (double)second.value);
}

static void pick_processed(thin_pick_row *row, int64_t num_ids) {
    race run = {.row = row, .num_ids = num_ids};
    const int is_greedy = row->temperature == 0.0;
    if (!(is_greedy || row->temperature >= MIN_TEMPERATURE) || !find_best(row->logits, num_ids, &run.best, &run.best_id)) return;
    run.is_sparse = seems_sparse(row->logits, num_ids);
    if (is_greedy)
        pick_greedy(row, &run);
    else if (row->top_k)
        pick_headed(row, &run);
    else
        pick_sampled(row, &run);
}

void thin_pick_one(thin_pick_row *row, int64_t num_ids) {
    row->token = row->second = LEFT;
    row->prob = row->behind = NAN;
    if (isnan(row->temperature)) return;
    float *raw = row->touched ? thin_touch(row) : 0;
    pick_processed(row, num_ids);
    if (raw) thin_untouch(row, raw);
}

typedef struct {
    thin_pick_row *rows;
    int64_t num_ids;
} pick_job;

static void pick_chunk(const void *argument, int64_t chunk) {
    const pick_job *job = argument;
    thin_pick_one(job->rows + chunk, job->num_ids);
}

void thin_pick(team *all, thin_pick_row *rows, int64_t num_rows, int64_t num_ids) {
    const pick_job job = {rows, num_ids};
    team_run(all, pick_chunk, &job, num_rows);
}
