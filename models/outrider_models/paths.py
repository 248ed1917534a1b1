"""Where the artifacts live: one folder per model, one for checkpoints, one for tokenised text.

Knows file locations only. Must not know what is in the files, and must not import torch.
"""

from __future__ import annotations

from pathlib import Path

MODELS_ROOT = Path(__file__).resolve().parent.parent
MODEL_NAMES = ("ref-large", "ref-medium", "ref-small")


def model_dir(name: str) -> Path:
    """Folder of a reference model (`ref-large`, `ref-medium` or `ref-small`).

    Raises ValueError when `name` is none of these. The folder may not exist before training.
    """
    if name not in MODEL_NAMES:
        raise ValueError(f"unknown reference model {name!r}; choose one of {', '.join(MODEL_NAMES)}")
    return MODELS_ROOT / name


def checkpoint_path(name: str) -> Path:
    """Resumable training state of a model: weights, optimizer, position. Ignored by git."""
    model_dir(name)
    return MODELS_ROOT / "checkpoints" / f"{name}.pt"


def corpus_dir() -> Path:
    """Tokenised training text, built once and memory-mapped by every training run. Ignored by git."""
    return MODELS_ROOT / "checkpoints" / "corpus"
