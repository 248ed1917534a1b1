"""Replayed drafts: acceptance per position as asked for, whatever the rounds look like, and time charged per call."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.drafting.contract import ProposeRequest, SourceSession
from outrider.drafting.replay_pace import WallPace
from outrider.drafting.replay_source import ReplayOptions, ReplaySource
from outrider.errors import InvalidRequest
from outrider.session.guess_tree import GuessTree
from outrider.types.frames import DraftLimits, TailEnd
from outrider.types.sampling import NoiseAddress, SamplingParams

TEXT = tuple(int(token) for token in np.random.default_rng(0).integers(0, 50, 2000))


def opened(source: ReplaySource, prefix_len: int = 4, session: int = 1) -> None:
    prefix = np.array(TEXT[:prefix_len], np.int32)
    source.open(SourceSession(session, prefix, prefix_len, SamplingParams(), NoiseAddress(0), DraftLimits(4000, 64)))


def draft_round(source: ReplaySource, tree_id: int, draft_until: int) -> list[int]:
    tokens: list[int] = []
    while True:
        (proposal,) = source.propose([ProposeRequest(1, tree_id, draft_until)])
        tokens += proposal.tokens
        if proposal.end is not TailEnd.MORE:
            return tokens


@pytest.mark.parametrize("acceptance", [0.0, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("draft_len", [1, 6])
def test_rounds_accept_at_the_rate_asked_for(acceptance: float, draft_len: int) -> None:
    source = ReplaySource(ReplayOptions((TEXT,), acceptance, 50, seed=3))
    opened(source)
    known, tested, right, tree_id = 4, 0, 0, 0
    while known < 1900:
        guesses = draft_round(source, tree_id, known + draft_len)
        agreed = 0
        while agreed < draft_len and guesses[agreed] == TEXT[known + agreed]:
            agreed += 1
        tested += min(agreed + 1, draft_len)
        right += agreed
        tree_id += 1
        fresh = np.array(TEXT[known : known + agreed + 1], np.int32)
        source.observe(1, fresh, tuple(range(agreed)), reroot=True, tree_id=tree_id)
        known += agreed + 1
    spread = 4 * (acceptance * (1 - acceptance) / tested) ** 0.5
    assert right / tested == pytest.approx(acceptance, abs=spread + 1e-9)


def test_a_guess_depends_on_its_position_alone() -> None:
    first, second = (ReplaySource(ReplayOptions((TEXT,), 0.5, 50, seed=1)) for _ in range(2))
    opened(first, 4)
    opened(second, 7)
    assert draft_round(first, 0, 30)[3:] == draft_round(second, 0, 30)


def test_an_unknown_prefix_gets_no_guesses() -> None:
    source = ReplaySource(ReplayOptions((TEXT,), 1.0, 50))
    unknown = np.array([TEXT[0] + 1, TEXT[1]], np.int32)
    source.open(SourceSession(1, unknown, 2, SamplingParams(), NoiseAddress(0), DraftLimits(100)))
    (proposal,) = source.propose([ProposeRequest(1, 0, 50)])
    assert (proposal.tokens, proposal.end) == ((), TailEnd.EMPTY)


class CountedPace:
    """Time passes for whoever waits for it, and a little between two looks."""

    def __init__(self) -> None:
        self.now = 5.0
        self.waits_us: list[int] = []

    def now_s(self) -> float:
        return self.now

    def wait_until(self, moment_s: float) -> None:
        self.waits_us.append(round(1e6 * (moment_s - self.now)))
        self.now = moment_s


def paced(step_us: int, hedge_acceptance: float = 0.0, num_sessions: int = 1) -> tuple[ReplaySource, CountedPace]:
    pace = CountedPace()
    source = ReplaySource(ReplayOptions((TEXT,), 1.0, 50, step_us=step_us, hedge_acceptance=hedge_acceptance), pace)
    for session in range(1, num_sessions + 1):
        opened(source, session=session)
    return source, pace


def test_a_guess_of_several_sessions_costs_its_time_once_and_none_costs_nothing() -> None:
    source, pace = paced(250, num_sessions=2)
    both = source.propose([ProposeRequest(1, 0, 9), ProposeRequest(2, 0, 9)])
    assert [(len(proposal.tokens), proposal.follow_us) for proposal in both] == [(1, 0), (1, 0)]
    source.propose([ProposeRequest(1, 0, 5), ProposeRequest(2, 0, 5)])
    assert pace.waits_us == [250]


@pytest.mark.parametrize(
    ("step_us", "draft_until", "flush_nodes", "num_guesses"),
    [
        (250, 900, 0, 7),  # MAX_FOLLOW_US
        (10, 900, 0, 16),
        (9_000, 900, 0, 2),
        (250, 7, 0, 3),  # what it has leave for
        (250, 900, 4, 4),  # what somebody waits for
        (250, 900, 1, 1),
    ],
)
def test_who_asks_alone_gets_a_models_chain_at_its_price(step_us: int, draft_until: int, flush_nodes: int, num_guesses: int) -> None:
    source, pace = paced(step_us)
    (proposal,) = source.propose([ProposeRequest(1, 0, draft_until, flush_nodes=flush_nodes)])
    assert list(proposal.tokens) == list(TEXT[4 : 4 + num_guesses])
    assert list(proposal.parents) == list(range(-1, num_guesses - 1))
    assert pace.waits_us == [num_guesses * step_us]
    assert proposal.follow_us == (num_guesses - 1) * step_us


def test_with_side_branches_between_them_guesses_come_one_by_one() -> None:
    source, pace = paced(250, hedge_acceptance=0.5)
    assert len(source.propose([ProposeRequest(1, 0, 900)])[0].tokens) == 1
    assert pace.waits_us == [250]


def test_time_is_waited_for_to_the_microsecond_not_to_the_length_of_a_sleep() -> None:
    """The quickest of many, for whoever else computes makes all of them longer; a sleep of 100 us takes 150 or more."""
    pace, late_us = WallPace(), []
    for _ in range(200):
        moment_s = pace.now_s() + 100e-6
        pace.wait_until(moment_s)
        late_us.append(1e6 * (pace.now_s() - moment_s))
    assert 0.0 <= min(late_us) < 20.0


@pytest.mark.parametrize(
    "options",
    [
        ReplayOptions((), 1.5, 50),
        ReplayOptions((), 0.5, 1),
        ReplayOptions((), 0.5, 50, step_us=-1),
        ReplayOptions((), 0.5, 50, hedge_acceptance=2.0),
        ReplayOptions(((50,),), 0.5, 50),
    ],
)
def test_impossible_options_are_refused(options: ReplayOptions) -> None:
    with pytest.raises(InvalidRequest, match="replay"):
        ReplaySource(options)


# --- side branches --------------------------------------------------------------------------------------------------------


def hedged(hedge_acceptance: float, acceptance: float = 0.5) -> ReplaySource:
    source = ReplaySource(ReplayOptions((TEXT,), acceptance, 50, seed=3, hedge_acceptance=hedge_acceptance))
    prefix = np.array(TEXT[:4], np.int32)
    source.open(SourceSession(1, prefix, 4, SamplingParams(), NoiseAddress(0), DraftLimits(4000, 64, hedge_nodes=32)))
    return source


def grown(source: ReplaySource, tree: GuessTree, draft_until: int) -> None:
    while True:
        (proposal,) = source.propose([ProposeRequest(1, tree.tree_id, draft_until, 32)])
        tree.append(proposal.tokens, proposal.parents)
        if proposal.end is not TailEnd.MORE and not proposal.may_hedge:
            return


@pytest.mark.parametrize("hedge_acceptance", [0.3, 1.0])
def test_second_choices_are_right_as_often_as_asked_for_where_the_first_is_wrong(hedge_acceptance: float) -> None:
    """A tree anew at each position: its children of the root are the first and the second choice."""
    source, num_wrong, num_right = hedged(hedge_acceptance), 0, 0
    for known in range(4, 800):
        tree = GuessTree(known - 4, known)
        grown(source, tree, known + 3)
        choices = [token for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent == -1]
        assert len(set(choices)) == 2
        num_wrong += choices[0] != TEXT[known]
        num_right += choices[1] == TEXT[known]
        source.observe(1, np.array(TEXT[known : known + 1], np.int32), (), reroot=True, tree_id=known - 3)
    spread = 4 * (hedge_acceptance * (1 - hedge_acceptance) / num_wrong) ** 0.5
    assert num_right / num_wrong == pytest.approx(hedge_acceptance, abs=spread + 1e-9)


def test_side_branches_change_no_first_choice() -> None:
    plain, with_branches = hedged(0.0), hedged(0.5)
    guesses = draft_round(plain, 0, 30)
    tree = GuessTree(0, 4)
    grown(with_branches, tree, 30)
    assert [tree.tokens[node] for node in range(tree.num_nodes) if node in chain_of(tree)] == guesses


def chain_of(tree: GuessTree) -> set[int]:
    chain, node = set(), -1
    while (below := next((child for child in range(tree.num_nodes) if tree.parents[child] == node), None)) is not None:
        chain.add(below)
        node = below
    return chain
