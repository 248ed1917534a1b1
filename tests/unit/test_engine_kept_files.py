"""What spares a later start work: files of the cache folder, a model's own rows in them, and a configuration as transformers read it.

Run: pytest tests/unit/test_engine_kept_files.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config

import fakes_models
from outrider.engine import kept_files, lean_config, lean_engine, transformers_engine
from outrider.engine.config import DType, EngineConfig, EngineKind, WeightFormat
from outrider.engine.kept_files import MAX_KEPT_FILES, KeptFiles, name_of
from outrider.engine.lean_config import LeanConfig, LeanRefusal, read_lean_config
from outrider.engine.lean_engine import load_lean_engine
from outrider.engine.load import load_engine
from outrider.engine.model_files import ModelFiles, find_model
from outrider.engine.own_rows import KeptRows
from outrider.engine.paged_engine import PagedEngine
from outrider.errors import ModelRefused
from outrider_kernels.cache_folder import NOBODYS

PATHS = [[1, 2, 3], [1, 2], [4, 5]]
FACTS = {"model": "one", "dtype": "float32"}
SIZES: dict[str, Any] = {**fakes_models.TINY_SIZES, "max_position_embeddings": 128}
START_DEADLINE_S = 120.0


class Own:
    """Logits that tell the path. num_loads: how often it was read."""

    def __init__(self) -> None:
        self.num_loads = 0

    def load(self) -> Own:
        self.num_loads += 1
        return self

    def __call__(self, tokens: list[int], *, in_float32: bool = False) -> Tensor:
        sums = torch.tensor(tokens).cumsum(0)
        return torch.stack([sums, sums * 10 + in_float32], dim=1).to(torch.bfloat16)


def the_only(folder: Path) -> Path:
    (found,) = [path for path in folder.rglob("*") if path.is_file()]
    return found


def test_what_was_kept_is_found_by_its_name_and_by_no_other(tmp_path: Path) -> None:
    files = KeptFiles("kind", tmp_path)
    assert files.find("one") is None
    files.keep("one", b"content")
    assert (files.find("one"), files.find("two")) == (b"content", None)
    assert KeptFiles("kind", tmp_path).find("one") == b"content"
    assert KeptFiles("other", tmp_path).find("one") is None


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content[:-1] + b"!", lambda content: b""])
def test_a_damaged_file_is_as_none_and_the_log_says_so(damage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = KeptFiles("kind", tmp_path)
    files.keep("one", b"content")
    path = the_only(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    assert files.find("one") is None
    assert f"{path} is damaged" in caplog.text
    files.keep("one", b"again")
    assert files.find("one") == b"again"


def test_a_folder_that_cannot_be_made_costs_the_next_start_its_time_and_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "kind").write_text("a file is in the way")
    files = KeptFiles("kind", tmp_path)
    files.keep("one", b"content")
    assert files.find("one") is None
    assert "the next start takes as long again" in caplog.text


def test_a_user_without_a_home_keeps_nothing_and_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    files = KeptFiles("kind", NOBODYS / "outrider")
    files.keep("one", b"content")
    assert files.find("one") is None
    assert caplog.text.count("WARNING") == 1


def test_a_folder_that_can_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As of an image that brings what its model's first start made."""
    files = KeptFiles("kind", tmp_path)
    files.keep("one", b"content")

    def refuse(*_: object) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    assert files.find("one") == b"content"
    assert not caplog.text


def test_what_could_not_be_finished_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    KeptFiles("kind", tmp_path).keep("one", b"content")
    assert not list((tmp_path / "kind").iterdir())
    assert "no space left on device" in caplog.text


def test_the_number_of_files_is_bounded_and_those_asked_for_stay(tmp_path: Path) -> None:
    files = KeptFiles("kind", tmp_path)
    for index in range(MAX_KEPT_FILES):
        files.keep(f"{index}", b"content")
        os.utime(tmp_path / "kind" / f"{index}", (index, index))
    assert files.find("0") == b"content"  # so that it is newer than all others
    files.keep("one more", b"content")
    assert len(list((tmp_path / "kind").iterdir())) == MAX_KEPT_FILES
    assert (files.find("0"), files.find("1"), files.find("2")) == (b"content", None, b"content")


