"""The weights of a Llama-family model, read from safetensors and laid out for the lean forward.

Knows the tensor names of Llama, Mistral, Qwen2 and Qwen3. Projections that read the same input become one matrix; rotary pairs, which
these models keep half a head apart, become neighbours (the same permutation of query and key leaves their product alone), so that a
rotation is one complex product. Must not know batches or caches. Source: RoPE, Su et al. 2021 section 3.4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from outrider.engine.lean_projection import Projection, can_pack
from outrider.engine.model_files import ModelFiles
from outrider.errors import ModelRefused
from outrider.types.identity import Numerics
from outrider_kernels.thin_product import RowNorm, ThinMatrix

LEAN_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
LEAN_ROPES = frozenset({"default", "linear", "llama3", "yarn"})


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
class ThinLayer:
    """A layer's matrices packed for few rows, as they are stored: nothing is folded into them, so that bfloat16 numbers stay such."""

    input_norm: RowNorm
    qkv: ThinMatrix
    output: ThinMatrix
    mlp_norm: RowNorm
    gate_up: ThinMatrix
    down: ThinMatrix


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """input_norm, mlp_norm: None when folded into the matrix that follows (fp32), together with the square root of hidden_len.

    qkv: hidden to (heads + 2 kv_heads) * dim. gate_up: hidden to 2 mlp. qk_norm: [heads + kv_heads, dim] for Qwen3.
    """

    input_norm: Tensor | None
    qkv: Projection
    qk_norm: Tensor | None
    output: Projection
    mlp_norm: Tensor | None
    gate_up: Projection
    down: Projection
    thin: ThinLayer | None = None


@dataclass(frozen=True, slots=True)
class LeanWeights:
    """embedding: [num_logits, hidden] in the model's dtype. head: fp32, hidden to num_logits. rotations: complex64 [positions, dim / 2].

    thin_head: the head packed for few rows; there when the layers are.
    """

    sizes: LeanSizes
    embedding: Tensor
    layers: tuple[LeanLayer, ...]
    final_norm: Tensor
    head: Projection
    rotations: Tensor
    thin_head: ThinMatrix | None = None


def lean_refusal(model_config: Any) -> str | None:
    """Why the lean forward cannot run a configuration; None when it can."""
    if model_config.model_type not in LEAN_FAMILIES:
        return f"family {model_config.model_type!r} is not one of {sorted(LEAN_FAMILIES)}"
    if model_config.hidden_act != "silu":
        return f"activation {model_config.hidden_act!r} is not silu"
    rope_type = (model_config.rope_parameters or {}).get("rope_type", "default")
    if rope_type not in LEAN_ROPES:
        return f"RoPE variant {rope_type!r} is not one of {sorted(LEAN_ROPES)}"
    if getattr(model_config, "quantization_config", None) is not None:
        return "the weights are quantized"
    return None


