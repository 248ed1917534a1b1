"""What every registered draft source must keep: trees that exist, within what was asked, told the truth or not, and nothing left behind.

A source that is registered without a maker here fails the first test.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from fakes_drafting import VOCAB_SIZE, TableEngine, table_ranking
from outrider.drafting.contract import DraftSource, Needs, ProposeRequest, RunsAt, SourceSession
from outrider.drafting.registry import SOURCES, SourceOptions, make_source
from outrider.drafting.replay_source import ReplayOptions
from outrider.errors import AlreadyExists, InvalidRequest, UnknownSession
from outrider.session.guess_tree import GuessTree
from outrider.types.frames import DraftLimits, TailEnd
from outrider.types.sampling import NoiseAddress, SamplingParams

MAX_CALLS = 500
Maker = Callable[[], tuple[DraftSource, TableEngine]]


def text(length: int) -> tuple[int, ...]:
    """The table engine's own continuation of one prompt: what every source here may guess at."""
    tokens = [1, 2, 3]
    while len(tokens) < length:
        tokens.append(table_ranking(tokens)[0])
    return tuple(tokens)


TEXT = text(120)
OPTIONS: dict[str, Callable[[TableEngine], SourceOptions]] = {
    "model": lambda engine: SourceOptions(engine),
    "replay": lambda engine: SourceOptions(engine, replay=ReplayOptions((TEXT,), 0.7, VOCAB_SIZE, seed=5, hedge_acceptance=0.5)),
}


def test_every_registered_source_is_covered_here() -> None:
    assert set(OPTIONS) == set(SOURCES)


@pytest.fixture(params=sorted(OPTIONS))
def made(request: pytest.FixtureRequest) -> tuple[DraftSource, TableEngine]:
    engine = TableEngine(eos_token_ids=(VOCAB_SIZE - 1,))
    return make_source(request.param, OPTIONS[request.param](engine)), engine


def begin(source: DraftSource, session: int, limits: DraftLimits, prefix: tuple[int, ...] = TEXT[:3]) -> GuessTree:
    opening = SourceSession(session, np.array(prefix, np.int32), len(prefix), SamplingParams(), NoiseAddress(0), limits)
    source.open(opening)
    return GuessTree(0, len(prefix))


def grow(source: DraftSource, trees: dict[int, GuessTree], draft_until: int, hedge_nodes: int = 0) -> dict[int, TailEnd]:
    """One call for all sessions; every answer must be one the session's tree can take."""
    requests = [ProposeRequest(session, tree.tree_id, draft_until, hedge_nodes) for session, tree in trees.items()]
    ends: dict[int, TailEnd] = {}
    for request, proposal in zip(requests, source.propose(requests), strict=True):
        assert (proposal.session, proposal.tree_id) == (request.session, request.tree_id)
        tree = trees[request.session]
        first = tree.num_nodes
        tree.append(proposal.tokens, proposal.parents)
        assert proposal.scores is None or proposal.scores.shape == (len(proposal.tokens),)
        for node in range(first, tree.num_nodes):
            assert tree.base + tree.depth(node) < draft_until
            assert 0 <= tree.tokens[node] < VOCAB_SIZE
            parent = tree.parents[node]
            if parent != tree.root:
                assert parent in tree.live_nodes(), "below a dead node"
                assert source.name == "replay" or tree.tokens[parent] != VOCAB_SIZE - 1, "below an end token"
        ends[request.session] = proposal.end
    return ends


def settle(source: DraftSource, trees: dict[int, GuessTree], draft_until: int) -> dict[int, TailEnd]:
    for _ in range(MAX_CALLS):
        ends = grow(source, trees, draft_until)
        if TailEnd.MORE not in ends.values():
            return ends
    raise AssertionError(f"{source.name} never paused")


def test_a_source_declares_where_it_runs_and_what_it_needs(made: tuple[DraftSource, TableEngine]) -> None:
    source, _ = made
    assert source.name in SOURCES
    assert isinstance(source.runs_at, RunsAt)
    assert isinstance(source.needs, Needs)


@pytest.mark.parametrize("limits", [DraftLimits(100, 64), DraftLimits(100, 5), DraftLimits(100, 12, 3), DraftLimits(9, 64)])
def test_guesses_stay_within_what_was_asked(made: tuple[DraftSource, TableEngine], limits: DraftLimits) -> None:
    source, _ = made
    trees = {1: begin(source, 1, limits)}
    ends = settle(source, trees, min(20, limits.max_len))
    assert ends[1] in (TailEnd.CREDIT, TailEnd.LIMIT, TailEnd.EOS)
    assert 0 < trees[1].num_nodes <= limits.max_nodes
    assert settle(source, trees, min(20, limits.max_len)) == ends, "asked again, it pauses again and adds nothing"


