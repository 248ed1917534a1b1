"""The Close frame, the one that both sides of a `Draft` stream send.

Knows the wire's reasons. A reason from a newer peer is FAILED rather than an error: a session must always be allowed to end.
"""

from __future__ import annotations

from outrider.rpc.convert.bounds import sentence
from outrider.types.frames import Close, CloseReason
from outrider.v1 import drafter_pb2 as pb

_REASON_VALUES = {
    CloseReason.FINISHED: pb.CLOSE_REASON_FINISHED,
    CloseReason.CANCELLED: pb.CLOSE_REASON_CANCELLED,
    CloseReason.PROTOCOL: pb.CLOSE_REASON_PROTOCOL,
    CloseReason.OVERLOADED: pb.CLOSE_REASON_OVERLOADED,
    CloseReason.DRAINING: pb.CLOSE_REASON_DRAINING,
    CloseReason.FAILED: pb.CLOSE_REASON_FAILED,
}
_REASONS: dict[int, CloseReason] = {int(value): reason for reason, value in _REASON_VALUES.items()}


def close_to_proto(frame: Close) -> pb.Close:
    """The frame as sent; detail is cut to a sentence."""
    return pb.Close(
        session=frame.session, incarnation=frame.incarnation, reason=_REASON_VALUES[frame.reason], detail=sentence(frame.detail)
    )


def close_from_proto(message: pb.Close) -> Close:
    """Never refuses: unknown reasons count as FAILED."""
    reason = _REASONS.get(int(message.reason), CloseReason.FAILED)
    return Close(message.session, message.incarnation, reason, sentence(message.detail))
