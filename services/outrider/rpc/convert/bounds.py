"""Checks that every decoder of untrusted protobuf shares: integers, floats, text and token arrays, each refused by its field's name.

Knows the wire's number types and their limits. Must not know any message: callers pass the field's name and the value. A decoder
either returns a value that the rest of the system can hold or raises InvalidRequest; it never lets numpy or struct raise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from outrider.errors import InvalidRequest
from outrider.types.tree import FloatArray, IntArray

MAX_POSITION = 2**31 - 1
MAX_TOKEN_ID = 2**31 - 1
MAX_NAME_LEN = 256
MAX_SENTENCE_LEN = 4096


def bounded(field: str, value: int, low: int, high: int = MAX_POSITION) -> int:
    """The value when it lies in [low, high]; raises InvalidRequest otherwise."""
    if not low <= value <= high:
        raise InvalidRequest(field, f"must be in [{low}, {high}], got {value}")
    return value


def num_entries(field: str, num: int, low: int, high: int) -> int:
    """Of a repeated field: the number when it lies in [low, high]; raises InvalidRequest naming the field otherwise."""
    if not low <= num <= high:
        raise InvalidRequest(field, f"has {num} entries, must have {low} to {high}")
    return num


def finite(field: str, value: float, low: float = -math.inf, high: float = math.inf) -> float:
    """The value when it is a finite number in [low, high]; raises InvalidRequest otherwise."""
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidRequest(field, f"must be a finite number in [{low:g}, {high:g}], got {value}")
    return value


def name(field: str, value: str, max_len: int = MAX_NAME_LEN) -> str:
    """A short text (id, model, tenant, source); raises InvalidRequest when it is longer than max_len characters."""
    if len(value) > max_len:
        raise InvalidRequest(field, f"has {len(value)} characters, at most {max_len}")
    return value


def sentence(value: str) -> str:
    """A text for logs, cut at MAX_SENTENCE_LEN characters: nothing depends on it, so it is never a reason to refuse."""
    return value[:MAX_SENTENCE_LEN]


def token_ids(field: str, values: Sequence[int], vocab_size: int = MAX_TOKEN_ID + 1) -> IntArray:
    """int32 [len(values)] of ids in [0, vocab_size); raises InvalidRequest naming the first id outside."""
    return integers(field, values, 0, vocab_size - 1)


def integers(field: str, values: Sequence[int], low: int, high: int = MAX_POSITION) -> IntArray:
    """int32 [len(values)], each in [low, high]; raises InvalidRequest naming the first that is not."""
    plain = list(values)  # numbers are compared where they are: most arrays of the wire are short
    if plain and not (low <= min(plain) and max(plain) <= high):
        index = next(at for at, value in enumerate(plain) if not low <= value <= high)
        raise InvalidRequest(f"{field}[{index}]", f"must be in [{low}, {high}], got {int(plain[index])}")
    return np.array(plain, np.int32)


def numbers(field: str, values: Sequence[float]) -> FloatArray:
    """float32 [len(values)]; raises InvalidRequest naming the first NaN or +inf (a log-probability of -inf is legal)."""
    array = np.array(values, np.float32)
    wrong = np.isnan(array) | np.isposinf(array)
    if wrong.any():
        index = int(wrong.argmax())
        raise InvalidRequest(f"{field}[{index}]", f"must be a number, got {array[index]}")
    return array


def same_len(field: str, length: int, other: str, other_len: int) -> None:
    """Raise InvalidRequest unless two arrays that are read together have one length."""
    if length != other_len:
        raise InvalidRequest(field, f"has {length} entries but {other} has {other_len}")
