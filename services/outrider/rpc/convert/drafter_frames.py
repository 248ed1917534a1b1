"""Frames that a drafter sends and a verifier receives: protobuf <-> types/frames.py, single and in batches.

Knows the shape a tail must have by itself (lengths, indices, numbers). Must not know trees or the truth: whether a tail fits is the
session's to judge. Decoding raises ProtocolViolation naming the field; in a batch it becomes a BadFrame.
"""

from __future__ import annotations

from collections.abc import Iterable

from outrider.errors import InvalidRequest, ProtocolViolation
from outrider.rpc.convert.bounds import bounded, integers, name, num_entries, numbers, same_len, sentence, token_ids
from outrider.rpc.convert.close import close_from_proto, close_to_proto
from outrider.rpc.convert.identity import identity_from_proto, identity_to_proto
from outrider.rpc.convert.link import BadFrame, FromDrafter, Pong, ToVerifier, Welcome
from outrider.rpc.convert.verifier_frames import MAX_FRAMES_PER_MESSAGE
from outrider.rpc.lane import TOKEN_BYTES
from outrider.types.frames import Close, Opened, Refused, Tail, TailEnd
from outrider.types.tree import MAX_TREE_NODES, ROOT, DraftRow
from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import sampling_pb2

_TAIL_END_VALUES = {
    TailEnd.MORE: pb.TAIL_END_UNSPECIFIED,
    TailEnd.CREDIT: pb.TAIL_END_CREDIT,
    TailEnd.CONFIDENCE: pb.TAIL_END_CONFIDENCE,
    TailEnd.LIMIT: pb.TAIL_END_LIMIT,
    TailEnd.EOS: pb.TAIL_END_EOS,
    TailEnd.EMPTY: pb.TAIL_END_EMPTY,
}
_TAIL_ENDS: dict[int, TailEnd] = {int(value): end for end, value in _TAIL_END_VALUES.items()}


def draft_response(frames: Iterable[ToVerifier]) -> pb.DraftResponse:
    """One message of frames, in order; the caller batches at most MAX_FRAMES_PER_MESSAGE."""
    batch = [drafter_frame_to_proto(frame) for frame in frames]
    assert len(batch) <= MAX_FRAMES_PER_MESSAGE, f"{len(batch)} frames in one message"
    return pb.DraftResponse(frames=batch)


def drafter_frames(message: pb.DraftResponse) -> list[FromDrafter]:
    """The frames of a message in order, BadFrame in place of those that cannot be; ProtocolViolation when there are too many."""
    if len(message.frames) > MAX_FRAMES_PER_MESSAGE:
        raise ProtocolViolation(f"frames: {len(message.frames)} in one message, at most {MAX_FRAMES_PER_MESSAGE}")
    return [_frame_or_bad(frame) for frame in message.frames]


def drafter_frame_to_proto(frame: ToVerifier) -> pb.DraftResponseFrame:
    """One frame in its envelope."""
    match frame:
        case Tail():
            return pb.DraftResponseFrame(tail=_tail_to_proto(frame))
        case Opened():
            opened = pb.Opened(session=frame.session, incarnation=frame.incarnation, prefilled_to=frame.prefilled_to)
            return pb.DraftResponseFrame(opened=opened)
        case Refused():
            refused = pb.Refused(session=frame.session, incarnation=frame.incarnation, reason=sentence(frame.reason))
            return pb.DraftResponseFrame(refused=refused)
        case Close():
            return pb.DraftResponseFrame(close=close_to_proto(frame))
        case Pong():
            return pb.DraftResponseFrame(pong=pb.Pong(sent_ns=frame.sent_ns, clock_ns=frame.clock_ns))
        case Welcome():
            drafter = identity_to_proto(frame.drafter)
            welcome = pb.Welcome(drafter=drafter, clock_ns=frame.clock_ns, max_sessions=frame.max_sessions, lane_token=frame.lane_token)
            return pb.DraftResponseFrame(welcome=welcome)


