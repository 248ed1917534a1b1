"""Which ids a draft's guesses are chosen among, where its head has too many: those that were read most recently.

Ids are listed by whole panels of a packed head. Before anything is read it is the lowest ids, which are the commonest of a vocabulary
that was made by merging; whatever text is read takes the place of what was not for longest, so that names, other languages and jargon are
missed once. Must not know models, products or where tokens come from. Source: FR-Spec, Zhao et al. 2025 (there a list of a corpus'
commonest ids, which stays as it is).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from outrider.types.tree import IntArray
from outrider_kernels.thin_matrix import PANEL

LongArray = npt.NDArray[np.int64]

_ALWAYS = np.iinfo(np.int64).max


class Shortlist:
    """At most `most_ids` of `num_ids` ids, those of `kept` always among them. panels: int32, ascending, each of PANEL ids."""

    def __init__(self, num_ids: int, most_ids: int, kept: Iterable[int] = ()) -> None:
        """Raises ValueError where what is kept leaves room for nothing that is read."""
        num_panels = -(-num_ids // PANEL)
        self._most = min(num_panels, most_ids // PANEL)
        self._read_at = -np.arange(num_panels, dtype=np.int64)  # the lowest ids as if they had been read last
        self._now = 0
        pinned = np.unique(np.fromiter(kept, np.int64) // PANEL)
        if len(pinned) >= self._most:
            raise ValueError(f"a shortlist of {most_ids} ids has no room beside {len(pinned)} panels of {PANEL} that are always listed")
        self._read_at[pinned] = _ALWAYS
        self._is_listed = np.zeros(num_panels, np.bool_)
        self._is_listed[np.argsort(-self._read_at, kind="stable")[: self._most]] = True
        self.panels = self._listed()

    def read(self, tokens: Sequence[int] | IntArray | LongArray) -> IntArray | None:
        """These were read, the last of them most recently. Returns panels that are listed no more; None where the list is what it was."""
        panels = np.asarray(tokens, np.int64) // PANEL
        at = self._read_at[panels] != _ALWAYS
        self._read_at[panels[at]] = np.arange(self._now + 1, self._now + 1 + len(panels))[at]
        self._now += len(panels)
        if self._is_listed[panels].all():
            return None
        before = self._is_listed.copy()
        self._is_listed[panels] = True
        self._drop_oldest()
        self.panels = self._listed()
        return np.flatnonzero(before & ~self._is_listed).astype(np.int32)

    def _drop_oldest(self) -> None:
        listed = np.flatnonzero(self._is_listed)
        num_over = len(listed) - self._most
        if num_over > 0:
            self._is_listed[listed[np.argpartition(self._read_at[listed], num_over - 1)[:num_over]]] = False

    def _listed(self) -> IntArray:
        return np.flatnonzero(self._is_listed).astype(np.int32)
