"""The frames of the draft protocol as values (docs/architecture.md section 3); `outrider.rpc` turns them into protobuf and back.

Positions are absolute and 0-based, counts and lengths in tokens, times in microseconds or nanoseconds as named. Every frame after
`Open` names a session by the small handle that `Open` gave it on this stream, and is fenced by its incarnation.
Must not know grpc. Values arriving from a peer are untrusted: sessions validate before use.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import DraftRow, FloatArray, IntArray
from outrider.types.value import quickly_made


class TailEnd(Enum):
    """Why the drafter paused after this tail. MORE: it did not, more nodes of this tree follow unasked."""

    MORE = 0
    CREDIT = 1
    CONFIDENCE = 2
    LIMIT = 3
    EOS = 4
    EMPTY = 5


class CloseReason(Enum):
    """Why a session ended on one side."""

    FINISHED = 1
    CANCELLED = 2
    PROTOCOL = 3
    OVERLOADED = 4
    DRAINING = 5
    FAILED = 6


MAX_SVIP_THRESHOLD = 2.0  # of a wish: sqrt(k * entropy) reaches it for no vocabulary there is


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What a session may ask of a drafter.

    max_len: committed tokens the session may ever hold; a drafter that holds fewer closes it then.
    max_nodes: live nodes of its tree. tree_width: children tried per node (1 = chain).
    stop_below: stop when the best next token's draft probability is below this (0 = never). svip_threshold: stop when
    sqrt(k * entropy) exceeds this (0 = off; SVIP, ALGORITHMS C). flush_nodes: send a tail every so many new nodes (0 = only when pausing).
    hedge_nodes: live nodes of side branches there may ever be beside max_nodes (0 = none); how many at present is the commits' to say.
    """

    max_len: int
    max_nodes: int = 64
    tree_width: int = 1
    stop_below: float = 0.0
    svip_threshold: float = 0.0
    flush_nodes: int = 0
    hedge_nodes: int = 0


@dataclass(frozen=True, slots=True)
class Open:
    """Verifier: start a session, or restart it under a newer incarnation, at this prefix.

    tokens: the first chunk of the committed prefix; prefix_len: how long the whole prefix is (the rest follows as Commits).
    draft_until: absolute position the drafter may draft to (exclusive). with_rows: send DraftRows (rejection acceptance).
    """

    session: int
    incarnation: int
    request_id: str
    tokens: IntArray
    prefix_len: int
    num_prompt: int
    sampling: SamplingParams
    noise: NoiseAddress
    limits: DraftLimits
    draft_until: int
    with_rows: bool = False
    tenant: str = ""
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """Drafter: the session is live and its model has read prefilled_to tokens."""

    session: int
    incarnation: int
    prefilled_to: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Drafter: the session was not opened; reason is a sentence."""

    session: int
    incarnation: int
    reason: str


@quickly_made
@dataclass(frozen=True, slots=True)
class Tail:
    """Drafter: more nodes of the guess tree `tree_id`.

    base: position of the tree's depth-0 nodes, fixed for the tree's life. prefix_hash: rolling hash of the tokens before base.
    first_node: index in the tree of tokens[0]; parents index into the whole tree (-1 = root). A commit that follows the tree
    keeps tree_id and indices; a contradiction starts a new tree_id. scores: optional log-probability per node.
    draft_us: drafting time spent on these nodes, side branches left out; hedge_us: on those. first_us: of draft_us, to the first
    node, 0 when not known. begin_ns, end_ns: the drafter's monotonic
    clock around all that work.
    """

    session: int
    incarnation: int
    tree_id: int
    first_node: int
    base: int
    prefix_hash: int
    tokens: IntArray
    parents: IntArray
    end: TailEnd
    source: str
    draft_us: int
    begin_ns: int
    end_ns: int
    scores: FloatArray | None = None
    rows: tuple[DraftRow, ...] = ()
    hedge_us: int = 0
    first_us: int = 0


@quickly_made
@dataclass(frozen=True, slots=True)
class Commit:
    """Verifier: the truth now covers [begin, begin + len(tokens)).

    prefix_hash: rolling hash of all committed tokens after this commit. num_accepted: drafted tokens among them.
    draft_until: absolute credit, in place of all before it. verify_us: duration of the round's step.
    hedge_nodes: live nodes of side branches the drafter may hold from now on, at most DraftLimits.hedge_nodes; the newest frame counts.
    flush_nodes: in place of DraftLimits.flush_nodes from now on; None leaves it as it is.
    """

    session: int
    incarnation: int
    begin: int
    tokens: IntArray
    prefix_hash: int
    num_accepted: int
    verify_us: int
    draft_until: int
    hedge_nodes: int = 0
    flush_nodes: int | None = None


@dataclass(frozen=True, slots=True)
class Feedback:
    """Verifier: what the target thought at some positions; droppable. top_ids int32 [rows, k], top_logprobs float32 [rows, k]."""

    session: int
    incarnation: int
    positions: IntArray
    top_ids: IntArray
    top_logprobs: FloatArray


@dataclass(frozen=True, slots=True)
class Close:
    """Either side: free everything of the session."""

    session: int
    incarnation: int
    reason: CloseReason
    detail: str = ""


VerifierFrame = Open | Commit | Feedback | Close
DrafterFrame = Opened | Refused | Tail | Close