def test_sessions_in_one_call_do_not_disturb_each_other(made: tuple[DraftSource, TableEngine]) -> None:
    source, _ = made
    limits = DraftLimits(100)
    alone = {1: begin(source, 1, limits)}
    settle(source, alone, 12)
    together = {session: begin(source, session, limits, TEXT[: 3 + session]) for session in range(2, 6)}
    settle(source, together, 12)
    for session, tree in together.items():
        assert tree.tokens, f"session {session} got nothing"
    again = {9: begin(source, 9, limits)}
    settle(source, again, 12)
    assert again[9].tokens == alone[1].tokens


def test_no_credit_gives_no_guess_and_no_work(made: tuple[DraftSource, TableEngine]) -> None:
    source, engine = made
    trees = {1: begin(source, 1, DraftLimits(100))}
    assert grow(source, trees, 3) == {1: TailEnd.CREDIT}
    assert grow(source, trees, 0) == {1: TailEnd.CREDIT}
    assert trees[1].num_nodes == 0
    assert engine.num_rows == 0


def test_no_requests_give_no_proposals(made: tuple[DraftSource, TableEngine]) -> None:
    source, engine = made
    assert source.propose([]) == []
    assert engine.num_steps == 0


@pytest.mark.parametrize("limits", [DraftLimits(100, 16), DraftLimits(100, 16, 2), DraftLimits(100, 16, hedge_nodes=12)])
def test_any_truth_may_be_observed_and_everything_is_freed(made: tuple[DraftSource, TableEngine], limits: DraftLimits) -> None:
    source, engine = made
    choose = random.Random(4)
    trees = {session: begin(source, session, limits) for session in range(3)}
    known = dict.fromkeys(trees, 3)
    for _ in range(40):
        for _ in range(choose.randint(0, 4)):
            reach = min(known.values()) + choose.randint(1, 8)
            grow(source, trees, min(100, reach), choose.choice((0, limits.hedge_nodes)))
        session = choose.choice(list(trees))
        if known[session] < 90:
            known[session] += commit(source, session, trees, choose)
    for session in trees:
        source.close(session)
    assert engine.num_free_blocks == engine.limits.num_blocks


def commit(source: DraftSource, session: int, trees: dict[int, GuessTree], choose: random.Random) -> int:
    """Commit a part of the guesses and maybe a token of nobody's; returns how many."""
    tree = trees[session]
    tokens: list[int] = []
    path: list[int] = []
    while choose.random() < 0.7:
        children = [node for node in tree.live_nodes() if tree.parents[node] == tree.root]
        if not children:
            break
        tree.advance(tree.tokens[choose.choice(children)])
        path.append(tree.root)
        tokens.append(tree.tokens[tree.root])
    reroot = not tokens or choose.random() < 0.5
    if reroot:
        tokens.append(choose.randrange(VOCAB_SIZE - 1))
        trees[session] = GuessTree(tree.tree_id + 1, tree.root_len + 1)
    source.observe(session, np.array(tokens, np.int32), tuple(path), reroot=reroot, tree_id=trees[session].tree_id)
    return len(tokens)


def test_side_branches_stay_within_their_budget_and_end(made: tuple[DraftSource, TableEngine]) -> None:
    source, _ = made
    limits = DraftLimits(100, 8, hedge_nodes=6)
    tree = begin(source, 1, limits)
    chains: list[bool] = []
    for _ in range(MAX_CALLS):
        (proposal,) = source.propose([ProposeRequest(1, 0, 11, 6)])
        tree.append(proposal.tokens, proposal.parents)
        chains += [not proposal.is_hedge] * len(proposal.tokens)
        if proposal.end is not TailEnd.MORE and not proposal.may_hedge:
            break
    assert sum(chains) == 8
    assert 0 < len(chains) - sum(chains) <= 6
    first_children = [node for node in range(tree.num_nodes) if tree.parents[node] not in tree.parents[:node]]
    assert all(chains[node] <= (node in first_children) for node in range(tree.num_nodes)), "a chain goes on by first children"
    assert all(tree.base + tree.depth(node) < 11 for node in range(tree.num_nodes))
    assert source.propose([ProposeRequest(1, 0, 11, 6)])[0].tokens == (), "asked again, it adds nothing"


def test_closing_twice_or_opening_twice_is_refused(made: tuple[DraftSource, TableEngine]) -> None:
    source, engine = made
    begin(source, 1, DraftLimits(100))
    with pytest.raises(AlreadyExists):
        begin(source, 1, DraftLimits(100))
    source.close(1)
    with pytest.raises(UnknownSession):
        source.close(1)
    assert engine.num_free_blocks == engine.limits.num_blocks


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InvalidRequest, match="model, replay"):
        make_source("oracle", SourceOptions(TableEngine()))
    with pytest.raises(InvalidRequest, match="texts"):
        make_source("replay", SourceOptions(TableEngine()))
