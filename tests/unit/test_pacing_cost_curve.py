"""The cost curve for many row counts at once, against the curve for one.

Run: pytest tests/unit/test_pacing_cost_curve.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.session.pacing.contract import CostCurve

POINTS = st.dictionaries(st.integers(1, 300), st.floats(1.0, 1e6), min_size=1, max_size=8)


@given(POINTS, st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.tuples(st.sampled_from([0.0, 75.0]), st.integers(1, 64)))
def test_many_at_once_are_each_the_same(points: dict[int, float], num_rows: list[int], sequences: tuple[float, int]) -> None:
    curve = CostCurve(tuple(sorted(points.items())), *sequences)
    expected = [curve.verify_us(each) for each in num_rows]
    # times that fall steeply are extrapolated below zero by the one as by the other, unless rows lie in between
    assert curve.verify_us_of(np.array(num_rows)).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-3)


def test_points_that_lie_too_close_do_not_make_rows_beyond_them_free() -> None:
    """A step of sixty-four rows that was quick for once, beside one of thirty-two that was not."""
    curve = CostCurve(((1, 1_000.0), (32, 7_000.0), (64, 7_300.0)))
    assert curve.verify_us(128) == pytest.approx(7_300.0 + 64 * 100.0)
    steep = CostCurve(((1, 1_000.0), (32, 1_000.0), (64, 7_400.0)))
    assert steep.verify_us(128) == pytest.approx(7_400.0 + 64 * 200.0)


def test_sequences_add_to_what_their_rows_cost_as_many_as_there_can_be() -> None:
    alone = CostCurve(((1, 1_000.0), (16, 1_300.0)), 50.0)
    assert [alone.verify_us(rows) for rows in (1, 16)] == [1_000.0, 1_300.0]
    of_eight = alone.shared_by(8)
    assert [of_eight.verify_us(rows) for rows in (1, 4, 8, 16)] == [1_000.0, 1_060.0 + 150.0, 1_140.0 + 350.0, 1_300.0 + 350.0]
    assert of_eight.shared_by(1) == alone