def drafter_frame_from_proto(envelope: pb.DraftResponseFrame) -> FromDrafter:
    """One frame; raises ProtocolViolation naming the field that cannot be."""
    kind = envelope.WhichOneof("frame")
    try:
        match kind:
            case "tail":
                return _tail(envelope.tail)
            case "opened":
                opened = envelope.opened
                return Opened(opened.session, opened.incarnation, bounded("prefilled_to", opened.prefilled_to, 0))
            case "refused":
                refused = envelope.refused
                return Refused(refused.session, refused.incarnation, sentence(refused.reason))
            case "close":
                return close_from_proto(envelope.close)
            case "pong":
                return Pong(envelope.pong.sent_ns, envelope.pong.clock_ns)
            case "welcome":
                welcome = envelope.welcome
                drafter = identity_from_proto(welcome.drafter, "drafter")
                return Welcome(drafter, welcome.clock_ns, welcome.max_sessions, _lane_token(welcome.lane_token))
    except InvalidRequest as error:
        raise ProtocolViolation(f"{kind}.{error}") from error
    raise ProtocolViolation("frame: none is set")


def _lane_token(token: bytes) -> bytes:
    if len(token) not in (0, TOKEN_BYTES):
        raise InvalidRequest("lane_token", f"has {len(token)} bytes, not {TOKEN_BYTES}")
    return token


def _frame_or_bad(envelope: pb.DraftResponseFrame) -> FromDrafter:
    try:
        return drafter_frame_from_proto(envelope)
    except ProtocolViolation as error:
        kind = envelope.WhichOneof("frame")
        if kind is None or kind in ("welcome", "pong"):
            return BadFrame(None, 0, error)
        frame = getattr(envelope, kind)
        return BadFrame(frame.session, frame.incarnation, error)


def _tail_to_proto(frame: Tail) -> pb.Tail:
    return pb.Tail(
        session=frame.session,
        incarnation=frame.incarnation,
        tree_id=frame.tree_id,
        first_node=frame.first_node,
        base=frame.base,
        prefix_hash=frame.prefix_hash,
        token_ids=frame.tokens.tolist(),
        parents=frame.parents.tolist(),
        scores=None if frame.scores is None else frame.scores.tolist(),
        end=_TAIL_END_VALUES[frame.end],
        source=frame.source,
        draft_us=frame.draft_us,
        begin_ns=frame.begin_ns,
        end_ns=frame.end_ns,
        rows=[draft_row_to_proto(row) for row in frame.rows],
        hedge_us=frame.hedge_us,
        first_us=frame.first_us,
    )


def _tail(message: pb.Tail) -> Tail:
    num_nodes = len(message.token_ids)
    num_entries("token_ids", num_nodes, 0, MAX_TREE_NODES)
    num_entries("rows", len(message.rows), 0, MAX_TREE_NODES + 1)
    same_len("parents", len(message.parents), "token_ids", num_nodes)
    if message.scores:
        same_len("scores", len(message.scores), "token_ids", num_nodes)
    end = _TAIL_ENDS.get(int(message.end))
    if end is None:
        raise InvalidRequest("end", f"{int(message.end)} is no reason to pause")
    return Tail(
        session=message.session,
        incarnation=message.incarnation,
        tree_id=message.tree_id,
        first_node=bounded("first_node", message.first_node, 0, MAX_TREE_NODES),
        base=bounded("base", message.base, 0),
        prefix_hash=message.prefix_hash,
        tokens=token_ids("token_ids", message.token_ids),
        parents=integers("parents", message.parents, ROOT, MAX_TREE_NODES - 1),
        end=end,
        source=name("source", message.source),
        draft_us=message.draft_us,
        begin_ns=message.begin_ns,
        end_ns=message.end_ns,
        scores=numbers("scores", message.scores) if message.scores else None,
        rows=tuple(draft_row_from_proto(row, f"rows[{index}]") for index, row in enumerate(message.rows)),
        hedge_us=message.hedge_us,
        first_us=message.first_us,
    )


def draft_row_to_proto(row: DraftRow) -> sampling_pb2.DraftRow:
    """The sparse distribution that a node's children were drawn from."""
    return sampling_pb2.DraftRow(parent=row.parent, token_ids=row.ids.tolist(), probs=row.probs.tolist())


def draft_row_from_proto(message: sampling_pb2.DraftRow, field: str) -> DraftRow:
    """Probabilities are finite and not negative; their sum and the ids' distinctness are the acceptance rule's to check."""
    same_len(f"{field}.probs", len(message.probs), "token_ids", len(message.token_ids))
    probs = numbers(f"{field}.probs", message.probs)
    if probs.size and float(probs.min()) < 0.0:
        raise InvalidRequest(f"{field}.probs", f"holds a negative probability, {float(probs.min())}")
    parent = bounded(f"{field}.parent", message.parent, ROOT, MAX_TREE_NODES - 1)
    return DraftRow(parent, token_ids(f"{field}.token_ids", message.token_ids), probs)
