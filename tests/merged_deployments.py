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
def deployed(spec: DeploymentSpec) -> Iterator[Together]:
    """Up for the block's time, its pair connected."""
    with Deployment(spec) as deployment:
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


def exit_code_of(process: ServiceProcess) -> int | None:
    """Of one that was told to end, without telling it again: a second signal cuts a drain short."""
    deadline_s = time.monotonic() + END_S
    while process.exit_code is None and time.monotonic() < deadline_s:
        threading.Event().wait(0.05)
    return process.exit_code
