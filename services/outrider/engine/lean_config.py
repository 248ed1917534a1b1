"""What the lean forward takes from a model's configuration, as transformers reads it: sizes, frequencies of RoPE, or why it cannot run it.

transformers knows what a configuration leaves unsaid; importing what reads one takes seconds, so its answer is kept for later starts.
Must not know weights.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import torch

from outrider.engine.admission import refusing
from outrider.engine.context_len import context_len
from outrider.engine.kept_files import KeptFiles, name_of
from outrider.engine.model_files import ModelFiles
from outrider.engine.served_families import LEAN_FAMILIES, UNWINDOWED_FAMILIES

LEAN_ROPES = frozenset({"default", "linear", "llama3", "yarn"})
_KIND = "configurations"


@dataclass(frozen=True, slots=True)
class LeanSizes:
    """windows: per layer, None for full attention. head scaling is head_dim ** -0.5 in all of these families."""

    num_layers: int
    hidden_len: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_len: int
    epsilon: float
    max_positions: int
    windows: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Rope:
    """frequencies: radians a position, of each pair of a head that is turned, float32 numbers. factor: the variant's, of attention."""

    frequencies: tuple[float, ...]
    factor: float


@dataclass(frozen=True, slots=True)
class LeanConfig:
    """eos_token_id: as the configuration has it."""

    sizes: LeanSizes
    rope: Rope
    vocab_size: int
    is_tied: bool
    eos_token_id: int | list[int] | None


@dataclass(frozen=True, slots=True)
class LeanRefusal:
    """Why the lean forward cannot run a configuration."""

    reason: str


def read_lean_config(files: ModelFiles, kept: KeptFiles | None = None) -> LeanConfig | LeanRefusal:
    """Of a model's folder. kept: where answers of earlier starts lie. Raises ModelRefused when transformers cannot read it."""
    kept = kept or KeptFiles(_KIND)
    name = name_of(config=sha256((files.directory / "config.json").read_bytes()).hexdigest())
    answer = kept.find(name)
    if answer is not None:
        return _from_json(answer)
    with refusing(f"transformers cannot read the configuration of {str(files.directory)!r}"):
        config = _read(files)
        kept.keep(name, json.dumps(asdict(config)).encode())
    return config


def _from_json(answer: bytes) -> LeanConfig | LeanRefusal:
    fields = json.loads(answer)
    if "reason" in fields:
        return LeanRefusal(**fields)
    sizes, rope = fields.pop("sizes"), fields.pop("rope")
    windows, frequencies = tuple(sizes.pop("windows")), tuple(rope.pop("frequencies"))
    return LeanConfig(LeanSizes(**sizes, windows=windows), Rope(frequencies, **rope), **fields)


def _read(files: ModelFiles) -> LeanConfig | LeanRefusal:
    from transformers import AutoConfig

    # left out, trust_remote_code would ask on the terminal, and run the model's own code when told to
    config = AutoConfig.from_pretrained(files.directory, trust_remote_code=False)
    refusal = _refusal(config)
    if refusal is not None:
        return LeanRefusal(refusal)
    sizes = _sizes(config)
    is_tied = bool(getattr(config, "tie_word_embeddings", False))
    return LeanConfig(sizes, _rope(config, sizes.head_dim), config.vocab_size, is_tied, getattr(config, "eos_token_id", None))


def _refusal(config: Any) -> str | None:
    if config.model_type not in LEAN_FAMILIES:
        return f"family {config.model_type!r} is not one of {sorted(LEAN_FAMILIES)}"
    if config.hidden_act != "silu":
        return f"activation {config.hidden_act!r} is not silu"
    rope_type = (config.rope_parameters or {}).get("rope_type", "default")
    if rope_type not in LEAN_ROPES:
        return f"RoPE variant {rope_type!r} is not one of {sorted(LEAN_ROPES)}"
    if getattr(config, "quantization_config", None) is not None:
        return "the weights are quantized"
    return None


def _sizes(config: Any) -> LeanSizes:
    num_layers, num_heads = config.num_hidden_layers, config.num_attention_heads
    return LeanSizes(
        num_layers=num_layers,
        hidden_len=config.hidden_size,
        num_heads=num_heads,
        num_kv_heads=config.num_key_value_heads or num_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
        mlp_len=config.intermediate_size,
        epsilon=config.rms_norm_eps,
        max_positions=context_len(config),
        windows=_windows(config),
    )


def _windows(config: Any) -> tuple[int | None, ...]:
    """A checkpoint that was converted to a family without windows may still name the one that it had."""
    num_layers: int = config.num_hidden_layers
    if config.model_type in UNWINDOWED_FAMILIES:
        return (None,) * num_layers
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * num_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _rope(config: Any, head_dim: int) -> Rope:
    rope = config.rope_parameters or {}
    rope_type = rope.get("rope_type", "default")
    if rope_type == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies, factor = 1.0 / (rope["rope_theta"] ** exponents), 1.0
    else:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, factor = ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"))
    return Rope(tuple(frequencies.float().tolist()), float(factor))
