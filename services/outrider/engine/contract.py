"""The Engine seam: what schedulers may ask of a model, whichever implementation stands behind it.

One thread owns an engine: it loads, warms and steps it. Must not know sessions, frames, or who drafts. Torch-free, so that
schedulers and fakes import it cheaply. Implementations: transformers (any admitted model), lean (own forward), replay (a given text).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outrider.types.identity import ModelIdentity
from outrider.types.step import SequenceSpec, StepPlan, StepResult
from outrider.types.tree import IntArray


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """max_rows: rows of one step. block_len: positions per KV block. num_blocks: all KV blocks. max_context: positions of a sequence.

    prefix_cache: whether sequences take over KV of equal prefixes. lent_threads: the most that a step can use of StepPlan.lent_threads, 0
    for an engine whose threads are fixed.
    """

    max_rows: int
    block_len: int
    num_blocks: int
    max_context: int
    prefix_cache: bool = False
    lent_threads: int = 0


class Engine(Protocol):
    """A decoder-only model with paged KV and a pick inside.

    Invariants. A sequence's cache covers committed tokens [0, cached_len); rows of a step append to it. The newest committed
    token is not cached before the step that feeds it. Nodes fed by a step stay live (with their KV) until `keep`.
    """

    @property
    def identity(self) -> ModelIdentity:
        """Who the model is, for handshakes."""
        ...

    @property
    def limits(self) -> EngineLimits:
        """Sizes fixed at load time."""
        ...

    @property
    def num_free_blocks(self) -> int:
        """KV blocks held by no open sequence; equals limits.num_blocks when nothing is open, whatever they still hold."""
        ...

    def open(self, sequence: int, spec: SequenceSpec, prefix: IntArray | None = None) -> None:
        """Reserve what the sequence needs up to spec.first_len committed tokens.

        prefix: the committed tokens that are going to be fed, int32, at least one. KV of whole blocks at their beginning that is there
        already is taken over: feed from cached_len on. It is less than len(prefix), for the newest committed token must be fed. Only
        sequences of one tenant and adapter share.
        Raises DoesNotFit (never can), Overloaded (not now), AlreadyExists; after a raise nothing is held.
        """
        ...

    def reserve(self, sequence: int, length: int) -> None:
        """Hold KV blocks for so many committed tokens, at most its max_len, beside its tree rows; it never holds fewer than before.

        Raises Overloaded, changing nothing, when there are none to be had.
        """
        ...

    def match_prefix(self, sequence: int, prefix: IntArray) -> int:
        """As `open` does with its prefix, once more before the sequence's first step: others may have brought more. Returns cached_len.

        Raises InvalidRequest, changing nothing, when prefix contradicts what is cached of the sequence.
        """
        ...

    def step(self, plan: StepPlan) -> StepResult:
        """Feed the plan's rows in one forward and pick at the wanted ones; at most limits.max_rows rows in all.

        Whatever it raises, every sequence is as it was before: the caller may step the same rows again, or without the guilty ones.
        """
        ...

    def end_loan(self) -> None:
        """Give back what steps were lent: who lent it wants it now. Until then, or a step that is lent less, the engine may hold it."""
        ...

    def keep(self, sequence: int, path: tuple[int, ...], *, subtree: bool = False) -> IntArray:
        """Commit the live nodes of `path` (root to leaf; may be empty) and drop the others.

        With subtree, the descendants of the path's last node stay live (their parents re-indexed, children of that node become
        children of the root). Returns the old indices of the nodes that stay live, in their new order (int32). Compaction is
        safe when source and destination rows overlap.
        """
        ...

    def truncate(self, sequence: int, length: int) -> None:
        """Forget committed tokens from position `length` on, and every live node.

        Raises Overloaded, changing nothing, when the cut goes into blocks that other sequences read and no block is free for a copy. A
        cut by one token after a step never does.
        """
        ...

    def cached_len(self, sequence: int) -> int:
        """Committed tokens whose KV is present."""
        ...

    def close(self, sequence: int) -> None:
        """Free everything of the sequence; closing an unknown one raises UnknownSession."""
        ...
