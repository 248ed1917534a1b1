"""Overlap of drafting and verifying, running estimates, and the counts clients see."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fakes import TruthTable
from fakes_simulation import spec_of
from outrider.session.alike_sessions import NO_SESSIONS
from outrider.session.asked_times import MAX_ASKED, AskedTimes
from outrider.session.events import (
    DrafterFrameArrived,
    DrafterGivenUp,
    DrafterJoined,
    DrafterLost,
    RoundPlanned,
    RoundVerified,
    SendToDrafter,
)
from outrider.session.pacing.serial import SerialPacing
from outrider.session.statistics import FIRST_PRIORS, DraftInterval, DraftPriors, SessionStatistics
from outrider.session.verifier import UNMEASURED_DEADLINE_US, VerifierSession
from outrider.types.frames import Close, CloseReason, DrafterFrame, Opened, Refused, Tail, TailEnd
from outrider.types.tree import Verdict, extend_hash


def test_drafting_counts_as_overlapped_by_the_share_that_ran_during_a_step() -> None:
    stats = SessionStatistics()
    stats.count_verifying(1000, 2000)
    stats.count_drafting(DraftInterval(1500, 2500, 800), 4, verifying=False)
    assert stats.overlapped_draft_us == 400
    assert stats.overlap_share == pytest.approx(0.5)


def test_a_tail_that_comes_during_a_step_is_counted_when_the_step_ends() -> None:
    stats = SessionStatistics()
    stats.count_drafting(DraftInterval(1000, 2000, 1000), 4, verifying=True)
    assert stats.overlapped_draft_us == 0
    stats.count_verifying(1200, 2400)
    assert stats.overlapped_draft_us == 800
    stats.count_verifying(2400, 3000)
    assert stats.overlapped_draft_us == 800


def test_drafting_between_steps_overlaps_nothing() -> None:
    stats = SessionStatistics()
    stats.count_verifying(0, 1000)
    stats.count_drafting(DraftInterval(1000, 2000, 1000), 4, verifying=False)
    stats.count_verifying(2000, 3000)
    assert stats.overlap_share == 0.0


def test_an_interval_without_length_is_in_or_out() -> None:
    assert DraftInterval(5, 5, 7).share_within(0, 10) == 7
    assert DraftInterval(5, 5, 7).share_within(6, 10) == 0


def test_a_round_without_guesses_counts_as_one_that_verified_none() -> None:
    plain, general = SessionStatistics(), SessionStatistics()
    for num_emitted in (1, 2):
        plain.count_plain_round(num_emitted)
        general.count_round(0, 0, 0, num_emitted, corrected=False)
    assert plain.totals("plain") == general.totals("plain")
    assert (plain.num_rounds, plain.num_emitted, plain.acceptance) == (2, 3, general.acceptance)


def test_counts_by_depth_and_the_running_acceptance() -> None:
    stats = SessionStatistics()
    before = stats.acceptance
    stats.count_round(3, 3, 2, 3, corrected=True)
    stats.count_round(2, 2, 2, 3, corrected=False)
    totals = stats.totals("pearl")
    assert totals.drafted_by_depth == (2, 2, 1)
    assert totals.accepted_by_depth == (2, 2)
    assert (totals.num_rounds, totals.num_drafted, totals.num_accepted, totals.num_emitted) == (2, 5, 4, 6)
    assert totals.mean_emitted_per_round == 3.0
    assert totals.acceptance_rate == pytest.approx(0.8)
    assert stats.acceptance > before
    for _ in range(300):
        stats.count_round(1, 1, 0, 1, corrected=True)
    assert stats.acceptance < 0.01


def test_draft_time_per_token_follows_what_is_measured() -> None:
    stats = SessionStatistics()
    stats.count_drafting(DraftInterval(0, 400, 400), 4, verifying=False)
    assert stats.draft_us_per_token == 100
    for _ in range(60):
        stats.count_drafting(DraftInterval(0, 1000, 1000), 5, verifying=False)
    assert stats.draft_us_per_token == pytest.approx(200, rel=0.01)
    stats.count_drafting(DraftInterval(0, 50, 50), 0, verifying=False)
    assert stats.draft_us_per_token == pytest.approx(200, rel=0.01)


def test_siblings_are_drafted_in_one_pass_and_make_no_level_cheaper() -> None:
    session = VerifierSession(spec_of(1, [1, 2, 3], 40, TruthTable(8)), SerialPacing(4), 0)
    session.step(DrafterJoined("d", 0))
    tokens, parents = np.array([1, 2, 3, 4, 5, 6], np.int32), np.array([-1, -1, -1, 0, 0, 1], np.int32)
    tail = Tail(1, 1, 0, 0, 3, extend_hash(0, [1, 2, 3]), tokens, parents, TailEnd.MORE, "lab", 6000, 0, 6_000_000)
    session.step(DrafterFrameArrived("d", tail, 0))
    assert session.view(0).draft_us_per_token == 3000


def test_a_session_expects_what_it_was_told_until_it_has_seen_drafts() -> None:
    spec = dataclasses.replace(spec_of(1, [1, 2, 3], 40, TruthTable(8)), draft_priors=DraftPriors(0.25, 0.5, 400.0))
    view = VerifierSession(spec, SerialPacing(4), 0).view(0)
    assert (view.acceptance, view.continue_prob, view.draft_start_us) == (0.25, 0.5, 400.0)


def test_a_session_begins_as_sure_of_its_kind_as_that_is_alike() -> None:
    alike = NO_SESSIONS
    for _ in range(12):
        alike = alike.after(60, 48)
    spec = dataclasses.replace(spec_of(1, [1, 2, 3], 40, TruthTable(8)), draft_priors=DraftPriors(0.8, alike=alike))
    sure, unsure = (
        VerifierSession(each, SerialPacing(4), 0).statistics for each in (spec, dataclasses.replace(spec, draft_priors=DraftPriors(0.8)))
    )
    for each in (sure, unsure):
        each.count_overtaken([False, False])
    assert unsure.acceptance < 0.6 < 0.7 < sure.acceptance


def test_drafts_of_one_guess_are_not_taken_for_slow_where_the_start_of_a_draft_is_known() -> None:
    """A start takes 400 us and a guess 60: a session that pauses after every guess would say 460 a guess."""
    long = SessionStatistics()
    for at in range(6):
        long.count_drafting(DraftInterval(1000 * at, 1000 * at + 880, 880), 8, verifying=False, first_us=460)
    known = long.remembered(FIRST_PRIORS)
    assert known.draft_start_us == pytest.approx(400.0)
    short = SessionStatistics(draft_start_us=known.draft_start_us)
    for at in range(6):
        short.count_drafting(DraftInterval(1000 * at, 1000 * at + 460, 460), 1, verifying=False, first_us=460)
    assert short.draft_us_per_token < 130.0
    assert long.draft_us_per_token == pytest.approx(60.0)


def test_the_way_to_a_drafter_is_half_of_what_its_answer_takes() -> None:
    """From the commit that makes it start over to its first guesses, their drafting left out; until then, what tails took."""
    session = drafted_session()
    session.step(RoundPlanned(8, 8, 10_000))
    session.step(RoundVerified(Verdict((), 7, bonus=False), 1000, 20_000))  # neither 5 nor 6: it starts over
    before_us = session.statistics.link_us
    assert session.step(answer_at(30_000, tree_id=1, draft_us=4_000, first_node=0)) == []
    assert before_us != session.statistics.link_us == (30_000 - 20_000 - 4_000) / 2
    session.step(answer_at(90_000, tree_id=1, draft_us=1_000, first_node=1))
    assert session.statistics.link_us == 3_000.0, "what it guessed on is no answer to anything"


def test_a_token_that_was_under_way_is_no_distance() -> None:
    """It takes the drafter longer now and nothing another time; more than a token is a queue, and as far away as the rest."""
    stats = SessionStatistics(draft_us_per_token=1_000.0)
    for busy_us, one_way_us in ((0, 2_000.0), (800, 1_600.0), (5_000, 1_500.0), (-700, 2_000.0)):
        stats._num_answers, stats._num_draft_times = 0, 2
        stats.count_answer(4_000, busy_us)
        assert stats.link_us == one_way_us, busy_us


def test_with_the_first_guesses_comes_more_than_the_way() -> None:
    """The opening of the session, once: answers count from the second tail on, and until then what tails took."""
    stats = SessionStatistics()
    stats.count_drafting(DraftInterval(0, 400, 400), 4, verifying=False)
    stats.count_arrival(30, 4, paused=False)
    stats.count_answer(9_000)
    assert stats.link_us == 30.0
    stats.count_drafting(DraftInterval(1_000, 1_400, 400), 4, verifying=False)
    stats.count_answer(400)
    assert stats.link_us == 200.0, "the first that says anything"
    stats.count_answer(100)
    assert 150.0 < stats.link_us < 200.0


def test_a_tail_says_when_its_drafter_was_heard_of_unless_it_paused() -> None:
    session = drafted_session()
    assert session.view(50_000).heard_us == session.statistics.heard_us
    session.step(RoundPlanned(8, 8, 10_000))
    session.step(RoundVerified(Verdict((), 7, bonus=False), 1000, 20_000))
    session.step(answer_at(30_000, tree_id=1, draft_us=4_000, first_node=0))
    assert session.view(50_000).heard_us == 30_000
    event = answer_at(40_000, tree_id=1, draft_us=4_000, first_node=1)
    assert isinstance(event.frame, Tail)
    session.step(dataclasses.replace(event, frame=dataclasses.replace(event.frame, end=TailEnd.CONFIDENCE)))
    assert session.view(50_000).heard_us == 0


def answer_at(now_us: int, tree_id: int, draft_us: int, first_node: int) -> DrafterFrameArrived:
    """A tail of one guess for the text 1, 2, 3, 4, 7; by its own clock it was a second on its way."""
    places = np.array([first_node], np.int32), np.array([first_node - 1], np.int32)
    times = draft_us, (now_us - 1_000_000) * 1000, (now_us - 1_000_000) * 1000
    return DrafterFrameArrived(
        "d", Tail(1, 1, tree_id, first_node, 5, extend_hash(0, [1, 2, 3, 4, 7]), *places, TailEnd.MORE, "lab", *times), now_us
    )


def test_leave_that_was_not_given_is_not_answered() -> None:
    asked = AskedTimes()
    for committed_len in range(10, 10 + 2 * MAX_ASKED):
        asked.note(committed_len, 100 * committed_len)
    newest = 10 + 2 * MAX_ASKED - 1
    assert asked.take(10) is None, "longer ago than is remembered"
    assert asked.take(newest - 1) == 100 * (newest - 1)
    assert asked.take(newest - 1) is None
    assert asked.take(newest + 5) is None
    assert asked.take(newest) is None, "it began later than there already"


def test_overhead_is_what_neither_drafting_nor_the_step_explains() -> None:
    stats = SessionStatistics()
    stats.count_drafting(DraftInterval(0, 9000, 9000), 9, verifying=False)
    stats.count_overhead(wait_us=50_000, span_us=3200, step_us=3000)
    assert stats.overhead_us == 0, "the first round waited for its drafter to be opened, which no other does"
    stats.count_commit()  # what was drafted before belongs to the round before
    stats.count_drafting(DraftInterval(10_000, 14_000, 4000), 8, verifying=False)
    stats.count_overhead(wait_us=5000, span_us=3200, step_us=3000)
    assert stats.overhead_us == 1200
    stats.count_overhead(wait_us=1000, span_us=3000, step_us=3000)  # drafted while the step before ran: nothing was waited for
    assert stats.overhead_us == pytest.approx(1200 * 7 / 8)


def drafted_session() -> VerifierSession:
    """One token is committed (at 0 us) and two guesses follow it; no round is in flight. Its drafter was opened long ago."""
    session = VerifierSession(spec_of(1, [1, 2, 3], 40, TruthTable(8)), SerialPacing(4), 0)
    session.statistics.count_drafting(DraftInterval(0, 0, 0), 1, verifying=False)
    session.step(DrafterJoined("d", 0))
    session.step(RoundPlanned(8, 8, 0))
    session.step(RoundVerified(Verdict((), 4, bonus=True), 0, 0))
    base_hash, parents = extend_hash(0, [1, 2, 3, 4]), np.array([-1, 0], np.int32)
    tail = Tail(1, 1, 0, 0, 4, base_hash, np.array([5, 6], np.int32), parents, TailEnd.MORE, "lab", 0, 0, 0)
    session.step(DrafterFrameArrived("d", tail, 0))
    assert session.view(0).num_nodes == 2
    return session


def verify_at(session: VerifierSession, begin_us: int) -> None:
    session.step(RoundPlanned(8, 8, begin_us))
    session.step(RoundVerified(Verdict((), 7, bonus=False), 1000, begin_us + 1300))


def tail_at(first_node: int, base: int, prefix: list[int], tokens: list[int]) -> DrafterFrameArrived:
    parents = np.arange(first_node - 1, first_node - 1 + len(tokens), dtype=np.int32)
    tail = Tail(1, 1, 0, first_node, base, extend_hash(0, prefix), np.array(tokens, np.int32), parents, TailEnd.MORE, "lab", 0, 0, 0)
    return DrafterFrameArrived("d", tail, 0)


def test_guesses_that_the_truth_overtook_are_judged_once_right_or_wrong() -> None:
    """A drafter that is always late would otherwise be known only by what came in time."""
    session = VerifierSession(spec_of(1, [1, 2, 3], 40, TruthTable(8)), SerialPacing(4), 0)
    session.step(DrafterJoined("d", 0))
    for token in (4, 5, 6):  # three rounds without guesses
        session.step(RoundPlanned(8, 0, 0))
        session.step(RoundVerified(Verdict((), token, bonus=True), 0, 0))
    session.step(tail_at(0, 4, [1, 2, 3, 4], [5]))
    assert session.statistics.num_tested == 1, "5 was right, and came after the round that found it out"
    assert session.statistics.acceptance > FIRST_PRIORS.acceptance
    before = session.statistics.acceptance
    session.step(tail_at(1, 4, [1, 2, 3, 4], [2, 7]))
    assert (session.statistics.num_tested, session.statistics.acceptance < before) == (2, True), "2 was wrong, and 7 hung on it"
    session.step(RoundPlanned(8, 0, 0))
    session.step(RoundVerified(Verdict((), 7, bonus=True), 0, 0))
    assert session.statistics.num_tested == 2, "nobody is judged twice"


def test_each_of_several_guesses_that_were_overtaken_together_counts() -> None:
    session = VerifierSession(spec_of(1, [1, 2, 3], 40, TruthTable(8)), SerialPacing(4), 0)
    session.step(DrafterJoined("d", 0))
    for token in (4, 5, 6):
        session.step(RoundPlanned(8, 0, 0))
        session.step(RoundVerified(Verdict((), token, bonus=True), 0, 0))
    session.step(tail_at(0, 4, [1, 2, 3, 4], [5, 6, 7]))
    assert session.statistics.num_tested == 2, "5 and 6; 7 is still to be judged"
    tally = session.drafter_tallies()["d"]
    assert (tally.num_right, tally.num_wrong) == (2, 0)


def test_what_a_round_judged_is_not_judged_again() -> None:
    session = drafted_session()  # 5, 6 follow the truth
    session.step(RoundPlanned(8, 8, 0))
    session.step(RoundVerified(Verdict((0,), 3, bonus=False), 0, 0))  # 5 accepted, 3 instead of 6
    assert session.statistics.num_tested == 2
    session.step(RoundPlanned(8, 8, 0))
    session.step(RoundVerified(Verdict((), 3, bonus=True), 0, 0))
    assert session.statistics.num_tested == 2


def test_a_round_in_time_measures_what_it_cost_beside_its_step() -> None:
    session = drafted_session()
    verify_at(session, 900)
    assert session.statistics.overhead_us == 900 + 300
    assert session.statistics.draft_wait_us == 900


def test_without_a_drafter_nobody_waits_for_drafts() -> None:
    session = VerifierSession(spec_of(1, [1, 2, 3], 40, TruthTable(8)), SerialPacing(4), 0)
    session.step(RoundPlanned(8, 8, 700))
    assert session.statistics.draft_wait_us == 0


def test_a_round_past_its_deadline_says_nothing_about_overhead() -> None:
    """Otherwise one stopped drafter would lengthen every session's drafts for a while."""
    session = drafted_session()
    verify_at(session, UNMEASURED_DEADLINE_US)
    assert session.statistics.overhead_us == 0.0


