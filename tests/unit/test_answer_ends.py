"""How long answers are expected to be, from those before them.

pytest tests/unit/test_answer_ends.py
"""

from __future__ import annotations

import random

import pytest

from outrider.session.answer_ends import NO_ENDS, REMEMBERED, AnswerEnds


def ends_after(*lengths: int) -> AnswerEnds:
    ends = NO_ENDS
    for length in lengths:
        ends = ends.after(length, by_itself=True)
    return ends


def test_nothing_known_is_all_that_is_allowed() -> None:
    assert NO_ENDS.expected_left(0, 128) == 128
    assert NO_ENDS.expected_left(40, 0) == 0


def test_answers_of_one_length_end_there_soon() -> None:
    ends = ends_after(*[90] * REMEMBERED)
    assert 90 <= ends.expected_left(0, 400) < 100
    assert 10 <= ends.expected_left(80, 320) < 20
    assert ends.expected_left(95, 305) == 305  # longer than all that were seen


def test_an_answer_that_its_bound_ended_might_have_gone_on() -> None:
    ends = NO_ENDS.after(64, by_itself=False)
    assert ends.expected_left(0, 500) == 500


def test_old_answers_are_forgotten() -> None:
    ends = ends_after(*[500] * REMEMBERED, *[20] * REMEMBERED)
    assert ends.expected_left(0, 600) < 40
    assert len(ends.newest) == REMEMBERED


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_mean_over_the_longer_ones_and_one_that_needs_all(seed: int) -> None:
    drawn = random.Random(seed)
    lengths = [drawn.randrange(1, 200) for _ in range(drawn.randrange(1, REMEMBERED))]
    ends, num_emitted, remaining = ends_after(*lengths), drawn.randrange(0, 150), drawn.randrange(1, 150)
    left = [min(length - num_emitted, remaining) for length in lengths if length > num_emitted]
    assert ends.expected_left(num_emitted, remaining) == pytest.approx((sum(left) + remaining) / (len(left) + 1))
