"""When a drafter that runs ahead sends what it has."""

from __future__ import annotations

import pytest

from outrider.session.pacing.flushing import FLUSHES_A_STEP, LEAST_IN_TIME, MAX_FLUSH_LEN, RARELY_RIGHT, flush_len

STEP_US = 12_000.0


@pytest.mark.parametrize("draft_us", [100.0, 400.0, 1_000.0])
@pytest.mark.parametrize("link_us", [0.0, 3_000.0, 5_000.0, 5_400.0])
@pytest.mark.parametrize("right", [0.5, 0.9])
def test_a_tail_of_a_drafter_that_starts_over_is_there_when_a_plain_step_ends(draft_us: float, link_us: float, right: float) -> None:
    """The commit's way there, the token under way, the tail's tokens and its way back, against the step that began with the commit."""
    length = flush_len(STEP_US, draft_us, link_us, 0.0, right)
    assert 1 <= length <= MAX_FLUSH_LEN
    if STEP_US - 2.0 * link_us > (LEAST_IN_TIME + 0.5) * draft_us:
        assert 2.0 * link_us + (0.5 + length) * draft_us <= STEP_US


def test_nothing_waits_for_guesses_that_are_hardly_ever_right() -> None:
    assert flush_len(STEP_US, 50.0, 0.0, 0.0, 0.4) == 2
    assert 0.4**2 <= RARELY_RIGHT < 0.4**1
    assert flush_len(STEP_US, 50.0, 0.0, 0.0, 0.99) == MAX_FLUSH_LEN
    assert flush_len(STEP_US, 50.0, 0.0, 0.0, 0.0) == 1
    assert flush_len(STEP_US, 50.0, 0.0, 0.0, 1.0) == MAX_FLUSH_LEN


def test_tails_are_few_in_a_step() -> None:
    assert flush_len(STEP_US, 300.0, 0.0, 0.0, 0.99) == STEP_US / (FLUSHES_A_STEP * 300.0)


@pytest.mark.parametrize(
    ("step_us", "draft_us", "length"), [(1_000.0, 300.0, 3), (1_000.0, 120.0, 7), (500.0, 300.0, 3), (4_000.0, 300.0, 3)]
)
def test_tails_of_a_quick_target_are_a_millisecond_apart(step_us: float, draft_us: float, length: int) -> None:
    """However short its steps are; seven of eight guesses in a step, for one is under way when a drafter hears that it is to start over."""
    assert flush_len(step_us, draft_us, 0.0, 0.0, 0.99) == length


def test_a_drafter_too_far_to_be_in_time_sends_as_if_it_were_near() -> None:
    near = flush_len(STEP_US, 300.0, 0.0, 0.0, 0.99)
    assert flush_len(STEP_US, 300.0, 20_000.0, 0.0, 0.99) == near
    just_behind_us = (STEP_US - LEAST_IN_TIME * 300.0) / 2.0
    assert flush_len(STEP_US, 300.0, just_behind_us, 0.0, 0.99) == near, "a guess or two in time are not worth a message each"


def test_what_a_draft_takes_to_begin_leaves_less_time() -> None:
    assert flush_len(STEP_US, 400.0, 4_000.0, 2_000.0, 0.99) < flush_len(STEP_US, 400.0, 4_000.0, 0.0, 0.99)
