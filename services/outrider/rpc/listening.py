"""What grpc does not ask before it listens at an address, nor say when it cannot.

It takes the name of a unix socket away from whoever serves there: that one goes on, reached by nobody, and takes the name of its
successor away when it ends. Knows sockets. Must not know grpc.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.errors import InvalidRequest
from outrider.rpc.address import EVERY_HOST

_UNIX = "unix:"
REMEDY = "end what listens there, or name another address"
# Of a name's places: what this machine does not have, as ::1, which many containers give `localhost` too. grpc listens at the others.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def check_free(wanted: Mapping[str, Sequence[str]]) -> None:
    """Raise InvalidRequest for the first address at which nobody could listen now, or that is wanted twice: asked before what takes long,
    as loading a model. wanted: all that a process is to listen at, by the option that names it."""
    earlier: list[tuple[str, str]] = []
    for field, addresses in wanted.items():
        for address in addresses:
            check_unserved(field, address)
            if problem := "" if _is_left_over(address) else why_not(address):
                raise InvalidRequest(field, f"cannot bind {address}: {problem}; {REMEDY}")
            for other_field, other in earlier:
                if _is_same_place(other, address):
                    raise InvalidRequest(field, f"{address} is taken by this process's own {other_field} {other}; name another address")
            earlier.append((field, address))


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
    """As grpc does: at every place that the host stands for, but for those that this machine does not have; none at all is a problem."""
    places = _places(address)
    missing: list[OSError] = []
    for family, place in places:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(place)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            missing.append(error)
    if len(missing) == len(places):
        raise missing[0]


def _places(address: str) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    """That a `host:port` stands for. Raises OSError for a host that nobody knows."""
    host, _, port = address.rpartition(":")
    hosts = ("::", "0.0.0.0") if host == "[::]" else (host.strip("[]"),)
    found = [each for name in hosts for each in socket.getaddrinfo(name, int(port), type=socket.SOCK_STREAM)]
    return [(family, place) for family, _, _, _, place in found]


def _is_same_place(one: str, other: str) -> bool:
    """Whether who listens at one of two addresses that could be bound leaves no room for the other."""
    if one.startswith(_UNIX) or other.startswith(_UNIX):
        return one.startswith(_UNIX) and other.startswith(_UNIX) and _path_of(one) == _path_of(other)
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), other.rpartition(":")
    if int(port) != int(other_port) or not int(port):
        return False
    return host in EVERY_HOST or other_host in EVERY_HOST or not {*_places(one)}.isdisjoint(_places(other))


def _path_of(address: str) -> str:
    return os.path.realpath(address.removeprefix(_UNIX))
