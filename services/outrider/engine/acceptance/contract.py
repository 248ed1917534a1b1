"""The AcceptanceRule seam: a pure judgement of one tree against the target's rows, and what the rule guarantees.

Row 0 of the target follows the newest committed token (the root), row i + 1 follows node i. Children of a node are tried in
ascending index, which is the order they were drawn in. Must not know where a tree came from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from outrider.types.sampling import NoiseAddress
from outrider.types.tree import DraftRow, DraftTree, IntArray, Verdict
from outrider.types.value import quickly_made

ProbArray = npt.NDArray[np.float64]


class Guarantee(Enum):
    """TOKENS: the text is exactly that of plain decoding, whatever was drafted. DISTRIBUTION: only its law is."""

    TOKENS = "tokens"
    DISTRIBUTION = "distribution"


@quickly_made
@dataclass(frozen=True, slots=True, eq=False)
class TargetRows:
    """What the target says after the root and after each node.

    picks: int32 [num_nodes + 1], the coupled pick of every row. probs: the processed distribution of one row, float64 [vocab] summing to
    1, computed when asked for; a rule that does not need it never asks.
    """

    picks: IntArray
    probs: Callable[[int], ProbArray]


@quickly_made
@dataclass(frozen=True, slots=True)
class AcceptanceNoise:
    """Where a rule's own randomness lives. base: absolute position of the root's children, that is of the first token decided."""

    address: NoiseAddress
    base: int


class AcceptanceRule(Protocol):
    """A named, pure judgement: equal arguments give equal verdicts, so a retried round repeats itself."""

    @property
    def name(self) -> str:
        """What requests call it."""
        ...

    @property
    def guarantee(self) -> Guarantee:
        """What a client may rely on."""
        ...

    @property
    def reads_probs(self) -> bool:
        """Whether target.probs must work; otherwise picks are enough and a step saves the softmax."""
        ...

    def accept(self, tree: DraftTree, draft_rows: tuple[DraftRow, ...], target: TargetRows, noise: AcceptanceNoise) -> Verdict:
        """The accepted path and the token after it; exactly one token for an empty tree."""
        ...
