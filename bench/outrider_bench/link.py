"""How long a message takes from a verifier to a drafter's thread and back: a micro-benchmark over the drafter's own stream, or its lane.

Sessions whose text the replaying drafter does not know are opened, answered at once (it has nothing to guess) and closed: what is timed is
encoding, transport, the network's delay where there is one, and the threads in between. Must not know what is made of it.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass

import grpc
import numpy as np

from outrider.errors import Unavailable
from outrider.rpc.channel import MAX_MESSAGE_BYTES
from outrider.rpc.convert.drafter_frames import drafter_frames
from outrider.rpc.convert.identity import identity_from_proto
from outrider.rpc.convert.link import FromDrafter, Hello, ToDrafter, Welcome
from outrider.rpc.convert.verifier_frames import draft_request
from outrider.rpc.doorbell import Doorbell
from outrider.rpc.lane import Lane, open_lane
from outrider.types.frames import Close, CloseReason, DraftLimits, Open, Refused, Tail
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.v1 import drafter_pb2, identity_pb2
from outrider.v1.drafter_pb2_grpc import DrafterServiceStub

NUM_TRIPS = 8
DEADLINE_S = 60.0
_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]


@dataclass(frozen=True, slots=True)
class DrafterLine:
    """A verifier's place at a drafter. send: a frame. received: the drafter's, as they come."""

    send: Callable[[ToDrafter], None]
    received: Iterator[FromDrafter]

    def tails(self, handle: int) -> Iterator[Tail]:
        """Those of one session. Raises Unavailable when the drafter ends it or the line."""
        for frame in self.received:
            if isinstance(frame, Refused | Close) and frame.session == handle:
                raise Unavailable(f"the drafter ended a session: {frame}")
            if isinstance(frame, Tail) and frame.session == handle:
                yield frame
        raise Unavailable("the drafter ended the stream")


@contextmanager
def drafter_line(drafter: str, verifier: identity_pb2.ModelIdentity) -> Iterator[DrafterLine]:
    """drafter: its address. verifier: who its target says it is, as the handshake wants to know. The drafter's own stream, or its lane.

    Raises grpc.RpcError, and Unavailable for a lane that breaks or stays silent.
    """
    requests: queue.Queue[drafter_pb2.DraftRequest | None] = queue.Queue()
    with grpc.insecure_channel(drafter, options=_OPTIONS) as channel:
        stub = DrafterServiceStub(channel)  # type: ignore[no-untyped-call]
        responses = _frames(stub.Draft(iter(requests.get, None), timeout=DEADLINE_S))
        requests.put(draft_request([Hello(identity_from_proto(verifier), "bench")]))
        welcome = next(responses)
        assert isinstance(welcome, Welcome)
        lane = asyncio.run(open_lane(drafter, welcome.lane_token, MAX_MESSAGE_BYTES))
        try:
            yield DrafterLine(_lane_send(lane), _lane_frames(lane)) if lane else DrafterLine(_stream_send(requests), responses)
        finally:
            requests.put(None)
            if lane:
                lane.close()
        with suppress(grpc.RpcError) if lane else nullcontext():  # a stream whose lane is closed ends as broken
            for _ in responses:  # until the drafter has ended the stream too
                continue


def round_trips_us(drafter: str, verifier: identity_pb2.ModelIdentity, num_trips: int = NUM_TRIPS, credit: int = 1) -> list[float]:
    """credit: guesses that a session has leave for; with 0 a draft model answers at once, too. Raises what drafter_line raises."""
    trips_us = []
    with drafter_line(drafter, verifier) as line:
        for handle in range(1, num_trips + 1):
            begun_s = time.perf_counter()
            line.send(_unknown(handle, credit))
            next(line.tails(handle))
            trips_us.append(1e6 * (time.perf_counter() - begun_s))
            line.send(Close(handle, 1, CloseReason.FINISHED, ""))
    return trips_us


def _stream_send(requests: queue.Queue[drafter_pb2.DraftRequest | None]) -> Callable[[ToDrafter], None]:
    return lambda frame: requests.put(draft_request([frame]))


def _lane_send(lane: Lane) -> Callable[[ToDrafter], None]:
    return lambda frame: lane.send(draft_request([frame]).SerializeToString())


def _lane_frames(lane: Lane) -> Iterator[FromDrafter]:
    doorbell = Doorbell()
    while True:
        doorbell.wait(DEADLINE_S, [lane])
        messages = lane.receive()
        if not messages:
            raise Unavailable(f"nothing whole came over the lane within {DEADLINE_S:g} s")
        for message in messages:
            yield from drafter_frames(drafter_pb2.DraftResponse.FromString(message))


def _frames(responses: Iterator[drafter_pb2.DraftResponse]) -> Iterator[FromDrafter]:
    for response in responses:
        yield from drafter_frames(response)


def _unknown(handle: int, credit: int) -> Open:
    """A text of one token twice, which begins no prompt."""
    prefix = np.zeros(2, np.int32)
    until = len(prefix) + credit
    return Open(handle, 1, "bench", prefix, len(prefix), len(prefix), SamplingParams(), NoiseAddress(0), DraftLimits(16), until)
