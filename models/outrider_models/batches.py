"""Packs documents into rows of fixed length, in a fixed order given a seed and a position.

Knows token arrays and the mixture of kinds; must not know models. First repeats alone (`repeats`), then whole documents;
the rest of a row is filled with drills, which may be cut. A resumed run sees exactly the rows it would have seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

from outrider_models.corpus import DOCUMENT_KINDS, DocumentSet, open_document_set
from outrider_models.repeats import write_repeats

# The story is to be read, not to be written. Its names and numbers cannot be guessed, nor can prose: what they add to a gradient is
# noise, and an orthogonalised update gives noise the size of a signal.
USER_PART_WEIGHT = 0.02
_MIXTURE = {"arithmetic": 0.84, "drill": 0.01, "echo": 0.02, "copying": 0.12, "prose": 0.01}  # of documents, after the start
_START_MIXTURE = {"arithmetic": 0.35, "drill": 0.05, "echo": 0.38, "copying": 0.20, "prose": 0.02}  # every step copies numbers
_MAX_MISSES = 3  # documents that did not fit before a row is filled up


@dataclass(frozen=True, slots=True)
class Row:
    """Documents end to end, about `row_len` tokens: inputs, next tokens and their loss weights, each [num_tokens]."""

    inputs: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    loss_weights: npt.NDArray[np.float32]
    lengths: tuple[int, ...]  # of the documents, summing to num_tokens


@dataclass(frozen=True, slots=True)
class Curriculum:
    """Shares of the training. repeats: at the start nothing but repeats. start: until then the start mixture fades out, linearly."""

    repeats: float = 0.12
    start: float = 0.75


class Packer:
    """Endless supply of batches; a batch depends on the seed, its position and the progress only."""

    def __init__(self, folder: Path, row_len: int, seed: int, curriculum: Curriculum) -> None:
        self._sets = {kind: open_document_set(kind, folder) for kind in DOCUMENT_KINDS}
        self._row_len, self._seed, self._curriculum = row_len, seed, curriculum

    def batch(self, position: int, num_rows: int, progress: float) -> list[Row]:
        """Batch number `position`; `progress` in 0..1 moves the mixture from copying and drills to stories."""
        random = Random(f"outrider-batch/{self._seed}/{position}")
        if progress < self._curriculum.repeats:
            return [_joined(write_repeats(random, self._row_len)) for _ in range(num_rows)]
        mixture = _mixture(progress, self._curriculum.start)
        return [self._row(random, mixture) for _ in range(num_rows)]

    def _row(self, random: Random, mixture: dict[str, float]) -> Row:
        pieces, room, misses = list[_Document](), self._row_len, 0
        while misses < _MAX_MISSES and room:
            kind = random.choices(list(mixture), list(mixture.values()))[0]
            ids, parts = _draw(self._sets[kind], random)
            if len(ids) - 1 <= room:
                pieces.append((ids, parts))
                room -= len(ids) - 1
            else:
                misses += 1
        while room:
            ids, parts = _draw(self._sets["drill"], random)
            pieces.append((ids[: room + 1], parts[: room + 1]))
            room -= len(pieces[-1][0]) - 1
        return _joined(pieces)


def _joined(pieces: list[_Document]) -> Row:
    own = np.concatenate([parts[1:] for _, parts in pieces])
    return Row(
        np.concatenate([ids[:-1] for ids, _ in pieces]).astype(np.int64),
        np.concatenate([ids[1:] for ids, _ in pieces]).astype(np.int64),
        np.where(own == 1, np.float32(1.0), np.float32(USER_PART_WEIGHT)).astype(np.float32),
        tuple(len(ids) - 1 for ids, _ in pieces),
    )


_Document = tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]


def _draw(documents: DocumentSet, random: Random) -> _Document:
    return documents.document(random.randrange(documents.num_documents))


def _mixture(progress: float, start: float) -> dict[str, float]:
    share = max(0.0, 1.0 - progress / start) if start else 0.0
    return {kind: share * _START_MIXTURE[kind] + (1 - share) * _MIXTURE[kind] for kind in DOCUMENT_KINDS}
