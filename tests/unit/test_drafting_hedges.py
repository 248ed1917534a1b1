"""Side branches of the model drafter: for the likeliest corrections, within their budget, and right when the truth takes one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fakes_drafting import VOCAB_SIZE, TableEngine, table_ranking, table_scores
from fakes_driven import SESSION, Driven, drive
from mostly_slow import crossed
from outrider.drafting.contract import ProposeRequest
from outrider.drafting.follow_cost import FollowCost
from outrider.drafting.hedges import MAX_HEDGE_ROWS, MIN_HEDGE_GAIN, Branch, Hedges, Second, second_behind
from outrider.drafting.model_source import ModelSource
from outrider.types.frames import DraftLimits, TailEnd
from outrider.types.step import SequenceResult, StepPlan, StepResult
from outrider.types.tree import ROOT

LIMITS = DraftLimits(max_len=200, max_nodes=24, hedge_nodes=20)


class Recorder(TableEngine):
    """Keeps how many draws each row that picks was asked for, and whether the second was wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, bool]] = []

    def step(self, plan: StepPlan) -> StepResult:
        self.asked += [(rows.num_choices, rows.seconds) for rows in plan.sequences if rows.wanted]
        return super().step(plan)


def driven_by(engine: TableEngine, limits: DraftLimits = LIMITS, prefix: tuple[int, ...] = (1, 2, 3)) -> Driven:
    return Driven(ModelSource(engine), SESSION, list(prefix), limits)


def side_nodes(driven: Driven) -> list[int]:
    """Live nodes that are not on the chain of first children."""
    chain, node = set(), driven.tree.root
    while True:
        below = [child for child in driven.tree.live_nodes() if driven.tree.parents[child] == node]
        if not below:
            return [node for node in driven.tree.live_nodes() if node not in chain]
        node = below[0]
        chain.add(node)


@pytest.mark.parametrize(("most", "follow_seed"), crossed([(64, 32), (8, 16), (3, 5), (16, 2), (4, 1)], [None, 5]))
def test_every_guess_is_the_models_own_choice_after_any_mixture_of_commits(most: tuple[int, int], follow_seed: int | None) -> None:
    """Commits walk any child, side branches too; a child's rank among its siblings is its rank in the table. most: nodes, and of hedges."""
    max_nodes, hedge_nodes = most
    limits = DraftLimits(max_len=200, max_nodes=max_nodes, hedge_nodes=hedge_nodes)
    for seed in range(12):
        drive(seed, limits, TableEngine(max_rows=16, follow_seed=follow_seed))


@pytest.mark.parametrize("follow_seed", [None, 5])
@pytest.mark.parametrize("stop", [DraftLimits(200, 24, 1, 0.2, hedge_nodes=16), DraftLimits(200, 24, 1, 0.0, 0.6, hedge_nodes=16)])
def test_stop_rules_hold_on_side_branches_too(stop: DraftLimits, follow_seed: int | None) -> None:
    for seed in range(8):
        drive(seed, stop, TableEngine(max_rows=16, follow_seed=follow_seed))


def test_side_branches_keep_to_their_budget_and_to_the_credit_and_leave_the_chain_whole() -> None:
    driven = driven_by(TableEngine())
    driven.hedge(7, 6)
    assert 0 < len(side_nodes(driven)) <= 6
    assert len(driven.tree.live_nodes()) - len(side_nodes(driven)) == 4
    assert max(driven.tree.base + driven.tree.depth(node) for node in driven.tree.live_nodes()) < 7


def test_nothing_is_said_to_be_a_side_branch_that_is_none() -> None:
    """A proposal holds the chain's next guess or side branches, never both."""
    driven, ends = driven_by(TableEngine()), set()
    for _ in range(30):
        (proposal,) = driven.source.propose([ProposeRequest(SESSION, 0, 9, 12)])
        before = len(side_nodes(driven))
        driven.take(proposal.tokens, proposal.parents)
        num_side = len(side_nodes(driven)) - before
        assert num_side == (len(proposal.tokens) if proposal.is_hedge else 0)
        ends.add(proposal.end)
    assert ends == {TailEnd.MORE, TailEnd.CREDIT}


