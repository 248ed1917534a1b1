/* The next round of a pair of models, computed before it is asked for: while the caller makes of a round's picks what they mean, a helper of the
   target's team follows the draft's chain from the newest pick, and then the target's over those guesses; or where nothing was drafted, feeds the target
   the newest pick alone.

   What it takes for granted is that the next round is like the newest: as many guesses at most, by the same rules, in the same places of the pools.
   Whoever asks for what was computed so has it with the bits that it would have had; whoever asks for anything else is the first to be served, and
   it is dropped. A row stores its keys and values behind all that counts, where the row that is asked for would store its own. So nothing but time
   depends on what is foreseen here. Who may hold both models' teams, and changes pools or frees what a sequence lies in, settles before. */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "thin.h"

enum { DRAFT = 0, TARGET = 1, NUM_PARTS = 2 };
enum { IDLE = 0, SENT = 1, DRAFTED = 2, DONE = 3 }; /* stages */
enum { WITH_DRAFT = 0, PLAIN = 1, BEHIND_GUESSES = 2, BEHIND_PROMPT = 3, NUM_KINDS = 4 }; /* of rounds that are foreseen: all but the first are plain steps */

#define NOT_ONE 2 /* chain of the draft since the target's newest call, or something else besides */
#define MISSES_TO_PAUSE 4 /* rounds in a row whose draft was foreseen in vain */
#define ROUNDS_OF_PAUSE 4
#define PATH_ROOM (2 * MAX_ROWS + 1) /* tokens that a path may grow by in a round: guesses that were right, the pick, and guesses behind it */
#define ALWAYS 3
#define OFTEN 2 /* enough for a plain step to be foreseen */

typedef struct {
    thin_chain_call call; /* whose arrays are these */
    int32_t tokens[MAX_ROWS], picks[MAX_ROWS], seconds[MAX_ROWS];
    float probs[MAX_ROWS], behinds[MAX_ROWS];
    kept_touched kept; /* what its rule touches, as of the call */
} part;

struct thin_ahead {
    team *teams[NUM_PARTS];
    const thin_chain *chains[NUM_PARTS];
    int64_t num_positions[NUM_PARTS]; /* that the models have */
    part drafted;   /* the newest call of the draft's chain, as it was asked for, with those that went on where it had ended */
    int num_drafts; /* chains since the target's newest call; only one of them makes a round that is foreseen */
    part foreseen[NUM_PARTS];
    int kind;
    int has_rows;  /* whether there was anything for the target to do */
    int num_taken; /* of the foreseen parts, in order: 1 once the draft was asked for, or where there is none */
    int64_t num_given; /* of the foreseen draft's picks */
    int num_missed, num_paused;
    int next_kind; /* of a plain step, if that follows the target's newest call; -1: it cannot, or that was long ago */
    int64_t next_position;
    const int64_t *next_slots;
    int habits[NUM_KINDS]; /* of each kind of plain steps, how often they followed of late: from 0, never, to ALWAYS */
    _Atomic int stage, dropped;
    int64_t num_sent[NUM_KINDS], num_hits[NUM_PARTS], num_plain_hits;
};

static int is_end(const thin_chain *chain, int32_t token) {
    for (int64_t at = 0; at < chain->num_ends; at++)
        if (chain->ends[at] == token) return 1;
    return 0;
}

static void use_own_arrays(part *of) {
    of->call.tokens = of->tokens;
    of->call.picks = of->picks;
    of->call.probs = of->probs;
    of->call.seconds = of->seconds;
    of->call.behinds = of->behinds;
}

/* What the rule touches may have changed before the call is computed, and its path is another's. */
static void use_own_touched(part *of) {
    if (of->call.rule.touched) thin_keep_touched(&of->kept, &of->call.rule, PATH_ROOM);
}

