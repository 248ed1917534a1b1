"""Chains of several sessions followed inside one engine step: each session hears what it would hear without, and the source asks for it
only where everybody's part is such a chain, the sessions are few, and it pays.

A broken twin (guesses of one session taken for another's) shows that the comparison would notice.
Run: pytest tests/unit/test_drafting_followed_together.py
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fakes_drafting import VOCAB_SIZE, TableEngine
from fakes_driven import Driven, next_commit
from outrider.drafting.contract import ProposeRequest
from outrider.drafting.follow_cost import (
    MAX_FOLLOW_US,
    MAX_FOLLOWED,
    MAX_FOLLOWED_UNMEASURED,
    MAX_FOLLOWING_SESSIONS,
    STEPS_TO_RETRY,
    FollowCost,
)
from outrider.drafting.model_source import ModelSource
from outrider.types.frames import DraftLimits, TailEnd
from outrider.types.step import SequenceResult, StepPlan, StepResult

MAX_LEN = 90
MAX_CALLS = 400
NUM_ROUNDS = 12


class Following(TableEngine):
    """Keeps how many picks more each row of each step may make, and says what they cost. follow_us: of each; step_us: of a step."""

    def __init__(self, *, follow_us: int = 1, step_us: int = 100, **settings: Any) -> None:
        super().__init__(**settings)
        self.wishes: list[list[int]] = []
        self._follow_us, self._step_us = follow_us, step_us

    def step(self, plan: StepPlan) -> StepResult:
        self.wishes.append([0 if rows.follow is None else rows.follow.num_more for rows in plan.sequences])
        done = super().step(plan)
        results = tuple(replace(result, follow_us=(len(result.picks) - 1) * self._follow_us) for result in done.results)
        return replace(done, results=results, step_us=self._step_us + sum(result.follow_us for result in results))


def requests(driven: list[Driven], draft_until: list[int]) -> list[ProposeRequest]:
    both = zip(driven, draft_until, strict=True)
    return [ProposeRequest(one.session, one.tree.tree_id, until, 0, one.limits.flush_nodes) for one, until in both]


def one_pause(driven: list[Driven], draft_until: list[int]) -> list[tuple[Any, ...]]:
    """What each session hears until none has anything to ask for."""
    heard: dict[int, TailEnd] = {}
    scores: dict[int, list[float]] = {one.session: [] for one in driven}
    for _ in range(MAX_CALLS):
        asking = [(one, until) for one, until in zip(driven, draft_until, strict=True) if one.session not in heard]
        if not asking:
            return [(heard[one.session], scores[one.session], tuple(one.tree.tokens), tuple(one.tree.parents)) for one in driven]
        for (one, _), proposal in zip(
            asking, driven[0].source.propose(requests([one for one, _ in asking], [until for _, until in asking])), strict=True
        ):
            one.take(proposal.tokens, proposal.parents)
            scores[one.session] += [] if proposal.scores is None else proposal.scores.tolist()
            if proposal.end is not TailEnd.MORE:
                heard[one.session] = proposal.end
    raise AssertionError("the source never paused")


def lives(engine: TableEngine, limits: list[DraftLimits], seed: int) -> list[Any]:
    choose, source = random.Random(seed), ModelSource(engine)
    prefixes = [[choose.randrange(VOCAB_SIZE) for _ in range(choose.randint(1, 30))] for _ in limits]
    driven = [Driven(source, session, prefix, own) for session, (prefix, own) in enumerate(zip(prefixes, limits, strict=True), 1)]
    seen: list[Any] = []
    for _ in range(NUM_ROUNDS):
        seen.append(one_pause(driven, [min(len(one.truth) + choose.randint(0, 14), MAX_LEN) for one in driven]))
        for one in driven:
            if len(one.truth) < MAX_LEN - 20 and choose.random() < 0.8:
                one.commit(next_commit(choose, one))
    return seen


CASES: dict[str, list[DraftLimits]] = {
    "two alike": [DraftLimits(MAX_LEN)] * 2,
    "four of many kinds": [
        DraftLimits(MAX_LEN),
        DraftLimits(MAX_LEN, 5),
        DraftLimits(MAX_LEN, 24, stop_below=0.14),
        DraftLimits(MAX_LEN, flush_nodes=3),
    ],
    "a tree among chains": [DraftLimits(MAX_LEN), DraftLimits(MAX_LEN, tree_width=2)],
    "more than are followed": [DraftLimits(MAX_LEN)] * (MAX_FOLLOWING_SESSIONS + 2),
}


@pytest.mark.parametrize("case", list(CASES))
def test_sessions_hear_the_same_whether_picks_are_followed_or_not(case: str) -> None:
    together = 0
    for seed in range(5):
        alone, following = TableEngine(), Following(follow_seed=seed)
        assert lives(alone, CASES[case], seed) == lives(following, CASES[case], seed)
        together += sum(len(wishes) > 1 and any(wishes) for wishes in following.wishes)
        assert all(max(wishes) <= MAX_FOLLOWED for wishes in following.wishes)
    assert (together > 0) == (case != "a tree among chains")


class Exchanged(Following):
    """Gives each sequence of a step the next one's picks but the first."""

    def step(self, plan: StepPlan) -> StepResult:
        done = super().step(plan)
        others = [*done.results[1:], done.results[0]]
        return replace(done, results=tuple(self._mixed(*both) for both in zip(done.results, others, strict=True)))

    @staticmethod
    def _mixed(own: SequenceResult, other: SequenceResult) -> SequenceResult:
        return replace(own, picks=np.concatenate([own.picks[:1], other.picks[1:]])) if len(own.picks) == len(other.picks) else own


