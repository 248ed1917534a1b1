"""Opening a request's streams: whatever interrupts it, and however often, nothing stays open.

pytest tests/unit/test_gateway_openings.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from fakes_verifier import fake_identity
from outrider.errors import Overloaded
from outrider.gateway import request_run
from outrider.gateway.checks import check_request
from outrider.gateway.decode_stream import DecodeStream
from outrider.gateway.failover import Metadata
from outrider.gateway.limits import GatewayLimits, ServedModel
from outrider.gateway.request_run import RequestRun
from outrider.gateway.resolved import resolve
from outrider.gateway.verifiers import Verifier
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import verifier_pb2


@dataclass
class Call:
    """Stands for a grpc call that is only ever cancelled."""

    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


async def nothing() -> AsyncIterator[verifier_pb2.DecodeResponse]:
    return
    yield


async def test_streams_that_opened_are_closed_though_the_clean_up_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    served, limits = ServedModel("target", fake_identity()), GatewayLimits()
    checked = check_request(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5]), n=3), served, limits)
    run = RequestRun(resolve(checked, "it", "token_ids", [5], served, limits), "gw", "target", 4, 0.0)
    verifier, call = Verifier("127.0.0.1:1"), Call()
    waiting, leaving = asyncio.Event(), asyncio.Event()

    async def open_one(at: Verifier, start: verifier_pb2.DecodeStart, timeout_s: float | None, metadata: Metadata) -> DecodeStream:
        """The first sample opens at once, the last is refused; the one between never opens, and takes its time to leave."""
        if start.noise.sample_index == 0:
            at.num_live += 1
            return DecodeStream(at, call, nothing(), verifier_pb2.DecodeStarted(), start)
        if start.noise.sample_index == 2:
            await waiting.wait()
            raise Overloaded("no room for the last")
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            leaving.set()
            await asyncio.Event().wait()
        raise AssertionError("never opened")

    monkeypatch.setattr(request_run, "open_stream", open_one)
    opening = asyncio.ensure_future(run._open_at(verifier, None, ()))
    await leaving.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert (verifier.num_live, call.cancelled) == (0, True)
    await verifier.channel.close(None)
