"""What `adaptive` remembers of kinds of sessions: with what course a new one begins, and of how many kinds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fakes_pacing import READY
from outrider.session.pacing.contract import SessionView
from outrider.session.pacing.first_asking import MAX_AT_ONCE_EVERY, NUM_AGAINST
from outrider.session.pacing.remembered import MAX_KINDS, RememberedSessions
from outrider.session.pacing.round_model import Course, Pace

PLAIN = Course(Pace.PLAIN, 0, 0, 0, 0.001, 1000.0, 1000.0)
SERIAL = Course(Pace.SERIAL, 8, 8, 8, 0.003, 2000.0, 2000.0)


def view(session: int, kind: int) -> SessionView:
    return replace(READY, session=session, kind=kind)


def test_new_sessions_begin_as_those_of_their_kind_do_now() -> None:
    """With guesses where some of a kind go with them and some without; a kind never seen begins as the newest of any with guesses."""
    known = RememberedSessions(PLAIN)
    sessions = [view(1, 1), view(2, 1), view(3, 2)]
    for session, course in zip(sessions, (SERIAL, PLAIN, PLAIN), strict=True):
        known.of(session).course = course
    known.settle(sessions)
    assert [known.of(view(10 + kind, kind)).course for kind in (1, 2, 3)] == [SERIAL, PLAIN, SERIAL]
    known.settle_all(PLAIN)
    assert [known.of(view(20 + kind, kind)).course for kind in (1, 2, 3)] == [PLAIN] * 3
    assert known.of(sessions[0]).course == SERIAL, "it has begun"


def test_who_is_not_to_be_asked_yet_says_nothing_of_how_others_begin() -> None:
    """It goes without for the time being, whatever its kind does."""
    known = RememberedSessions(SERIAL)
    known.kind(view(1, 1)).far.count(500, 800.0, asked=True)
    assert known.is_put_off(view(1, 1), PLAIN, 1.0)
    known.settle([view(1, 1)])
    assert known.of(view(1, 1)).course == PLAIN
    assert known.of(view(2, 1)).course == known.of(view(3, 2)).course == SERIAL


def test_who_is_put_off_no_longer_begins_as_its_kind_does() -> None:
    known, own = RememberedSessions(SERIAL), view(1, 1)
    record = known.kind(own).far
    record.count(500, 800.0, asked=True)
    assert known.is_put_off(own, PLAIN, 1.0)
    later = replace(own, committed_len=known.of(own).asked_from)
    record.count(500, 100.0, asked=True)
    assert not known.is_put_off(later, PLAIN, 1.0)
    assert (known.of(own).course, known.of(own).is_met) == (SERIAL, True)


def test_kinds_are_bounded_and_the_one_not_met_for_the_longest_is_forgotten() -> None:
    known = RememberedSessions(PLAIN)
    first, second = known.kind(view(1, 1)), known.kind(view(1, 2))
    for number in range(3, MAX_KINDS + 2):
        known.kind(view(1, 1))
        known.kind(view(1, number))
    assert known.kind(view(1, 1)) is first
    assert known.kind(view(1, 2)) is not second


def test_a_longer_beginning_goes_on_where_the_shorter_one_was() -> None:
    """Else every prompt that is met again would be learned about from the start, at each length of its beginning."""
    known = RememberedSessions(SERIAL)
    short = known.kind(view(1, 1))
    short.usual = PLAIN
    for _ in range(3 * NUM_AGAINST):
        short.asking.judged(drafts=False)
    short.far.count(500, 400.0, asked=False)
    short.far.count(500, 800.0, asked=True)
    longer = known.kind(replace(view(2, 2), shorter_kind=1))
    assert (longer.usual, longer.far.asks()) == (PLAIN, False)
    assert [longer.asking.is_later() for _ in range(MAX_AT_ONCE_EVERY)].count(False) == 1
    longer.far.count(5_000, 1_000.0, asked=True)
    assert not short.far.asks(), "from then on each learns by itself"


def test_a_first_kind_is_not_held_back_by_prompts_like_none_before() -> None:
    known = RememberedSessions(SERIAL)
    unlike = known.kind(view(1, 0))
    for _ in range(3 * NUM_AGAINST):
        unlike.asking.judged(drafts=False)
    assert unlike.asking.is_later()
    assert not known.kind(view(2, 1)).asking.is_later()


def confirmed(*, pace: Pace = Pace.PLAIN, looked_at: float = 0.6, acceptance: float = 0.5, **changes: object) -> tuple[bool, float]:
    """Whether the first guesses of a session count against its kind, and the acceptance that it is then taken to be looked at for."""
    known = RememberedSessions(PLAIN)
    shown: dict[str, Any] = {"acceptance": acceptance, "num_tested": 1, **changes}
    session = replace(view(1, 1), **shown)
    own = known.of(session)
    own.course, own.looked_at = own.course._replace(pace=pace), looked_at
    known.confirm_plain(session)
    known.confirm_plain(session)
    num_against = known.kind(session).asking._num_against
    assert num_against in {0, 1}, "once for each session"
    assert own.looked_untested is (num_against == 0)
    return num_against == 1, own.looked_at


def test_who_goes_without_and_is_wrong_goes_on_so_and_needs_no_look() -> None:
    """Looked at for each wrong guess, one request lost half a millisecond of sixty-four tokens, to find what it had."""
    assert confirmed() == (True, 0.5)
    assert confirmed(acceptance=0.7) == (False, 0.6), "guesses that turn out better are news"
    assert confirmed(pace=Pace.AHEAD) == (False, 0.6)
    assert confirmed(looked_at=-1.0) == (False, -1.0), "nobody has looked at it yet"
    assert confirmed(num_tested=0) == (False, 0.6)
    assert confirmed(takes_turns=True) == (False, 0.6), "what drafting takes is news there"