@pytest.mark.parametrize(
    ("frame", "cause"),
    [
        (Close(1, 1, CloseReason.DRAINING), "closed"),
        (Close(1, 1, CloseReason.FAILED), "closed"),
        (Close(1, 1, CloseReason.PROTOCOL), None),  # opened again, under the next incarnation
        (Refused(1, 1, "full"), None),
        (Opened(1, 2, 0), "protocol"),  # an incarnation that never was: banned
    ],
)
def test_a_drafter_that_leaves_or_is_given_up_is_a_loss(frame: DrafterFrame, cause: str | None) -> None:
    session = drafted_session()
    session.step(DrafterFrameArrived("d", frame, 0))
    assert session.statistics.num_drafter_losses == (cause is not None)
    assert session.statistics.totals("serial").drafter_losses == (() if cause is None else ((cause, 1),))
    session.step(DrafterLost("d", "its stream ended too", 0))
    assert session.statistics.num_drafter_losses == 1 or isinstance(frame, Refused), "each loss counts once"


def test_a_drafter_that_is_given_up_is_told_so_and_does_not_come_back() -> None:
    session = drafted_session()
    effects = session.step(DrafterGivenUp("d", "never right", 0))
    assert effects == [SendToDrafter("d", Close(1, 1, CloseReason.FINISHED, "never right"))]
    assert session.statistics.totals("serial").drafter_losses == (("acceptance", 1),)
    assert session.step(DrafterGivenUp("d", "never right", 0)) == session.step(DrafterJoined("d", 0)) == []
    session.step(DrafterLost("d", "its stream ended too", 0))
    assert session.statistics.num_drafter_losses == 1
    assert session.step(DrafterGivenUp("nobody", "never there", 0)) == []


