"""Random tokens that come again: the shortest way for a model to learn to copy.

What follows a token the second time is what followed it the first time, and nothing else is to be learned. In running text that circuit
(an induction head: Olsson et al. 2022, In-context learning and induction heads) had not formed after 5.9 million tokens; of rows like
these the largest model needed 0.5 million, and can then copy what it never saw. Used for training only. Must not know text or models.
"""

from __future__ import annotations

from random import Random

import numpy as np
import numpy.typing as npt

from outrider_models.chat import SPECIAL_TOKENS
from outrider_models.tokenizer import VOCAB_SIZE

_MIN_LEN, _MAX_LEN = 6, 24
_LONG_LEN = 20  # up to here a sequence comes three times, above twice
_BOS_ID = 0

_Document = tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]


def write_repeats(random: Random, row_len: int) -> list[_Document]:
    """Documents of `row_len` tokens to predict in all; parts are 1 from the second time on. The last one may be cut."""
    documents: list[_Document] = []
    room = row_len
    while room:
        ids, parts = _document(random)
        documents.append((ids[: room + 1], parts[: room + 1]))
        room -= len(documents[-1][0]) - 1
    return documents


def _document(random: Random) -> _Document:
    once = [random.randrange(len(SPECIAL_TOKENS), VOCAB_SIZE) for _ in range(random.randint(_MIN_LEN, _MAX_LEN))]
    times = 3 if len(once) <= _LONG_LEN else 2
    ids = np.array([_BOS_ID, *once * times], np.uint16)
    parts = np.ones(len(ids), np.uint8)
    parts[: 1 + len(once)] = 0
    return ids, parts