def test_a_name_follows_from_facts_code_and_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    name = name_of(**FACTS)
    assert name == name_of(**dict(reversed(FACTS.items())))
    others = [name_of(model="other", dtype="float32"), name_of(model="one")]
    with monkeypatch.context() as patched:
        patched.setattr(kept_files, "_code", lambda: "another")
        others.append(name_of(**FACTS))
    with monkeypatch.context() as patched:
        patched.setattr(kept_files, "version", lambda _: "another")
        others.append(name_of(**FACTS))
    with monkeypatch.context() as patched:
        patched.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
        others.append(name_of(**FACTS))
    assert len({name, *others}) == 6


def test_rows_are_computed_once_and_are_the_same_to_the_bit_ever_after(tmp_path: Path) -> None:
    own = Own()
    wanted = torch.tensor([[6.0, 60.0], [3.0, 30.0], [9.0, 90.0]])
    for num_loads in (1, 1):
        rows = KeptRows(own.load, FACTS, "cpu", KeptFiles("kind", tmp_path))
        got = rows(PATHS, in_float32=False)
        assert torch.equal(got, wanted)
        assert (got.dtype, own.num_loads) == (torch.float32, num_loads)


@pytest.mark.parametrize(
    ("paths", "in_float32", "facts"),
    [
        (PATHS[:2], False, FACTS),
        (PATHS, True, FACTS),
        (PATHS, False, {**FACTS, "model": "other"}),
        (PATHS, False, {**FACTS, "dtype": "bfloat16"}),
    ],
)
def test_other_paths_numbers_and_models_are_computed(
    paths: list[list[int]], in_float32: bool, facts: dict[str, str], tmp_path: Path
) -> None:
    own = Own()
    KeptRows(own.load, FACTS, "cpu", KeptFiles("kind", tmp_path))(PATHS, in_float32=False)
    got = KeptRows(own.load, facts, "cpu", KeptFiles("kind", tmp_path))(paths, in_float32=in_float32)
    assert own.num_loads == 2
    assert torch.equal(got, torch.stack([own(path, in_float32=in_float32)[-1].float() for path in paths]))


def test_a_model_is_read_once_for_both_kinds_of_numbers(tmp_path: Path) -> None:
    own = Own()
    rows = KeptRows(own.load, FACTS, "cpu", KeptFiles("kind", tmp_path))
    rows(PATHS, in_float32=False)
    rows(PATHS, in_float32=True)
    assert own.num_loads == 1


CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**{**SIZES, "eos_token_id": [2, 3]}, tie_word_embeddings=True),
    "llama of another RoPE": LlamaConfig(
        **SIZES,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "yarn": LlamaConfig(
        **SIZES,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
    ),
    "mistral with a window": MistralConfig(**SIZES, sliding_window=16),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
}


def files_without_weights(folder: Path) -> ModelFiles:
    (folder / "model.safetensors").touch()
    return find_model(str(folder))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_kept_configuration_is_what_transformers_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CONFIGS[name].save_pretrained(tmp_path)
    files, kept = files_without_weights(tmp_path), KeptFiles("kind", tmp_path / "cache")
    read = read_lean_config(files, kept)
    assert isinstance(read, LeanConfig)
    monkeypatch.setattr(lean_config, "_read", lambda _: pytest.fail("transformers was asked again"))
    assert read_lean_config(files, kept) == read
    own = CONFIGS[name]
    assert (read.vocab_size, read.is_tied, read.sizes.epsilon) == (own.vocab_size, own.tie_word_embeddings, own.rms_norm_eps)
    assert read.eos_token_id == own.eos_token_id
    assert (read.sizes.windows[0], read.rope.factor > 1.0) == (16 if "window" in name else None, name == "yarn")


