"""A lone chain whose picks are followed inside one engine step: it guesses, scores, pauses and feeds what a step for each row would,
whatever number of picks the engine makes; and where the source lets an engine follow at all. Several: test_drafting_followed_together.py.

A broken twin (rows of a followed chain that a hedged tree does not hear of) shows that the comparison would notice.
Run: pytest tests/unit/test_drafting_followed.py
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from fakes_drafting import VOCAB_SIZE, TableEngine
from fakes_driven import SESSION, Driven, next_commit
from outrider.drafting import follow_cost, model_source
from outrider.drafting.contract import ProposeRequest
from outrider.drafting.follow_cost import MAX_FOLLOWED_UNMEASURED, FollowCost
from outrider.drafting.model_source import ModelSource
from outrider.drafting.model_tree import ModelTree
from outrider.drafting.tree_growth import grow_followed
from outrider.types.frames import DraftLimits, TailEnd
from outrider.types.step import Follow, SequenceResult, StepPlan, StepResult

MAX_LEN = 90
MAX_CALLS = 200
Seen = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def _chains_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain gives way to its side branches only between two steps, so the order of guesses would depend on how many a step makes."""
    monkeypatch.setattr(FollowCost, "branch_price", property(lambda cost: 1e9))


def one_pause(driven: Driven, draft_until: int, hedge_nodes: int) -> tuple[Any, ...]:
    """What a session hears until it has nothing to ask for: guesses, scores and why they end."""
    scores: list[float] = []
    for _ in range(MAX_CALLS):
        request = ProposeRequest(SESSION, driven.tree.tree_id, draft_until, hedge_nodes, driven.limits.flush_nodes)
        (proposal,) = driven.source.propose([request])
        driven.take(proposal.tokens, proposal.parents)
        assert proposal.scores is None or len(proposal.scores) == len(proposal.tokens)
        scores += [] if proposal.scores is None else proposal.scores.tolist()
        if proposal.end is not TailEnd.MORE and not proposal.may_hedge:
            return proposal.end, tuple(scores), tuple(driven.tree.tokens), tuple(driven.tree.parents)
    raise AssertionError("the source never paused")


def life(engine: TableEngine, limits: DraftLimits, seed: int, max_depth: int = 64) -> Seen:
    """What a session hears from pause to pause, between arbitrary commits. Every choice comes from the seed and from what it heard."""
    choose = random.Random(seed)
    driven = Driven(ModelSource(engine, max_depth), SESSION, [choose.randrange(VOCAB_SIZE) for _ in range(choose.randint(1, 40))], limits)
    seen: Seen = []
    while len(driven.truth) < MAX_LEN - 12:
        hedge_nodes = choose.choice([0, 0, limits.hedge_nodes])
        seen.append(one_pause(driven, min(len(driven.truth) + choose.randint(0, 14), limits.max_len), hedge_nodes))
        if not hedge_nodes and choose.random() < 0.3:  # more credit for the same tree
            seen.append(one_pause(driven, min(len(driven.truth) + 20, limits.max_len), 0))
        driven.commit(next_commit(choose, driven))
        seen.append((driven.tree.tree_id, engine.cached(SESSION)))
    return seen


CASES: dict[str, tuple[DraftLimits, tuple[int, ...], int]] = {
    "credit alone": (DraftLimits(MAX_LEN), (), 64),
    "few nodes": (DraftLimits(MAX_LEN, 5), (), 64),
    "one node": (DraftLimits(MAX_LEN, 1), (), 64),
    "a stop rule": (DraftLimits(MAX_LEN, 24, stop_below=0.14), (), 64),
    "a strict stop rule": (DraftLimits(MAX_LEN, 24, stop_below=0.25), (), 64),
    "end tokens": (DraftLimits(MAX_LEN), (3, 11, 17), 64),
    "end tokens and a stop rule": (DraftLimits(MAX_LEN, stop_below=0.12), (3, 11), 64),
    "flushes": (DraftLimits(MAX_LEN, flush_nodes=3), (), 64),
    "shallow trees": (DraftLimits(MAX_LEN), (), 6),
    "side branches now and then": (DraftLimits(MAX_LEN, 20, hedge_nodes=8), (3,), 64),
    "side branches and a stop rule": (DraftLimits(MAX_LEN, 20, stop_below=0.14, hedge_nodes=8), (3,), 64),
}


