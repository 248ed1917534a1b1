"""Rounds computed ahead against the same calls computed as they are asked for: picks, probabilities, seconds and all that counts of the
pools, bit for bit, whatever is asked for next: the same again, more, less, something else, another sequence, or nothing while pools change.

Races show by repetition only, so calls come at random, many times over. Broken twins (a round that was settled too late, a model of other
weights) show that the comparisons would notice. Run: pytest tests/kernels/test_thin_ahead.py
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

from fakes_ahead import (
    DRAFT_IDS,
    MAX_GUESSES,
    OTHER,
    PLACES,
    RULES,
    TARGET_IDS,
    Asked,
    Pair,
    Text,
    begin,
    begun,
    decode_round,
    judge,
    where,
)
from fakes_chains import NUM_IDS, NUM_POSITIONS, ChainModel
from mostly_slow import crossed
from outrider_kernels.thin_ahead import ThinAhead
from outrider_kernels.thin_chain import ChainSlots, ChainStart, Followed
from outrider_kernels.thin_pick import PickRule
from outrider_kernels.thin_team import ThinTeam


@pytest.mark.parametrize(("lengths", "stop_below"), [((4,), 1e-6), ((3, 1), 1e-6), ((4,), 2.0)], ids=["one", "a single pick", "unlikely"])
@pytest.mark.parametrize("rule", list(RULES))
def test_rounds_that_are_alike_are_foreseen_with_the_bits_of_those_that_are_not(
    rule: str, lengths: tuple[int, ...], stop_below: float
) -> None:
    pair, twin, texts = begun(rule, stop_below=stop_below)
    num_rounds = 0
    while len(texts[0].tokens) + MAX_GUESSES < len(PLACES["one"]):
        assert decode_round(pair, texts[0], RULES[rule], lengths) == decode_round(twin, texts[1], RULES[rule], lengths)
        pair.await_helper()
        num_rounds += 1
    pair.target.settle()
    assert texts[0] == texts[1]
    assert pair.stored(texts[0]) == twin.stored(texts[1])
    assert pair.ahead is not None
    num_sent, num_drafts, num_judged = pair.ahead.counts
    assert num_sent >= num_drafts >= num_judged >= (1 if rule == "top p" else num_rounds - 2) > 0, pair.ahead.counts


def test_logits_that_somebody_reads_stay_behind_their_call() -> None:
    """Nothing is computed ahead of them, and what was foreseen before is not handed out without."""
    pair, twin, texts = begun("greedy")
    assert pair.ahead is not None
    for keeps_logits in (False, False, True, True, False, True):
        num_sent, _, num_rounds = pair.ahead.counts
        heard = [
            decode_round(one, text, RULES["greedy"], (4,), keeps_logits=keeps_logits) for one, text in zip((pair, twin), texts, strict=True)
        ]
        assert heard[0] == heard[1]
        pair.await_helper()
        if keeps_logits:
            assert (pair.ahead.counts[0], pair.ahead.counts[2]) == (num_sent, num_rounds)
            assert pair.models[1].logits[:5].tobytes() == twin.models[1].logits[:5].tobytes()
    assert pair.ahead.counts[0] == 3
    assert pair.ahead.counts[2] == 1


def random_round(draw: np.random.Generator) -> tuple[tuple[int, ...], int | None]:
    """Mostly as before, or longer, shorter, in two calls, or with guesses that nobody judges."""
    kind = draw.integers(8)
    if kind < 4:
        return (4,), None
    if kind < 6:
        return (int(draw.integers(1, MAX_GUESSES + 1)),), None
    if kind < 7:
        return ((2, 2), (3, 1), (1, 3))[int(draw.integers(3))], None
    return (4,), int(draw.integers(0, 4))


@pytest.mark.parametrize(("rule", "seed"), crossed(list(RULES), range(4)))
def test_whatever_is_asked_for_next_has_its_own_bits(rule: str, seed: int) -> None:
    pair, twin = Pair().hurry(), Pair()
    draw = np.random.default_rng(seed)
    for _ in range(40):
        name = ("one", "other")[int(draw.integers(2))]
        start = draw.integers(0, NUM_IDS, 3).tolist()
        stop_below = float(draw.choice([0.0, 0.2, 0.6]))
        texts = Text([*start], name, stop_below=stop_below), Text([*start], name, stop_below=stop_below)
        for one, text in zip((pair, twin), texts, strict=True):
            begin(one, text, RULES[rule])
        while len(texts[0].tokens) + MAX_GUESSES < len(PLACES[name]) and draw.random() > 0.05:
            lengths, num_judged = random_round(draw)
            guesses = tuple(draw.integers(0, NUM_IDS, int(draw.integers(3))).tolist()) if draw.random() < 0.5 else ()
            is_plain = draw.random() < 0.3
            for _ in range(int(draw.integers(2, 5)) if is_plain else 1):
                if len(texts[0].tokens) + MAX_GUESSES >= len(PLACES[name]):
                    break
                heard = [
                    judge(one, text, RULES[rule], guesses) if is_plain else decode_round(one, text, RULES[rule], lengths, num_judged)
                    for one, text in zip((pair, twin), texts, strict=True)
                ]
                assert heard[0] == heard[1]
                if is_plain and draw.random() < 0.8:
                    pair.await_helper()
            match int(draw.integers(10)):
                case 0:
                    pair.draft.settle()
                case 1 | 2 | 3 | 4 | 5:
                    pair.await_helper()
        pair.target.settle()
        assert texts[0] == texts[1]
        assert pair.stored(texts[0]) == twin.stored(texts[1])
    assert pair.ahead is not None
    assert all(count > 20 for count in pair.ahead.counts), pair.ahead.counts
    assert all(count > 10 for count in pair.ahead.plain_counts), pair.ahead.plain_counts


@pytest.mark.parametrize("other", list(OTHER))
@pytest.mark.parametrize("which", ["draft", "its rest", "round"])
def test_one_thing_that_is_otherwise_is_not_what_was_foreseen(which: str, other: str) -> None:
    """Foreseen are a draft of four picks, asked for in two calls, and the round over it."""
    rule, num_hits = RULES["warm, with seconds"], 0
    pair, twin = Pair().hurry(), Pair()
    texts = Text([5, 9, 4]), Text([5, 9, 4])
    for one, text in zip((pair, twin), texts, strict=True):
        begin(one, text, rule)
        for _ in range(3):
            decode_round(one, text, rule, (4,))
            one.await_helper()
        heard = []
        fed = text.tokens[text.drafted :]
        draft = Asked(ChainStart(fed, text.drafted, 2, 0.0), rule, "one")
        if which == "draft":
            heard.append(OTHER[other](draft).of(one, target=False))
        else:
            guesses = one.draft.follow(draft.start, rule, one.places["one"]).picks.tolist()
            rest = Asked(ChainStart(guesses[-1:], text.drafted + len(fed) + 1, 2, 0.0), rule, "one")
            if which == "its rest":
                heard.append(OTHER[other](rest).of(one, target=False))
            else:
                guesses += one.draft.follow(rest.start, rule, one.places["one"]).picks.tolist()
                rows = [text.tokens[-1], *guesses]
                judged = Asked(ChainStart(rows, len(text.tokens) - 1, len(rows), 0.0, len(rows)), rule, "one")
                heard.append(OTHER[other](judged).of(one, target=True))
        if one.ahead is not None:
            expected, num_hits = heard, sum(one.ahead.counts[1:])
    assert heard == expected
    assert num_hits == {"draft": 4, "its rest": 5, "round": 5}[which] + (other == "nothing" and which != "its rest")


def test_what_was_computed_before_is_told_as_time_that_was_hidden() -> None:
    rule, pair = RULES["greedy"], Pair().hurry()
    place, hidden = pair.places["one"], list[tuple[int, int]]()
    for _ in range(20):  # whoever loses its core while it asks finds nothing hidden
        text = Text([5, 9, 4])
        begin(pair, text, rule)
        for _ in range(3):
            decode_round(pair, text, rule, (4,))
            pair.await_helper()
        fed = text.tokens[text.drafted :]
        draft = ChainStart(fed, text.drafted, 2, 0.0)
        first = pair.draft.follow(draft, rule, place)
        rest = pair.draft.follow(ChainStart(first.picks.tolist()[-1:], text.drafted + len(fed) + 1, 2, 0.0), rule, place)
        again = pair.draft.follow(draft, rule, place)
        for found in (first, rest, again):
            assert found.first_ns >= found.forward_ns > 0
        assert rest.hidden_ns <= 2 * rest.first_ns, "two picks that followed, each with its share of what all took"
        assert again.hidden_ns == 0
        hidden.append((first.hidden_ns, rest.hidden_ns))
    assert all(map(any, zip(*hidden, strict=True)))


def test_nothing_is_stored_after_it_is_settled_which_it_is_without() -> None:
    """What settling is for: a pool that changes hands. The broken twin does without, and sooner or later finds what it did not store."""
    pair = Pair().hurry()
    num_foreign = {True: 0, False: 0}
    for settles in (True, False):
        for _ in range(200):
            text = Text([5, 9, 4])
            begin(pair, text, RULES["greedy"])
            decode_round(pair, text, RULES["greedy"], (4,))
            if settles:
                pair.target.settle()
            for model in pair.models:
                for pool in model.pools:
                    pool[:] = 0.5
            if not settles:
                pair.await_helper()
            num_foreign[settles] += any(bool((pool != 0.5).any()) for model in pair.models for pool in model.pools)
    assert num_foreign[True] == 0
    assert num_foreign[False] > 0


def test_nothing_is_foreseen_behind_the_last_position() -> None:
    pair = Pair()
    pair.ahead = ThinAhead(pair.draft, 16, pair.target, 16)
    text = Text([5, 9, 4])
    begin(pair, text, RULES["greedy"])
    for pool in pair.models[1].pools:
        pool[:, :, PLACES["one"][16:]] = 0.5
    while len(text.tokens) < 15:
        decode_round(pair, text, RULES["greedy"], (min(4, 16 - len(text.tokens)),))
        pair.await_helper()
    pair.target.settle()
    assert all(bool((pool[:, :, PLACES["one"][16:]] == 0.5).all()) for pool in pair.models[1].pools)
    assert pair.ahead.counts[0] > 0


@pytest.mark.parametrize("which", ["draft", "target"])
def test_nothing_is_foreseen_in_a_place_that_does_not_last(which: str) -> None:
    """Its arrays may be gone while it would be computed."""
    pair, text = Pair(), Text([5, 9, 4])
    ahead = pair.ahead = ThinAhead(pair.draft, NUM_POSITIONS, pair.target, NUM_POSITIONS)
    begin(pair, text, RULES["greedy"])
    chain = pair.draft if which == "draft" else pair.target
    follow = chain.follow

    def follow_briefly(start: ChainStart, rule: PickRule, place: ChainSlots) -> Followed:
        return follow(start, rule, where("one", is_lasting=False))

    chain.follow = follow_briefly  # type: ignore[assignment, method-assign]
    for _ in range(4):
        decode_round(pair, text, RULES["greedy"], (4,))
        assert ahead.is_at_rest
    assert ahead.counts[1:] == (0, 0)
    assert which == "target" or ahead.counts[0] == 0


def test_who_errs_again_and_again_rests() -> None:
    pair, draw = Pair().hurry(), np.random.default_rng(0)
    for _ in range(60):
        text = Text(draw.integers(0, NUM_IDS, 3).tolist())
        begin(pair, text, RULES["greedy"])
        decode_round(pair, text, RULES["greedy"], (4,))
        pair.await_helper()
    assert pair.ahead is not None
    num_sent, num_drafts, _ = pair.ahead.counts
    assert num_drafts == 0
    assert 10 <= num_sent <= 20, "four in vain, then one in five"


def test_a_pair_needs_a_thread_to_spare_and_teams_of_its_own() -> None:
    pair = Pair(target_team=ThinTeam(1))
    with pytest.raises(ValueError, match="second thread"):
        pair.hurry()
    pair = Pair().hurry()
    with pytest.raises(ValueError, match="another pair"):
        ThinAhead(pair.draft, NUM_POSITIONS, pair.target, NUM_POSITIONS)
    gc.collect()
    assert pair.draft_team.computes_ahead, "it still does, for the first"
    assert pair.target_team.computes_ahead
    team = ThinTeam(2)
    ours, theirs = ChainModel(team).chain(DRAFT_IDS), ChainModel(team).chain(TARGET_IDS)
    with pytest.raises(ValueError, match="a team for each"):
        ThinAhead(ours, NUM_POSITIONS, theirs, NUM_POSITIONS)


def test_teams_outlive_a_pair_and_serve_another() -> None:
    teams = ThinTeam(1), ThinTeam(2)
    for _ in range(3):
        pair, text = Pair(*teams).hurry(), Text([5, 9, 4])
        begin(pair, text, RULES["greedy"])
        for _ in range(3):
            decode_round(pair, text, RULES["greedy"], (4,))
        assert pair.ahead is not None
        assert pair.ahead.counts[0] == 3
        pair.target.settle()
        del pair
        gc.collect()
        for team in teams:
            team.settle()


def test_threads_that_are_held_back_foresee_nothing() -> None:
    pair = Pair().hurry()
    pair.target_team.hold(1)
    text = Text([5, 9, 4])
    begin(pair, text, RULES["greedy"])
    for _ in range(4):
        decode_round(pair, text, RULES["greedy"], (4,))
    assert pair.ahead is not None
    assert pair.ahead.counts == (0, 0, 0)
    pair.target_team.hold(2)
    for _ in range(2):
        decode_round(pair, text, RULES["greedy"], (4,))
    assert pair.ahead.counts[0] == 2


def test_another_model_would_be_noticed() -> None:
    pair, twin = Pair().hurry(), Pair()
    twin.models[0].embedding[:] *= 1.01
    texts = Text([5, 9, 4]), Text([5, 9, 4])
    heard = []
    for one, text in zip((pair, twin), texts, strict=True):
        begin(one, text, RULES["greedy"])
        heard.append([decode_round(one, text, RULES["greedy"], (4,)) for _ in range(4)])
    assert heard[0] != heard[1]
