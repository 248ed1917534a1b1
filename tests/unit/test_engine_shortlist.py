"""Which ids are listed: the lowest at first, then what was read most recently, against a list that is kept the plain way.

Run: pytest tests/unit/test_engine_shortlist.py
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from outrider.engine.shortlist import Shortlist
from outrider_kernels.thin_matrix import PANEL

NUM_IDS = 10 * PANEL - 3


def first_of(*panels: int) -> list[int]:
    """An id of each."""
    return [panel * PANEL + panel for panel in panels]


def test_it_begins_with_the_lowest_ids_and_what_is_always_listed() -> None:
    assert Shortlist(NUM_IDS, 4 * PANEL).panels.tolist() == [0, 1, 2, 3]
    shortlist = Shortlist(NUM_IDS, 4 * PANEL + PANEL - 1, first_of(9, 6))
    assert shortlist.panels.tolist() == [0, 1, 6, 9]
    assert shortlist.panels.dtype == np.int32


def test_what_is_read_takes_the_place_of_what_was_not_for_longest() -> None:
    shortlist = Shortlist(NUM_IDS, 4 * PANEL)
    gone = shortlist.read(first_of(7))
    assert gone is not None
    assert gone.tolist() == [3], "the highest of those that nobody has read"
    assert shortlist.read(first_of(0, 7, 2)) is None, "it lists them"
    gone = shortlist.read(first_of(5, 8))
    assert gone is not None
    assert gone.tolist() == [0, 1]
    assert shortlist.panels.tolist() == [2, 5, 7, 8]


def test_of_more_than_fits_the_last_stay() -> None:
    shortlist = Shortlist(NUM_IDS, 3 * PANEL, first_of(9))
    gone = shortlist.read(first_of(4, 5, 4, 6, 7, 5))
    assert gone is not None
    assert gone.tolist() == [0, 1]
    assert shortlist.panels.tolist() == [5, 7, 9]


def test_what_is_always_listed_never_leaves_and_needs_no_reading() -> None:
    shortlist = Shortlist(NUM_IDS, 3 * PANEL, first_of(9))
    for panel in (4, 5, 6, 7, 9, 8):
        shortlist.read(first_of(panel))
        assert 9 in shortlist.panels.tolist()
    assert shortlist.panels.tolist() == [7, 8, 9]


def test_a_list_that_holds_all_never_changes() -> None:
    shortlist = Shortlist(NUM_IDS, 100 * PANEL)
    assert shortlist.read(first_of(*range(10))) is None
    assert shortlist.panels.tolist() == list(range(10))


def test_what_is_always_listed_leaves_room() -> None:
    with pytest.raises(ValueError, match="no room"):
        Shortlist(NUM_IDS, 2 * PANEL, first_of(1, 5))


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_list_that_is_kept_the_plain_way(seed: int) -> None:
    generator, most = np.random.default_rng(seed), 5
    kept = int(generator.integers(0, 10))
    shortlist = Shortlist(NUM_IDS, most * PANEL, [kept * PANEL])
    plain = OrderedDict.fromkeys(panel for panel in reversed([panel for panel in range(10) if panel != kept][: most - 1]))
    for _ in range(300):
        tokens = (generator.beta(1, 3, int(generator.integers(1, 8))) * NUM_IDS).astype(np.int32)
        before = {*plain, kept}
        for panel in (tokens // PANEL).tolist():
            if panel != kept:
                plain[panel] = None
                plain.move_to_end(panel)
        while len(plain) > most - 1:
            plain.popitem(last=False)
        gone = shortlist.read(tokens)
        assert shortlist.panels.tolist() == sorted([*plain, kept])
        assert before == {*plain, kept} if gone is None else sorted(before - {*plain}) == sorted([*gone.tolist(), kept])
