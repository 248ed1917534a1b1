"""A blocking connection to a gateway, verifier or drafter, and one answer collected from its stream with the times it arrived.

Knows the client API's messages. Must not know terminals. Times are seconds of time.perf_counter() since the request was sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import cast

import grpc
from grpc.experimental import ChannelOptions
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.errors import OutriderError, Unavailable
from outrider.rpc.address import check_address
from outrider.rpc.channel import MAX_MESSAGE_BYTES
from outrider.rpc.convert.bundle import TAKES_BUNDLES, unbundled
from outrider.rpc.status import error_from_rpc
from outrider.v1 import drafter_pb2, drafter_pb2_grpc, generation_pb2, generation_pb2_grpc, verifier_pb2, verifier_pb2_grpc

SHORT_CALL_S = 10.0
ANSWER_DEADLINE_S = 600.0
EventHandler = Callable[[generation_pb2.GenerateResponse], None]


@dataclass(slots=True)
class CollectedSample:
    """One sample as it came: arrivals are (seconds, tokens in that delta)."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    finished: generation_pb2.Finished = field(default_factory=generation_pb2.Finished)


@dataclass(slots=True)
class CollectedAnswer:
    """A whole answer: samples by index, and when its stream ended."""

    started: generation_pb2.Started = field(default_factory=generation_pb2.Started)
    samples: dict[int, CollectedSample] = field(default_factory=dict)
    total_s: float = 0.0

    @property
    def first(self) -> CollectedSample:
        """The only sample of an n = 1 request."""
        return self.samples[0]

    @property
    def first_token_s(self) -> float:
        """When the first token of any sample arrived; the end when none did."""
        return min((sample.arrivals[0][0] for sample in self.samples.values() if sample.arrivals), default=self.total_s)

    @property
    def num_tokens(self) -> int:
        """Tokens of all samples."""
        return sum(len(sample.token_ids) for sample in self.samples.values())

    def add(self, response: generation_pb2.GenerateResponse, now_s: float) -> None:
        """Take in one message of the stream."""
        event = response.WhichOneof("event")
        if event == "started":
            self.started = response.started
        elif event == "delta":
            delta = response.delta
            sample = self.samples.setdefault(delta.index, CollectedSample())
            sample.text += delta.text
            sample.token_ids.extend(delta.token_ids)
            sample.origins.extend(delta.origins)
            if delta.token_ids:
                sample.arrivals.append((now_s, len(delta.token_ids)))
        elif event == "finished":
            self.samples.setdefault(response.finished.index, CollectedSample()).finished = response.finished
        self.total_s = now_s


class Connection:
    """A channel to one service. Use as a context manager; errors of calls are OutriderErrors."""

    def __init__(self, address: str) -> None:
        check_address("address", address)
        self.address = address
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            (ChannelOptions.SingleThreadedUnaryStream, 1),  # whoever reads an answer waits for it itself, and no thread is begun for it
        ]
        self._channel = grpc.insecure_channel(address, options=options)
        self._generation = generation_pb2_grpc.GenerationServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def ask(
        self,
        request: generation_pb2.GenerateRequest,
        on_event: EventHandler | None = None,
        timeout_s: float = ANSWER_DEADLINE_S,
    ) -> CollectedAnswer:
        """Stream one answer to its end, handing each message to on_event as it arrives."""
        answer = CollectedAnswer()
        with _errors(self.address):
            begun_s = time.perf_counter()
            for bundle in self._generation.Generate(request, timeout=timeout_s, metadata=TAKES_BUNDLES):
                now_s = time.perf_counter() - begun_s
                for response in unbundled(bundle):
                    answer.add(response, now_s)
                    if on_event is not None:
                        on_event(response)
        return answer

    def stream(self, request: generation_pb2.GenerateRequest, timeout_s: float = ANSWER_DEADLINE_S) -> AnswerStream:
        """The raw stream, for callers that cancel in the middle."""
        return AnswerStream(self._generation.Generate(request, timeout=timeout_s, metadata=TAKES_BUNDLES), self.address)

    def abort(self, request_id: str) -> None:
        """End a live request by id; raises UnknownSession when there is none."""
        with _errors(self.address):
            self._generation.Abort(generation_pb2.AbortRequest(request_id=request_id), timeout=SHORT_CALL_S)

    def tokenize(self, *, text: str | None = None, chat: generation_pb2.ChatMessages | None = None) -> tuple[int, ...]:
        """Token ids of a text, or of chat messages through the model's template."""
        with _errors(self.address):
            request = generation_pb2.TokenizeRequest(text=text) if chat is None else generation_pb2.TokenizeRequest(chat=chat)
            return tuple(self._generation.Tokenize(request, timeout=SHORT_CALL_S).token_ids)

    def model_info(self) -> generation_pb2.GetModelInfoResponse:
        """What a gateway serves."""
        with _errors(self.address):
            info: generation_pb2.GetModelInfoResponse
            info = self._generation.GetModelInfo(generation_pb2.GetModelInfoRequest(), timeout=SHORT_CALL_S)
            return info

    def verifier_info(self) -> verifier_pb2.VerifierServiceGetInfoResponse:
        """Who the verifier at this address is and what it holds."""
        stub = verifier_pb2_grpc.VerifierServiceStub(self._channel)  # type: ignore[no-untyped-call]
        with _errors(self.address):
            info: verifier_pb2.VerifierServiceGetInfoResponse
            info = stub.GetInfo(verifier_pb2.VerifierServiceGetInfoRequest(), timeout=SHORT_CALL_S)
            return info

    def drafter_info(self) -> drafter_pb2.DrafterServiceGetInfoResponse:
        """Who the drafter at this address is and what it holds."""
        stub = drafter_pb2_grpc.DrafterServiceStub(self._channel)  # type: ignore[no-untyped-call]
        with _errors(self.address):
            info: drafter_pb2.DrafterServiceGetInfoResponse
            info = stub.GetInfo(drafter_pb2.DrafterServiceGetInfoRequest(), timeout=SHORT_CALL_S)
            return info

    def is_serving(self) -> bool:
        """The standard health service's answer for the whole process."""
        stub = health_pb2_grpc.HealthStub(self._channel)
        with _errors(self.address):
            response = stub.Check(health_pb2.HealthCheckRequest(), timeout=SHORT_CALL_S)
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Close the channel; live streams of it are cancelled."""
        self._channel.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class AnswerStream:
    """A live stream of one answer."""

    def __init__(self, call: grpc.CallIterator[generation_pb2.GenerateResponse], address: str) -> None:
        self._call = call
        self._address = address

    def __iter__(self) -> Iterator[generation_pb2.GenerateResponse]:
        with _errors(self._address):
            for bundle in self._call:
                yield from unbundled(bundle)

    def cancel(self) -> None:
        """Leave: the service frees everything of the request."""
        self._call.cancel()  # type: ignore[no-untyped-call]


@contextmanager
def _errors(address: str) -> Iterator[None]:
    """Statuses of the blocking API as our errors; a peer that is not there says how to start one."""
    try:
        yield
    except grpc.RpcError as failure:
        error: OutriderError = error_from_rpc(cast(grpc.aio.AioRpcError, failure))
        if isinstance(error, Unavailable):
            error = Unavailable(
                f"{address} is not reachable ({error}); start a deployment with `outrider up`, or name its address with --gateway"
            )
        raise error from None
