"""A drafter that may not guess is told of commits later, in one frame, and in time to be of use again."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fakes import TruthTable
from fakes_simulation import spec_of
from outrider.session.drafter_link import MAX_UNTOLD_TOKENS
from outrider.session.events import (
    DrafterFrameArrived,
    DrafterJoined,
    DrafterLost,
    RoundPlanned,
    RoundVerified,
    SendToDrafter,
    VerifierEffect,
)
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import SessionView
from outrider.session.pacing.plain import PlainPacing
from outrider.session.pacing.serial import SerialPacing
from outrider.session.verifier import LEAVE_EVERY, REST_AFTER, VerifierSession
from outrider.types.frames import Commit, Open, Opened, Tail, TailEnd, VerifierFrame
from outrider.types.tree import Verdict

NUM_PROMPT = 3


class OnDemand(SerialPacing):
    """Serial drafts of four, only while `on`; one guess to begin with, which the first commit overtakes."""

    on = False
    first = 1
    rest_until = 0  # length below which it lets sessions rest

    def draft_ahead(self, session: SessionView) -> int:
        """Nothing while off."""
        return super().draft_ahead(session) if self.on else self.first * (session.committed_len == NUM_PROMPT)

    def lets_rest(self, session: int, committed_len: int) -> bool:
        """Up to a length."""
        return committed_len < self.rest_until


def _session(pacing: OnDemand) -> VerifierSession:
    session = VerifierSession(spec_of(1, [5, 6, 7], 400, TruthTable(vocab_size=1000)), pacing, 0)
    (effect,) = session.step(DrafterJoined("d", 0))
    assert isinstance(effect, SendToDrafter)
    assert isinstance(effect.frame, Open)
    session.step(DrafterFrameArrived("d", Opened(1, effect.frame.incarnation, 3), 1))
    return session


def _decode(session: VerifierSession, now_us: int) -> list[Commit]:
    """One plain round; the commits it sends."""
    return [frame for frame in _frames(session, now_us) if isinstance(frame, Commit)]


def _frames(session: VerifierSession, now_us: int) -> list[VerifierFrame]:
    """One plain round; all that it sends."""
    session.step(RoundPlanned(64, 0, now_us))
    verdict = Verdict((), 8 + now_us % 100, True)
    effects: list[VerifierEffect] = session.step(RoundVerified(verdict, 10, now_us + 10))
    return [effect.frame for effect in effects if isinstance(effect, SendToDrafter)]


def test_commits_without_credit_are_held_back_and_told_in_one_frame() -> None:
    pacing = OnDemand(4)
    session = _session(pacing)
    assert [_decode(session, 100 * at) for at in range(1, LEAVE_EVERY)] == [[]] * (LEAVE_EVERY - 1)
    pacing.on = True
    (told,) = _decode(session, 600)
    assert told.begin == 3
    assert told.tokens.tolist() == session.prefix.slice(3, session.committed_len).tolist()
    assert told.prefix_hash == session.prefix.hash
    assert told.draft_until == session.committed_len + 4
    (after,) = _decode(session, 700)
    assert (after.begin, len(after.tokens)) == (3 + LEAVE_EVERY, 1)


def test_leave_that_is_taken_back_is_told_at_once() -> None:
    pacing = OnDemand(4)
    pacing.on = True
    session = _session(pacing)
    assert len(_decode(session, 100)) == 1
    pacing.on = False
    (told,) = _decode(session, 200)
    assert told.draft_until == session.committed_len, "it would go on for the rest of its credit"
    assert not session.view(300).is_drafting
    assert [_decode(session, 100 * at) for at in range(3, 6)] == [[]] * 3


def test_a_drafter_that_reads_the_prompt_keeps_its_leave() -> None:
    """It would rest, and say that it is done with the prompt, for which the verifier would wait at its next draft."""
    pacing = OnDemand(4)
    pacing.on = True
    session = VerifierSession(spec_of(1, [5, 6, 7], 400, TruthTable(vocab_size=1000)), pacing, 0)
    session.step(DrafterJoined("d", 0))
    pacing.on = False
    told = [_decode(session, 100 * at) for at in range(1, 6)]
    assert [[commit.draft_until for commit in commits] for commits in told] == [[7]] * 3 + [[]] * 2


def test_what_is_held_back_is_bounded() -> None:
    session = _session(OnDemand(4))
    told = [commit for at in range(1, 2 * MAX_UNTOLD_TOKENS + 1) for commit in _decode(session, 100 * at)]
    assert [len(commit.tokens) for commit in told] == [MAX_UNTOLD_TOKENS] * 2
    assert np.concatenate([commit.tokens for commit in told]).tolist() == session.prefix.slice(3, session.committed_len).tolist()


def test_a_long_rest_is_ended_within_a_few_commits() -> None:
    """Leave is thought about less often in it, and then everything that passed unnoticed is told in one frame."""
    pacing = OnDemand(4)
    session = _session(pacing)
    for at in range(1, REST_AFTER + 10):
        assert not _decode(session, 100 * at)
    pacing.on = True
    begun = session.committed_len
    told = [commit for at in range(LEAVE_EVERY) for commit in _decode(session, 10_000 + 100 * at)]
    assert begun < told[0].begin + len(told[0].tokens) <= begun + LEAVE_EVERY
    assert [told[0].begin, *(commit.begin for commit in told[1:])] == [3, *range(3 + len(told[0].tokens), session.committed_len)]
    assert b"".join(commit.tokens.tobytes() for commit in told) == session.prefix.slice(3, session.committed_len).tobytes()


def test_nobody_thinks_about_leave_as_long_as_the_policy_lets_the_session_rest() -> None:
    pacing = OnDemand(4)
    session = _session(pacing)
    for at in range(1, REST_AFTER + 2):
        _decode(session, 100 * at)
    pacing.on = True
    pacing.rest_until = rest_until = session.committed_len + 5 * LEAVE_EVERY
    while session.committed_len < rest_until - 1:
        assert not _decode(session, 100 * session.committed_len)
    told = [commit for _ in range(LEAVE_EVERY) for commit in _decode(session, 100 * session.committed_len)]
    assert rest_until <= told[0].begin + len(told[0].tokens) < rest_until + LEAVE_EVERY
    assert told[0].begin == 3


def test_a_policy_that_lets_it_rest_no_longer_ends_the_rest_within_a_few_commits() -> None:
    pacing = OnDemand(4)
    pacing.rest_until = 1_000
    session = _session(pacing)
    for at in range(1, REST_AFTER + 10):
        assert not _decode(session, 100 * at)
    pacing.on, pacing.rest_until = True, 0
    assert any(_decode(session, 10_000 + 100 * at) for at in range(LEAVE_EVERY))


def test_a_drafter_that_does_not_rest_yet_is_thought_of_whatever_the_policy_says() -> None:
    pacing = OnDemand(4)
    pacing.on = True
    session = _session(pacing)
    assert len(_decode(session, 100)) == 1
    pacing.on, pacing.rest_until = False, 1_000
    (told,) = _decode(session, 200)
    assert told.draft_until == session.committed_len, "its leave is taken back"


def test_who_may_guess_one_token_does_not_rest() -> None:
    pacing = OnDemand(1)
    pacing.on = True
    session = _session(pacing)
    assert all(_decode(session, 100 * at) for at in range(1, 4 * REST_AFTER))


def test_guesses_that_come_in_a_rest_are_seen_at_once() -> None:
    pacing = OnDemand(4)
    session = _session(pacing)
    for at in range(1, REST_AFTER + 2):
        _decode(session, 100 * at)
    base, tokens = session.committed_len, np.array([40, 41], np.int32)
    identity = (1, session.spec.incarnation, 1, 0, base, session.prefix.hash)
    session.step(DrafterFrameArrived("d", Tail(*identity, tokens, np.array([-1, 0], np.int32), TailEnd.CREDIT, "late", 10, 1, 2), 5000))
    assert session.view(5001).depth == 2
    assert not session.grows_quietly
    _decode(session, 6000)
    assert session.view(6001).depth == 0, "the truth left them, in a commit that may not pass unnoticed"


def test_a_drafter_is_opened_when_there_is_leave_for_it() -> None:
    """Until then nothing is sent, so that it reads nothing; then its Open holds all that was committed."""
    pacing = OnDemand(4)
    pacing.first = 0
    session = VerifierSession(spec_of(1, [5, 6, 7], 400, TruthTable(vocab_size=1000)), pacing, 0)
    assert session.step(DrafterJoined("d", 0)) == []
    for at in range(1, REST_AFTER + 10):
        assert not _decode(session, 100 * at)
    pacing.on = True
    opened = [frame for at in range(LEAVE_EVERY) for frame in _frames(session, 10_000 + 100 * at)]
    assert isinstance(opened[0], Open)
    assert opened[0].tokens.tolist() == session.prefix.slice(0, opened[0].prefix_len).tolist()
    assert opened[0].draft_until == opened[0].prefix_len + 4
    assert session.num_open_drafters == 1
    assert [type(frame) for frame in opened[1:]] == [Commit] * (len(opened) - 1)


def test_a_deferred_drafter_that_is_lost_is_not_opened_before_it_joins_again() -> None:
    pacing = OnDemand(4)
    pacing.first = 0
    session = VerifierSession(spec_of(1, [5, 6, 7], 400, TruthTable(vocab_size=1000)), pacing, 0)
    session.step(DrafterJoined("d", 0))
    session.step(DrafterLost("d", "gone", 10))
    assert not session.statistics.num_drafter_losses, "it held nothing of this session"
    pacing.on = True
    assert not _frames(session, 100)
    (effect,) = session.step(DrafterJoined("d", 200))
    assert isinstance(effect, SendToDrafter)
    assert isinstance(effect.frame, Open)


def test_drafters_that_were_never_opened_are_seen_as_none_but_for_whose_turn_they_take() -> None:
    pacing = OnDemand(4)
    pacing.first = 0
    session = VerifierSession(spec_of(1, [5, 6, 7], 400, TruthTable(vocab_size=1000)), pacing, 0)
    without = session.view(0)
    session.step(DrafterJoined("own", 0, takes_turns=True))
    assert session.view(0) == replace(without, takes_turns=True)
    session.step(DrafterJoined("far", 0))
    assert session.view(0) == without
    assert not _frames(session, 100)
    assert session.statistics.draft_wait_us == 0
    pacing.on = True
    opened = [frame for at in range(REST_AFTER + 1, LEAVE_EVERY + 1) for frame in _frames(session, 100 * at)]
    assert [type(frame) for frame in opened] == [Open] * 2
    assert session.view(250).is_drafting


def test_the_end_of_an_answer_tells_a_deferred_drafter_nothing() -> None:
    pacing = OnDemand(4)
    pacing.first = 0
    session = VerifierSession(spec_of(1, [5, 6, 7], 2, TruthTable(vocab_size=1000)), pacing, 0)
    session.step(DrafterJoined("d", 0))
    assert not _frames(session, 100)
    assert not _frames(session, 200)
    assert session.finished is not None


def test_while_a_far_drafter_has_not_answered_its_session_grows_quietly_and_its_first_guesses_still_count() -> None:
    """The way there and back takes a good part of a short answer. What it guessed then was overtaken, and is judged all the same."""
    session = VerifierSession(spec_of(1, [5, 6, 7], 400, TruthTable(vocab_size=1000)), OnDemand(4), 0)
    (effect,) = session.step(DrafterJoined("d", 0))
    assert isinstance(effect, SendToDrafter)
    quiet = [(_frames(session, 100 * at), session.grows_quietly)[1] for at in range(1, REST_AFTER + 3)]
    assert quiet == [False] * REST_AFTER + [True] * 2
    for at in range(REST_AFTER + 3, MAX_UNTOLD_TOKENS):
        assert not _frames(session, 100 * at)
    assert any(_frames(session, 100 * at) for at in range(MAX_UNTOLD_TOKENS, MAX_UNTOLD_TOKENS + 2 * LEAVE_EVERY)), "not for ever"
    assert isinstance(effect.frame, Open)
    identity = (1, effect.frame.incarnation, 0, 0, 3, session.prefix.hash_at(3))
    tail = Tail(*identity, session.prefix.slice(3, 4), np.array([-1], np.int32), TailEnd.CREDIT, "late", 10, 1, 2)
    session.step(DrafterFrameArrived("d", tail, 20_000))
    assert not session.grows_quietly
    assert session.statistics.num_tested == 1


def test_only_a_session_that_brings_a_token_at_a_time_grows_quietly() -> None:
    """So that its plan may be repeated: not with leave out, nor at once, nor when a drafter joins. Where the text offers guesses, it says
    what they promise."""
    leave, session = OnDemand(4), VerifierSession(spec_of(1, [5, 6, 7], 400, TruthTable(vocab_size=1000)), PlainPacing(), 0)
    leave.on = True
    with_leave = _session(leave)
    quiet = [(_frames(session, 100 * at), session.grows_quietly)[1] for at in range(1, REST_AFTER + 3)]
    assert quiet == [False] * REST_AFTER + [True] * 2
    assert not any((_frames(with_leave, 100 * at), with_leave.grows_quietly)[1] for at in range(1, REST_AFTER + 3))
    session.step(RoundPlanned(64, 0, 5000))
    assert not session.grows_quietly, "a round is in flight"
    repeating = VerifierSession(spec_of(1, [5, 6] * 3, 400, TruthTable(vocab_size=1000), lookup=True), AdaptivePacing(), 0)
    for at in range(REST_AFTER + 3):
        repeating.step(RoundPlanned(64, 0, 100 * at))
        repeating.step(RoundVerified(Verdict((), 5 + at % 2, True), 10, 100 * at + 10))
    rights = repeating.lookup_rights
    assert repeating.lookup_promise == pytest.approx(sum(math.prod(rights[: at + 1]) for at in range(len(rights))))
    assert repeating.lookup_promise > 0.5
    assert session.lookup_promise == 0.0
