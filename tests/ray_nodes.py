"""Nodes of a Ray cluster as processes of their own, each at a loopback address, with what resources a test says: Ray takes its word.

Must not be ended by `ray stop`, which ends every Ray process of the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

HEAD_IP, SECOND_IP = "127.0.0.2", "127.0.0.3"
START_S, STOP_S, POLL_S = 120.0, 10.0, 0.05
OBJECT_STORE_BYTES = 78_643_200  # Ray takes no less
NODE_NAME = "OUTRIDER_TEST_NODE"  # in the environment of whatever runs on a node


@contextlib.contextmanager
def ray_head(log: Path, num_gpus: int = 0, resources: Mapping[str, float] | None = None, **environment: str) -> Iterator[str]:
    """A cluster of one node for the block's time; yields its address."""
    port = _free_port()
    where = ("--head", f"--port={port}", "--include-dashboard=false")
    with _node(log, HEAD_IP, where, num_gpus, resources or {}, environment):
        yield f"{HEAD_IP}:{port}"


@contextlib.contextmanager
def ray_node(
    log: Path, address: str, num_gpus: int = 0, resources: Mapping[str, float] | None = None, **environment: str
) -> Iterator[None]:
    """A second node of the cluster at this address."""
    with _node(log, SECOND_IP, (f"--address={address}",), num_gpus, resources or {}, environment):
        yield


@contextlib.contextmanager
def _node(
    log: Path, ip: str, where: tuple[str, ...], num_gpus: int, resources: Mapping[str, float], environment: Mapping[str, str]
) -> Iterator[None]:
    own: tuple[str, ...] = ("--block", "--num-cpus=2", f"--num-gpus={num_gpus}", f"--resources={json.dumps(dict(resources))}")
    own += (f"--node-ip-address={ip}", f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats")
    paths = os.pathsep.join(path for path in sys.path if path)
    told = {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": paths, NODE_NAME: ip, **environment}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *where, *own],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **told}, start_new_session=True,
        )  # fmt: skip
    try:
        _wait_started(process, log)
        yield
    finally:
        process.send_signal(signal.SIGTERM)  # it ends what it has started
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_S)


def _wait_started(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while b"Ray runtime started" not in log.read_bytes():
        assert process.poll() is None, f"the node ended: {log.read_text()}"
        assert time.monotonic() < deadline_s, f"the node has not started: {log.read_text()}"
        time.sleep(POLL_S)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HEAD_IP, 0))
        return int(listener.getsockname()[1])
