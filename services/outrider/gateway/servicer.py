"""GenerationService: the RPCs clients call, each a few lines over the parts that do the work.

Knows the order of a request: check, admit, tokenise, fit, decode. Must not know how any of these is done. No tokenisation of long
texts on the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable
from typing import TypeVar

from outrider.errors import DoesNotFit, OutriderError, Unavailable
from outrider.gateway.auditor import AuditLimits, Auditor
from outrider.gateway.checks import check_input, check_known, check_request
from outrider.gateway.client_stream import ClientStream
from outrider.gateway.failover import Metadata
from outrider.gateway.failover_counters import FailoverCounters
from outrider.gateway.idleness import Idleness
from outrider.gateway.limits import FailoverLimits, GatewayLimits, ServedModel
from outrider.gateway.live_requests import LiveRequests
from outrider.gateway.placing import PlacedRequest, Placing
from outrider.gateway.request_counters import RequestCounters
from outrider.gateway.request_run import RequestRun
from outrider.gateway.resolved import prompt_ids, resolve
from outrider.gateway.sample_run import Emit
from outrider.gateway.tokenizer import ModelTokenizer
from outrider.gateway.unread import UnreadAnswers
from outrider.gateway.verifiers import VerifierPool
from outrider.gateway.whole_answer import WholeAnswer
from outrider.rpc.context import Context, propagated_metadata, remaining_s
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import Label
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import identity_pb2, verifier_pb2
from outrider.v1.generation_pb2_grpc import GenerationServiceServicer

SERVICE_NAME = "outrider.v1.GenerationService"
# Below this many bytes a text is tokenised in place: a thread costs more than the work.
INLINE_TOKENISE_BYTES = 2048
DRAIN_RESERVE_S = 1.0
_T = TypeVar("_T")


class GenerationServicer(GenerationServiceServicer):
    """One gateway. pool must be connected; construct inside a running event loop. metrics: its counters, for whoever exports them."""

    def __init__(
        self,
        pool: VerifierPool,
        placing: Placing,
        tokenizer: ModelTokenizer,
        limits: GatewayLimits,
        model_name: str,
        max_message_bytes: int,
        failover: FailoverLimits | None = None,
        metrics: LocalMetrics | None = None,
        audit: AuditLimits | None = None,
    ) -> None:
        self._pool = pool
        self._placing = placing
        self._tokenizer = tokenizer
        self._limits = limits
        self._model_name = model_name
        self._max_message_bytes = max_message_bytes
        self._failover = failover or FailoverLimits()
        self.metrics = metrics or LocalMetrics()
        self._counters = FailoverCounters(self.metrics, model_name)
        self._requests = RequestCounters(self.metrics, model_name)
        audit = audit or AuditLimits()
        idleness = Idleness(audit.max_live)
        self._auditor = Auditor(audit, pool, idleness, self.metrics, model_name)
        self._live = LiveRequests(limits, idleness.observe)
        self._unread = UnreadAnswers(limits.max_unread_s)
        self._runs: set[RequestRun] = set()
        self._gateway_id = f"gw-{secrets.token_hex(4)}"
        self._serials = itertools.count()

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        """See generation.proto. Writes wait for the reader, and nothing reads ahead of the writes beyond the bounded queue."""
        stream = ClientStream(context)
        try:
            async with self._unread.watched(stream):
                await self._serve(request, context, stream.write)
        except OutriderError:
            await stream.settle()
            raise
        finally:
            stream.close()

    async def GenerateOnce(self, request: pb.GenerateOnceRequest, context: Context) -> pb.GenerateOnceResponse:
        """See generation.proto."""
        check_known(request, "request")
        answer = WholeAnswer(self._max_message_bytes)
        await self._serve(request.request, context, answer.add)
        return answer.message()

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """See generation.proto."""
        self._live.abort(request.request_id)
        return pb.AbortResponse()

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:
        """See generation.proto. The target and its pairs as the first verifier that answers tells them now."""
        info = await self._verifier_info()
        served = self._served()
        return pb.GetModelInfoResponse(
            target=info.identity,
            drafters=[pair.identity for pair in info.pairs if pair.connected],
            max_prompt_tokens=self._limits.prompt_tokens(served.max_context),
            max_completion_tokens=self._limits.completion_tokens(served.max_context),
            max_live_requests=self._limits.max_live_requests,
            has_chat_template=self._tokenizer.chat_template is not None,
            live=self.live_counts(),
        )

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """See generation.proto."""
        check_input(request, self._limits)

        def tokenise() -> pb.TokenizeResponse:
            ids = prompt_ids(request, self._tokenizer)
            response = pb.TokenizeResponse(token_ids=ids, token_bytes=[self._tokenizer.token_bytes(token_id) for token_id in ids])
            if response.ByteSize() > self._max_message_bytes:
                problem = f"has {len(ids)} tokens, which are more than one message of {self._max_message_bytes} bytes can tell"
                raise DoesNotFit(str(request.WhichOneof("input")), problem)
            return response

        return await self._tokenised(request.ByteSize(), tokenise)

    def refresh_metrics(self) -> None:
        """Set what `metrics` holds of the present moment; from any thread."""
        service = {Label.SERVICE: "gateway"}
        self.metrics.set(names.LIVE_SESSIONS, service, len(self._live))
        self.metrics.set(names.LIVE_STREAMS, service, self._pool.num_live)
        self.metrics.set(names.IDENTITY_AUDITS_WAITING, service, self._auditor.num_waiting)

    def live_counts(self) -> identity_pb2.LiveCounts:
        """What the gateway holds now: requests, verifier streams, messages waiting for readers."""
        queued = sum(run.num_queued for run in self._runs)
        return identity_pb2.LiveCounts(sessions=len(self._live), streams=self._pool.num_live, queued=queued)

    async def wait_idle(self) -> None:
        """Return once no request is live."""
        await self._live.wait_empty()

    async def drain(self, grace_s: float) -> None:
        """Let live requests finish; those that do not within the grace, or before the drain is cut short, end with UNAVAILABLE. Nothing is
        audited any more."""
        leaving = Unavailable("the gateway is shutting down; the same seed continues elsewhere with the same tokens")
        try:
            await self._auditor.stop()
            async with asyncio.timeout(max(0.0, grace_s - DRAIN_RESERVE_S)):
                await self._live.wait_empty()
        except TimeoutError:
            self._live.end_all(leaving)
            await self._live.wait_empty()
        except asyncio.CancelledError:
            self._live.end_all(leaving)
            raise

    async def _serve(self, message: pb.GenerateRequest, context: Context, emit: Emit) -> None:
        arrived_s = time.monotonic()
        with self._requests.ending(arrived_s, remaining_s(context)):
            await self._answer(message, arrived_s, context, emit)

    async def _answer(self, message: pb.GenerateRequest, arrived_s: float, context: Context, emit: Emit) -> None:
        served = self._served()
        checked = check_request(message, served, self._limits)
        async with self._live.admit(message.request_id, checked.num_samples, takes_over=checked.takes_over) as request_id:
            most = self._limits.prompt_tokens(served.max_context)
            ids = await self._tokenised(message.ByteSize(), lambda: prompt_ids(message, self._tokenizer, most))
            resolved = resolve(checked, request_id, str(message.WhichOneof("input")), ids, served, self._limits)
            metadata = propagated_metadata(context)
            sent = self._auditor.begin(request_id)
            async with self._placing.placed(resolved, metadata) as placed:

                async def counted(*responses: pb.GenerateResponse) -> None:
                    for response in responses:
                        placed.count(response)
                        if sent is not None:
                            sent.add(response)
                    await emit(*responses)

                try:
                    await self._run(placed, arrived_s, remaining_s(context), metadata, counted)
                finally:  # those that were too slow for their clients are the ones to be seen
                    if placed.num_tokens:
                        self._requests.answered(placed.first_s - arrived_s, placed.token_us / 1e6)
                if sent is not None:
                    self._auditor.offer(placed.request, sent)

    async def _run(self, placed: PlacedRequest, arrived_s: float, timeout_s: float | None, metadata: Metadata, emit: Emit) -> None:
        # An id may be used again while a verifier still frees the cancelled session of the request before it.
        session_prefix = f"{self._gateway_id}-{next(self._serials)}"
        max_queued = self._limits.max_queued_events
        run = RequestRun(
            placed.request, session_prefix, self._model_name, max_queued, arrived_s, self._failover, self._counters, placed.elsewhere
        )
        self._runs.add(run)
        try:
            await run.run(self._pool, self._tokenizer, timeout_s, metadata, emit)
        finally:
            self._runs.discard(run)

    def _served(self) -> ServedModel:
        return ServedModel(self._model_name, self._pool.identity, self._pool.contexts)

    async def _verifier_info(self) -> verifier_pb2.VerifierServiceGetInfoResponse:
        refusal: OutriderError = Unavailable("no verifier answers; retry later")
        for verifier in await self._pool.candidates():
            try:
                return await verifier.get_info()
            except Unavailable as error:  # one that has just gone: another is as good
                self._pool.report_failure(verifier, error)
                refusal = error
        raise refusal

    async def _tokenised(self, num_bytes: int, work: Callable[[], _T]) -> _T:
        return work() if num_bytes <= INLINE_TOKENISE_BYTES else await asyncio.to_thread(work)
