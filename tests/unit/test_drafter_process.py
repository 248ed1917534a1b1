"""`python -m drafter_service` as an operator runs it: ready line, a draft by a real (tiny) model, drain on SIGTERM, refusals at start."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

from fakes_models import make_model
from outrider.launch.process import ServiceCommand, ServiceProcess, StartFailed
from outrider.rpc.channel import open_channel
from outrider.rpc.convert.drafter_frames import drafter_frames
from outrider.rpc.convert.identity import identity_from_proto
from outrider.rpc.convert.link import FromDrafter, Hello, ToDrafter, Welcome
from outrider.rpc.convert.verifier_frames import draft_request
from outrider.types.frames import Close, CloseReason, DraftLimits, Open, Tail, TailEnd
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.v1 import drafter_pb2
from outrider.v1.drafter_pb2_grpc import DrafterServiceStub

START_S = 90.0
WITHIN_S = 30.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft-model")
    make_model("llama", folder)
    return folder


def command(model: Path, folder: Path, *extra: str) -> ServiceCommand:
    listen = f"unix:{folder}/drafter.sock"
    return ServiceCommand("drafter", ("-m", "drafter_service", "--model", str(model), "--listen", listen, "--threads", "1", *extra))


def started(model: Path, folder: Path, *extra: str) -> ServiceProcess:
    process = ServiceProcess(command(model, folder, *extra), folder / "drafter.log")
    ready = process.wait_ready(time.monotonic() + START_S)
    assert ready["address"] == f"unix:{folder}/drafter.sock"
    return process


class Peer:
    """A verifier's end of one stream."""

    def __init__(self, stub: DrafterServiceStub) -> None:
        self.call = stub.Draft()
        self.waiting: list[FromDrafter] = []

    async def send(self, *frames: ToDrafter) -> None:
        await self.call.write(draft_request(frames))

    async def next(self) -> FromDrafter:
        async with asyncio.timeout(WITHIN_S):
            while not self.waiting:
                message = await self.call.read()
                assert isinstance(message, drafter_pb2.DraftResponse), "the stream ended"
                self.waiting = drafter_frames(message)
        return self.waiting.pop(0)

    async def burst(self) -> list[int]:
        tokens: list[int] = []
        while True:
            frame = await self.next()
            assert not isinstance(frame, Close), frame
            if isinstance(frame, Tail):
                tokens += frame.tokens.tolist()
                if frame.end is not TailEnd.MORE:
                    return tokens


async def meet(address: str) -> None:
    """Draft with a live drafter, let it drain under us, and see every session closed."""
    async with open_channel(address) as channel:
        stub = DrafterServiceStub(channel)  # type: ignore[no-untyped-call]
        info = await stub.GetInfo(drafter_pb2.DrafterServiceGetInfoRequest())
        assert info.num_threads == 1
        assert list(info.sources) == ["model"]
        peer = Peer(stub)
        await peer.send(Hello(identity_from_proto(info.identity), "tests"))
        assert isinstance(await peer.next(), Welcome)
        prefix = np.arange(1, 40, dtype=np.int32)
        limits = DraftLimits(100)
        for session, sampling in enumerate((SamplingParams(temperature=0.0), SamplingParams(temperature=0.8))):
            await peer.send(Open(session, 1, "r", prefix, 39, 39, sampling, NoiseAddress(7), limits, 47))
            assert len(await peer.burst()) == 8
        info = await stub.GetInfo(drafter_pb2.DrafterServiceGetInfoRequest())
        assert (info.live.sessions, info.live.streams) == (2, 1)
        await peer.send(Close(0, 1, CloseReason.FINISHED), Close(1, 1, CloseReason.FINISHED))
        async with asyncio.timeout(WITHIN_S):
            while info.live.sessions or info.live.kv_blocks_used:
                info = await stub.GetInfo(drafter_pb2.DrafterServiceGetInfoRequest())


def test_it_says_where_it_listens_drafts_and_drains(model: Path, tmp_path: Path) -> None:
    process = started(model, tmp_path)
    try:
        asyncio.run(meet(f"unix:{tmp_path}/drafter.sock"))
    finally:
        code = process.stop(WITHIN_S)
    assert code == 0, process.log_tail()


@pytest.mark.slow
def test_lanes_that_cannot_be_bound_are_refused_by_name_and_nothing_is_left(model: Path, tmp_path: Path) -> None:
    (tmp_path / "drafter.sock.lane").touch()
    process = ServiceProcess(command(model, tmp_path), tmp_path / "drafter.log")
    with pytest.raises(StartFailed, match="listen: cannot bind the lanes of unix:"):
        process.wait_ready(time.monotonic() + START_S)
    assert process.stop(1.0) == 2
    assert "Traceback" not in process.log_tail()
    assert not (tmp_path / "drafter.sock").exists()


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (("--source", "oracle"), "source: 'oracle' is unknown"),
        (("--max-sessions", "0"), "--max-sessions: must be in"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_sentence(model: Path, tmp_path: Path, extra: tuple[str, ...], sentence: str) -> None:
    process = ServiceProcess(command(model, tmp_path, *extra), tmp_path / "drafter.log")
    with pytest.raises(StartFailed, match=sentence):
        process.wait_ready(time.monotonic() + START_S)
    assert process.stop(1.0) == 2
