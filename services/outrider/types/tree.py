"""A draft tree as arrays, what a step decided about it, and the rolling hash of a prefix.

A tree is a trie over the tokens after a prefix: node i has tokens[i] and parents[i] (< i; -1 = the newest committed token, the
root). Position of a node = base + depth, depth 0 for children of the root. Must not know where a tree came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from outrider.types.value import quickly_made

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]

ROOT = -1
MAX_TREE_NODES = 1024
# Parents of a chain, for all of them. Made anew each time, numpy would let go of the interpreter for it, in the middle of a round.
_CHAIN: IntArray = np.arange(-1, MAX_TREE_NODES - 1, dtype=np.int32)
_CHAIN.setflags(write=False)
_HASH_MULTIPLIER = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


class TokenOrigin(Enum):
    """How a committed token came to be: a draft that matched, the pick that replaced a wrong draft, or the pick after all drafts."""

    ACCEPTED = 1
    CORRECTED = 2
    BONUS = 3


@quickly_made
@dataclass(frozen=True, slots=True)
class DraftTree:
    """A trie of guesses. tokens, parents: int32 [num_nodes]; parents[i] in [-1, i)."""

    tokens: IntArray
    parents: IntArray

    @property
    def num_nodes(self) -> int:
        """Number of nodes; 0 is a legal, empty tree."""
        return len(self.tokens)

    @staticmethod
    def empty() -> DraftTree:
        """A tree without nodes: a round with it is plain decoding."""
        return DraftTree(np.empty(0, np.int32), np.empty(0, np.int32))

    @staticmethod
    def chain(tokens: Sequence[int]) -> DraftTree:
        """One path of guesses, each the child of the one before."""
        num = len(tokens)
        return DraftTree(np.asarray(tokens, np.int32), _CHAIN[:num] if num <= len(_CHAIN) else np.arange(-1, num - 1, dtype=np.int32))


@quickly_made
@dataclass(frozen=True, slots=True)
class DraftRow:
    """The drafter's sparse distribution that a node's children were drawn from (rejection acceptance only).

    parent: node index or ROOT. ids: int32 [support]; probs: float32 [support], summing to 1: exactly what was sampled from.
    """

    parent: int
    ids: IntArray
    probs: FloatArray


@quickly_made
@dataclass(frozen=True, slots=True)
class Verdict:
    """What one round decided: accepted nodes root to leaf, then one token of the target's own.

    path: node indices, each the child of the one before. emitted: the corrected token, or the bonus token after a whole path.
    bonus: whether the path ended at a leaf (or the tree was empty), so that nothing was corrected.
    """

    path: tuple[int, ...]
    emitted: int
    bonus: bool


def running_hashes(prefix_hash: int, tokens: list[int]) -> list[int]:
    """extend_hash after each of the tokens, in order."""
    return [prefix_hash := (prefix_hash * _HASH_MULTIPLIER + token + 1) & _MASK64 for token in tokens]


def extend_hash(prefix_hash: int, tokens: IntArray | list[int]) -> int:
    """The unsigned 64-bit rolling hash of a prefix after appending tokens; the hash of the empty prefix is 0."""
    for token in tokens if isinstance(tokens, list) else tokens.tolist():
        prefix_hash = (prefix_hash * _HASH_MULTIPLIER + token + 1) & _MASK64
    return prefix_hash
