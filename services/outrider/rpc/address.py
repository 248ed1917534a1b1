"""Addresses as text: `host:port` or `unix:/path`, and what of them another process can reach.

Knows no sockets and no grpc, so that command lines can be refused before either is imported.
"""

from __future__ import annotations

from outrider.errors import InvalidRequest

MAX_ADDRESS_LEN = 256  # characters: no coordinator takes a longer one, and one among a replica's pairs would cost it all its heartbeats
_THIS_MACHINE = ("unix:", "127.", "localhost:", "[::1]:")
EVERY_HOST = ("0.0.0.0", "[::]", "")


def check_address(field: str, address: str) -> None:
    """Raise InvalidRequest unless the address is `host:port` (port 0 to 65535, an IPv6 host in brackets) or `unix:/path`, of at most
    MAX_ADDRESS_LEN characters."""
    if len(address) > MAX_ADDRESS_LEN:
        raise InvalidRequest(field, f"has {len(address)} characters, at most {MAX_ADDRESS_LEN}")
    if address.startswith("unix:"):
        if len(address) == len("unix:"):
            raise InvalidRequest(field, "unix: needs a path")
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidRequest(field, f"{address!r} is neither host:port nor unix:/path")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):  # peers would take all of it for the host, or part for the port
        raise InvalidRequest(field, f"{address!r} has an IPv6 host without brackets: write [{host.strip('[]')}]:{port}")


def is_of_this_machine(address: str) -> bool:
    """Whether only this machine can reach it, as far as an address tells."""
    return address.startswith(_THIS_MACHINE)


def reachable_address(field: str, wanted: str, bound: str) -> str:
    """What peers are told to connect to. wanted: by the operator, port 0 stands for the bound one; empty: the bound address.

    Raises InvalidRequest when that is no address, or one that means every host.
    """
    address = wanted or bound
    check_address(field, address)
    if address.startswith("unix:"):
        return address
    host, _, port = address.rpartition(":")
    if host in EVERY_HOST:
        raise InvalidRequest(field, f"{address} means every host; say which one peers are to connect to")
    return f"{host}:{bound.rpartition(':')[2]}" if port == "0" else address
