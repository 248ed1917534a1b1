"""One request: its samples' streams opened together, their messages merged into one answer for one reader.

Knows the order of an answer (Started, Deltas and Finished of the samples, Done) and that a full queue holds every sample back. A sample
that loses its verifier later finds the next one by itself. Must not know gRPC handlers. Whatever ends it (the end, an error, a
cancellation), every verifier stream is closed before it returns.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence

from outrider.errors import DoesNotFit, OutriderError, Overloaded, Unavailable
from outrider.gateway.answer import Answer, Grown
from outrider.gateway.decode_stream import DecodeStream, check_fingerprint, open_stream
from outrider.gateway.failover import Failover, Metadata, Openings
from outrider.gateway.failover_counters import FailoverCounters
from outrider.gateway.limits import FailoverLimits
from outrider.gateway.resolved import ResolvedRequest
from outrider.gateway.route import Elsewhere, anywhere
from outrider.gateway.sample_run import FINISH_REASONS, FIRST_INCARNATION, Emit, SampleRun, begin_answer, decode_start, usage
from outrider.gateway.tokenizer import ModelTokenizer
from outrider.gateway.verifiers import Verifier, VerifierPool
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.types.identity import ModelIdentity
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import verifier_pb2

_Item = pb.GenerateResponse | Exception


class RequestRun:
    """Use once: construct, then `run`. counters: None counts failovers for nobody. elsewhere: where samples go on that leave a verifier."""

    def __init__(
        self,
        request: ResolvedRequest,
        session_prefix: str,
        model_name: str,
        max_queued_events: int,
        arrived_s: float,
        failover: FailoverLimits | None = None,
        counters: FailoverCounters | None = None,
        elsewhere: Elsewhere = anywhere,
    ) -> None:
        self._request = request
        self._model_name = model_name
        self._arrived_s = arrived_s
        self._failover = failover or FailoverLimits()
        self._counters = counters or FailoverCounters(LocalMetrics(), model_name)
        self._elsewhere = elsewhere
        self._num_openings = 0
        self._starts = [
            decode_start(request, f"{session_prefix}/{request.request_id}/{index}", index) for index in range(request.checked.num_samples)
        ]
        self._queue: asyncio.Queue[_Item] = asyncio.Queue(max_queued_events)

    @property
    def num_queued(self) -> int:
        """Messages that wait for the reader."""
        return self._queue.qsize()

    async def run(self, pool: VerifierPool, tokenizer: ModelTokenizer, timeout_s: float | None, metadata: Metadata, emit: Emit) -> None:
        """Decode and emit the whole answer; raises InvalidRequest before any work, or what the verifier raised."""
        num_samples = self._request.checked.num_samples
        begun = [begin_answer(self._request, tokenizer.decoder(self._request.prompt_ids)) for _ in range(num_samples)]
        if begun[0][1].end is not None:
            await self._emit_resumed_end(*begun[0], pool.identity, emit)
            return
        answers = [answer for answer, _ in begun]
        deadline_s = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        openings = Openings(pool, deadline_s, metadata, self._elsewhere)
        streams, identity = await self._open(openings)
        exact = self._request.exact(identity)
        samples = [
            SampleRun(index, self._request, stream, answer, self._arrived_s, self._failover_of(index, openings, identity), exact=exact)
            for index, (stream, answer) in enumerate(zip(streams, answers, strict=True))
        ]
        try:
            await emit(pb.GenerateResponse(started=self._started(identity)))
            if num_samples == 1:
                await samples[0].run(emit)  # nothing to merge: what the reader does not take is not read either
            else:
                await self._merge(samples, emit)
        finally:
            for sample in samples:
                sample.close()
        num_completion = sum(answer.num_tokens for answer in answers)
        await emit(pb.GenerateResponse(done=pb.Done(usage=usage(len(self._request.prompt_ids), num_completion))))

    def _failover_of(self, index: int, openings: Openings, identity: ModelIdentity) -> Failover:
        return Failover(openings, self._starts[index], identity.fingerprint, self._failover, self._counters)

    async def _open(self, openings: Openings) -> tuple[list[DecodeStream], ModelIdentity]:
        """All samples at one verifier, and who it is. While none answers, one that is being restarted is waited for; who is full is not."""
        clock = asyncio.get_running_loop().time
        begin_by_s = clock() + self._failover.begin_timeout_s
        for backoff_s in self._failover.backoffs_s():
            try:
                return await self._open_at_first(openings)
            except Unavailable:
                if clock() + backoff_s > min(begin_by_s, math.inf if openings.deadline_s is None else openings.deadline_s):
                    raise
            await asyncio.sleep(backoff_s)
        raise AssertionError("backoffs have no end")

    async def _open_at_first(self, openings: Openings) -> tuple[list[DecodeStream], ModelIdentity]:
        """All samples at the first verifier that has room: others may hold longer answers, or more. Raises what the last one said, with the
        soonest time to come again of all."""
        soonest_s = math.inf
        refusal: OutriderError | None = None
        pool = openings.pool
        for verifier, identity in await self._candidates(pool):
            try:
                streams = await self._open_at(verifier, openings.remaining_s, openings.metadata)
                check_fingerprint(streams, identity.fingerprint)
                return streams, identity
            except (Unavailable, Overloaded, DoesNotFit) as error:
                pool.report_failure(verifier, error)
                if refusal is None or not isinstance(error, DoesNotFit):  # it may fit at who is full or gone, later
                    refusal = error
                if isinstance(error, Overloaded):
                    soonest_s = min(soonest_s, math.inf if error.retry_after_s is None else error.retry_after_s)
        if refusal is None:
            raise Unavailable("no verifier answers; retry later")
        if isinstance(refusal, Overloaded) and soonest_s < math.inf:
            refusal.retry_after_s = soonest_s
        raise refusal

    async def _candidates(self, pool: VerifierPool) -> list[tuple[Verifier, ModelIdentity]]:
        """In the order in which they are asked, and who each is. Who has the numerics of a resumed beginning comes first, reserve or no:
        only there is the answer one sequence."""
        candidates = await pool.candidates(self._request.route.verifiers)
        served = [(verifier, pool.identity) for verifier in candidates]  # its fingerprint is that of all candidates
        beginning = self._request.beginning_fingerprint
        if beginning in ("", pool.identity.fingerprint):
            return served
        return [(one, one.identity) for one in pool.of_fingerprint(beginning) if one.identity] + served

    async def _open_at(self, verifier: Verifier, timeout_s: float | None, metadata: Metadata) -> list[DecodeStream]:
        """Each time under an incarnation of its own: who was asked before and was not heard of may still hold the one before."""
        self._num_openings += 1
        starts = [self._start_at(verifier, start) for start in self._starts]
        if len(starts) == 1:
            return [await open_stream(verifier, starts[0], timeout_s, metadata)]
        opening = [asyncio.ensure_future(open_stream(verifier, start, timeout_s, metadata)) for start in starts]
        try:
            return list(await asyncio.gather(*opening))
        except BaseException:
            for task in opening:
                task.cancel()
                task.add_done_callback(_close_opened)  # not after the gather: that may be cancelled in its turn
            await asyncio.gather(*opening, return_exceptions=True)
            raise

    def _start_at(self, verifier: Verifier, start: verifier_pb2.DecodeStart) -> verifier_pb2.DecodeStart:
        """A copy, for what was sent before may still be on its way: with the drafters of this verifier, where nobody placed the request."""
        start.incarnation = FIRST_INCARNATION + self._num_openings - 1
        own = verifier_pb2.DecodeStart()
        own.CopyFrom(start)
        if not self._request.route.is_placed:
            own.drafters.extend(self._request.route.drafters_at(verifier.address))
        return own

    async def _merge(self, samples: Sequence[SampleRun], emit: Emit) -> None:
        tasks = [asyncio.ensure_future(self._pump(sample)) for sample in samples]
        num_unfinished = len(samples)
        try:
            while num_unfinished:
                item = await self._queue.get()
                if isinstance(item, Exception):
                    raise item
                await emit(item)
                num_unfinished -= item.HasField("finished")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, sample: SampleRun) -> None:
        """A sample's failure becomes the request's, in the order of its messages."""

        async def put(*responses: pb.GenerateResponse) -> None:
            for response in responses:
                await self._queue.put(response)

        try:
            await sample.run(put)
        except Exception as error:  # noqa: BLE001 -- handed to the reader's side, which raises it
            await self._queue.put(error)

    async def _emit_resumed_end(self, answer: Answer, grown: Grown, identity: ModelIdentity, emit: Emit) -> None:
        """What is left of an answer whose tokens the client has all: that, and why, it ended. Nothing is asked of a verifier."""
        assert grown.end is not None
        total = usage(len(self._request.prompt_ids), answer.num_tokens)
        finished = pb.Finished(
            finish_reason=FINISH_REASONS[grown.end],
            stop_string=grown.stop_string,
            usage=total,
            total_us=max(1, round((time.monotonic() - self._arrived_s) * 1e6)),
            exact=self._request.exact(identity),
        )
        await emit(pb.GenerateResponse(started=self._started(identity)))
        await emit(pb.GenerateResponse(finished=finished))
        await emit(pb.GenerateResponse(done=pb.Done(usage=total)))

    def _started(self, identity: ModelIdentity) -> pb.Started:
        return pb.Started(
            request_id=self._request.request_id,
            model=self._model_name,
            seed=self._request.seed,
            num_prompt_tokens=len(self._request.prompt_ids),
            fingerprint=identity.fingerprint,
            exact=self._request.exact(identity),
        )


def _close_opened(opening: asyncio.Future[DecodeStream]) -> None:
    """Close the stream of a finished opening, if it came to one."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
