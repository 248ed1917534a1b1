"""What happens to a session and what it wants done: the vocabulary of the sans-I/O state machines.

A session is `step(event) -> list[Effect]`, total over untrusted events. Must not know sockets, threads or torch; times are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from outrider.types.frames import CloseReason, DrafterFrame, TailEnd, VerifierFrame
from outrider.types.tree import DraftRow, DraftTree, FloatArray, IntArray, TokenOrigin, Verdict
from outrider.types.value import quickly_made


class FinishReason(Enum):
    """Why an answer ended. STOP: an end-of-sequence or stop token. LENGTH: max tokens or context. CANCELLED, FAILED: not by itself."""

    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    FAILED = 4


# --- events of the verifier's session -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrafterJoined:
    """A drafter stream became available for this session (at start, or again after a loss). takes_turns: it computes only while the target
    rests, for the two share a thread."""

    drafter: str
    now_us: int
    takes_turns: bool = False


@dataclass(frozen=True, slots=True)
class DrafterLost:
    """A drafter stream ended or was given up; reason is a sentence."""

    drafter: str
    reason: str
    now_us: int


@dataclass(frozen=True, slots=True)
class DrafterGivenUp:
    """The service wants no more guesses of this drafter for this session: they were hardly ever right. reason is a sentence."""

    drafter: str
    reason: str
    now_us: int


@quickly_made
@dataclass(frozen=True, slots=True)
class DrafterFrameArrived:
    """An untrusted frame from a drafter of this session."""

    drafter: str
    frame: DrafterFrame
    now_us: int


@dataclass(frozen=True, slots=True)
class DrafterFrameMalformed:
    """A frame that names this session could not even be decoded; problem is a sentence."""

    drafter: str
    incarnation: int
    problem: str
    now_us: int


@quickly_made
@dataclass(frozen=True, slots=True)
class RoundPlanned:
    """Pacing took this session into the step: answer with a Verify effect. The fields are those of a SessionPlan."""

    max_feed: int
    max_nodes: int
    now_us: int
    from_lookup: bool = False
    side_nodes: int = 0


@quickly_made
@dataclass(frozen=True, slots=True)
class RoundVerified:
    """The step ran. verdict: None for a prefill chunk that is not the last. verify_us: duration of the step."""

    verdict: Verdict | None
    verify_us: int
    now_us: int


@dataclass(frozen=True, slots=True)
class TokensAppended:
    """Routed modes: tokens kept from a drafted step become truth without the target's pick."""

    tokens: IntArray
    now_us: int


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The client, its deadline or the service ends the request."""

    detail: str
    now_us: int


VerifierEvent = (
    DrafterJoined
    | DrafterLost
    | DrafterGivenUp
    | DrafterFrameArrived
    | DrafterFrameMalformed
    | RoundPlanned
    | RoundVerified
    | TokensAppended
    | CancelRequested
)


# --- effects of the verifier's session ------------------------------------------------------------------------------------


@quickly_made
@dataclass(frozen=True, slots=True)
class SendToDrafter:
    """Queue a frame for a drafter."""

    drafter: str
    frame: VerifierFrame


@quickly_made
@dataclass(frozen=True, slots=True)
class Verify:
    """Feed `committed` (int32) and `tree` to the engine. wanted: False for a prefill chunk that is not the last."""

    committed: IntArray
    tree: DraftTree
    wanted: bool
    draft_rows: tuple[DraftRow, ...] = ()


@quickly_made
@dataclass(frozen=True, slots=True)
class Keep:
    """Tell the engine which nodes of the round became truth (possibly fewer than accepted: an answer may end inside a run)."""

    path: tuple[int, ...]


@quickly_made
@dataclass(frozen=True, slots=True)
class Emit:
    """Committed tokens for the client, in order, with how each came to be."""

    tokens: tuple[int, ...]
    origins: tuple[TokenOrigin, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer is complete (or ended); everything of the session is to be freed. detail: a sentence for CANCELLED and FAILED."""

    reason: FinishReason
    detail: str = ""


VerifierEffect = SendToDrafter | Verify | Keep | Emit | Finish


# --- events and effects of the drafter's session --------------------------------------------------------------------------


@quickly_made
@dataclass(frozen=True, slots=True)
class VerifierFrameArrived:
    """An untrusted frame from the verifier that owns this session."""

    frame: VerifierFrame


@quickly_made
@dataclass(frozen=True, slots=True)
class Grown:
    """The source added nodes to the live tree (parents: indices in the session's current GuessTree) or paused (end is not MORE).

    is_hedge: the nodes are of side branches; end is the chain's all the same. may_hedge: side branches can go on though the chain paused.
    follow_us: of draft_us, what went into nodes that followed the first in one step of the source.
    """

    tree_id: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    scores: FloatArray | None
    end: TailEnd
    draft_us: int
    begin_ns: int
    end_ns: int
    rows: tuple[DraftRow, ...] = ()
    is_hedge: bool = False
    may_hedge: bool = False
    follow_us: int = 0


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """The source cannot serve this session; reason is a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """The service is shutting down."""


DrafterEvent = VerifierFrameArrived | Grown | SourceFailed | Drained


@quickly_made
@dataclass(frozen=True, slots=True)
class SendToVerifier:
    """Queue a frame for the verifier."""

    frame: DrafterFrame


@quickly_made
@dataclass(frozen=True, slots=True)
class Observe:
    """Tell the source the truth: `tokens` follow what it knows. path: the tree nodes they walked along (GuessTree indices).

    reroot: the tree was abandoned, a new one (tree_id) starts after these tokens.
    """

    tokens: IntArray
    path: tuple[int, ...]
    reroot: bool
    tree_id: int


@dataclass(frozen=True, slots=True)
class ReleaseSession:
    """Free everything of the session."""

    reason: CloseReason


DrafterEffect = SendToVerifier | Observe | ReleaseSession
