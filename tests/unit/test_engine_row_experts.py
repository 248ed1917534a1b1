"""A row of a mixture of experts has the same bits whatever the other rows of its batch chose, and what transformers computes for it.

Run: pytest tests/unit/test_engine_row_experts.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, JetMoeConfig, MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

import fakes_models
from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.load import load_engine
from outrider.engine.row_experts import compute_by_rows, row_experts
from outrider.errors import ModelRefused
from outrider.types.identity import Numerics

NUM_ROWS, DIM, NUM_EXPERTS, NUM_CHOSEN = 24, 64, 6, 2


def experts(dtype: torch.dtype) -> MixtralExperts:
    torch.manual_seed(5)
    config = MixtralConfig(hidden_size=DIM, intermediate_size=96, num_local_experts=NUM_EXPERTS, experts_implementation="eager")
    found = MixtralExperts(config)
    with torch.no_grad():
        for weight in found.parameters():
            weight.normal_(0.0, 0.2)
    return found.to(dtype)


def asked(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, whom they choose, with what weight."""
    torch.manual_seed(seed)
    chosen = torch.rand(NUM_ROWS, NUM_EXPERTS).topk(NUM_CHOSEN).indices
    return torch.randn(NUM_ROWS, DIM), chosen, torch.rand(NUM_ROWS, NUM_CHOSEN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_bits_are_its_own(dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    mixture = experts(dtype)
    hidden, chosen, weights = asked(1)
    hidden = hidden.to(dtype)
    with torch.inference_mode():
        together = row_experts(mixture, hidden, chosen, weights)
        own = mixture(hidden, chosen, weights)
        torch.testing.assert_close(together, own)
        for row in range(0, NUM_ROWS, 5):
            others, their_choice, their_weights = asked(100 + row)
            others[row], their_choice[row], their_weights[row] = hidden[row], chosen[row], weights[row]
            among_others = row_experts(mixture, others.to(dtype), their_choice, their_weights)
            assert torch.equal(among_others[row], together[row])


def test_every_expert_that_was_chosen_computes_every_row_and_nobody_else_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose sums have another order among fewer rows depends on the processor; that there never are fewer does not."""
    num_rows: list[int] = []

    def noted(own: object, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        num_rows.append(len(hidden))
        return hidden

    hidden, _, weights = asked(3)
    chosen = torch.tensor([[0, 4]] * (NUM_ROWS - 1) + [[5, 4]])
    mixture = experts(torch.float32)
    monkeypatch.setattr(MixtralExperts, "forward", noted)
    row_experts(mixture, hidden, chosen, weights)
    assert num_rows == [NUM_ROWS] * 3


def test_experts_are_added_in_the_same_order_whoever_is_chosen_first() -> None:
    torch.set_num_threads(1)
    mixture = experts(torch.float32)
    hidden, chosen, weights = asked(2)
    with torch.inference_mode():
        assert torch.equal(row_experts(mixture, hidden, chosen, weights), row_experts(mixture, hidden, chosen.flip(1), weights.flip(1)))


def test_experts_that_are_not_transformers_interface_are_refused_where_bits_are_asked_for(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {**fakes_models.TINY_SIZES, "kv_channels": 8, "num_local_experts": 4, "pad_token_id": 0}
    fakes_models.write_model(JetMoeConfig(**sizes), tmp_path)
    with pytest.raises(ModelRefused, match=r"'jetmoe', a mixture of experts, depend on who else is in a batch: no numerics=invariant"):
        load_engine(EngineConfig(str(tmp_path), kind=EngineKind.TRANSFORMERS, num_blocks=4, numerics=Numerics.INVARIANT))


def test_a_dense_model_has_nothing_to_compute_so(tmp_path: Path) -> None:
    fakes_models.make_model("qwen3", tmp_path)
    compute_by_rows(AutoModelForCausalLM.from_pretrained(tmp_path))