def compare(case: str, num_lives: int = 6) -> int:
    """Rows that followed."""
    limits, eos_token_ids, max_depth = CASES[case]
    num_followed = 0
    for seed in range(num_lives):
        alone, following = (TableEngine(eos_token_ids=eos_token_ids, follow_seed=wish) for wish in (None, seed))
        assert life(alone, limits, seed, max_depth) == life(following, limits, seed, max_depth)
        assert following.num_steps + following.num_followed == alone.num_steps
        assert following.num_rows + following.num_followed == alone.num_rows, "no row is fed for nothing"
        num_followed += following.num_followed
    return num_followed


@pytest.mark.parametrize("case", list(CASES))
def test_a_session_hears_the_same_whether_picks_are_followed_or_not(case: str) -> None:
    assert (compare(case) > 0) == (case != "one node")


def test_a_hedged_tree_that_misses_a_followed_row_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unheard(tree: ModelTree, parent: int, outcome: SequenceResult) -> list[float] | None:
        hedges, tree.hedges = tree.hedges, None
        scores = grow_followed(tree, parent, outcome)
        tree.hedges = hedges
        return scores

    monkeypatch.setattr(model_source, "grow_followed", unheard)
    with pytest.raises(AssertionError):
        compare("side branches and a stop rule")


# --- where an engine may follow -------------------------------------------------------------------------------------------


class Wishes(TableEngine):
    """Keeps what each row may be followed by."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.wishes: list[Follow | None] = []

    def step(self, plan: StepPlan) -> StepResult:
        self.wishes += [rows.follow for rows in plan.sequences]
        return super().step(plan)


def first_wish(limits: DraftLimits, draft_until: int, *, with_rows: bool = False) -> Follow | None:
    """Of a session of two tokens."""
    engine = Wishes()
    driven = Driven(ModelSource(engine), SESSION, [1, 2], limits, with_rows=with_rows)
    driven.source.propose([ProposeRequest(SESSION, 0, draft_until, limits.hedge_nodes, limits.flush_nodes)])
    return engine.wishes[0]


def num_wished(limits: DraftLimits, draft_until: int) -> int:
    wish = first_wish(limits, draft_until)
    return 0 if wish is None else wish.num_more


def test_a_wish_ends_where_the_sessions_guesses_do() -> None:
    whole = DraftLimits(MAX_LEN)
    assert [num_wished(whole, 2 + num_guesses) for num_guesses in (1, 2, 5)] == [0, 1, 4]
    assert num_wished(whole, 80) == MAX_FOLLOWED_UNMEASURED
    assert [num_wished(DraftLimits(MAX_LEN, max_nodes), 80) for max_nodes in (1, 2, 4)] == [0, 1, 3]
    assert [num_wished(DraftLimits(MAX_LEN, flush_nodes=flush), 80) for flush in (1, 2, 4, 64)] == [0, 1, 3, MAX_FOLLOWED_UNMEASURED]
    assert first_wish(DraftLimits(MAX_LEN, stop_below=0.3), 80) == Follow(MAX_FOLLOWED_UNMEASURED, 0.3)


def test_only_a_chain_that_needs_nothing_but_its_picks_and_seconds_is_followed() -> None:
    assert first_wish(DraftLimits(MAX_LEN, tree_width=2), 80) is None
    assert first_wish(DraftLimits(MAX_LEN, svip_threshold=9.0), 80) is None
    assert first_wish(DraftLimits(MAX_LEN, hedge_nodes=4), 80) == Follow(MAX_FOLLOWED_UNMEASURED), "its second choices come along"
    assert first_wish(DraftLimits(MAX_LEN), 80, with_rows=True) is None


def test_a_prefix_is_followed_only_after_its_last_chunk() -> None:
    engine = Wishes(max_rows=16)
    driven = Driven(ModelSource(engine), SESSION, [1] * 40, DraftLimits(MAX_LEN))
    driven.draft(60)
    assert engine.wishes[:3] == [None, None, Follow(MAX_FOLLOWED_UNMEASURED)]


def test_following_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_cost, "MAX_FOLLOWED", 0)
    for limits in (DraftLimits(MAX_LEN), DraftLimits(MAX_LEN, flush_nodes=4)):
        assert first_wish(limits, 80) is None
