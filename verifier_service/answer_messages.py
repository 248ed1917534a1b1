"""A session's messages as the wire has them. Must not know streams or who reads them."""

from __future__ import annotations

from outrider.rpc.convert.tokens import finish_reason_to_proto, logprobs_to_proto, origins_to_proto, statistics_to_proto
from outrider.v1 import verifier_pb2 as pb
from verifier_service.answer import AnswerMessage, SessionEnded, SessionStarted, TokensCommitted


def answer_to_proto(message: AnswerMessage, pacing: str, *, draining: bool = False, end: SessionEnded | None = None) -> pb.DecodeResponse:
    """One message of a Decode stream. pacing: name of the session's policy. draining: the rest had better be decoded elsewhere. end: what
    follows a commit, to travel with it."""
    match message:
        case TokensCommitted():
            logprobs = [] if message.logprobs is None else logprobs_to_proto(message.logprobs)
            origins = origins_to_proto(message.origins)
            committed = pb.DecodeCommitted(
                begin=message.begin, token_ids=message.tokens, origins=origins, logprobs=logprobs, draining=draining
            )
            if end is not None:
                committed.end.CopyFrom(_finished(end))
            return pb.DecodeResponse(committed=committed)
        case SessionStarted():
            return pb.DecodeResponse(started=pb.DecodeStarted(fingerprint=message.fingerprint, pacing=pacing))
        case SessionEnded():
            return pb.DecodeResponse(finished=_finished(message))


def _finished(ended: SessionEnded) -> pb.DecodeFinished:
    return pb.DecodeFinished(finish_reason=finish_reason_to_proto(ended.reason), statistics=statistics_to_proto(ended.statistics))