@pytest.mark.parametrize(("svip_threshold", "bare", "hedged"), [(0.0, (0, False), (0, True)), (0.9, (1, False), (2, False))])
def test_no_budget_costs_nothing_and_a_budget_asks_for_second_draws(
    svip_threshold: float, bare: tuple[int, bool], hedged: tuple[int, bool]
) -> None:
    """Where candidates are asked for anyway, the second is the second of them."""
    engine = Recorder()
    driven = driven_by(engine, replace(LIMITS, svip_threshold=svip_threshold))
    driven.draft(9)
    assert set(engine.asked) == {bare}
    assert not driven.may_hedge
    driven.commit(driven.path(0))
    driven.propose(12, 8)
    assert engine.asked[-1] == hedged


def test_a_budget_that_comes_late_hedges_what_is_guessed_from_then_on() -> None:
    driven = driven_by(TableEngine())
    driven.draft(6)
    driven.hedge(9, 8)
    assert side_nodes(driven)
    assert all(driven.tree.depth(node) >= 3 for node in side_nodes(driven))


def test_a_mismatch_that_takes_a_branch_finds_its_guesses_and_goes_on_below_them() -> None:
    engine = TableEngine()
    driven = driven_by(engine)
    driven.hedge(9, 20)
    taken = next(node for node in side_nodes(driven) if driven.tree.parents[node] not in side_nodes(driven))
    tokens = driven.path(taken)
    below = [node for node in side_nodes(driven) if driven.tree.parents[node] == taken]
    assert below, "a branch never comes without a guess"
    num_rows = engine.num_rows
    assert driven.commit(tokens)
    assert driven.tree.tree_id == 0
    assert driven.path(below[0]) == [table_ranking(driven.truth)[0]]
    driven.draft(12)
    num_kept = sum(driven.tree.base + driven.tree.depth(node) == len(driven.truth) for node in driven.tree.live_nodes())
    assert num_kept >= 1
    assert engine.num_rows - num_rows <= 12 - len(driven.truth), "what was guessed there already was guessed again"


def test_a_chain_of_any_session_goes_before_the_branches_of_all() -> None:
    """One session's chain has paused, and its branches can go on; the other has just begun, so that its chain is worth more than any."""
    engine = TableEngine()
    source = ModelSource(engine)
    ready, busy = (Driven(source, session, [session, 2], LIMITS) for session in (1, 2))
    while ready.propose(6, 20) is TailEnd.MORE:
        pass
    assert ready.may_hedge
    both = [ProposeRequest(1, 0, 6, 20), ProposeRequest(2, 0, 3, 20)]
    first, second = source.propose(both)
    assert (first.tokens, first.may_hedge, len(second.tokens)) == ((), True, 1)
    busy.take(second.tokens, second.parents)
    steps = engine.num_steps
    first, second = source.propose([ProposeRequest(1, 0, 6, 20), ProposeRequest(2, 0, 5, 20)])
    while not first.is_hedge:
        busy.take(second.tokens, second.parents)
        steps = engine.num_steps
        first, second = source.propose([ProposeRequest(1, 0, 6, 20), ProposeRequest(2, 0, 5, 20)])
    assert second.is_hedge, "branches of all sessions share a step"
    assert engine.num_steps == steps + 1


def test_branches_of_closed_sessions_are_freed() -> None:
    engine = TableEngine()
    driven = driven_by(engine)
    driven.hedge(9, 20)
    driven.source.close(SESSION)
    assert engine.num_free_blocks == engine.limits.num_blocks


def test_trees_and_rejection_sessions_have_no_side_branches() -> None:
    tree = driven_by(TableEngine(), DraftLimits(max_len=200, max_nodes=24, tree_width=2, hedge_nodes=20))
    tree.draft(9)
    tree.propose(9, 20)
    assert not tree.may_hedge
    rows = Driven(ModelSource(TableEngine()), SESSION, [1, 2], LIMITS, with_rows=True)
    (proposal,) = rows.source.propose([ProposeRequest(SESSION, 0, 9, 20)])
    assert not proposal.may_hedge


def test_dear_branches_wait_until_they_are_worth_so_much_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """With branches as dear as one guess the likeliest comes first; as dear as very many, the chain does, to the end of its credit."""

    def drafted_before(price: float) -> int:
        monkeypatch.setattr(FollowCost, "branch_price", property(lambda cost: price))
        driven = driven_by(TableEngine())
        while not side_nodes(driven):
            driven.propose(12, 20)
        return len(driven.tree.live_nodes()) - len(side_nodes(driven))

    assert drafted_before(1.0) < drafted_before(1e9) == 9