/* Tokens that a call's history goes on with. */
static void go_on_with(thin_pick_row *rule, const int32_t *tokens, int64_t num_tokens) {
    if (!rule->touched) return;
    memcpy(rule->path + rule->path_len, tokens, (size_t)num_tokens * sizeof(int32_t));
    rule->path_len += num_tokens;
}

/* Guesses among a chain's picks: all but a last one that is too unlikely, unless it is the only one. */
static int64_t num_guesses(const thin_chain_call *call) {
    const int64_t found = call->num_found;
    return found > 1 && (double)call->probs[found - 1] < call->stop_below ? found - 1 : found;
}

/* Positions that rows of a part may stand at: those that its model has, where its sequence has room. */
static int64_t end_of(const thin_ahead *ahead, int64_t part, const thin_chain_call *call) {
    return min(call->edges[call->num_runs], ahead->num_positions[part]);
}

/* The target's round over what was drafted; false where there is nothing to judge, or no room. */
static int plan_target(thin_ahead *ahead) {
    thin_chain_call *call = &ahead->foreseen[TARGET].call;
    const thin_chain_call *draft = &ahead->foreseen[DRAFT].call;
    const int64_t guesses = num_guesses(draft);
    if (draft->is_left || !guesses || call->position + guesses + 1 > end_of(ahead, TARGET, call) || guesses >= ahead->chains[TARGET]->most_rows) return 0;
    memcpy(ahead->foreseen[TARGET].tokens + 1, ahead->foreseen[DRAFT].picks, (size_t)guesses * sizeof(int32_t));
    go_on_with(&call->rule, ahead->foreseen[DRAFT].picks, guesses);
    call->num_tokens = call->num_wanted = call->most = guesses + 1;
    return 1;
}

static void run_errand(void *of) {
    thin_ahead *ahead = of;
    errand_watches(&ahead->dropped);
    if (ahead->kind == WITH_DRAFT) {
        thin_chain_follow(ahead->teams[DRAFT], ahead->chains[DRAFT], &ahead->foreseen[DRAFT].call);
        ahead->has_rows = plan_target(ahead);
    }
    atomic_store(&ahead->stage, DRAFTED);
    if (ahead->has_rows && !errand_is_dropped()) thin_chain_follow(ahead->teams[TARGET], ahead->chains[TARGET], &ahead->foreseen[TARGET].call);
    errand_watches(0);
    atomic_store(&ahead->stage, DONE);
}

/* After this nothing is being computed, and nothing is foreseen. */
static void drop(thin_ahead *ahead) {
    if (atomic_load(&ahead->stage) == IDLE) return;
    atomic_store(&ahead->dropped, 1);
    if (!team_recall(ahead->teams[TARGET])) team_join(ahead->teams[TARGET], &ahead->stage, DONE);
    atomic_store(&ahead->dropped, 0);
    atomic_store(&ahead->stage, IDLE);
    if (ahead->kind == WITH_DRAFT && !ahead->num_taken && ++ahead->num_missed >= MISSES_TO_PAUSE) ahead->num_paused = ROUNDS_OF_PAUSE;
}

static int is_same_place(const thin_chain_call *one, const thin_chain_call *other) {
    return one->slots == other->slots && one->edges == other->edges && one->num_runs == other->num_runs;
}

static const void *origin_of(const thin_pick_row *rule) { return rule->touched ? rule->touched->origin : 0; }

/* Where the call ends for want of confidence matters only if anything could follow its first pick. What is touched by the same penalties in the same
   sequence is the same where the tokens are. */
static int is_same_rule(const thin_chain_call *before, const thin_chain_call *call) {
    const thin_pick_row *a = &before->rule, *b = &call->rule;
    const int is_same = a->key == b->key && a->temperature == b->temperature && a->top_p == b->top_p && a->min_p_gap == b->min_p_gap && a->top_k == b->top_k;
    if (!is_same || a->with_prob != b->with_prob || a->with_second != b->with_second || origin_of(a) != origin_of(b)) return 0;
    return before->stop_below == call->stop_below || call->most == 1;
}

