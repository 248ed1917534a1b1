"""The reference pair at another ratio of model to machinery: its target with MLPs widened by neurons that whisper, its draft as it is.

A target of ten million parameters answers in under a millisecond, less than the messages and the Python around a round; one of a hundred
million is what most deployments look like, where a step is mostly weights read from memory. Training one takes more than there is here, so
the wide target is the reference target with WIDENING times its neurons: the first are its own, the others random, and what they add to a
layer's output is too small to change the text but in rare ties. Nothing about them is zero, so that no product can leave them out. Must not
know who measures it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from outrider_models.paths import model_dir

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM

TARGET = "ref-large"
DRAFT = "ref-small"
WIDENING = 16
WHISPER = 1e-3  # of a neuron's own weights' spread, in what it adds to the layer's output
SEED = 21


def write_pair(folder: Path) -> None:
    """Both models with their tokenizers, below `folder`: `target` and `draft`."""
    for name, model in (("target", TARGET), ("draft", DRAFT)):
        shutil.copytree(model_dir(model), folder / name)
    _widen(folder / "target")


def _widen(folder: Path) -> None:
    import torch
    from transformers import LlamaForCausalLM

    narrow = LlamaForCausalLM.from_pretrained(folder)
    config = type(narrow.config)(**{**narrow.config.to_dict(), "intermediate_size": WIDENING * narrow.config.intermediate_size})
    wide: LlamaForCausalLM = LlamaForCausalLM(config).to(narrow.dtype)
    generator = torch.Generator().manual_seed(SEED)
    weights = {name: _widened(name, weight, generator) for name, weight in narrow.state_dict().items()}
    wide.load_state_dict(weights)
    wide.save_pretrained(folder)


def _widened(name: str, weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """`weight` with WIDENING times the neurons if it is one of an MLP's matrices: [neurons, hidden], or [hidden, neurons] of the output."""
    import torch

    if ".mlp." not in name:
        return weight
    axis, spread = (1, WHISPER) if name.endswith("down_proj.weight") else (0, 1.0)
    shape = list(weight.shape)
    shape[axis] *= WIDENING - 1
    added = torch.randn(shape, generator=generator) * (spread * float(weight.float().std()))
    return torch.cat([weight, added.to(weight.dtype)], dim=axis)
