"""What may be loaded and what is refused, with the reason; identities, weights hashes and vocabularies.

Run: pytest tests/unit/test_engine_loading.py
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BloomConfig, LlamaConfig, MambaConfig, PhimoeConfig, PreTrainedModel, T5Config, T5ForConditionalGeneration

import fakes_models
from outrider.engine.attention import StepAttention
from outrider.engine.config import DType, EngineConfig, EngineKind, InvariantSizes
from outrider.engine.lean_engine import is_lean
from outrider.engine.load import load_engine
from outrider.engine.model_files import find_model, weights_hash
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.transformers_forward import STEP_ARGUMENT, LayerTrace, TransformersForward, attention_forward
from outrider.engine.vocabulary import byte_letters, read_vocabulary, unnamed_vocabulary, vocabulary_of
from outrider.errors import InvalidRequest, ModelRefused
from outrider.rpc.convert.identity import identity_from_proto, identity_to_proto
from outrider.types.identity import ModelIdentity, incompatibility
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceSpec


def load(directory: Path, kind: EngineKind = EngineKind.AUTO, **settings: Any) -> PagedEngine:
    torch.set_num_threads(1)
    engine = load_engine(EngineConfig(str(directory), kind=kind, num_blocks=4, **settings))
    assert isinstance(engine, PagedEngine)
    return engine


@pytest.mark.parametrize("kind", [EngineKind.LEAN, EngineKind.TRANSFORMERS])
def test_a_context_that_the_cache_cannot_hold_is_cut_to_what_it_can(
    kind: EngineKind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever leaves the length to the model would be refused otherwise; 4 blocks of 32."""
    fakes_models.write_model(LlamaConfig(**fakes_models.TINY_SIZES, max_position_embeddings=512), tmp_path)
    assert load(tmp_path, kind, probe=False).identity.max_context == 512
    assert load(tmp_path, kind, probe=False, spare_len=28, max_context=100).identity.max_context == 100
    assert not caplog.records
    engine = load(tmp_path, kind, probe=False, spare_len=28)
    assert engine.identity.max_context == engine.limits.max_context == 100
    assert "100 of the model's 512 positions" in caplog.text
    engine.open(1, SequenceSpec(SamplingParams(), NoiseAddress(0), 0, 100, 28))
    assert engine.num_free_blocks == 0


def longrope(short: float, long: float) -> dict[str, Any]:
    """Of heads of eight numbers, trained for texts of 32 tokens."""
    factors = {"short_factor": [short] * 4, "long_factor": [long] * 4}
    return {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32, **factors}


def write_llama(directory: Path, rope: dict[str, Any]) -> PreTrainedModel:
    return fakes_models.write_model(LlamaConfig(**fakes_models.TINY_SIZES, max_position_embeddings=128, rope_parameters=rope), directory)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_rope_that_looks_at_the_longest_row_is_refused(dtype: DType, tmp_path: Path) -> None:
    """Also where what it does to the rows of the probe is less than bfloat16 may be off."""
    write_llama(tmp_path, longrope(1.0, 1.01))
    assert not is_lean(EngineConfig(str(tmp_path)))
    with pytest.raises(ModelRefused, match=r"longest row.*--max-context 32"):
        load(tmp_path, dtype=dtype)
    with pytest.raises(ModelRefused, match="longrope"):
        load(tmp_path, EngineKind.LEAN)


def test_rope_that_looks_at_the_longest_row_serves_texts_that_move_nothing(tmp_path: Path) -> None:
    write_llama(tmp_path / "short", longrope(1.0, 3.0))
    assert load(tmp_path / "short", max_context=32).identity.max_context == 32
    write_llama(tmp_path / "dynamic", {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0})  # from 128 tokens on
    assert load(tmp_path / "dynamic").identity.max_context == 128


@pytest.mark.parametrize("kind", EngineKind)
def test_yarn_reaches_as_far_as_its_factor(kind: EngineKind, tmp_path: Path) -> None:
    yarn: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
    for original, context in ((64, 256), (20, 128)):  # 128 positions are named
        write_llama(tmp_path / str(original), yarn | {"original_max_position_embeddings": original})
        assert load(tmp_path / str(original), kind).identity.max_context == context