/* Whether a call goes on where another chain's first `num_picks` picks end. */
static int goes_on_from(const thin_chain_call *before, int64_t num_picks, const thin_chain_call *call) {
    if (!num_picks || call->num_tokens != 1 || call->tokens[0] != before->picks[num_picks - 1]) return 0;
    return call->position == before->position + before->num_tokens + num_picks - 1 && is_same_place(before, call) && is_same_rule(before, call);
}

static int is_foreseen_draft(const thin_ahead *ahead, const thin_chain_call *call) {
    const thin_chain_call *own = &ahead->foreseen[DRAFT].call;
    if (ahead->num_taken) return 0; /* or there is none */
    if (call->num_wanted != 1 || own->num_tokens != call->num_tokens || own->position != call->position) return 0;
    return is_same_place(own, call) && is_same_rule(own, call) && !memcmp(own->tokens, call->tokens, (size_t)call->num_tokens * sizeof(int32_t));
}

/* Of the target's rows those that are asked for may be the first ones, but not the newest pick's alone where it has guesses behind it. */
static int is_foreseen_round(const thin_ahead *ahead, const thin_chain_call *call) {
    const thin_chain_call *own = &ahead->foreseen[TARGET].call;
    const int64_t least = ahead->kind == WITH_DRAFT ? 2 : 1;
    if (!ahead->has_rows || call->num_tokens < least || call->num_tokens > own->num_tokens) return 0;
    if (call->num_wanted != call->num_tokens || call->most != call->num_wanted) return 0;
    if (own->position != call->position || !is_same_place(own, call) || !is_same_rule(own, call)) return 0;
    return !memcmp(own->tokens, call->tokens, (size_t)call->num_tokens * sizeof(int32_t));
}

/* What was computed from pick `first` on, as much of it as the call wants. */
static void give(const thin_chain_call *own, int64_t first, thin_chain_call *call) {
    const int64_t found = min(own->num_found - first, call->most);
    memcpy(call->picks, own->picks + first, (size_t)found * sizeof(int32_t));
    memcpy(call->probs, own->probs + first, (size_t)found * sizeof(float));
    if (call->rule.with_second) {
        memcpy(call->seconds, own->seconds + first, (size_t)found * sizeof(int32_t));
        memcpy(call->behinds, own->behinds + first, (size_t)found * sizeof(float));
    }
    call->num_found = found;
    call->is_left = 0;
    /* Behind the first picks each took a share of the rest. */
    const int64_t each_ns = own->num_found > 1 ? (own->spent_ns - own->first_ns) / (own->num_found - 1) : 0;
    call->forward_ns = first ? each_ns : own->forward_ns;
    call->first_ns = first ? each_ns : own->first_ns;
    call->spent_ns = call->first_ns + (found - 1) * each_ns;
}

/* The rest of a chain that more is wanted of than was foreseen: then its round was foreseen in vain. */
static void draft_rest(thin_ahead *ahead, thin_chain_call *call) {
    const int64_t found = call->num_found;
    const int32_t newest = call->picks[found - 1];
    thin_chain_call rest = *call;
    drop(ahead);
    rest.tokens = &newest;
    rest.num_tokens = 1;
    rest.position = call->position + call->num_tokens + found - 1;
    rest.most = call->most - found;
    rest.picks += found;
    rest.probs += found;
    rest.seconds += found;
    rest.behinds += found;
    go_on_with(&rest.rule, call->picks, found);
    thin_chain_follow(ahead->teams[DRAFT], ahead->chains[DRAFT], &rest);
    call->num_found = found + rest.num_found;
    call->is_left = rest.is_left;
    call->spent_ns += rest.spent_ns;
}