def test_guesses_of_another_session_would_be_noticed() -> None:
    with pytest.raises(AssertionError):
        assert lives(TableEngine(), CASES["two alike"], 1) == lives(Exchanged(follow_seed=1), CASES["two alike"], 1)


# --- where an engine may follow -------------------------------------------------------------------------------------------


def wishes_of(engine: Following, limits: list[DraftLimits], draft_until: int | list[int]) -> list[int]:
    """In the first step of so many sessions of two tokens."""
    source = ModelSource(engine)
    driven = [Driven(source, session, [session, 2], own) for session, own in enumerate(limits, 1)]
    source.propose(requests(driven, draft_until if isinstance(draft_until, list) else [draft_until] * len(driven)))
    return engine.wishes[0]


def test_sessions_share_what_one_step_may_follow() -> None:
    for num_sessions in range(1, MAX_FOLLOWING_SESSIONS + 1):
        most = MAX_FOLLOWED_UNMEASURED // num_sessions
        assert wishes_of(Following(), [DraftLimits(MAX_LEN)] * num_sessions, 60) == [most] * num_sessions
    assert wishes_of(Following(), [DraftLimits(MAX_LEN)] * (MAX_FOLLOWING_SESSIONS + 1), 60) == [0] * (MAX_FOLLOWING_SESSIONS + 1)


def test_each_chain_ends_where_its_own_session_says() -> None:
    limits = [DraftLimits(MAX_LEN, flush_nodes=3), DraftLimits(MAX_LEN, 2), DraftLimits(MAX_LEN)]
    assert wishes_of(Following(), limits, [60, 60, 3]) == [2, 1, 0]


def test_nobody_waits_who_wants_something_else() -> None:
    """A tree, side branches, or a session that only asks."""
    chain = DraftLimits(MAX_LEN)
    assert wishes_of(Following(), [chain, DraftLimits(MAX_LEN, tree_width=2)], 60) == [0, 0]
    assert wishes_of(Following(), [chain, DraftLimits(MAX_LEN, svip_threshold=9.0)], 60) == [0, 0]
    assert wishes_of(Following(), [chain, chain], [60, 2]) == [0]
    assert wishes_of(Following(max_rows=2), [chain, chain], 60) == [0], "the other finds no room for its prefix"


# --- what it costs --------------------------------------------------------------------------------------------------------


def result(num_sessions: int, guess_us: int, step_us: int, num_more: int = 3, num_rows: int = 0) -> StepResult:
    outcome = SequenceResult(1, np.zeros(1 + num_more, np.int32), follow_us=num_more * guess_us)
    total_us = step_us + num_sessions * outcome.follow_us
    return StepResult((outcome,) * num_sessions, 1, total_us, num_rows or num_sessions)


def test_a_step_follows_as_many_guesses_as_a_commit_may_wait_for() -> None:
    cost = FollowCost()
    assert cost.most(2) == MAX_FOLLOWED_UNMEASURED // 2, "nothing is known"
    cost.note(result(2, 100, 200))
    assert (cost.most(1), cost.most(3)) == (MAX_FOLLOW_US // 100, MAX_FOLLOW_US // 300)
    slow = FollowCost()
    slow.note(result(1, 10_000, 200))
    assert slow.most(1) == slow.most(4) == 1, "a machine that stalled once: who follows nothing would never know better"
    cost.note(result(1, 0, 200))
    assert cost.most(1) <= MAX_FOLLOW_US, "a clock that stood still"


def test_chains_are_followed_while_they_cost_less_than_steps() -> None:
    cost = FollowCost()
    assert cost.pays(2), "nothing is known"
    cost.note(result(2, 60, 200))
    assert cost.pays(2)
    assert cost.pays(3), "a step of three is not known"
    cost.note(result(3, 60, 170))
    assert not cost.pays(3)
    assert cost.pays(1)
    assert not cost.pays(MAX_FOLLOWING_SESSIONS + 1)


def test_what_is_refused_is_tried_again_now_and_then() -> None:
    cost = FollowCost()
    cost.note(result(2, 200, 300))
    tries = [cost.pays(2) for _ in range(3 * STEPS_TO_RETRY)]
    assert sum(tries) == 3
    assert tries[STEPS_TO_RETRY - 1]
    cost.note(result(2, 100, 300))
    assert cost.pays(2), "a shorter measurement is believed at once"


def test_a_disturbed_measurement_changes_little() -> None:
    cost = FollowCost()
    cost.note(result(2, 60, 300))
    cost.note(result(2, 600, 300))
    assert cost.pays(2)


def test_steps_that_read_a_prompt_say_nothing_of_a_steps_cost() -> None:
    cost = FollowCost()
    cost.note(result(2, 90, 5000, num_rows=80))
    cost.note(result(2, 90, 100, num_more=0))
    assert not cost.pays(2)


def test_where_a_guess_costs_more_than_its_share_of_a_step_none_is_followed() -> None:
    dear = Following(follow_us=80, follow_seed=3)
    lives(dear, CASES["two alike"], 2)
    tried = [any(wishes) for wishes in dear.wishes if len(wishes) > 1]
    assert 1 <= sum(tried) <= 2 + len(tried) // STEPS_TO_RETRY < len(tried)