def test_time_with_a_slow_reader_is_no_wait_for_drafts() -> None:
    session = drafted_session()
    session.resume(10_000)
    verify_at(session, 10_200)
    assert session.statistics.overhead_us == 200 + 300
    assert session.statistics.draft_wait_us == 200


def test_what_a_draft_takes_to_begin_is_no_part_of_its_tokens() -> None:
    stats = SessionStatistics()
    stats.count_drafting(DraftInterval(0, 9000, 9000), 4, verifying=False, first_us=8700)  # the prompt was read in it
    assert stats.draft_start_us == 0.0
    for _ in range(40):
        stats.count_drafting(DraftInterval(0, 1000, 1000), 8, verifying=False, first_us=300)
    assert stats.draft_us_per_token == pytest.approx(100.0)
    assert stats.draft_start_us == pytest.approx(200.0)
    stats.count_drafting(DraftInterval(0, 300, 300), 1, verifying=False, first_us=300)
    assert stats.draft_us_per_token == pytest.approx(100.0), "one guess is a start and a token"


def test_where_a_round_went_along_a_side_branch_the_guess_was_wrong() -> None:
    """Three accepted, the second of them a second choice, then a correction: right, wrong, right, wrong."""
    by_branch, by_chain = SessionStatistics(), SessionStatistics()
    by_branch.count_round(6, 4, 3, 4, corrected=True, side_at=1)
    by_chain.count_overtaken([True, False, True, False])
    assert by_branch.acceptance == by_chain.acceptance
    assert (by_branch.num_tested, by_branch.num_accepted, by_branch.num_drafted) == (4, 3, 6)
