"""The reference pair in shapes that people serve: target and draft of the sizes of SmolLM2-360M and SmolLM2-135M, over 131,072 ids.

A model of ten million parameters stays in a processor's cache; one of some hundred million is read from memory for every step, and so is
its draft, which then costs a fifth of it. Training such a pair takes more than there is here, so each model of the `spread` pair becomes a
part of a larger one that says the same: its numbers of a state, heads, neurons and layers come first, and what is added is random and
whispers, so that it changes the text in rare ties only. A norm over more numbers is made up for in its weights. Must not know who measures
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider_bench import spread_pair

if TYPE_CHECKING:
    from torch import Tensor

WHISPER = 1e-3  # of a matrix's own spread, wherever something added would be heard
SEED = 23


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a Llama; each at least what the reference model has, and heads for a head of keys at least as many."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    neurons: int


TARGET = Shape(hidden=960, layers=32, heads=15, kv_heads=5, neurons=2560)
DRAFT = Shape(hidden=576, layers=30, heads=9, kv_heads=3, neurons=1536)
HEAD_DIM = 64  # of both, before and after


def write_pair(folder: Path, target: Shape = TARGET, draft: Shape = DRAFT) -> None:
    """Both models with their tokenizers, below `folder`: `target` and `draft`."""
    spread_pair.write_pair(folder)
    enlarge(folder / "target", target)
    enlarge(folder / "draft", draft)


def enlarge(folder: Path, shape: Shape) -> None:
    """Rewrite the Llama there, bfloat16, in a larger shape."""
    import torch
    from transformers import LlamaForCausalLM

    narrow = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    was, config = _shape_of(narrow.config), narrow.config.to_dict()
    sizes = {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.neurons,
        "tie_word_embeddings": False,  # what is added to one whispers otherwise than what is added to the other
        "rms_norm_eps": narrow.config.rms_norm_eps * was.hidden / shape.hidden,
    }
    wide = LlamaForCausalLM.from_pretrained(
        None,
        config=type(narrow.config)(**{**config, **sizes}),
        state_dict=_Enlarged(was, shape).weights(narrow.state_dict()),
        dtype=torch.bfloat16,
    )
    wide.generation_config = narrow.generation_config
    wide.save_pretrained(folder)


def _shape_of(config: Any) -> Shape:
    return Shape(
        config.hidden_size, config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, config.intermediate_size
    )


class _Enlarged:
    """Weights by the names of a narrow model, for a wider and deeper one."""

    def __init__(self, was: Shape, shape: Shape) -> None:
        import torch

        self._was, self._shape = was, shape
        self._generator = torch.Generator().manual_seed(SEED)
        self._hidden = torch.arange(was.hidden)
        self._neurons = torch.arange(was.neurons)
        self._queries, self._keys = self._places(was.heads, shape.heads), self._places(was.kv_heads, shape.kv_heads)

    def weights(self, narrow: dict[str, Tensor]) -> dict[str, Tensor]:
        """bfloat16, of every name that the wide model has."""
        found = {name: self._of_name(name, weight) for name, weight in narrow.items()}
        for layer in range(self._was.layers, self._shape.layers):
            found |= {
                name.replace("layers.0.", f"layers.{layer}."): self._of_added_layer(name, weight)
                for name, weight in narrow.items()
                if "layers.0." in name
            }
        return {name: weight.bfloat16() for name, weight in found.items()}

    def _places(self, heads: int, wide_heads: int) -> Tensor:
        """Where the rows of these heads lie, one after another. Queries stay with their keys' head."""
        import torch

        groups, wide_groups = heads // self._was.kv_heads, wide_heads // self._shape.kv_heads
        firsts = torch.tensor([head // groups * wide_groups + head % groups for head in range(heads)])
        return (HEAD_DIM * firsts[:, None] + torch.arange(HEAD_DIM)).flatten()

    def _of_name(self, name: str, weight: Tensor) -> Tensor:
        """`weight` at its rows and columns of a matrix of whispers."""
        if weight.dim() == 1:
            return self._normed(weight)
        shape, rows, columns = self._place_of(name, len(weight))
        whole = self._random(shape, WHISPER * float(weight.std()))
        whole[rows[:, None], columns] = weight
        return whole

    def _place_of(self, name: str, num_rows: int) -> tuple[tuple[int, int], Tensor, Tensor]:
        """The shape of a matrix, and where the rows and columns of the narrow one lie in it."""
        import torch

        shape = self._shape
        query_len, key_len = shape.heads * HEAD_DIM, shape.kv_heads * HEAD_DIM
        match name.split(".")[-2]:
            case "q_proj":
                return (query_len, shape.hidden), self._queries, self._hidden
            case "k_proj" | "v_proj":
                return (key_len, shape.hidden), self._keys, self._hidden
            case "o_proj":
                return (shape.hidden, query_len), self._hidden, self._queries
            case "gate_proj" | "up_proj":
                return (shape.neurons, shape.hidden), self._neurons, self._hidden
            case "down_proj":
                return (shape.hidden, shape.neurons), self._hidden, self._neurons
            case _:  # the embedding, or the head
                return (num_rows, shape.hidden), torch.arange(num_rows), self._hidden

    def _random(self, shape: tuple[int, int], spread: float) -> Tensor:
        import torch

        return torch.randn(shape, generator=self._generator).mul_(spread)

    def _normed(self, weight: Tensor) -> Tensor:
        """Of a norm: the root of a mean over more numbers, of which the added ones are next to nothing."""
        import torch

        factor = (self._was.hidden / self._shape.hidden) ** 0.5
        whole = torch.full((self._shape.hidden,), factor * float(weight.mean()))
        whole[self._hidden] = factor * weight
        return whole

    def _of_added_layer(self, name: str, weight: Tensor) -> Tensor:
        """Random; only what it adds to the states whispers."""
        if weight.dim() == 1:
            return self._normed(weight)
        factor = WHISPER if name.split(".")[-2] in ("o_proj", "down_proj") else 1.0
        return self._random(self._place_of(name, len(weight))[0], factor * float(weight.std()))