static int take_draft(thin_ahead *ahead, thin_chain_call *call) {
    const thin_chain_call *own = &ahead->foreseen[DRAFT].call;
    const int goes_on = ahead->num_taken == 1 && goes_on_from(own, ahead->num_given, call); /* num_given is 0 where nothing was drafted */
    const int64_t first = goes_on ? ahead->num_given : 0;
    if (!goes_on && !is_foreseen_draft(ahead, call)) return 0;
    team_join(ahead->teams[TARGET], &ahead->stage, DRAFTED);
    if (own->is_left || own->num_found <= first) return 0;
    give(own, first, call);
    ahead->num_given = first + call->num_found;
    ahead->num_hits[DRAFT] += !goes_on;
    ahead->num_taken = 1;
    ahead->num_missed = 0;
    const int has_ended = own->num_found < own->most || (double)own->probs[own->num_found - 1] < own->stop_below ||
                          is_end(ahead->chains[DRAFT], own->picks[own->num_found - 1]);
    if (call->num_found < call->most && !has_ended) draft_rest(ahead, call);
    return 1;
}

static int take_round(thin_ahead *ahead, thin_chain_call *call) {
    if (ahead->num_taken != 1 || !is_foreseen_round(ahead, call)) return 0;
    team_join(ahead->teams[TARGET], &ahead->stage, DONE);
    if (ahead->foreseen[TARGET].call.is_left) return 0;
    give(&ahead->foreseen[TARGET].call, 0, call);
    if (ahead->kind == WITH_DRAFT) ahead->num_hits[TARGET]++;
    else ahead->num_plain_hits++;
    ahead->num_taken = NUM_PARTS;
    atomic_store(&ahead->stage, IDLE);
    return 1;
}

/* Whether the call was served with what had been foreseen. */
static int take(thin_ahead *ahead, int64_t part, thin_chain_call *call) {
    const int64_t asked_ns = now_ns();
    if (call->keeps_logits) return 0;
    if (team_recall(ahead->teams[TARGET])) atomic_store(&ahead->stage, IDLE); /* nobody has begun: here and now is as soon */
    if (atomic_load(&ahead->stage) == IDLE || !(part == DRAFT ? take_draft(ahead, call) : take_round(ahead, call))) return 0;
    const int64_t waited_ns = now_ns() - asked_ns;
    call->hidden_ns = call->spent_ns > waited_ns ? call->spent_ns - waited_ns : 0;
    return 1;
}

/* The first of the call's guesses that its picks bear out: how many. */
static int64_t num_right(const thin_chain_call *call) {
    int64_t right = 0;
    while (right < call->num_wanted - 1 && call->picks[right] == call->tokens[right + 1]) right++;
    return right;
}

/* Whether the text goes on behind the picks that the call adds to it. */
static int goes_on_behind(const thin_ahead *ahead, const thin_chain_call *call, int64_t right) {
    for (int64_t at = 0; at <= right; at++)
        if (is_end(ahead->chains[TARGET], call->picks[at])) return 0;
    return 1;
}

/* Whether the call was a round over the newest draft. */
static int is_of_draft(const thin_ahead *ahead, const thin_chain_call *call) {
    const thin_chain_call *draft = &ahead->drafted.call;
    const int64_t guesses = call->num_tokens - 1;
    if (ahead->num_drafts != 1 || !guesses || call->num_wanted != call->num_tokens || guesses > draft->num_found) return 0;
    return !memcmp(call->tokens + 1, draft->picks, (size_t)guesses * sizeof(int32_t));
}

/* Where nothing was drafted: of which kind the plain step is that may follow this call, or -1. */
static int kind_behind(const thin_ahead *ahead, const thin_chain_call *call) {
    if (ahead->num_drafts || call->most != call->num_wanted) return -1;
    if (call->num_tokens == 1) return PLAIN;
    return call->num_wanted == 1 ? BEHIND_PROMPT : call->num_wanted == call->num_tokens ? BEHIND_GUESSES : -1;
}

