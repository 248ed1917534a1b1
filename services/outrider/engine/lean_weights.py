"""The weights of a Llama-family model, read from safetensors and laid out for the lean forward.

Knows the tensor names of Llama, Mistral, Qwen2 and Qwen3. Projections that read the same input become one matrix; rotary pairs, which
these models keep half a head apart, become neighbours (the same permutation of query and key leaves their product alone), so that a
rotation is one complex product. Must not know batches or caches. Source: RoPE, Su et al. 2021 section 3.4.2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from outrider.engine.config import WeightFormat
from outrider.engine.lean_config import LeanConfig, LeanSizes, Rope
from outrider.engine.lean_projection import NarrowHead, Projection, can_narrow, can_pack
from outrider.engine.matrix_layout import AnyProjection, MatrixLayout, PlacedMatrix, ThinRows
from outrider.engine.model_files import ModelFiles
from outrider.engine.panel_projection import PanelProjection
from outrider.errors import ModelRefused
from outrider.types.identity import Numerics
from outrider_kernels.thin_matrix import ThinMatrix
from outrider_kernels.thin_product import RowNorm


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
    """input_norm, mlp_norm: None when folded into the matrix that follows (see MatrixLayout).

    qkv: hidden to (heads + 2 kv_heads) * dim. gate_up: hidden to 2 mlp. qk_norm: [heads + kv_heads, dim] for Qwen3.
    """

    input_norm: Tensor | None
    qkv: AnyProjection
    qk_norm: Tensor | None
    output: AnyProjection
    mlp_norm: Tensor | None
    gate_up: AnyProjection
    down: AnyProjection
    thin: ThinLayer | None = None


@dataclass(frozen=True, slots=True)
class LeanWeights:
    """embedding: [num_logits, hidden] in the model's dtype, float32 for thin products. head: hidden to num_logits, computed in fp32.

    rotations: complex64 [positions, dim / 2]. thin_head: the head packed for few rows; there when the layers are.
    """

    sizes: LeanSizes
    embedding: Tensor
    layers: tuple[LeanLayer, ...]
    final_norm: Tensor
    head: Projection | PanelProjection
    rotations: Tensor
    thin_head: ThinMatrix | None = None


def read_lean_weights(
    files: ModelFiles,
    config: LeanConfig,
    dtype: torch.dtype,
    device: str,
    numerics: Numerics,
    weights: WeightFormat = WeightFormat.FULL,
    thin: ThinRows | None = None,
    max_positions: int = 0,
) -> LeanWeights:
    """Read and lay out all weights; thin: for thin products too, whose model is float32 but for rows and weights that they round.

    max_positions: as many of the model's positions will be asked for at most, 0: all of them. A context of millions makes a large table.
    Raises ModelRefused when tensors are missing or left over, and ValueError when int8 cannot be made of them.
    """
    weight_bytes = sum(path.stat().st_size for path in files.weights)
    layout = MatrixLayout(weights, numerics is Numerics.FAST and thin is None and can_pack(dtype, device, weight_bytes), thin)
    sizes = replace(config.sizes, max_positions=min(max_positions or config.sizes.max_positions, config.sizes.max_positions))
    tensors = _Tensors(files, dtype, torch.float32 if thin else dtype, device)
    embedding = tensors.take("model.embed_tokens.weight")
    layers = tuple(_layer(tensors, f"model.layers.{layer}.", sizes, layout) for layer in range(sizes.num_layers))
    final_norm = tensors.take("model.norm.weight")
    head = tensors.maybe("lm_head.weight")
    if head is None or config.is_tied:
        head = embedding
    wanted = (config.vocab_size, sizes.hidden_len)
    if embedding.shape != wanted or head.shape != wanted:
        raise ModelRefused(f"embedding and head are {tuple(embedding.shape)} and {tuple(head.shape)}, the configuration says {wanted}")
    tensors.check_empty()
    rotations = _rotations(config.rope, sizes, device)
    if can_narrow(dtype, device, numerics):
        return LeanWeights(sizes, embedding, layers, final_norm, NarrowHead(head), rotations)
    placed = layout.whole(head.float())
    return LeanWeights(sizes, embedding, layers, final_norm, placed.projection, rotations, placed.thin)


class _Tensors:
    """Named tensors of all shards, each taken once, read and converted when it is: what is kept as int8 is never in memory as a whole."""

    def __init__(self, files: ModelFiles, dtype: torch.dtype, kept: torch.dtype, device: str) -> None:
        """dtype: what numbers are rounded to. kept: the type of the tensors that hold them."""
        self._dtype, self._kept = dtype, kept
        self._shards: dict[str, Any] = {}
        for path in files.weights:
            shard: Any = safe_open(path, framework="pt", device=device)
            self._shards |= dict.fromkeys(shard.keys(), shard)

    def take(self, name: str) -> Tensor:
        return self._found(name, self.maybe(name))

    def maybe(self, name: str) -> Tensor | None:
        tensor = self._rounded(name)
        return None if tensor is None else tensor.to(self._kept)

    def matrix(self, name: str) -> Tensor:
        """To be laid out, and so not yet in the type that holds it: that is made of a part at a time."""
        return self._found(name, self._rounded(name))

    def _rounded(self, name: str) -> Tensor | None:
        shard = self._shards.pop(name, None)
        if shard is None:
            return None
        tensor: Tensor = shard.get_tensor(name).to(self._dtype)
        return tensor

    @staticmethod
    def _found(name: str, tensor: Tensor | None) -> Tensor:
        if tensor is None:
            raise ModelRefused(f"the weights have no tensor {name!r}; the lean forward cannot run this model")
        return tensor

    def check_empty(self) -> None:
        left = sorted(name for name in self._shards if not name.endswith("rotary_emb.inv_freq"))
        if left:
            raise ModelRefused(f"the weights have tensors that the lean forward does not know: {', '.join(left[:3])}")


def _layer(tensors: _Tensors, prefix: str, sizes: LeanSizes, layout: MatrixLayout) -> LeanLayer:
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    query, key = (_neighbours(tensors.matrix(f"{attention}{name}_proj.weight"), sizes.head_dim) for name in "qk")
    biases = [tensors.maybe(f"{attention}{name}_proj.bias") for name in "qkv"]
    query_bias, key_bias = (None if bias is None else _neighbours(bias, sizes.head_dim) for bias in biases[:2])
    norms = tensors.take(f"{prefix}input_layernorm.weight"), tensors.take(f"{prefix}post_attention_layernorm.weight")
    joined = torch.cat([query, key, tensors.matrix(f"{attention}v_proj.weight")])
    qkv = layout.place(joined, _joined([query_bias, key_bias, biases[2]]), norms[0])
    joined = torch.cat([tensors.matrix(f"{mlp}gate_proj.weight"), tensors.matrix(f"{mlp}up_proj.weight")])
    gate_up = layout.place(joined, _joined([tensors.maybe(f"{mlp}gate_proj.bias"), tensors.maybe(f"{mlp}up_proj.bias")]), norms[1])
    output, down = (
        layout.place(tensors.matrix(f"{name}.weight"), tensors.maybe(f"{name}.bias")) for name in (f"{attention}o_proj", f"{mlp}down_proj")
    )
    row_norms = [RowNorm(norm.float().numpy(), sizes.epsilon) for norm in norms] if layout.thin is not None else []
    layer = LeanLayer(
        input_norm=qkv.norm,
        qkv=qkv.projection,
        qk_norm=_qk_norm(tensors, attention, sizes),
        output=output.projection,
        mlp_norm=gate_up.norm,
        gate_up=gate_up.projection,
        down=down.projection,
        thin=_thin_layer(row_norms, qkv, output, gate_up, down) if layout.thin is not None else None,
    )
    _check_layer(layer, prefix, sizes)
    return layer


def _qk_norm(tensors: _Tensors, attention: str, sizes: LeanSizes) -> Tensor | None:
    """[heads + kv_heads, dim] of models that have them."""
    query_norm, key_norm = tensors.maybe(f"{attention}q_norm.weight"), tensors.maybe(f"{attention}k_norm.weight")
    if query_norm is None or key_norm is None:
        return None
    query_norm, key_norm = _neighbours(query_norm, sizes.head_dim), _neighbours(key_norm, sizes.head_dim)
    return torch.cat([query_norm.expand(sizes.num_heads, -1), key_norm.expand(sizes.num_kv_heads, -1)])


def _thin_layer(norms: list[RowNorm], *placed: PlacedMatrix) -> ThinLayer:
    """placed: qkv, output, gate and up, down."""
    qkv, output, gate_up, down = (matrix.thin for matrix in placed)
    assert qkv is not None
    assert output is not None
    assert gate_up is not None
    assert down is not None
    return ThinLayer(norms[0], qkv, output, norms[1], gate_up, down)


def _check_layer(layer: LeanLayer, prefix: str, sizes: LeanSizes) -> None:
    attended = sizes.num_heads * sizes.head_dim
    wanted = {
        "qkv": (sizes.hidden_len, attended + 2 * sizes.num_kv_heads * sizes.head_dim),
        "output": (attended, sizes.hidden_len),
        "gate_up": (sizes.hidden_len, 2 * sizes.mlp_len),
        "down": (sizes.mlp_len, sizes.hidden_len),
    }
    for name, shape in wanted.items():
        found = getattr(layer, name).shape
        if found != shape:
            raise ModelRefused(f"the {name} matrix of {prefix[:-1]} is {found}, the configuration says {shape}")


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


def _rotations(rope: Rope, sizes: LeanSizes, device: str) -> Tensor:
    """Unit (times the variant's attention factor) complex numbers e^(i * position * frequency), complex64."""
    if len(rope.frequencies) != sizes.head_dim // 2:
        rotated = f"{2 * len(rope.frequencies)} of the {sizes.head_dim} numbers of a head"
        raise ModelRefused(f"RoPE turns {rotated} (partial_rotary_factor), where the lean forward turns all of them")
    angles = torch.arange(sizes.max_positions, dtype=torch.float32)[:, None] * torch.tensor(rope.frequencies)[None, :]
    return torch.complex(angles.cos() * rope.factor, angles.sin() * rope.factor).to(device)
