"""How the load-time probe judges rows of a narrow dtype: by the model's own forward, and where that is coarse by float32.

Run: pytest tests/unit/test_engine_probe_judge.py
"""

from __future__ import annotations

import copy
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fakes_models
from outrider.engine.config import DType, EngineConfig, EngineKind
from outrider.engine.load import load_engine
from outrider.engine.own_rows import ComputedRows
from outrider.engine.probe_judge import NOISE_FACTOR, ProbeJudge
from outrider.engine.widened_forward import widened
from outrider.errors import ModelRefused
from outrider.types.identity import Numerics

TOKENS = [5, 9, 2, 40, 7, 11]
EXACT = torch.linspace(-4.0, 4.0, 9)
FAR = 4.0 * 0.2  # beyond the tolerance of bfloat16, 0.15 of the largest logit


class Own:
    """A model whose own logits are EXACT in float32 and off by `noise` in its dtype."""

    def __init__(self, noise: float) -> None:
        self.noise = noise
        self.num_exact = 0

    def __call__(self, tokens: list[int], *, in_float32: bool = False) -> Tensor:
        self.num_exact += in_float32
        return (EXACT if in_float32 else EXACT + self.noise).expand(len(tokens), -1)


class Counting:
    """A model whose logits after a path tell the path: its length, its sum and its last token. `asked`: of which it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, tokens: list[int], *, in_float32: bool = False) -> Tensor:
        self.asked.append(tokens)
        return torch.stack([self.after(tokens[: index + 1]) for index in range(len(tokens))])

    @staticmethod
    def after(path: list[int]) -> Tensor:
        return torch.tensor([float(len(path)), float(sum(path)), float(path[-1])])


def rows(error: float) -> list[tuple[str, list[int], Tensor]]:
    return [("near row", [1], EXACT), ("far row", [1, 2], EXACT + error)]


def test_rows_near_the_models_own_are_not_asked_of_float32() -> None:
    own = Own(0.1)
    ProbeJudge(ComputedRows(own), torch.bfloat16).check(rows(0.2))
    assert own.num_exact == 0


def test_rows_that_are_nearer_to_float32_than_the_models_own_are_its_own(caplog: pytest.LogCaptureFixture) -> None:
    own = Own(FAR)
    with caplog.at_level(logging.WARNING):
        ProbeJudge(ComputedRows(own), torch.bfloat16).check(rows(0.1))
    assert own.num_exact == 1  # the near row's path is the beginning of the other's
    assert "transformers' own logits are off by 0.2 of the largest in it, those served here by 0.025" in caplog.text


def test_a_path_that_another_begins_with_is_read_off_that_one() -> None:
    own, paths = Counting(), [[1, 2], [1, 2, 3, 4], [1], [1, 3], [1, 2, 3], [1, 2, 3, 4]]
    judge = ProbeJudge(ComputedRows(own), torch.float32)
    judge.check([(f"row {index}", path, own.after(path)) for index, path in enumerate(paths)])
    assert own.asked == [[1, 2, 3, 4], [1, 3]]
    with pytest.raises(ModelRefused, match="the row 3 is off"):
        judge.check([(f"row {index}", path, own.after(path) + 0.1 * (path == [1, 3])) for index, path in enumerate(paths)])
    assert len(own.asked) == 2  # what the model says is computed once


@pytest.mark.parametrize(("share", "is_refused"), [(NOISE_FACTOR * 0.99, False), (NOISE_FACTOR * 1.01, True), (float("nan"), True)])
def test_rows_may_be_twice_as_far_from_float32_as_the_models_own(share: float, is_refused: bool) -> None:
    judge = ProbeJudge(ComputedRows(Own(-FAR)), torch.bfloat16)
    if not is_refused:
        judge.check(rows(FAR * share))
        return
    with pytest.raises(ModelRefused, match=r"the near row is off by 0\.17 from decoding one by one"):
        judge.check(rows(FAR * share))


def test_nothing_is_nearer_to_float32_than_a_float32_models_own() -> None:
    own = Own(FAR)
    with pytest.raises(ModelRefused, match="near row is off"):
        ProbeJudge(ComputedRows(own), torch.float32).check(rows(0.0))
    assert own.num_exact == 0


@pytest.mark.parametrize("name", ["llama_tied_one_kv_head", "gemma3", "gpt2", "opt"])
def test_a_widened_forward_is_that_of_a_float32_copy_and_leaves_the_model_as_it_was(name: str, tmp_path: Path) -> None:
    model = fakes_models.make_model(name, tmp_path, torch.bfloat16)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    ids = torch.tensor([TOKENS])
    with torch.inference_mode():
        own = model(ids).logits
        with widened(model):
            found = model(ids).logits
        again = model(ids).logits
        truth = copy.deepcopy(model).float()(ids).logits
    assert own.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    assert float((found - truth).abs().max()) < 1e-5 < float((own - truth).abs().max())
    assert torch.equal(own, again)
    after = model.state_dict()
    assert all(after[key].dtype == value.dtype and torch.equal(after[key], value) for key, value in before.items())


def test_a_forward_that_fails_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = fakes_models.make_model("llama", tmp_path, torch.bfloat16)
    with pytest.raises(IndexError), widened(model):
        model(torch.tensor([[fakes_models.VOCAB]]))
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    model(torch.tensor([TOKENS]))


@pytest.mark.parametrize("numerics", list(Numerics))
@pytest.mark.parametrize("kind", [EngineKind.LEAN, EngineKind.TRANSFORMERS])
def test_a_model_with_biases_of_some_tens_is_served_in_bfloat16(
    kind: EngineKind, numerics: Numerics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in the Qwen2 family: transformers' scores of such keys are off by whole units in bfloat16."""
    torch.set_num_threads(1)
    fakes_models.make_model("qwen2", tmp_path, hidden_size=128, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=4)
    weights = load_file(tmp_path / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith(("q_proj.bias", "k_proj.bias")):
            weight.view(-1, 64)[:, [31, 63]] += torch.tensor([30.0, -30.0])
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with caplog.at_level(logging.WARNING):
        load_engine(EngineConfig(str(tmp_path), kind=kind, dtype=DType.BFLOAT16, numerics=numerics, num_blocks=4, num_threads=1))
    if kind is EngineKind.LEAN:  # the other may do as transformers does, and be off as it is
        assert "torch.bfloat16 is coarse for this model" in caplog.text
