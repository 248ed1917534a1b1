"""Addresses: can services listen here, and is the deployment at the gateway's address well?

Knows sockets, the health service and GetInfo. Must not start anything that outlives a check.
"""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

from outrider.cli.checks.finding import Finding, broken, fine, note
from outrider.cli.connection import Connection
from outrider.errors import InvalidRequest, OutriderError, Unavailable
from outrider.launch.deployment import is_too_long_for_sockets
from outrider.rpc.address import check_address

CONNECT_S = 1.0


def check_network(gateway: str) -> list[Finding]:
    """Unix sockets, TCP ports, and whatever answers at the gateway's address."""
    return [_unix_sockets(), *_deployment(gateway)]


def _unix_sockets() -> Finding:
    folder = tempfile.gettempdir()
    if is_too_long_for_sockets(folder):
        return broken("unix sockets", f"{folder} is too long a path for a socket", "set TMPDIR to a shorter path, for example /tmp")
    try:
        with tempfile.TemporaryDirectory(prefix="outrider-") as private, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(Path(private) / "check.sock"))
    except OSError as error:
        return broken(
            "unix sockets", f"cannot bind one in {folder}: {error}", "set TMPDIR to a folder on a local disk that you may write to"
        )
    return fine("unix sockets", f"can be bound in {folder}")


def _deployment(gateway: str) -> list[Finding]:
    remedy = "give --gateway host:port or unix:/path"
    try:
        check_address("--gateway", gateway)
    except InvalidRequest as error:
        return [broken("address", error.problem, remedy)]
    occupied = _listening(gateway)
    if occupied is None:
        return [broken("address", f"{gateway} cannot be reached from here", remedy)]
    if not occupied:
        return [
            fine("address", f"{gateway} is free"),
            note("deployment", f"none is running at {gateway}", "start one with `outrider up`"),
        ]
    try:
        with Connection(gateway) as connection:
            return _health(connection, gateway)
    except Unavailable:
        remedy = f"another program may have the port: choose one with `outrider up --listen` (now {gateway})"
        return [broken("deployment", f"{gateway} accepts connections but does not answer as a gateway", remedy)]
    except OutriderError as error:
        return [broken("deployment", f"{gateway}: {error}", "is this an Outrider gateway? `outrider up` starts one")]


def _health(connection: Connection, gateway: str) -> list[Finding]:
    if not connection.is_serving():
        return [
            broken("deployment", f"{gateway} is draining or not ready", "wait for its verifier, or look into the logs `outrider up` names")
        ]
    info = connection.model_info()
    target, live = info.target, info.live
    findings = [fine("deployment", f"{target.model} ({target.dtype}) at {gateway}, {live.sessions} requests live")]
    if not info.drafters:
        remedy = "answers are exact but plain; start the drafter, or see `outrider up` for why it was refused"
        findings.append(note("drafters", "no drafter is paired", remedy))
    findings += [fine("drafters", f"{drafter.model} ({drafter.dtype})") for drafter in info.drafters]
    return findings


def _listening(address: str) -> bool | None:
    """Whether something accepts connections there; None when the address cannot be one of this machine or its network."""
    try:
        with _connected(address):
            return True
    except (ConnectionRefusedError, TimeoutError, FileNotFoundError):
        return False
    except OSError:
        return None


def _connected(address: str) -> socket.socket:
    if not address.startswith("unix:"):
        host, _, port = address.rpartition(":")
        return socket.create_connection((host.removeprefix("[").removesuffix("]"), int(port)), timeout=CONNECT_S)
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.settimeout(CONNECT_S)
        peer.connect(address.removeprefix("unix:"))
    except BaseException:
        peer.close()
        raise
    return peer
