"""Plain steps computed ahead against the same steps computed as they are asked for, and when they are foreseen. Rounds with drafts are
test_thin_ahead.py's. Run: pytest tests/kernels/test_thin_ahead_plain.py
"""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from fakes_ahead import OTHER, PLACES, RULES, TARGET_IDS, Asked, Pair, Text, begin, begun, judge
from fakes_chains import NUM_IDS, NUM_POSITIONS
from outrider_kernels.thin_ahead import ThinAhead
from outrider_kernels.thin_chain import ChainStart


@pytest.mark.parametrize("rule", list(RULES))
def test_plain_steps_are_foreseen_with_the_bits_of_those_that_are_not(rule: str) -> None:
    pair, twin, texts = begun(rule)
    num_steps = 0
    while len(texts[0].tokens) + 1 < len(PLACES["one"]):
        heard = [judge(one, text, RULES[rule]) for one, text in zip((pair, twin), texts, strict=True)]
        assert heard[0] == heard[1]
        pair.await_helper()
        num_steps += 1
    pair.target.settle()
    assert texts[0] == texts[1]
    assert pair.stored(texts[0]) == twin.stored(texts[1])
    assert pair.ahead is not None
    num_sent, num_asked = pair.ahead.plain_counts
    assert num_sent >= num_asked >= (1 if rule == "top p" else num_steps - 3) > 0, pair.ahead.plain_counts
    assert pair.ahead.counts == (0, 0, 0)


def test_a_plain_step_is_foreseen_behind_a_prompt_where_two_were_followed_by_one() -> None:
    pair, rule = Pair().hurry(), RULES["greedy"]
    assert pair.ahead is not None
    for num_before, (first, name) in enumerate(((5, "one"), (6, "other"), (7, "one"), (8, "other"))):
        text = Text([first, 9, 4], name)
        num_sent, num_asked = pair.ahead.plain_counts
        text.tokens += pair.target.follow(ChainStart(text.tokens, 0, 1, 0.0), rule, pair.places[name]).picks.tolist()
        is_foreseen = num_before >= 2
        assert pair.ahead.plain_counts == (num_sent + is_foreseen, num_asked)
        pair.await_helper()  # one that has not begun when it is asked for is none
        judge(pair, text, rule)
        assert pair.ahead.plain_counts == (num_sent + is_foreseen + 1, num_asked + is_foreseen)
        pair.target.settle()  # the text is at its end


def test_a_plain_step_is_foreseen_behind_guesses_that_no_draft_made_and_not_where_logits_are_read() -> None:
    pair, rule = Pair().hurry(), RULES["greedy"]
    text = Text([5, 9, 4])
    assert pair.ahead is not None
    begin(pair, text, rule)
    judge(pair, text, rule)
    assert pair.ahead.plain_counts == (1, 0)
    judge(pair, text, rule, (1, 2, 3))  # none of which it ever picks
    assert pair.ahead.plain_counts == (2, 0)
    pair.await_helper()
    judge(pair, text, rule)
    assert pair.ahead.plain_counts == (3, 1)
    judge(pair, text, rule, keeps_logits=True)
    assert pair.ahead.plain_counts == (3, 1), "nothing is handed out, nor foreseen"


@pytest.mark.parametrize(("kind", "num_foreseen"), [("plain", 2), ("prompt", 0), ("guesses", 1)])
def test_plain_steps_that_do_not_follow_are_foreseen_no_more(kind: str, num_foreseen: int) -> None:
    """Two sequences in turns, so that nothing goes on from the call before it."""
    pair, rule = Pair().hurry(), RULES["greedy"]
    assert pair.ahead is not None
    for seed in range(20):
        text, name = [seed % NUM_IDS, 9, 4], ("one", "other")[seed % 2]
        rows = text[:1] if kind == "plain" else text
        num_wanted = len(rows) if kind == "guesses" else 1
        pair.target.follow(ChainStart(rows, 0, num_wanted, 0.0, num_wanted), rule, pair.places[name])
        pair.await_helper()
    assert pair.ahead.plain_counts == (num_foreseen, 0)


def test_no_plain_step_is_foreseen_behind_an_end_or_the_last_position() -> None:
    pair = Pair()
    twin, rule = Pair(), RULES["greedy"]
    text = Text([5, 9, 4])
    begin(twin, text, rule)
    judge(twin, text, rule)
    end = text.tokens[-1]
    pair.target = pair.models[1].chain(replace(TARGET_IDS, ends=(end,)))
    pair.ahead = ThinAhead(pair.draft, NUM_POSITIONS, pair.target, NUM_POSITIONS)
    text = Text([5, 9, 4])
    begin(pair, text, rule)
    num_sent = pair.ahead.plain_counts[0]
    judge(pair, text, rule)
    assert text.tokens[-1] == end
    assert pair.ahead.plain_counts[0] == num_sent
    del pair
    gc.collect()
    pair = Pair()
    pair.ahead = ThinAhead(pair.draft, 8, pair.target, 8)
    text = Text([5, 9, 4])
    begin(pair, text, rule)
    for pool in pair.models[1].pools:
        pool[:, :, PLACES["one"][8:]] = 0.5
    while len(text.tokens) < 9:
        judge(pair, text, rule)
        pair.await_helper()
    assert pair.ahead.plain_counts[1] > 2
    assert all(bool((pool[:, :, PLACES["one"][8:]] == 0.5).all()) for pool in pair.models[1].pools)


@pytest.mark.parametrize("other", list(OTHER))
def test_one_thing_that_is_otherwise_is_not_the_plain_step_that_was_foreseen(other: str) -> None:
    rule, num_hits = RULES["warm, with seconds"], 0
    pair, twin = Pair().hurry(), Pair()
    texts = Text([5, 9, 4]), Text([5, 9, 4])
    for one, text in zip((pair, twin), texts, strict=True):
        begin(one, text, rule)
        for _ in range(3):
            judge(one, text, rule)
            one.await_helper()
        plain = Asked(ChainStart(text.tokens[-1:], len(text.tokens) - 1, 1, 0.0), rule, "one")
        heard = [OTHER[other](plain).of(one, target=True)]
        if one.ahead is not None:
            expected, num_hits = heard, one.ahead.plain_counts[1]
    assert heard == expected
    assert num_hits == 2 + (other == "nothing")