/* Whether this call is the plain step behind the one before it, for the next time; and what may follow this one. */
static void learn_habit(thin_ahead *ahead, const thin_chain_call *call, int kind, int64_t next_position) {
    if (ahead->next_kind >= 0) {
        const int is_next = call->position == ahead->next_position && call->slots == ahead->next_slots, habit = ahead->habits[ahead->next_kind];
        const int is_plain = is_next && !ahead->num_drafts && call->num_tokens == 1 && call->most == 1;
        ahead->habits[ahead->next_kind] = is_plain ? (int)min(habit + 1, ALWAYS) : habit ? habit - 1 : 0;
    }
    ahead->next_kind = kind;
    ahead->next_position = next_position;
    ahead->next_slots = call->slots;
}

/* Whether a round of this kind is to be foreseen at present. */
static int is_worth_it(thin_ahead *ahead, int kind) {
    if (kind != WITH_DRAFT) return ahead->habits[kind] >= OFTEN;
    if (!ahead->num_paused) return 1;
    ahead->num_paused--;
    return 0;
}

/* The draft's part of the next round, behind the newest one's picks, of which so many bear out their guesses; false where there is no room. */
static int foresee_draft(thin_ahead *ahead, const thin_chain_call *call, int64_t right) {
    const thin_chain_call *before = &ahead->drafted.call;
    part *draft = &ahead->foreseen[DRAFT];
    const int32_t newest = call->picks[right];
    draft->call = *before;
    use_own_arrays(draft);
    use_own_touched(draft);
    go_on_with(&draft->call.rule, call->tokens + 1, right);
    go_on_with(&draft->call.rule, &newest, 1);
    /* A last pick was fed to nobody yet. */
    const int is_unfed = right == before->num_found;
    draft->call.position = call->position + right + !is_unfed;
    draft->call.num_tokens = 1 + is_unfed;
    draft->call.num_wanted = 1;
    draft->tokens[0] = is_unfed ? call->tokens[right] : newest;
    draft->tokens[1] = newest;
    const int64_t left = end_of(ahead, DRAFT, before) - draft->call.position - draft->call.num_tokens;
    draft->call.most = min(before->most, left + 1); /* the last is not fed */
    return left >= 0;
}

/* The target's part, as far as it is known before there are guesses: the newest pick. path_len: of the call, as it was asked for. */
static void foresee_target(thin_ahead *ahead, const thin_chain_call *call, int64_t path_len, int64_t right) {
    part *target = &ahead->foreseen[TARGET];
    const int32_t newest = call->picks[right];
    target->call = *call;
    use_own_arrays(target);
    target->call.rule.path_len = path_len - (call->num_wanted - 1 - right); /* without the guesses that were wrong */
    use_own_touched(target);
    go_on_with(&target->call.rule, &newest, 1);
    target->call.position = call->position + call->num_tokens - call->num_wanted + right + 1;
    target->call.num_tokens = target->call.num_wanted = target->call.most = 1;
    target->tokens[0] = newest;
}

static void send(thin_ahead *ahead, int kind) {
    ahead->kind = kind;
    ahead->has_rows = ahead->num_taken = kind != WITH_DRAFT;
    ahead->num_given = 0;
    atomic_store(&ahead->stage, SENT);
    if (team_send(ahead->teams[TARGET], run_errand, ahead)) ahead->num_sent[kind]++;
    else atomic_store(&ahead->stage, IDLE);
}

/* Send for the round after this one of the target's. path_len: as it was asked for. */
static void foresee(thin_ahead *ahead, const thin_chain_call *call, int64_t path_len) {
    const int64_t right = num_right(call);
    const int has_draft = is_of_draft(ahead, call), kind = has_draft ? WITH_DRAFT : kind_behind(ahead, call);
    learn_habit(ahead, call, has_draft || call->is_left ? -1 : kind, call->position + call->num_tokens - call->num_wanted + right + 1);
    if (kind < 0 || call->is_left || call->keeps_logits || !goes_on_behind(ahead, call, right) || !is_worth_it(ahead, kind)) return;
    if (has_draft && !foresee_draft(ahead, call, right)) return;
    foresee_target(ahead, call, path_len, right);
    if (ahead->foreseen[TARGET].call.position < end_of(ahead, TARGET, call)) send(ahead, kind);
}