def lean_sizes(model_config: Any) -> LeanSizes:
    """Sizes of an admitted configuration."""
    num_layers, num_heads = model_config.num_hidden_layers, model_config.num_attention_heads
    window = getattr(model_config, "sliding_window", None)
    kinds = getattr(model_config, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * num_layers
    return LeanSizes(
        num_layers=num_layers,
        hidden_len=model_config.hidden_size,
        num_heads=num_heads,
        num_kv_heads=model_config.num_key_value_heads or num_heads,
        head_dim=getattr(model_config, "head_dim", None) or model_config.hidden_size // num_heads,
        mlp_len=model_config.intermediate_size,
        epsilon=model_config.rms_norm_eps,
        max_positions=model_config.max_position_embeddings,
        windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
    )


def read_lean_weights(
    files: ModelFiles, model_config: Any, dtype: torch.dtype, device: str, numerics: Numerics, *, thin: bool = False
) -> LeanWeights:
    """Read and lay out all weights; thin: for few rows on the CPU too. Raises ModelRefused when tensors are missing or left over."""
    weight_bytes = sum(path.stat().st_size for path in files.weights)
    packed = numerics is Numerics.FAST and not thin and can_pack(dtype, device, weight_bytes)
    sizes = lean_sizes(model_config)
    tensors = _Tensors(files, dtype, device)
    embedding = tensors.take("model.embed_tokens.weight")
    layers = tuple(_layer(tensors, f"model.layers.{layer}.", sizes, packed, thin) for layer in range(sizes.num_layers))
    final_norm = tensors.take("model.norm.weight")
    tied = bool(getattr(model_config, "tie_word_embeddings", False))
    head = tensors.maybe("lm_head.weight")
    if head is None or tied:
        head = embedding
    if head.shape != embedding.shape or embedding.shape[1] != sizes.hidden_len:
        found = f"{tuple(embedding.shape)} and {tuple(head.shape)}"
        raise ModelRefused(f"embedding and head are {found}, the configuration says {sizes.hidden_len} wide")
    tensors.check_empty()
    rotations = _rotations(model_config, sizes, device)
    thin_head = _thin(head) if thin else None
    return LeanWeights(sizes, embedding, layers, final_norm, Projection(head.float(), None, packed), rotations, thin_head)


class _Tensors:
    """Named tensors of all shards, each taken once, converted as it is read."""

    def __init__(self, files: ModelFiles, dtype: torch.dtype, device: str) -> None:
        self._tensors: dict[str, Tensor] = {}
        for path in files.weights:
            with safe_open(path, framework="pt", device=device) as shard:
                for name in shard.keys():  # noqa: SIM118 (not a dict)
                    self._tensors[name] = shard.get_tensor(name).to(dtype)

    def take(self, name: str) -> Tensor:
        tensor = self.maybe(name)
        if tensor is None:
            raise ModelRefused(f"the weights have no tensor {name!r}; the lean forward cannot run this model")
        return tensor

    def maybe(self, name: str) -> Tensor | None:
        return self._tensors.pop(name, None)

    def check_empty(self) -> None:
        left = sorted(name for name in self._tensors if not name.endswith("rotary_emb.inv_freq"))
        if left:
            raise ModelRefused(f"the weights have tensors that the lean forward does not know: {', '.join(left[:3])}")


def _layer(tensors: _Tensors, prefix: str, sizes: LeanSizes, packed: bool, thin: bool) -> LeanLayer:
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    query, key = (_neighbours(tensors.take(f"{attention}{name}_proj.weight"), sizes.head_dim) for name in "qk")
    biases = [tensors.maybe(f"{attention}{name}_proj.bias") for name in "qkv"]
    query_bias, key_bias = (None if bias is None else _neighbours(bias, sizes.head_dim) for bias in biases[:2])
    query_norm, key_norm = tensors.maybe(f"{attention}q_norm.weight"), tensors.maybe(f"{attention}k_norm.weight")
    qk_norm: Tensor | None = None
    if query_norm is not None and key_norm is not None:
        query_norm, key_norm = _neighbours(query_norm, sizes.head_dim), _neighbours(key_norm, sizes.head_dim)
        qk_norm = torch.cat([query_norm.expand(sizes.num_heads, -1), key_norm.expand(sizes.num_kv_heads, -1)])
    qkv = torch.cat([query, key, tensors.take(f"{attention}v_proj.weight")])
    gate_up = torch.cat([tensors.take(f"{mlp}gate_proj.weight"), tensors.take(f"{mlp}up_proj.weight")])
    output, down = tensors.take(f"{attention}o_proj.weight"), tensors.take(f"{mlp}down_proj.weight")
    norms = tensors.take(f"{prefix}input_layernorm.weight"), tensors.take(f"{prefix}post_attention_layernorm.weight")
    row_norms = [RowNorm(norm.float().numpy(), sizes.epsilon) for norm in norms] if thin else []
    thin_layer = ThinLayer(row_norms[0], _thin(qkv), _thin(output), row_norms[1], _thin(gate_up), _thin(down)) if thin else None
    input_norm, qkv = _folded(norms[0], qkv)
    mlp_norm, gate_up = _folded(norms[1], gate_up)
    gate_up_bias = _joined([tensors.maybe(f"{mlp}gate_proj.bias"), tensors.maybe(f"{mlp}up_proj.bias")])
    layer = LeanLayer(
        input_norm=input_norm,
        qkv=Projection(qkv, _joined([query_bias, key_bias, biases[2]]), packed),
        qk_norm=qk_norm,
        output=Projection(output, tensors.maybe(f"{attention}o_proj.bias"), packed),
        mlp_norm=mlp_norm,
        gate_up=Projection(gate_up, gate_up_bias, packed),
        down=Projection(down, tensors.maybe(f"{mlp}down_proj.bias"), packed),
        thin=thin_layer,
    )
    _check_layer(layer, prefix, sizes)
    return layer


def _check_layer(layer: LeanLayer, prefix: str, sizes: LeanSizes) -> None:
    attended = sizes.num_heads * sizes.head_dim
    wanted = {
        "qkv": (sizes.hidden_len, attended + 2 * sizes.num_kv_heads * sizes.head_dim),
        "output": (attended, sizes.hidden_len),
        "gate_up": (sizes.hidden_len, 2 * sizes.mlp_len),
        "down": (sizes.mlp_len, sizes.hidden_len),
    }
    for name, shape in wanted.items():
        found = tuple(getattr(layer, name).matrix.shape)
        if found != shape:
            raise ModelRefused(f"the {name} matrix of {prefix[:-1]} is {found}, the configuration says {shape}")


def _folded(norm: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor]:
    """In fp32 a norm's weight goes into the matrix behind it: one operation less. In narrower types that would round twice."""
    if weight.dtype != torch.float32:
        return norm, weight
    return None, weight * (norm * weight.shape[1] ** 0.5)


def _thin(weight: Tensor) -> ThinMatrix:
    return ThinMatrix.pack(weight.float().numpy())


def _joined(biases: list[Tensor | None]) -> Tensor | None:
    present = [bias for bias in biases if bias is not None]
    if not present:
        return None
    if len(present) < len(biases):
        raise ModelRefused("some projections of a layer have a bias and others none; the lean forward cannot run this model")
    return torch.cat(present)


def _neighbours(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the leading axis of heads * head_dim so that rotary partners i and i + head_dim / 2 become 2 i and 2 i + 1."""
    tail = weight.shape[1:]
    return weight.view(-1, 2, head_dim // 2, *tail).transpose(1, 2).reshape(-1, *tail)


def _rotations(model_config: Any, sizes: LeanSizes, device: str) -> Tensor:
    """Unit (times the variant's attention factor) complex numbers e^(i * position * frequency), complex64."""
    rope = model_config.rope_parameters or {}
    rope_type = rope.get("rope_type", "default")
    if rope_type == "default":
        exponents = torch.arange(0, sizes.head_dim, 2, dtype=torch.float32) / sizes.head_dim
        frequencies, factor = 1.0 / (rope["rope_theta"] ** exponents), 1.0
    else:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, factor = ROPE_INIT_FUNCTIONS[rope_type](model_config, torch.device("cpu"))
    angles = torch.arange(sizes.max_positions, dtype=torch.float32)[:, None] * frequencies.float()[None, :]
    return torch.complex(angles.cos() * factor, angles.sin() * factor).to(device)
