"""A shallower reference model from a deeper one's layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from outrider_models.depth import fit_depth
from outrider_models.network import init_weights
from outrider_models.shapes import SHAPES, Shape

DEEP = Shape(hidden=8, num_layers=6, num_heads=2, num_kv_heads=1, mlp=16, tied=False, head_dim=4, vocab=32)
GATE = "model.layers.{}.mlp.gate_proj.weight"


@pytest.mark.parametrize(("num_layers", "kept"), [(4, [0, 2, 3, 5]), (2, [0, 5]), (1, [5]), (6, [0, 1, 2, 3, 4, 5])])
def test_evenly_spaced_layers_stay_in_order_and_everything_else_as_it_is(num_layers: int, kept: list[int]) -> None:
    deep = init_weights(DEEP, 3)
    shape = replace(DEEP, num_layers=num_layers)
    shallow = fit_depth(deep, shape)
    assert {name: weight.shape for name, weight in shallow.items()} == {n: w.shape for n, w in init_weights(shape, 0).items()}
    for place, layer in enumerate(kept):
        assert torch.equal(shallow[GATE.format(place)], deep[GATE.format(layer)])
    assert torch.equal(shallow["lm_head.weight"], deep["lm_head.weight"])


@pytest.mark.parametrize("change", [{"num_layers": 7}, {"hidden": 16}, {"tied": True}])
def test_weights_that_do_not_fit_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="the weights"):
        fit_depth(init_weights(DEEP, 3), replace(DEEP, **change))  # type: ignore[arg-type]


def test_the_middle_model_can_begin_as_layers_of_the_large_one() -> None:
    assert fit_depth(init_weights(SHAPES["ref-large"], 0), SHAPES["ref-medium"])
