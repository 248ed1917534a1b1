"""Where kernel tests run: on a card exactly where there is one, and there with every tensor that a call is given and gives.

Run: pytest tests/unit/test_kernel_places.py
"""

from __future__ import annotations

import torch

from fakes_kernel_places import INTERPRETED, PLACES, CardPlace, moved, places
from outrider_kernels.compact import compact
from outrider_kernels.pick_rows import PickRows, TouchedTokens


def test_a_machine_with_a_card_tests_there_too() -> None:
    assert places(has_card=False) == (INTERPRETED,)
    assert set(places(has_card=True)) > {INTERPRETED}
    assert places(torch.cuda.is_available()) == PLACES


def test_every_tensor_moves_and_nothing_else() -> None:
    one = torch.ones(1)
    rows = PickRows(one, one, one, touched=TouchedTokens(*[one] * 7))
    there = moved(([rows], {"a": one}, 3, None, PickRows), "meta")
    assert isinstance(there, tuple)
    assert there[2:] == (3, None, PickRows)
    assert there[1]["a"].device.type == "meta"
    row = there[0][0]
    assert row.keys.device.type == row.touched.presence.device.type == "meta"
    assert row.bias is None
    assert one.device.type == "cpu"


def test_a_call_in_this_process_leaves_its_arguments_alone_and_tells_how_it_left_them() -> None:
    place = CardPlace("cpu")
    pools = [torch.arange(12.0).view(6, 2)]
    expected = [pool.clone() for pool in pools]
    compact(expected, [4], [1])
    after = place.arguments_after("outrider_kernels.compact", "compact", pools, [4], [1])
    assert torch.equal(after[0][0], expected[0])
    assert torch.equal(pools[0], torch.arange(12.0).view(6, 2))
    assert place.call("outrider_kernels.compact", "compact", pools, source=[4], destination=[1]) == 1
