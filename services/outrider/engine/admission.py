"""A model that a library fails over is a model refused: one place turns whatever it raised into the operator's sentence.

transformers, safetensors and a tokenizer's file may fail in any way over files that nobody vouches for, and each means the same to
the caller. What they advise is meant for those who call them, so what an operator does instead is said here. Must not know models, torch
or which library is at work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from outrider.errors import ModelRefused, OutriderError

MAX_RAISED_LEN = 400  # of what a library says: some list every class they know
# What to do, by a word of what was raised.
_REMEDIES = {
    "trust_remote_code": "the model brings its own code: read it, and allow it with --trust-remote-code",
    "ignore_mismatched_sizes": "config.json and the weights do not belong together: take both from one checkpoint",
    "Unrecognized configuration class": "it is no decoder of text alone: save its language model by itself and serve that",
    "Error while deserializing header": "a file of the weights is cut off or a placeholder: download it again",
}


@contextmanager
def refusing(failure: str) -> Iterator[None]:
    """Raise ModelRefused "<failure>: <what was raised>" for anything but our own errors, which pass."""
    try:
        yield
    except OutriderError:
        raise
    except Exception as error:
        raise ModelRefused(f"{failure}: {_told(error)}") from error


def _told(error: Exception) -> str:
    """What was raised, in one line, and what to do about it where that is known."""
    told = " ".join(f"{type(error).__name__}: {error}".split())
    remedy = next((f"; {remedy}" for word, remedy in _REMEDIES.items() if word in told), "")
    return (told if len(told) <= MAX_RAISED_LEN else f"{told[:MAX_RAISED_LEN]} ...") + remedy