/* path_len: as it was asked for. */
static void note_draft(thin_ahead *ahead, const thin_chain_call *call, int64_t path_len) {
    part *of = &ahead->drafted;
    const int is_plain = !call->is_left && call->num_wanted == 1;
    const int goes_on = is_plain && ahead->num_drafts == 1 && goes_on_from(&of->call, of->call.num_found, call);
    const int64_t first = goes_on ? of->call.num_found : 0;
    if (!goes_on) ahead->num_drafts++;
    if (!is_plain || first + call->most > MAX_ROWS) {
        ahead->num_drafts = NOT_ONE;
        return;
    }
    if (!goes_on) {
        of->call = *call;
        of->call.rule.path_len = path_len;
        use_own_touched(of);
    }
    use_own_arrays(of);
    memcpy(of->picks + first, call->picks, (size_t)call->num_found * sizeof(int32_t));
    of->call.num_found = first + call->num_found;
    of->call.most = first + call->most;
}

void thin_ahead_follow(thin_ahead *ahead, int64_t part, thin_chain_call *call) {
    const int64_t path_len = call->rule.path_len;
    call->hidden_ns = 0;
    if (atomic_load(&ahead->stage) == IDLE || !take(ahead, part, call)) {
        drop(ahead);
        thin_chain_follow(ahead->teams[part], ahead->chains[part], call);
    }
    if (part == DRAFT) {
        note_draft(ahead, call, path_len);
        return;
    }
    foresee(ahead, call, path_len);
    ahead->num_drafts = 0;
}

/* Before anything else uses the teams, or what sequences lie in is changed or freed: nothing is computed any more, and nothing foreseen. */
void thin_ahead_settle(thin_ahead *ahead) {
    drop(ahead);
    ahead->next_kind = -1;
    if (ahead->num_drafts) ahead->num_drafts = NOT_ONE; /* what comes between a draft and its judgement may have moved what was drafted */
}

/* draft: null, as its team, where nothing is ever drafted. Null when there is no memory. */
thin_ahead *thin_ahead_new(team *draft_team, const thin_chain *draft, int64_t draft_positions, team *target_team, const thin_chain *target, int64_t target_positions) {
    thin_ahead *ahead = calloc(1, sizeof(thin_ahead));
    if (!ahead) return 0;
    ahead->teams[DRAFT] = draft_team;
    ahead->teams[TARGET] = target_team;
    ahead->chains[DRAFT] = draft;
    ahead->chains[TARGET] = target;
    ahead->num_positions[DRAFT] = draft_positions;
    ahead->num_positions[TARGET] = target_positions;
    ahead->next_kind = -1;
    ahead->habits[PLAIN] = ALWAYS;
    ahead->habits[BEHIND_GUESSES] = OFTEN;
    return ahead;
}

void thin_ahead_free(thin_ahead *ahead) {
    drop(ahead);
    for (int64_t at = 0; at < NUM_PARTS; at++) free(ahead->foreseen[at].kept.memory);
    free(ahead->drafted.kept.memory);
    free(ahead);
}

int thin_ahead_is_at_rest(const thin_ahead *ahead) {
    const int stage = atomic_load(&ahead->stage);
    return stage == IDLE || stage == DONE;
}

/* Rounds that were sent for, and how many of their drafts and judgements were asked for; plain steps that were sent for, and how many were asked for. */
void thin_ahead_counts(const thin_ahead *ahead, int64_t *counts) {
    counts[0] = ahead->num_sent[WITH_DRAFT];
    counts[1] = ahead->num_hits[DRAFT];
    counts[2] = ahead->num_hits[TARGET];
    counts[3] = ahead->num_sent[PLAIN] + ahead->num_sent[BEHIND_GUESSES] + ahead->num_sent[BEHIND_PROMPT];
    counts[4] = ahead->num_plain_hits;
}
