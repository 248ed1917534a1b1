"""Which parameters a default run takes (tests/mostly_slow.py).

Run: pytest tests/house/test_house_mostly_slow.py
"""

from __future__ import annotations

import pytest

from mostly_slow import crossed


@pytest.mark.parametrize("num_quick", [1, 2])
@pytest.mark.parametrize(("first", "second"), [("abcde", (1, 2)), ("ab", (1, 2, 3, 4, 5)), ("abc", (1, 2, 3)), ("abcdef", (1, 2, 3, 4))])
def test_a_default_run_meets_every_value_and_the_long_run_every_pair(first: str, second: tuple[int, ...], num_quick: int) -> None:
    pairs = crossed(first, second, num_quick)
    assert sorted(pair.values for pair in pairs) == [(one, other) for one in first for other in second]
    quick = [pair.values for pair in pairs if not pair.marks]
    assert {one for one, _ in quick} == set(first)
    assert {other for _, other in quick} == set(second)
    assert len(quick) == num_quick * max(len(first), len(second))
