"""A client's stream whose reader takes messages when it is told to."""

from __future__ import annotations

import asyncio
from typing import cast

from outrider.gateway.client_stream import ClientStream
from outrider.rpc.context import Context
from outrider.rpc.convert.bundle import TAKES_BUNDLES, unbundled
from outrider.rpc.handled_call import Metadata
from outrider.v1 import generation_pb2 as pb

BOUND_S = 30.0  # against hanging


class Reader:
    """grpc's context. A write waits while `takes` is not set. error: what the next write raises."""

    def __init__(self, metadata: Metadata = TAKES_BUNDLES) -> None:
        self.metadata = metadata
        self.takes = asyncio.Event()
        self.takes.set()
        self.got = asyncio.Event()  # a message
        self.messages: list[pb.GenerateResponse] = []
        self.error: Exception | None = None
        self.num_read = 0  # as a trunk's caller tells

    def invocation_metadata(self) -> Metadata:
        return self.metadata

    async def write(self, message: pb.GenerateResponse) -> None:
        await asyncio.get_running_loop().create_task(self.takes.wait())
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.messages.append(message)
        self.got.set()

    @property
    def kinds(self) -> list[list[str]]:
        """Of each message, what came in it."""
        return [[str(each.WhichOneof("event")) for each in unbundled(message)] for message in self.messages]


STARTED, FINISHED, DONE = "started", "finished", "done"


def message(kind: str) -> pb.GenerateResponse:
    """Of a kind, or a delta with this text."""
    fields = {STARTED: {STARTED: pb.Started()}, FINISHED: {FINISHED: pb.Finished()}, DONE: {DONE: pb.Done()}}
    return pb.GenerateResponse(**fields.get(kind, {"delta": pb.Delta(text=kind)}))  # type: ignore[arg-type]


def messages(*kinds: str) -> list[pb.GenerateResponse]:
    """One of each kind."""
    return [message(kind) for kind in kinds]


def stream_to(reader: Reader) -> ClientStream:
    """As a gateway has it."""
    return ClientStream(cast(Context, reader))
