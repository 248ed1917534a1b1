"""One request: its samples' streams opened together, their messages merged into one answer for one reader.

Knows the order of an answer (Started, Deltas and Finished of the samples, Done) and that a full queue holds every sample back. Must
not know gRPC handlers. Whatever ends it (the end, an error, a cancellation), every verifier stream is closed before it returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outrider.errors import OutriderError, Overloaded, Unavailable
from outrider.gateway.answer import Answer
from outrider.gateway.decode_stream import DecodeStream, open_stream
from outrider.gateway.resolved import ResolvedRequest
from outrider.gateway.sample_run import Emit, SampleRun, begin_answer, decode_start, usage
from outrider.gateway.tokenizer import ModelTokenizer
from outrider.gateway.verifiers import Verifier, VerifierPool
from outrider.types.identity import ModelIdentity
from outrider.v1 import generation_pb2 as pb

Metadata = tuple[tuple[str, str], ...]
_Item = pb.GenerateResponse | Exception


class RequestRun:
    """Use once: construct, then `run`."""

    def __init__(self, request: ResolvedRequest, session_prefix: str, model_name: str, max_queued_events: int, arrived_s: float) -> None:
        self._request = request
        self._session_prefix = session_prefix
        self._model_name = model_name
        self._arrived_s = arrived_s
        self._queue: asyncio.Queue[_Item] = asyncio.Queue(max_queued_events)

    @property
    def num_queued(self) -> int:
        """Messages that wait for the reader."""
        return self._queue.qsize()

    async def run(self, pool: VerifierPool, tokenizer: ModelTokenizer, timeout_s: float | None, metadata: Metadata, emit: Emit) -> None:
        """Decode and emit the whole answer; raises InvalidRequest before any work, or what the verifier raised."""
        num_samples = self._request.checked.num_samples
        answers = [begin_answer(self._request, tokenizer.decoder(self._request.prompt_ids)) for _ in range(num_samples)]
        streams, identity = await self._open(pool, timeout_s, metadata)
        try:
            await emit(pb.GenerateResponse(started=self._started(identity)))
            await self._merge(streams, answers, emit)
        except OutriderError as error:
            pool.report_failure(streams[0].verifier, error)
            raise
        finally:
            for stream in streams:
                stream.close()
        num_completion = sum(answer.num_tokens for answer in answers)
        await emit(pb.GenerateResponse(done=pb.Done(usage=usage(len(self._request.prompt_ids), num_completion))))

    async def _open(self, pool: VerifierPool, timeout_s: float | None, metadata: Metadata) -> tuple[list[DecodeStream], ModelIdentity]:
        """All samples at the first verifier that has room, and who it is; raises what the last one said."""
        refusal: OutriderError = Unavailable("no verifier answers; retry later")
        candidates = await pool.candidates(self._request.route.verifiers)
        identity = pool.identity  # its fingerprint is that of all candidates
        for verifier in candidates:
            try:
                streams = await self._open_at(verifier, timeout_s, metadata)
                _check_fingerprint(streams, identity)
                return streams, identity
            except (Unavailable, Overloaded) as error:
                pool.report_failure(verifier, error)
                refusal = error
        raise refusal

    async def _open_at(self, verifier: Verifier, timeout_s: float | None, metadata: Metadata) -> list[DecodeStream]:
        starts = [
            decode_start(self._request, f"{self._session_prefix}/{self._request.request_id}/{index}", index)
            for index in range(self._request.checked.num_samples)
        ]
        opening = [asyncio.ensure_future(open_stream(verifier, start, timeout_s, metadata)) for start in starts]
        try:
            return list(await asyncio.gather(*opening))
        except BaseException:
            for task in opening:
                task.cancel()
                task.add_done_callback(_close_opened)  # not after the gather: that may be cancelled in its turn
            await asyncio.gather(*opening, return_exceptions=True)
            raise

    async def _merge(self, streams: Sequence[DecodeStream], answers: Sequence[Answer], emit: Emit) -> None:
        samples = [
            SampleRun(index, self._request, stream, answer, self._arrived_s)
            for index, (stream, answer) in enumerate(zip(streams, answers, strict=True))
        ]
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
        try:
            await sample.run(self._queue.put)
        except Exception as error:  # noqa: BLE001 -- handed to the reader's side, which raises it
            await self._queue.put(error)

    def _started(self, identity: ModelIdentity) -> pb.Started:
        return pb.Started(
            request_id=self._request.request_id,
            model=self._model_name,
            seed=self._request.seed,
            num_prompt_tokens=len(self._request.prompt_ids),
            fingerprint=identity.fingerprint,
            exact=self._request.exact(identity.numerics),
        )


def _check_fingerprint(streams: Sequence[DecodeStream], identity: ModelIdentity) -> None:
    """Raises Unavailable, with the streams closed, when another engine answers at the verifier's address than when it was last asked."""
    if all(stream.started.fingerprint == identity.fingerprint for stream in streams):
        return
    for stream in streams:
        stream.close()
    raise Unavailable(f"verifier {streams[0].verifier.address} has changed since it was last asked; it will be asked anew who it is")


def _close_opened(opening: asyncio.Future[DecodeStream]) -> None:
    """Close the stream of a finished opening, if it came to one."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
