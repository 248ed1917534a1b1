"""Packs documents into rows of fixed length, in a fixed order given a seed and a position.

Knows token arrays and the mixture of kinds; must not know models. Whole documents first; the rest of a row is
filled with drills, which may be cut. Position is one integer: a resumed run sees exactly the rows it would have.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

from outrider_models.corpus import DOCUMENT_KINDS, DocumentSet, open_document_set

USER_PART_WEIGHT = 0.15  # the story is to be read, not to be written
_MIXTURE = {"arithmetic": 0.74, "drill": 0.04, "copying": 0.14, "prose": 0.08}  # of documents, after the start
_START_MIXTURE = {"arithmetic": 0.45, "drill": 0.30, "copying": 0.20, "prose": 0.05}
_START_SHARE = 0.15  # of the training, fading linearly
_MAX_MISSES = 3  # documents that did not fit before a row is filled up


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs, next tokens and their loss weights, each [rows, length]."""

    inputs: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    loss_weights: npt.NDArray[np.float32]


class Packer:
    """Endless supply of batches; `position` is the number of batches already given."""

    def __init__(self, folder: Path, rows: int, length: int, seed: int, position: int = 0) -> None:
        self.position = position
        self._sets = {kind: open_document_set(kind, folder) for kind in DOCUMENT_KINDS}
        self._rows, self._length, self._seed = rows, length, seed

    def next_batch(self, progress: float) -> Batch:
        """The next batch; `progress` in 0..1 moves the mixture from drills to stories."""
        random = Random(f"outrider-batch/{self._seed}/{self.position}")
        self.position += 1
        mixture = _mixture(progress)
        ids, parts = zip(*(self._row(random, mixture) for _ in range(self._rows)), strict=True)
        tokens, own = np.stack(ids), np.stack(parts)[:, 1:]
        loss_weights = np.where(own == 1, np.float32(1.0), np.float32(USER_PART_WEIGHT)).astype(np.float32)
        return Batch(tokens[:, :-1], tokens[:, 1:], loss_weights)

    def _row(
        self, random: Random, mixture: dict[str, float]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        wanted, pieces = self._length + 1, list[tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]]()
        room, misses = wanted, 0
        while misses < _MAX_MISSES and room:
            kind = random.choices(list(mixture), list(mixture.values()))[0]
            document = _draw(self._sets[kind], random)
            if len(document[0]) <= room:
                pieces.append(document)
                room -= len(document[0])
            else:
                misses += 1
        while room:
            ids, parts = _draw(self._sets["drill"], random)
            pieces.append((ids[:room], parts[:room]))
            room -= len(pieces[-1][0])
        return (
            np.concatenate([ids for ids, _ in pieces]).astype(np.int64),
            np.concatenate([parts for _, parts in pieces]),
        )


def _draw(documents: DocumentSet, random: Random) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]:
    return documents.document(random.randrange(documents.num_documents))


def _mixture(progress: float) -> dict[str, float]:
    share = max(0.0, 1.0 - progress / _START_SHARE)
    return {kind: share * _START_MIXTURE[kind] + (1 - share) * _MIXTURE[kind] for kind in DOCUMENT_KINDS}
