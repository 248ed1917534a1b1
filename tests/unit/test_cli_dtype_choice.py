"""Which dtype is computed in where nobody says: bfloat16 only where checkpoints, processor and engine all suit it.

Run: pytest tests/unit/test_cli_dtype_choice.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from outrider.cli import dtype_choice
from outrider.cli.deployment_options import add_deployment_options, spec_from
from outrider.cli.dtype_choice import auto_dtype
from outrider.errors import ModelRefused

FULL = ["full", "full"]
SIZES = {"hidden_size": 160, "num_attention_heads": 4}


@pytest.fixture(autouse=True)
def _a_processor_that_multiplies_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtype_choice, "takes_bfloat16", lambda: True)


def model(folder: Path, **config: object) -> str:
    """A folder with a configuration and a file of weights that nobody reads."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": "bfloat16"} | SIZES | config), "utf-8")
    (folder / "model.safetensors").write_bytes(b"12345678")
    return str(folder)


@pytest.mark.parametrize(
    ("draft", "wanted"),
    [
        ({}, "bfloat16"),
        ({"model_type": "qwen3"}, "bfloat16"),
        ({"dtype": None, "torch_dtype": "bfloat16"}, "float32"),  # the newer name says that there is none
        ({"dtype": "float32"}, "float32"),
        ({"dtype": "float16"}, "float32"),
        ({"model_type": "gemma2"}, "float32"),
        ({"num_attention_heads": 8}, "float32"),  # heads of 20, which the compiled products do not take
        ({"num_attention_heads": 8, "head_dim": 24}, "bfloat16"),
        ({"hidden_size": None}, "float32"),
    ],
)
def test_both_checkpoints_have_to_suit_it(draft: dict[str, object], wanted: str, tmp_path: Path) -> None:
    models = [model(tmp_path / "target"), model(tmp_path / "draft", **draft)]
    assert auto_dtype(models, FULL) == wanted
    assert auto_dtype(models[::-1], FULL) == wanted


def test_an_older_configuration_is_read_too(tmp_path: Path) -> None:
    path = Path(model(tmp_path / "old"))
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "torch_dtype": "bfloat16"} | SIZES), "utf-8")
    assert auto_dtype([str(path)], ["full"]) == "bfloat16"


@pytest.mark.parametrize("content", ["{", "[]", "", "7"])
def test_a_configuration_that_cannot_be_read_is_left_to_who_loads_it(content: str, tmp_path: Path) -> None:
    path = Path(model(tmp_path / "torn"))
    (path / "config.json").write_text(content, "utf-8")
    assert auto_dtype([str(path)], ["full"]) == "float32"


def test_int8_weights_and_other_processors_stay_with_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [model(tmp_path / "target"), model(tmp_path / "draft")]
    assert auto_dtype(models, ["full", "int8"]) == "float32"
    monkeypatch.setattr(dtype_choice, "takes_bfloat16", lambda: False)
    assert auto_dtype(models, FULL) == "float32"


def test_a_model_that_is_nowhere_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="neither a directory"):
        auto_dtype([str(tmp_path / "none" / "such" / "thing")], ["full"])
    (tmp_path / "empty").mkdir()
    assert auto_dtype([str(tmp_path / "empty")], ["full"]) == "float32", "who loads it says what is missing"


def test_a_deployment_computes_in_what_was_chosen(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_deployment_options(parser)
    names = ("--target", model(tmp_path / "target"), "--draft", model(tmp_path / "draft"))
    for given, wanted in (("auto", "bfloat16"), ("float32", "float32")):
        assert spec_from(parser.parse_args([*names, "--dtype", given]), None).dtype == wanted
    assert spec_from(parser.parse_args([*names, "--dtype", "auto", "--draft-weights", "int8"]), None).dtype == "float32"
