"""What grpc does not ask before it listens at an address, nor say when it cannot.

It takes the name of a unix socket away from whoever serves there: that one goes on, reached by nobody, and takes the name of its
successor away when it ends. Knows sockets. Must not know grpc.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from outrider.errors import InvalidRequest

_UNIX = "unix:"
REMEDY = "end what listens there, or name another address"


def check_free(field: str, addresses: Sequence[str]) -> None:
    """Raise InvalidRequest for the first of them at which nobody could listen now: asked before what takes long, as loading a model."""
    for address in addresses:
        check_unserved(field, address)
        if problem := "" if _is_left_over(address) else why_not(address):
            raise InvalidRequest(field, f"cannot bind {address}: {problem}; {REMEDY}")


def check_unserved(field: str, address: str) -> None:
    """Raise InvalidRequest for a unix socket that a process listens at. One that was left by a process which was killed is nobody's."""
    if not address.startswith(_UNIX):
        return
    path = Path(address.removeprefix(_UNIX))
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)  # one that is stopped has a queue that may be full: it is there all the same
        try:
            caller.connect(os.fspath(path))
        except BlockingIOError:
            pass
        except OSError:  # nobody, or nobody that we may reach: then binding says why
            return
    raise InvalidRequest(field, f"cannot bind {address}: another process serves there; {REMEDY}")


def why_not(address: str) -> str:
    """The system's reason why nobody can listen there now; empty when it has none. What is tried leaves nothing behind."""
    try:
        _try_unix(Path(address.removeprefix(_UNIX))) if address.startswith(_UNIX) else _try_port(address)
    except OSError as error:
        return str(error.strerror or error)
    return ""


def _is_left_over(address: str) -> bool:
    """Whether it is a unix socket's name; behind `check_unserved` that is one which grpc takes over."""
    return address.startswith(_UNIX) and Path(address.removeprefix(_UNIX)).is_socket()


def _try_unix(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(os.fspath(path))
    path.unlink(missing_ok=True)


def _try_port(address: str) -> None:
    host, _, port = address.rpartition(":")
    for family, kind, protocol, _, place in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM):
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
