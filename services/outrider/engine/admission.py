"""A model that a library fails over is a model refused: one place turns whatever it raised into the operator's sentence.

transformers, safetensors and a tokenizer's file may fail in any way over files that nobody vouches for, and each means the same to
the caller. Must not know models, torch or which library is at work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from outrider.errors import ModelRefused, OutriderError


@contextmanager
def refusing(failure: str) -> Iterator[None]:
    """Raise ModelRefused "<failure>: <what was raised>" for anything but our own errors, which pass."""
    try:
        yield
    except OutriderError:
        raise
    except Exception as error:
        raise ModelRefused(f"{failure}: {type(error).__name__}: {error}") from error
