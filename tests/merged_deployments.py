"""Deployments whose services share a process, for tests: what is up, what it is asked, and what it holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from outrider.cli.connection import Connection
from outrider.cli.starting import await_pair
from outrider.launch.deployment import Deployment, DeploymentSpec
from outrider.launch.process import ServiceProcess
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import sampling_pb2, verifier_pb2

END_S = 60.0
NUM_TOKENS = 48
PROMPT = tuple(range(20, 60))


@dataclass
class Together:
    """A deployment, and connections to its gateway and its verifier."""

    deployment: Deployment
    gateway: Connection
    verifier: Connection


@contextmanager
def deployed(spec: DeploymentSpec, kind: type[Deployment] = Deployment) -> Iterator[Together]:
    """Up for the block's time, its pair connected. kind: who starts its processes, an operator's way or another."""
    with kind(spec) as deployment:
        await_pair(deployment)
        with Connection(deployment.gateway) as gateway, Connection(deployment.verifier) as verifier:
            yield Together(deployment, gateway, verifier)


def request(pacing: str, temperature: float, num_tokens: int = NUM_TOKENS) -> pb.GenerateRequest:
    """The same answer whatever the pacing; `off` for plain decoding."""
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=PROMPT),
        sampling=sampling_pb2.SamplingParams(temperature=temperature, seed=3),
        max_tokens=num_tokens,
        ignore_eos=True,
        draft=pb.DraftOptions(off=True) if pacing == "off" else pb.DraftOptions(pacing=pacing, max_len=5, stop_below=0.0),
    )


def held(info: verifier_pb2.VerifierServiceGetInfoResponse) -> tuple[int, int]:
    """Sessions, KV blocks."""
    return info.live.sessions, info.live.kv_blocks_used


def nothing_held(up: Together) -> bool:
    """Soon: each look is two round trips. What a client has read to its end is freed a moment later, and a verifier tells what it held up
    to 20 ms ago."""
    for _ in range(100):
        live = up.gateway.model_info().live
        if held(up.verifier.verifier_info()) == (0, 0) and (live.sessions, live.streams, live.queued) == (0, 0, 0):
            return True
    return False


def check_plain_tokens(up: Together, pacing: str, temperature: float) -> None:
    """A drafted answer is the plain one, and both are freed."""
    plain = up.gateway.ask(request("off", temperature)).first
    drafted = up.gateway.ask(request(pacing, temperature)).first
    assert drafted.token_ids == plain.token_ids
    assert len(plain.token_ids) == NUM_TOKENS
    statistics = drafted.finished.statistics
    if pacing == "serial":  # how much the others draft depends on what they measure
        assert 0 < statistics.num_accepted < statistics.num_drafted
    assert nothing_held(up)


def exit_code_of(process: ServiceProcess) -> int | None:
    """Of one that was told to end, without telling it again: a second signal cuts a drain short."""
    deadline_s = time.monotonic() + END_S
    while process.exit_code is None and time.monotonic() < deadline_s:
        threading.Event().wait(0.05)
    return process.exit_code
