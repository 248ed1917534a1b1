"""One sample: committed tokens from its Decode streams to Delta messages, then one Finished.

Knows how tokens, origins and log-probabilities are cut where the answer ends, and that a stream that is lost or left is followed by another
one, which goes on after the last token: the answer grows as if nothing had happened. Must not know other samples, how another verifier
is found, or who reads: it puts messages where it is told, and a put that waits is what holds the verifier back.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Protocol

from outrider.errors import InvalidRequest, OutriderError
from outrider.gateway.answer import Answer, End, Grown
from outrider.gateway.decode_stream import DecodeStream
from outrider.gateway.detokenizer import TextDecoder
from outrider.gateway.failover import Failover
from outrider.gateway.part_statistics import with_lost_part
from outrider.gateway.resolved import ResolvedRequest
from outrider.rpc.convert import acceptance_to_proto, noise_to_proto, sampling_to_proto
from outrider.rpc.status import RemoteFailure
from outrider.types.sampling import NoiseAddress
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import verifier_pb2


class Emit(Protocol):
    """Puts messages on their way to the reader, in order; those of one call are due together."""

    def __call__(self, *responses: pb.GenerateResponse) -> Awaitable[None]:
        """Return when more may be put."""
        ...


FINISH_REASONS = {
    End.STOP_TOKEN: pb.FINISH_REASON_STOP_TOKEN,
    End.STOP_STRING: pb.FINISH_REASON_STOP_STRING,
    End.LENGTH: pb.FINISH_REASON_LENGTH,
}
_VERIFIER_ENDS = {int(pb.FINISH_REASON_STOP_TOKEN): End.STOP_TOKEN, int(pb.FINISH_REASON_LENGTH): End.LENGTH}
FIRST_INCARNATION = 1


def decode_start(request: ResolvedRequest, session_id: str, sample_index: int) -> verifier_pb2.DecodeStart:
    """What the verifier is told about one sample; resumed tokens are part of its prefix."""
    checked = request.checked
    return verifier_pb2.DecodeStart(
        session_id=session_id,
        incarnation=FIRST_INCARNATION,
        prefix=request.prompt_ids + checked.resume_ids,
        num_prompt_tokens=len(request.prompt_ids),
        sampling=sampling_to_proto(checked.sampling),
        noise=noise_to_proto(NoiseAddress(request.seed, sample_index)),
        max_tokens=request.max_tokens,
        stop_token_ids=sorted(checked.stop_token_ids),
        top_logprobs=checked.top_logprobs,
        draft=checked.draft,
        drafters=request.route.drafters,
        acceptance=acceptance_to_proto(checked.acceptance),
        adapter=checked.adapter,
        tenant=checked.cache_salt,
        takes_end=True,
        has_stop_strings=bool(checked.stops),
        no_drafters=request.route.drafts_off,
    )


def begin_answer(request: ResolvedRequest, decoder: TextDecoder) -> tuple[Answer, Grown]:
    """The answer with resumed tokens read in, and what they did to it: their text has left before, what waits of it has not. They may be
    the whole answer, of which a client missed nothing but the end.

    Raises InvalidRequest when they go on beyond it.
    """
    checked = request.checked
    answer = Answer(decoder, checked.stops, checked.stop_token_ids, request.max_tokens)
    if not checked.resume_ids:
        return answer, Grown("", 0)
    grown = answer.push(checked.resume_ids)
    if grown.num_taken < len(checked.resume_ids):
        problem = f"has {len(checked.resume_ids)} ids, but the answer ends after {grown.num_taken}: by a stop token or a stop string"
        raise InvalidRequest("resume_token_ids", problem)
    return answer, grown


class SampleRun:
    """arrived_s: time.monotonic() when the request arrived, the zero of its reported times. exact: what was promised for the first
    stream. `close` it in any case."""

    def __init__(
        self,
        index: int,
        request: ResolvedRequest,
        stream: DecodeStream,
        answer: Answer,
        arrived_s: float,
        failover: Failover,
        *,
        exact: bool,
    ) -> None:
        self._index = index
        self._num_prompt = len(request.prompt_ids)
        self._stream = stream
        self._answer = answer
        self._arrived_s = arrived_s
        self._failover = failover
        self._exact = exact
        self._fingerprint = stream.started.fingerprint  # as the client was told last
        self._first_token_us = 0
        self._token_ids: list[int] = []
        self._origins: list[int] = []
        self._num_lost = 0  # tokens of streams that were lost or left

    async def run(self, emit: Emit) -> None:
        """Until the answer ends; raises what the verifier's stream raises and no other verifier mends."""
        while True:
            try:
                async with self._stream.listener:
                    successor = await self._read_on(emit)
            except OutriderError as error:
                successor = await self._failover.next_stream(self._stream, error, self._token_ids)
            if successor is None:
                return
            self._stream.close()
            self._stream = successor
            self._num_lost = len(self._token_ids)

    def close(self) -> None:
        """Close the stream that is open; safe to repeat."""
        self._stream.close()

    async def _read_on(self, emit: Emit) -> DecodeStream | None:
        """What the present stream brings; returns the one to go on with when its verifier drains, None at the answer's end."""
        while True:
            message = await self._stream.read()
            if isinstance(message, verifier_pb2.DecodeFinished):
                end = _VERIFIER_ENDS.get(int(message.finish_reason))
                if end is None:
                    raise RemoteFailure(f"the verifier ended the answer for reason {int(message.finish_reason)}, which is none to end one")
                grown = self._answer.finish(end)
                await self._emit_end(emit, grown, message.statistics)
                return None
            grown = self._answer.push(message.token_ids)
            self._token_ids += message.token_ids
            self._origins += message.origins
            self._first_token_us = self._first_token_us or self._elapsed_us()
            delta = pb.GenerateResponse(delta=self._delta(message, grown))
            if grown.end is not None:
                await self._emit_last(emit, delta, grown)
                return None
            await emit(delta)
            if (
                message.draining
                and not message.HasField("end")
                and (successor := await self._failover.hand_over(self._stream, self._token_ids)) is not None
            ):
                return successor

    async def _emit_last(self, emit: Emit, delta: pb.GenerateResponse, grown: Grown) -> None:
        """The delta that ends the answer, and its end: with it, where the verifier has said how it went."""
        is_told = self._stream.has_ended
        if not is_told:
            await emit(delta)  # settling takes a while
        finished = self._finished(grown, await self._stream.settle(stop=grown.end is End.STOP_STRING))
        await (emit(delta, finished) if is_told else emit(finished))

    async def _emit_end(self, emit: Emit, grown: Grown, statistics: pb.DraftStatistics) -> None:
        rest = (pb.GenerateResponse(delta=pb.Delta(index=self._index, text=grown.text)),) if grown.text else ()
        await emit(*rest, self._finished(grown, statistics))

    def _finished(self, grown: Grown, statistics: pb.DraftStatistics) -> pb.GenerateResponse:
        assert grown.end is not None
        finished = pb.Finished(
            index=self._index,
            finish_reason=FINISH_REASONS[grown.end],
            stop_string=grown.stop_string,
            usage=usage(self._num_prompt, self._answer.num_tokens),
            statistics=with_lost_part(statistics, self._origins[: self._num_lost]) if self._num_lost else statistics,
            time_to_first_token_us=self._first_token_us,
            total_us=self._elapsed_us(),
            num_failovers=self._failover.num_failovers,
            exact=self._exact and self._failover.stays_exact,
        )
        return pb.GenerateResponse(finished=finished)

    def _delta(self, committed: verifier_pb2.DecodeCommitted, grown: Grown) -> pb.Delta:
        taken = slice(0, grown.num_taken)
        return pb.Delta(
            index=self._index,
            text=grown.text,
            token_ids=committed.token_ids[taken],
            origins=committed.origins[taken],
            logprobs=committed.logprobs[taken],
            fingerprint=self._changed_fingerprint(),
        )

    def _changed_fingerprint(self) -> str:
        """That of the present stream if the client does not know it yet; a client that resumes hands all of them back."""
        told, self._fingerprint = self._fingerprint, self._stream.started.fingerprint
        return "" if self._fingerprint == told else self._fingerprint

    def _elapsed_us(self) -> int:
        return max(1, round((time.monotonic() - self._arrived_s) * 1e6))


def usage(num_prompt: int, num_completion: int) -> pb.Usage:
    """Token counts with their sum."""
    return pb.Usage(prompt_tokens=num_prompt, completion_tokens=num_completion, total_tokens=num_prompt + num_completion)