def test_steps_of_branches_are_measured_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[int] = []
    monkeypatch.setattr(FollowCost, "note_branches", lambda cost, result: noted.append(result.num_rows))
    engine = TableEngine()
    driven = driven_by(engine)
    driven.draft(6)
    assert not noted
    driven.commit(driven.path(0))
    driven.hedge(9, 20)
    assert sum(noted) > 0
    assert len(noted) < engine.num_steps


def test_a_branch_row_is_as_dear_as_measured() -> None:
    cost = FollowCost()
    assert cost.branch_price == 1.0
    cost.note_branches(StepResult((), 0, 400, 8))
    assert cost.branch_price == 1.0, "no guess was followed yet"
    cost.note(StepResult((SequenceResult(1, np.zeros(11, np.int32), follow_us=200),), 0, 250, 1))
    assert cost.branch_price == pytest.approx(2.5)
    cost.note_branches(StepResult((), 0, 8, 8))
    assert cost.branch_price == 1.0, "never less than a guess"


# --- which branches -------------------------------------------------------------------------------------------------------


def test_a_close_second_draw_has_the_larger_share() -> None:
    assert second_behind(5, 0.0) == Second(5, 0.5)
    far = second_behind(5, 2.0)
    assert far is not None
    assert far.share == pytest.approx(1.0 / (1.0 + math.exp(2.0)))
    assert second_behind(5, math.inf) is second_behind(5, math.nan) is second_behind(-1, 1.0) is None
    hopeless = second_behind(5, 2000.0)
    assert hopeless is not None
    assert hopeless.share == pytest.approx(0.0, abs=1e-100)


def test_the_best_branch_is_the_one_the_truth_likeliest_comes_by() -> None:
    hedges = Hedges()
    hedges.note(ROOT, 0, 0.9, Second(5, 0.1))
    hedges.note(0, 1, 0.5, Second(6, 0.5))
    hedges.note(1, 2, 0.8, Second(7, 0.2))
    best = hedges.best(100, lambda node: node, 2, 100)
    assert [(branch.parent, branch.token) for branch in best] == [(0, 6), (ROOT, 5)]
    assert [branch.gain for branch in best] == pytest.approx([0.45, 0.1])
    assert hedges.best(100, lambda node: node, 8, 3) == best[:1], "a second choice comes with its guess, or not at all"
    assert hedges.best(2, lambda node: node, 8, 100)[0].parent == ROOT, "a guess below must lie before the limit"


def test_branches_that_hardly_ever_pay_are_left_alone() -> None:
    hedges = Hedges()
    hedges.note(ROOT, 0, 1.0 - MIN_HEDGE_GAIN / 2, Second(5, MIN_HEDGE_GAIN / 2))
    assert hedges.best(100, lambda node: node, 8, 100) == []


def test_shares_are_those_of_the_truth_that_is_left() -> None:
    hedges = Hedges()
    hedges.note(ROOT, 0, 0.5, Second(5, 0.5))
    hedges.note(0, 1, 0.5, Second(6, 0.5))
    hedges.descend(0, {1})
    assert hedges.best(100, lambda node: node, 8, 100) == [Branch(0, 6, None, 0.5)]
    assert MAX_HEDGE_ROWS >= 1


def test_the_tables_scores_decide_the_shares() -> None:
    """The first branch drafted is the one whose chain is likeliest and whose second draw is nearest."""
    driven = driven_by(TableEngine())
    while driven.propose(8, 2) is TailEnd.MORE:
        pass
    reach, gains, context = 1.0, [], [1, 2, 3]
    for node in range(4):
        scores = sorted(table_scores(context, VOCAB_SIZE, 0), reverse=True)
        second = 1.0 / (1.0 + math.exp(scores[0] - scores[1]))
        gains.append(reach * second)
        reach *= 1.0 - second
        context.append(driven.tree.tokens[node])
    if not side_nodes(driven):
        driven.propose(8, 2)
    assert driven.tree.depth(side_nodes(driven)[0]) == gains.index(max(gains))
