"""Products of some panels of a matrix alone: the bits of the whole product where they are listed, and nothing touched anywhere else.

Run: pytest tests/kernels/test_thin_listed.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from broken_c import break_thin
from fakes_thin import PACKINGS, FloatArray, packed, some_rows, weights
from mostly_slow import mostly_slow
from outrider_kernels.thin_matrix import PANEL, ThinMatrix
from outrider_kernels.thin_product import RowNorm, ThinProduct
from outrider_kernels.thin_team import ThinTeam

INPUTS, OUTPUTS = 130, 43 * PANEL - 5  # an odd number of panels, the last of which ends early
NUM_PANELS = -(-OUTPUTS // PANEL)
MOST = 13
UNTOUCHED = np.float32(-77.0)
LISTS = {
    "all": list(range(NUM_PANELS)),
    "the first": [0],
    "the last": [NUM_PANELS - 1],
    "some side by side": [0, 1, 2, 3, 4, 5, 6, 20, 21, 30, 31, 32, 40, 42],
    "every other": list(range(1, NUM_PANELS, 2)),
    "threes": [panel for panel in range(NUM_PANELS) if panel % 4],
}


def columns_of(panels: list[int]) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(OUTPUTS) // PANEL, panels)


def check(panels: list[int], matrix: ThinMatrix, num_threads: int) -> None:
    """With a norm, a bias and sums that are added to."""
    team, rows = ThinTeam(num_threads), some_rows(MOST, INPUTS)
    norm, bias = RowNorm(some_rows(1, INPUTS, 3)[0], 1e-5), some_rows(1, OUTPUTS, 5)[0]
    whole, part = (np.empty((MOST, OUTPUTS), np.float32) for _ in range(2))
    full = ThinProduct(team, matrix, rows, whole, bias=bias, norm=norm, adds=True)
    listed = ThinProduct(team, matrix, rows, part, bias=bias, norm=norm, adds=True)
    listed.limit_to(np.array(panels, np.int32))
    for num_rows in (1, 2, 3, 4, 6, 7, 8, MOST):
        whole[:], part[:] = UNTOUCHED, UNTOUCHED
        full.run(num_rows)
        listed.run(num_rows)
        columns = columns_of(panels)
        np.testing.assert_array_equal(part[:num_rows, columns], whole[:num_rows, columns])
        assert (part[:num_rows, ~columns] == UNTOUCHED).all()
        assert (part[num_rows:] == UNTOUCHED).all()


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("name", list(LISTS))
def test_what_is_listed_is_the_whole_products_and_the_rest_is_left_alone(name: str, packing: str, num_threads: int) -> None:
    check(LISTS[name], packed(weights(INPUTS, OUTPUTS), packing), num_threads)


@pytest.mark.parametrize("packing", PACKINGS)
def test_lists_of_any_panels(packing: str) -> None:
    generator, matrix = np.random.default_rng(3), packed(weights(INPUTS, OUTPUTS), packing)
    for _ in range(6):
        num_listed = int(generator.integers(1, NUM_PANELS))
        check(sorted(generator.choice(NUM_PANELS, num_listed, replace=False).tolist()), matrix, 2)


def test_the_list_may_change_from_product_to_product() -> None:
    rows, out = some_rows(2, INPUTS), np.full((2, OUTPUTS), UNTOUCHED, np.float32)
    product = ThinProduct(ThinTeam(1), packed(weights(INPUTS, OUTPUTS), "floats"), rows, out)
    product.limit_to(np.array([3], np.int32))
    product.run(2)
    before: FloatArray = out.copy()
    rows *= 2.0
    product.limit_to(np.array([5, 7], np.int32))
    product.run(2)
    np.testing.assert_array_equal(out[:, columns_of([3])], before[:, columns_of([3])])
    assert (out[:, columns_of([5, 7])] != UNTOUCHED).all()
    assert (out[:, ~columns_of([3, 5, 7])] == UNTOUCHED).all()


@pytest.mark.parametrize("panels", [[], [-1, 2], [3, NUM_PANELS], [2, 2], [4, 3]])
def test_lists_that_do_not_fit_are_refused(panels: list[int]) -> None:
    product = ThinProduct(ThinTeam(1), packed(weights(4, OUTPUTS), "floats"), some_rows(1, 4), np.empty((1, OUTPUTS), np.float32))
    with pytest.raises(ValueError, match="panels"):
        product.limit_to(np.array(panels, np.int32))
    with pytest.raises(ValueError, match="int32"):
        product.limit_to(np.array([1], np.int64))


BREAKS = {
    "panels taken for their neighbours": (
        "return call->listed ? call->listed[place] : place;",
        "return call->listed ? call->listed[0] + place : place;",
    ),
    "a gap that is not seen": ("while (call->listed && call->listed[place + found - 1]", "while (0 && call->listed[place + found - 1]"),
    "a last panel that is forgotten": ("return call->listed ? call->num_listed :", "return call->listed ? call->num_listed - 1 :"),
}


@pytest.mark.parametrize("broken", mostly_slow(BREAKS, 3))
def test_a_broken_list_would_be_noticed(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_thin(monkeypatch, tmp_path, "thin.h", *BREAKS[broken])
    with pytest.raises(AssertionError):
        check([0, 1, 2, 5, 6, 9, 20, 21], packed(weights(INPUTS, OUTPUTS), "floats"), 1)
