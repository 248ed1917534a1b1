"""The draft-source seam: guesses for many sessions at once, from whatever knowledge a source has.

A source is stateful per session (a model keeps its cache, a table its context) and is owned by one thread. Must not know frames,
streams or pacing. Positions are absolute; node indices are those of the session's GuessTree.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from outrider.types.frames import DraftLimits, TailEnd
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import DraftRow, FloatArray, IntArray
from outrider.types.value import quickly_made


class RunsAt(Enum):
    """Where a source may be hosted."""

    DRAFTER = 1
    VERIFIER = 2
    EITHER = 3


class Needs(Enum):
    """What a source must be fed beyond committed tokens."""

    NOTHING = 0
    TOPK = 1
    HIDDEN = 2


@dataclass(frozen=True, slots=True)
class SourceSession:
    """What a source is told when a session opens. prefix: int32 committed tokens, num_prompt of which are prompt."""

    session: int
    prefix: IntArray
    num_prompt: int
    sampling: SamplingParams
    noise: NoiseAddress
    limits: DraftLimits
    with_rows: bool = False
    tenant: str = ""


@quickly_made
@dataclass(frozen=True, slots=True)
class ProposeRequest:
    """Grow this session's current tree; it may reach absolute position draft_until (exclusive). hedge_nodes: live nodes of side branches
    it may hold besides, 0 = none (a source that knows no side branches need not have any). flush_nodes: of new nodes, that somebody waits
    for: more at once would come later than they could, 0 = as many as the source likes."""

    session: int
    tree_id: int
    draft_until: int
    hedge_nodes: int = 0
    flush_nodes: int = 0


@quickly_made
@dataclass(frozen=True, slots=True)
class Proposal:
    """New nodes of the session's current tree. parents: indices in the whole tree (-1 = root). end: MORE when it can go on at once.

    scores: float32 [num_nodes] log-probability of each node under the draft. rows: only with rejection acceptance.
    is_hedge: all nodes are of side branches: below another than the first child of a node. end is the chain's, whatever the nodes are.
    may_hedge: side branches can go on although the chain paused. follow_us: of the call, what went into nodes that followed the first.
    """

    session: int
    tree_id: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    scores: FloatArray | None
    end: TailEnd
    rows: tuple[DraftRow, ...] = ()
    is_hedge: bool = False
    may_hedge: bool = False
    follow_us: int = 0


class DraftSource(Protocol):
    """A registered way of guessing."""

    name: str
    runs_at: RunsAt
    needs: Needs

    def open(self, session: SourceSession) -> None:
        """Begin a session; raises Overloaded or DoesNotFit with nothing held."""
        ...

    def propose(self, requests: list[ProposeRequest]) -> list[Proposal]:
        """One batched pass over the requests, in order; a source without an idea answers with no nodes and an end."""
        ...

    def observe(self, session: int, tokens: IntArray, path: tuple[int, ...], *, reroot: bool, tree_id: int) -> None:
        """The truth grew by tokens, walking `path` of the current tree; with reroot a new, empty tree starts after them."""
        ...

    def close(self, session: int) -> None:
        """Free everything of the session; closing an unknown one raises UnknownSession."""
        ...
