"""When the next guesses are expected of a drafter that goes on, that starts over, and that is late."""

from __future__ import annotations

import pytest

from fakes_pacing import NOW_US, session_view
from outrider.session.pacing.next_tail import TailTimes, next_tail

TIMES = TailTimes(draft_us=3_000.0, burst=2, link_us=100.0, start_us=50.0)
HERE = (NOW_US, 100)  # its drafter was told at the newest commit


def test_one_tail_comes_after_another() -> None:
    heard = session_view(1, 2, heard_us=NOW_US - 1_000)
    assert next_tail(heard, TIMES, NOW_US, HERE) == (NOW_US + 5_000.0, 0)
    unknown = session_view(1, 2)
    assert next_tail(unknown, TIMES, NOW_US, HERE) == (NOW_US + 6_000.0, 0)


def test_a_drafter_that_started_over_and_was_heard_of_goes_on_like_any_other() -> None:
    """Else its first tail is expected a second time, at the instant at which it came, and counts as guesses that are there."""
    session = session_view(1, 1, following=False, heard_us=NOW_US + 700)
    assert next_tail(session, TIMES, NOW_US + 700, HERE) == (NOW_US + 6_700.0, 0)


def test_guesses_of_a_branch_are_no_tail_that_began_anew() -> None:
    """A mismatch that found one: its drafter is told of it now, and what it sent before says when it ends its token."""
    session = session_view(1, 1, following=False, heard_us=NOW_US - 700)
    assert next_tail(session, TIMES, NOW_US, HERE)[0] > NOW_US + TIMES.tail_us


@pytest.mark.parametrize(("heard_ago_us", "left_us"), [(500, 2_300.0), (2_700, 100.0), (2_900, 2_900.0), (3_500, 2_300.0)])
def test_a_drafter_that_starts_over_ends_the_token_that_it_is_at(heard_ago_us: int, left_us: float) -> None:
    """Told after 100 us; what arrived so long ago was 100 us on its way, and since then it guesses a token every 3,000 us."""
    session = session_view(1, following=False, heard_us=NOW_US - heard_ago_us)
    rest_us = TIMES.start_us + TIMES.tail_us + TIMES.link_us
    assert next_tail(session, TIMES, NOW_US, HERE)[0] == pytest.approx(NOW_US + 100.0 + left_us + rest_us)


def test_a_drafter_at_rest_has_no_token_to_end() -> None:
    assert next_tail(session_view(1, following=False), TIMES, NOW_US, HERE)[0] == NOW_US + TIMES.anew_us


def test_tails_of_nothing_but_what_was_decoded_meanwhile_do_not_count() -> None:
    """Three tokens since it was told, two to a tail: the second tail brings the first guess."""
    begin_us = NOW_US - 5_000
    expected_us, num_behind = next_tail(session_view(1), TIMES, NOW_US, (begin_us, 97))
    assert (expected_us, num_behind) == (begin_us + TIMES.anew_us + TIMES.tail_us, 3)


def test_a_tail_that_is_late_may_be_late_as_long_again() -> None:
    late = session_view(1, 2, heard_us=NOW_US - 6_400)
    assert next_tail(late, TIMES, NOW_US, HERE)[0] == NOW_US + 400