def test_a_kept_refusal_is_one_and_another_configuration_is_read(tmp_path: Path) -> None:
    LlamaConfig(**SIZES, hidden_act="gelu").save_pretrained(tmp_path)
    files, kept = files_without_weights(tmp_path), KeptFiles("kind", tmp_path / "cache")
    for _ in range(2):
        assert read_lean_config(files, kept) == LeanRefusal("activation 'gelu' is not silu")
    fields = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**fields, "hidden_act": "silu"}))
    assert isinstance(read_lean_config(files, kept), LeanConfig)


def test_a_configuration_that_cannot_be_read_is_refused_and_not_kept(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    files = files_without_weights(tmp_path)
    for _ in range(2):
        with pytest.raises(ModelRefused, match="transformers cannot read the configuration"):
            read_lean_config(files, KeptFiles("kind", tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("weights", [WeightFormat.FULL, WeightFormat.INT8])
def test_an_engine_is_compared_with_kept_rows_at_every_start(
    weights: WeightFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same engine, refused once its numbers change, though nothing of the model has."""
    torch.set_num_threads(1)
    fakes_models.make_model("llama", tmp_path)
    config = EngineConfig(str(tmp_path), EngineKind.LEAN, dtype=DType.FLOAT32, weights=weights, num_blocks=4, num_threads=1)
    load_lean_engine(config)
    with monkeypatch.context() as patched:
        patched.setattr("outrider.engine.lean_engine._reference", lambda *_: pytest.fail("the model was read a second time"))
        load_lean_engine(config)
        broken = torch.Tensor.index_copy_
        patched.setattr(torch.Tensor, "index_copy_", lambda self, dim, index, source: broken(self, dim, index, source * 0.5))
        with pytest.raises(ModelRefused, match="one by one"):
            load_lean_engine(replace(config, thin_products=False))


def test_rows_of_a_card_are_not_those_of_a_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    files, facts = files_without_weights(tmp_path), []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a card at {device}")
    monkeypatch.setattr(lean_engine, "KeptRows", lambda _, own, device: facts.append((own["device"], device)))
    for device in ("cpu", "cuda:1"):
        lean_engine._own_rows(files, EngineConfig(str(tmp_path), device=device), "hash")
    assert facts == [("cpu", "cpu"), ("a card at cuda:1", "cuda:1")]


STARTED = """
import sys
from outrider.engine.config import EngineConfig
from outrider.engine.load import load_engine
load_engine(EngineConfig(sys.argv[1], num_blocks=4, num_threads=1))
print("transformers" in sys.modules, "torch._dynamo" in sys.modules)
"""


def test_a_second_start_imports_no_transformers(tmp_path: Path) -> None:
    """Which is what takes longest of a start."""
    fakes_models.make_model("llama", tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**fields, "never_before": uuid.uuid4().hex}))
    load_engine(EngineConfig(str(tmp_path), num_blocks=4, num_threads=1))  # the first start, in a process that has imported it all
    command = [sys.executable, "-c", STARTED, str(tmp_path)]
    assert subprocess.check_output(command, text=True, timeout=START_DEADLINE_S).split() == ["False", "False"]


def test_the_model_that_was_read_to_compare_with_is_gone_when_the_engine_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a card it would keep as much memory as the weights that are served."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fakes_models.make_model("llama", tmp_path / "model")
    read: list[weakref.ref[PreTrainedModel]] = []
    load = transformers_engine.load_model

    def load_noted(files: ModelFiles, config: EngineConfig) -> PreTrainedModel:
        model = load(files, config)
        read.append(weakref.ref(model))
        return model

    def make_noted(*parts: Any) -> PagedEngine:
        assert [ref() for ref in read] == [None]
        return PagedEngine(*parts)

    monkeypatch.setattr(transformers_engine, "load_model", load_noted)
    monkeypatch.setattr("outrider.engine.lean_engine.PagedEngine", make_noted)
    load_lean_engine(EngineConfig(str(tmp_path / "model"), num_threads=1, num_blocks=4))
    assert len(read) == 1
