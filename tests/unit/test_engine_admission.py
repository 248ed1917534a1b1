"""Damaged, foreign and hostile model directories: each is refused with a sentence, whichever library fails over it, and runs no code.

Run: pytest tests/unit/test_engine_admission.py
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BartConfig, ElectraConfig, FalconConfig, PreTrainedConfig

import fakes_models
from outrider.engine import transformers_engine
from outrider.engine.config import EngineConfig, EngineKind, InvariantSizes
from outrider.engine.load import load_engine
from outrider.engine.paged_cache import LayerShape
from outrider.engine.transformers_forward import LayerTrace, check_layers
from outrider.errors import DoesNotFit, InvalidRequest, ModelRefused

LEAN_FAMILY, OTHER_FAMILY = "llama", "gemma2"
DOWN = "model.layers.0.mlp.down_proj.weight"

Damage = Callable[[Path], None]


def load(directory: Path, **settings: Any) -> None:
    torch.set_num_threads(1)
    load_engine(EngineConfig(str(directory), **{"num_blocks": 4, **settings}))


def in_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def damage(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})

    return damage


def in_config(**values: Any) -> Damage:
    def damage(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return damage


def written(name: str, content: str) -> Damage:
    def damage(directory: Path) -> None:
        (directory / name).write_text(content)

    return damage


def cut_off(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a tensor is missing": (in_weights(lambda tensors: tensors.pop(DOWN)), "down_proj"),
    "a tensor has another shape": (in_weights(lambda tensors: tensors.update({DOWN: tensors[DOWN][:-1].clone()})), "down|mismatched"),
    "the download was cut off": (cut_off, "SafetensorError"),
    "nonsense sizes": (in_config(num_attention_heads=5), "multiple of the number of attention heads"),
    "a size is text": (in_config(hidden_size="many"), "hidden_size"),
    "no context length": (in_config(max_position_embeddings=None), "max_position_embeddings"),
    "an unknown RoPE": (in_config(rope_parameters={"rope_type": "wobble", "rope_theta": 1e4}), "wobble"),
    "an empty tokenizer": (written("tokenizer.json", "{}"), r"tokenizer\.json"),
    "a tokenizer that is no JSON": (written("tokenizer.json", "nope"), r"tokenizer\.json"),
    "a generation config that is no JSON": (written("generation_config.json", "nope"), "end an answer"),
    "weights are no numbers": (in_weights(lambda tensors: [tensor.mul_(float("nan")) for tensor in tensors.values()]), "nan"),
}


@pytest.mark.parametrize("family", [LEAN_FAMILY, OTHER_FAMILY])
@pytest.mark.parametrize("case", list(DAMAGES))
def test_a_damaged_model_is_refused_with_the_reason(case: str, family: str, tmp_path: Path) -> None:
    fakes_models.make_model(family, tmp_path)
    damage, reason = DAMAGES[case]
    damage(tmp_path)
    with pytest.raises(ModelRefused, match=reason):
        load(tmp_path)


@pytest.mark.parametrize("changes", [{DOWN: (48, 79)}, {"lm_head.weight": (95, 48)}], ids=str)
def test_the_lean_forward_checks_shapes_even_without_the_probe(changes: dict[str, tuple[int, int]], tmp_path: Path) -> None:
    fakes_models.make_model(LEAN_FAMILY, tmp_path)
    in_weights(lambda tensors: tensors.update({name: torch.ones(shape) for name, shape in changes.items()}))(tmp_path)
    with pytest.raises(ModelRefused, match="the configuration says"):
        load(tmp_path, probe=False)


@pytest.mark.parametrize("kind", [EngineKind.AUTO, EngineKind.LEAN, EngineKind.TRANSFORMERS])
def test_a_models_own_code_is_not_run_and_nobody_is_asked(kind: EngineKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes_models.make_model(LEAN_FAMILY, tmp_path)
    in_config(model_type="mine", auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Model"})(tmp_path)
    trace = tmp_path / "ran"
    (tmp_path / "own.py").write_text(f"from pathlib import Path\nPath({str(trace)!r}).touch()\n")
    asked: list[object] = []

    def agree(*question: object) -> str:
        asked.append(question)
        return "y"

    monkeypatch.setattr(builtins, "input", agree)
    with pytest.raises(ModelRefused, match="custom code"):
        load(tmp_path, kind=kind)
    assert not asked
    assert not trace.exists()


def test_attention_outside_the_interface_is_refused_in_words(tmp_path: Path) -> None:
    sizes = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    fakes_models.write_model(FalconConfig(**sizes, bos_token_id=None, eos_token_id=None), tmp_path)
    with pytest.raises(
        ModelRefused, match=r"'falcon' cannot be served: it does not attend through transformers' attention interface; served are .* llama"
    ):
        load(tmp_path)


def half_of_bart() -> PreTrainedConfig:
    """Its configuration says how many layers the encoder has, which is not there."""
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
    return BartConfig(vocab_size=fakes_models.VOCAB, **sizes, is_encoder_decoder=False, bos_token_id=None, eos_token_id=None)


def electra(*, is_decoder: bool) -> PreTrainedConfig:
    return ElectraConfig(**fakes_models.TINY_SIZES, embedding_size=32, max_position_embeddings=64, pad_token_id=0, is_decoder=is_decoder)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (half_of_bart(), r"'bart' cannot be served: layers \[2\] of 'bart' attend, and its configuration names 2"),
        (electra(is_decoder=False), "the short prompt is off by .* from decoding one by one"),
    ],
    ids=["more layers than are named", "sees what comes later"],
)
def test_what_is_no_decoder_alone_is_refused_in_words(config: PreTrainedConfig, sentence: str, tmp_path: Path) -> None:
    fakes_models.write_model(config, tmp_path)
    with pytest.raises(ModelRefused, match=sentence):
        load(tmp_path)


def test_positions_looked_up_in_a_table_are_nobody_elses_concern(tmp_path: Path) -> None:
    """Beyond its end there is nothing: `gather` says so with another error than indexing."""
    fakes_models.write_model(electra(is_decoder=True), tmp_path)
    load(tmp_path)


def test_what_a_model_fails_with_on_the_way_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("sizes do not fit")

    fakes_models.make_model(OTHER_FAMILY, tmp_path)
    monkeypatch.setattr(transformers_engine, "probe_batches", fail)
    with pytest.raises(ModelRefused, match=r"Gemma2ForCausalLM of .* fails when it is checked.*: RuntimeError: sizes do not fit"):
        load(tmp_path)


@pytest.mark.parametrize(("told", "refused"), [((None, 12), False), ((None, None), True), ((None, 13), True), ((12, 12), True)], ids=str)
def test_layers_must_slide_as_the_configuration_says(told: tuple[int | None, int | None], refused: bool) -> None:
    kinds = ["full_attention", "sliding_attention"]
    config = SimpleNamespace(model_type="some", num_hidden_layers=2, layer_types=kinds, sliding_window=12)
    trace = LayerTrace()
    trace.windows, trace.shapes = dict(enumerate(told)), dict.fromkeys(range(2), LayerShape(1, 8))
    with pytest.raises(ModelRefused, match="the configuration names") if refused else nullcontext():
        check_layers(trace, config)


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("engine.device", {"device": "warp"}),
        ("engine.num_threads", {"num_threads": -1}),
        ("engine.max_context", {"max_context": -1}),
        ("engine.kv_budget_mib", {"kv_budget_mib": 2**31}),
        ("engine.num_blocks", {"num_blocks": 10**30}),
        ("engine.invariant.group_blocks", {"invariant": InvariantSizes(group_blocks=-4)}),
    ],
)
@pytest.mark.parametrize("family", [LEAN_FAMILY, OTHER_FAMILY])
def test_settings_that_cannot_be_are_named(family: str, field: str, settings: dict[str, Any], tmp_path: Path) -> None:
    fakes_models.make_model(family, tmp_path)
    with pytest.raises(InvalidRequest) as caught:
        load(tmp_path, **settings)
    assert caught.value.field == field


@pytest.mark.parametrize("size", [{"num_blocks": 0, "kv_budget_mib": 2**31 - 1}, {"num_blocks": 2**31 - 1}], ids=["mib", "blocks"])
@pytest.mark.parametrize("family", [LEAN_FAMILY, OTHER_FAMILY])
def test_a_cache_that_no_memory_holds_is_refused_with_what_there_is(family: str, size: dict[str, Any], tmp_path: Path) -> None:
    fakes_models.make_model(family, tmp_path)
    with pytest.raises(
        DoesNotFit, match=r"^--kv-mib, --kv-blocks: \d+ MiB for the KV cache could not be had on cpu, which has \d+ MiB"
    ) as caught:
        load(tmp_path, **size)
    assert len(str(caught.value).splitlines()) == 1
