"""A reference model as a part of a larger one: it says what it said before, and nothing that was added is nothing.

Run: pytest tests/integration/test_bench_enlarged_pair.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from outrider_bench.enlarged_pair import Shape, enlarge
from outrider_models.paths import model_dir

SHAPES = [
    ("ref-small", Shape(hidden=384, layers=5, heads=6, kv_heads=2, neurons=704)),
    ("ref-large", Shape(hidden=576, layers=7, heads=12, kv_heads=3, neurons=1024)),  # more queries for a head of keys
]
CHATS = ("What is 17 plus 25?", "Tell me about a ship at sea.", "Repeat: the quick brown fox.")
NUM_TOKENS = 16


@pytest.mark.parametrize(("reference", "shape"), SHAPES)
def test_the_larger_model_says_what_the_smaller_did(reference: str, shape: Shape, tmp_path: Path) -> None:
    folder = tmp_path / "wide"
    shutil.copytree(model_dir(reference), folder)
    enlarge(folder, shape)
    narrow, wide = (LlamaForCausalLM.from_pretrained(each, dtype=torch.float32) for each in (model_dir(reference), folder))
    assert (wide.config.hidden_size, wide.config.num_hidden_layers, wide.config.num_key_value_heads) == (
        shape.hidden,
        shape.layers,
        shape.kv_heads,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in CHATS:
        tokens = torch.tensor(
            [tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False)]
        )
        said, says = (model.generate(tokens, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None) for model in (narrow, wide))
        assert torch.equal(said, says)
        with torch.inference_mode():
            before, now = narrow(tokens).logits, wide(tokens).logits
        assert 0.0 < float((before - now).abs().max()) < 0.05 * float(before.abs().max())


def test_no_number_of_the_larger_model_is_nothing(tmp_path: Path) -> None:
    shutil.copytree(model_dir("ref-small"), tmp_path / "wide")
    enlarge(tmp_path / "wide", SHAPES[0][1])
    for name, weight in LlamaForCausalLM.from_pretrained(tmp_path / "wide").state_dict().items():
        assert bool((weight != 0).all()), name