@pytest.mark.parametrize("kind", EngineKind)
def test_yarn_is_read_wherever_its_lengths_are_written(kind: EngineKind, tmp_path: Path) -> None:
    """A factor that is left to follow from them, as DeepSeek's may be, and the shorter length outside rope_parameters."""
    yarn: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 10000.0}
    write_llama(tmp_path / "no factor", yarn | {"factor": None, "original_max_position_embeddings": 32})
    write_llama(tmp_path / "outside", yarn | {"factor": 4.0, "original_max_position_embeddings": 128})
    path = tmp_path / "outside" / "config.json"
    described = json.loads(path.read_text())
    del described["rope_parameters"]["original_max_position_embeddings"]
    path.write_text(json.dumps(described | {"original_max_position_embeddings": 40}))
    contexts = [load(tmp_path / name, kind).identity.max_context for name in ("no factor", "outside")]
    assert contexts == [128, 160]


def test_rope_that_nobody_names_is_refused_by_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a model's own code may have it."""
    write_llama(tmp_path, longrope(1.0, 3.0))
    monkeypatch.setattr(TransformersForward, "check_context", lambda *_: None)
    with pytest.raises(ModelRefused, match="a neighbour at position 127 changes a row's output"):
        load(tmp_path)


def test_a_window_that_is_in_masks_alone_is_refused(tmp_path: Path) -> None:
    """The probe's texts are shorter than windows are."""
    sizes = {**fakes_models.TINY_SIZES, "max_position_embeddings": 128, "pad_token_id": 0, "num_local_experts": 4}
    fakes_models.write_model(PhimoeConfig(**sizes, sliding_window=100), tmp_path)
    with pytest.raises(ModelRefused, match=r"hides what lies before its window of 100 tokens.*--max-context 100"):
        load(tmp_path)
    assert load(tmp_path, max_context=100).identity.max_context == 100


