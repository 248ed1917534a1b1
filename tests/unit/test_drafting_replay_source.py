"""Replayed drafts: acceptance per position as asked for, whatever the rounds look like, and time charged per call."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.drafting.contract import ProposeRequest, SourceSession
from outrider.drafting.replay_source import ReplayOptions, ReplaySource
from outrider.errors import InvalidRequest
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


def test_a_call_costs_its_time_once_for_all_sessions_and_nothing_when_idle() -> None:
    paused: list[float] = []
    source = ReplaySource(ReplayOptions((TEXT,), 1.0, 50, step_us=250), paused.append)
    opened(source, session=1)
    opened(source, session=2)
    source.propose([ProposeRequest(1, 0, 9), ProposeRequest(2, 0, 9)])
    source.propose([ProposeRequest(1, 0, 5)])
    assert paused == [250e-6]


@pytest.mark.parametrize(
    "options",
    [ReplayOptions((), 1.5, 50), ReplayOptions((), 0.5, 1), ReplayOptions((), 0.5, 50, step_us=-1), ReplayOptions(((50,),), 0.5, 50)],
)
def test_impossible_options_are_refused(options: ReplayOptions) -> None:
    with pytest.raises(InvalidRequest, match="replay"):
        ReplaySource(options)
