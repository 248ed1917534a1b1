"""A drafter that had used up its leave rests until it hears of more: when it was given that, and what is expected of it then."""

from __future__ import annotations

import numpy as np
import pytest

from fakes import TruthTable
from fakes_pacing import NOW_US, session_view
from fakes_simulation import spec_of
from outrider.session.events import DrafterFrameArrived, DrafterJoined, RoundPlanned, RoundVerified
from outrider.session.leave_times import MAX_LEAVES, LeaveTimes
from outrider.session.pacing.contract import SessionView
from outrider.session.pacing.next_tail import TailTimes, next_tail
from outrider.session.pacing.serial import SerialPacing
from outrider.session.verifier import VerifierSession
from outrider.types.frames import Tail, TailEnd
from outrider.types.tree import Verdict, extend_hash

PROMPT = [1, 2, 3]
TIMES = TailTimes(draft_us=100.0, burst=4, link_us=5_000.0, start_us=50.0)


def test_the_first_leave_beyond_where_it_stopped_is_the_one_it_goes_on_by() -> None:
    times = LeaveTimes()
    for until, given_us in ((8, 100), (12, 200), (20, 300), (24, 400)):
        times.give(until, given_us)
    assert times.renewed_us == 0, "it has not stopped"
    times.stop(12)
    assert (times.renewed_us, times.renewed_len) == (300, 12)
    times.give(40, 500)
    assert times.renewed_us == 300
    times.stop(24)
    assert (times.renewed_us, times.renewed_len) == (500, 24)


def test_leave_that_comes_after_it_stopped_renews_it_too_and_less_does_not() -> None:
    times = LeaveTimes()
    times.give(8, 100)
    times.stop(8)
    times.give(8, 200)
    assert times.renewed_us == 0
    times.give(9, 300)
    assert (times.renewed_us, times.renewed_len) == (300, 8)
    times.go_on()
    assert times.renewed_us == 0
    times.give(60, 400)
    assert times.renewed_us == 0, "it is at work"


def test_no_more_leaves_are_remembered_than_their_bound() -> None:
    times = LeaveTimes()
    for number in range(3 * MAX_LEAVES):
        times.give(10 + number, number)
    times.stop(10)
    assert times.renewed_us == 2 * MAX_LEAVES


def test_leave_within_the_text_is_forgotten_and_what_is_known_of_the_rest_stays_the_same() -> None:
    forgetful, times = LeaveTimes(), LeaveTimes()
    for known_len, until in ((10, 14), (12, 12), (14, 18), (16, 19)):
        for each in (forgetful, times):
            each.give(until, 100 * known_len)
    for known_len, at_len in ((11, 12), (14, 15), (14, 18), (18, 19)):
        forgetful.stop(at_len, known_len)
        times.stop(at_len)
        assert (forgetful.renewed_us, forgetful.renewed_len) == (times.renewed_us, times.renewed_len), (known_len, at_len)
    assert len(forgetful._leaves) == 1 < len(times._leaves)


# --- in a session -------------------------------------------------------------------------------------------------------------


class Leaving(SerialPacing):
    """As much leave as the test says."""

    leave = 2

    def draft_ahead(self, session: SessionView) -> int:
        return self.leave


class Told:
    """A session whose drafter has guessed two tokens after the prompt, and stopped for want of leave. pacing: gives it more or not."""

    def __init__(self, end: TailEnd = TailEnd.CREDIT) -> None:
        self.pacing = Leaving(4)
        self.session = VerifierSession(spec_of(1, PROMPT, 40, TruthTable(100)), self.pacing, 0)
        self.session.step(DrafterJoined("d", 0))
        self.tail([11, 12], end, 1_000)

    def tail(self, tokens: list[int], end: TailEnd, now_us: int, first_node: int = 0) -> None:
        parents = np.arange(first_node - 1, first_node - 1 + len(tokens), dtype=np.int32)
        placed = (first_node, len(PROMPT), extend_hash(0, PROMPT), np.array(tokens, np.int32), parents)
        self.session.step(DrafterFrameArrived("d", Tail(1, 1, 0, *placed, end, "lab", 0, 0, 0), now_us))

    def decode(self, token: int, now_us: int) -> SessionView:
        self.session.step(RoundPlanned(8, 0, now_us))
        self.session.step(RoundVerified(Verdict((), token, bonus=True), 500, now_us))
        return self.session.view(now_us)


def test_a_session_knows_since_when_its_drafter_may_guess_on() -> None:
    told = Told()
    assert told.session.view(1_500).renewed_us == 0, "nothing more was allowed yet"
    told.pacing.leave = 9
    view = told.decode(11, 2_000)
    assert (view.renewed_us, view.renewed_len, view.depth) == (2_000, 5, 1)
    assert told.decode(12, 3_000).renewed_us == 2_000, "the newest leave is not the one it waits for"
    told.tail([13], TailEnd.MORE, 9_000, first_node=2)
    assert told.session.view(9_000).renewed_us == 0


def test_leave_that_was_on_its_way_when_it_stopped_counts_from_when_it_was_given() -> None:
    told = Told(TailEnd.MORE)
    told.pacing.leave = 9
    told.decode(11, 2_000)
    told.tail([13], TailEnd.CREDIT, 2_500, first_node=2)
    view = told.session.view(2_500)
    assert (view.renewed_us, view.renewed_len) == (2_000, 6)


def test_a_drafter_that_paused_for_another_reason_or_starts_over_has_nothing_renewed() -> None:
    paused = Told(TailEnd.CONFIDENCE)
    paused.pacing.leave = 9
    assert paused.decode(11, 2_000).renewed_us == 0
    wrong = Told()
    wrong.pacing.leave = 9
    assert wrong.decode(99, 2_000).renewed_us == 0
    assert wrong.decode(98, 3_000).renewed_us == 0


# --- what is expected then ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("committed_len", "num_behind", "num_tails"), [(100, 0, 1), (103, 1, 1), (107, 5, 2)])
def test_its_next_guesses_come_a_way_there_and_back_after_its_leave_went_out(committed_len: int, num_behind: int, num_tails: int) -> None:
    """It stopped at 102, so what was decoded beyond that is in its first tails."""
    renewed = {"renewed_us": NOW_US - 1_000, "renewed_len": 102, "committed_len": committed_len}
    session = session_view(1, max(0, 102 - committed_len), **renewed)
    expected_us = NOW_US - 1_000 + 2 * 5_000 + 50 + num_tails * 400
    assert next_tail(session, TIMES, NOW_US, (NOW_US - 90_000, 50)) == (expected_us, num_behind)


def test_one_that_starts_over_is_expected_from_when_it_hears_of_that() -> None:
    renewed = session_view(1, following=False, renewed_us=NOW_US - 9_000, renewed_len=102)
    assert next_tail(renewed, TIMES, NOW_US, (NOW_US, 100)) == (NOW_US + TIMES.anew_us, 0)