@pytest.mark.parametrize("name", ["gpt2", "opt", "gemma2", "phi3"])
def test_no_position_is_looked_up_beyond_the_context(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a table of them a processor says that it cannot; a card fails for good."""
    asked: list[int] = []
    hidden = TransformersForward.hidden

    def noted(self: TransformersForward, tokens: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        asked.append(int(positions.max()))
        return hidden(self, tokens, positions, attention)

    monkeypatch.setattr(TransformersForward, "hidden", noted)
    model = fakes_models.make_model(name, tmp_path)
    load(tmp_path, EngineKind.TRANSFORMERS)
    assert max(asked) == model.config.max_position_embeddings - 1


def test_attention_that_is_not_ours_is_refused() -> None:
    """As of models that look at some blocks of their keys only, or whose values are wider than their keys."""
    rows, wide = torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 9)
    layer: Any = torch.nn.Linear(1, 1)
    layer.layer_idx = 0
    step: dict[str, Any] = {STEP_ARGUMENT: LayerTrace()}
    with pytest.raises(ModelRefused, match="Linear asks its attention for 'block_indices', which is not supported"):
        attention_forward(layer, rows, rows, rows, None, block_indices=torch.zeros(3), **step)
    with pytest.raises(ModelRefused, match="Linear has keys of 8 and values of 9 dimensions"):
        attention_forward(layer, rows, rows, wide, None, **step)


def test_recurrent_models_are_refused(tmp_path: Path) -> None:
    fakes_models.write_model(
        MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=1, bos_token_id=None, eos_token_id=None), tmp_path
    )
    with pytest.raises(ModelRefused, match=r"'mamba' cannot be served: .*recurrent state"):
        load(tmp_path)


def test_a_model_that_attends_by_itself_is_not_called_recurrent(tmp_path: Path) -> None:
    fakes_models.write_model(BloomConfig(vocab_size=96, hidden_size=32, n_layer=1, n_head=4), tmp_path)
    with pytest.raises(ModelRefused, match=r"layers \[0\] of 'bloom' do not attend .*or attention of the model's own"):
        load(tmp_path)


def test_encoder_decoders_are_refused(tmp_path: Path) -> None:
    T5ForConditionalGeneration(T5Config(vocab_size=96, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)).save_pretrained(tmp_path)
    with pytest.raises(ModelRefused, match="encoder-decoder"):
        load(tmp_path)


def test_a_wrong_forward_is_refused_by_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes_models.make_model("llama", tmp_path)
    original = torch.Tensor.index_copy_

    def forgetful(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return original(self, dim, index, source * 0.5)

    monkeypatch.setattr(torch.Tensor, "index_copy_", forgetful)
    with pytest.raises(ModelRefused, match="one by one"):
        load(tmp_path)


def test_pickled_weights_and_strangers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=r"config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelRefused, match="safetensors"):
        load(tmp_path)


def test_lean_refuses_families_it_does_not_know(tmp_path: Path) -> None:
    fakes_models.make_model("gemma2", tmp_path)
    assert not is_lean(EngineConfig(str(tmp_path)))
    with pytest.raises(ModelRefused, match="gemma2"):
        load(tmp_path, EngineKind.LEAN)


def test_the_weights_hash_follows_the_bytes(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path)
    before = weights_hash(find_model(str(tmp_path)))
    identity = load(tmp_path).identity
    assert identity.weights_hash == before
    assert load(tmp_path, dtype=DType.BFLOAT16).identity.fingerprint != identity.fingerprint
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert weights_hash(find_model(str(tmp_path))) != before


def test_other_files_beside_the_weights_are_no_part_of_the_model(tmp_path: Path) -> None:
    """A second copy in another layout, as some checkpoints bring, and an older one whose name sorts last."""
    fakes_models.make_model("llama", tmp_path)
    before = load(tmp_path, EngineKind.LEAN).identity
    save_file({"layers.0.attention.wq.weight": torch.ones(2, 2)}, tmp_path / "consolidated.safetensors")
    older = {name: weight + 1.0 for name, weight in load_file(tmp_path / "model.safetensors").items()}
    save_file(older, tmp_path / "model_older.safetensors")
    after = load(tmp_path, EngineKind.LEAN).identity
    assert (after.weights_hash, after.fingerprint) == (before.weights_hash, before.fingerprint)


@pytest.mark.parametrize("kind", [EngineKind.LEAN, EngineKind.TRANSFORMERS])
def test_what_the_configuration_says_of_the_numbers_is_part_of_the_fingerprint(kind: EngineKind, tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path)
    before = load(tmp_path, kind).identity

    def after(**fields: Any) -> ModelIdentity:
        path = tmp_path / "config.json"
        kept = path.read_text()
        path.write_text(json.dumps(json.loads(kept) | fields))
        identity = load(tmp_path, kind).identity
        path.write_text(kept)
        return identity

    others = [after(rms_norm_eps=1e-3), after(rope_parameters={"rope_type": "default", "rope_theta": 500.0})]
    assert len({identity.fingerprint for identity in (before, *others)}) == 3
    assert {identity.weights_hash for identity in others} == {before.weights_hash}
    assert after(transformers_version="5.0.0", use_cache=False, _name_or_path="elsewhere").fingerprint == before.fingerprint


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    model = fakes_models.make_model("llama", tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    save_file({"layers.0.attention.wq.weight": torch.ones(2, 2)}, tmp_path / "shards" / "consolidated.safetensors")
    shards = find_model(str(tmp_path / "shards")).weights
    assert len(shards) > 1
    assert all(shard.name.startswith("model-") for shard in shards)
    load(tmp_path / "shards", EngineKind.LEAN)
    shards[1].unlink()
    with pytest.raises(ModelRefused, match=rf"lacks {shards[1].name}, which model\.safetensors\.index\.json names; download"):
        load(tmp_path / "shards")
    (tmp_path / "shards" / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ModelRefused, match=r"index\.json' cannot be read"):
        load(tmp_path / "shards")


def test_a_folder_that_is_no_model_is_refused_with_what_to_do(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path)
    with pytest.raises(ModelRefused, match="is a file; name the folder"):
        find_model(str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").unlink()
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelRefused, match="it is an adapter: merge it into its base model"):
        find_model(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}, "allow it with --trust-remote-code"),
        ({"model_type": "llava"}, "it is no decoder of text alone"),
        ({"vocab_size": 97}, r"embedding and head are \(96, 48\) and \(96, 48\), the configuration says \(97, 48\).* take both from one"),
    ],
    ids=["own code", "pictures", "another vocabulary"],
)
def test_what_a_library_says_is_kept_short_and_followed_by_what_to_do(changes: dict[str, Any], remedy: str, tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelRefused, match=remedy) as caught:
        load(tmp_path)
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [EngineKind.LEAN, EngineKind.TRANSFORMERS])
def test_a_context_too_short_to_check_is_refused_by_its_name(kind: EngineKind, tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path / "short", max_position_embeddings=23)
    with pytest.raises(ModelRefused, match=r"max_position_embeddings is 23; the load-time check of a model takes a context of 24"):
        load(tmp_path / "short", kind)
    fakes_models.make_model("llama", tmp_path / "enough", max_position_embeddings=24)
    assert load(tmp_path / "enough", kind).identity.max_context == 24


@pytest.mark.parametrize(("max_context", "num_kept"), [(40, 40), (16, 24), (0, 128), (1000, 128)])
def test_rotations_are_kept_for_the_positions_that_are_served(max_context: int, num_kept: int, tmp_path: Path) -> None:
    """A context of millions would otherwise be a table of gigabytes, whatever is served of it; the load-time check needs 24."""
    fakes_models.make_model("llama", tmp_path, max_position_embeddings=128)
    engine = load(tmp_path, EngineKind.LEAN, max_context=max_context)
    assert engine._forward.shape.max_positions == num_kept
    assert engine.identity.max_context == min(max_context or 128, 128)


@pytest.mark.parametrize("kind", [EngineKind.LEAN, EngineKind.TRANSFORMERS])
def test_ids_that_cannot_be_emitted_end_no_answer(kind: EngineKind, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """-1 stands for none in some checkpoints; the wire carries ids from 0 on."""
    fakes_models.make_model("llama", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [-1, 7, 5000]}))
    with caplog.at_level(logging.WARNING):
        identity = load(tmp_path, kind, probe=False).identity
    assert identity.eos_token_ids == (7,)
    assert "no answer ends with its eos_token_id [-1, 5000]" in caplog.text
    assert identity_from_proto(identity_to_proto(identity)) == identity


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("engine.block_len", EngineConfig("somewhere", block_len=24)),
        ("engine.max_rows", EngineConfig("somewhere", max_rows=0)),
        ("engine.thin_rows", EngineConfig("somewhere", thin_rows=0)),
        ("engine.model", EngineConfig("")),
        ("engine.invariant.rows", EngineConfig("somewhere", invariant=InvariantSizes(rows=8))),
    ],
)
def test_settings_are_checked_by_name(field: str, config: EngineConfig) -> None:
    with pytest.raises(InvalidRequest) as caught:
        config.check()
    assert caught.value.field == field


def tokenizer(pieces: dict[str, int], byte_level: bool, added: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    kind = {"type": "ByteLevel"} if byte_level else {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}
    return {"model": {"type": "BPE", "vocab": pieces}, "decoder": kind, "added_tokens": added or []}


def test_two_spellings_of_the_same_bytes_share_a_hash() -> None:
    letters = {byte: letter for letter, byte in byte_letters().items()}
    assert len(letters) == 256
    spelled = {letters[32] + "a": 0, letters[10]: 1, "\u00c3\u00a9": 2}
    sentencepiece = {"\u2581a": 0, "<0x0A>": 1, "é": 2}
    left, right = vocabulary_of(tokenizer(spelled, True)), vocabulary_of(tokenizer(sentencepiece, False))
    assert [entry.content for entry in left.entries] == [b" a", b"\n", "é".encode()]
    assert left.hash == right.hash


def test_order_specials_and_holes_enter_the_vocabulary() -> None:
    base = vocabulary_of(tokenizer({"a": 0, "b": 1}, True))
    assert vocabulary_of(tokenizer({"b": 1, "a": 0}, True)).hash == base.hash
    assert vocabulary_of(tokenizer({"a": 1, "b": 0}, True)).hash != base.hash
    special = vocabulary_of(tokenizer({"a": 0, "b": 1}, True, [{"id": 1, "content": "b", "special": True}]))
    assert special.hash != base.hash
    holed = vocabulary_of(tokenizer({"a": 0, "b": 3}, True))
    assert (holed.size, holed.missing_ids) == (4, (1, 2))
    assert unnamed_vocabulary(5).size == 5


def test_padding_of_the_head_is_never_emitted_and_pairs_with_other_padding(tmp_path: Path) -> None:
    pieces = {f"w{index}": index for index in range(90)}
    identities = []
    for padded in (96, 128):
        directory = tmp_path / str(padded)
        fakes_models.make_model("llama", directory, vocab_size=padded)
        (directory / "tokenizer.json").write_text(json.dumps(tokenizer(pieces, True)))
        identities.append(load(directory, probe=False).identity)
        vocabulary = read_vocabulary(directory)
        assert vocabulary is not None
        assert vocabulary.size == 90
    assert identities[0].vocab_size == 90
    assert incompatibility(*identities) is None


def test_a_tokenizer_longer_than_the_head_is_refused(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer({f"w{index}": index for index in range(97)}, True)))
    with pytest.raises(ModelRefused, match=r"only 96 columns; take the added_tokens from id 96 on out of tokenizer\.json, or .*resize"):
        load(tmp_path)
