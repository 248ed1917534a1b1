"""Addresses that a command line may give, and those that no peer could connect to.

pytest tests/unit/test_rpc_address.py
"""

from __future__ import annotations

import pytest

from outrider.errors import InvalidRequest
from outrider.rpc.address import MAX_ADDRESS_LEN, check_address, is_of_this_machine, reachable_address


@pytest.mark.parametrize("address", ["host:1", "10.0.0.2:0", "[fd00::5]:7072", "[::]:7072", "[fe80::1%eth0]:7072", "unix:/tmp/v.sock"])
def test_addresses(address: str) -> None:
    check_address("--listen", address)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("host", "neither"),
        (":1", "neither"),
        ("host:x", "neither"),
        ("host:65536", "neither"),
        ("unix:", "path"),
        ("h".ljust(MAX_ADDRESS_LEN, "h") + ":1", "at most 256"),
        ("fd00::5:7072", r"write \[fd00::5\]:7072"),
        ("::1:7072", r"write \[::1\]:7072"),
        ("[fd00::5:7072", r"write \[fd00::5\]:7072"),
        ("fd00::5]:7072", r"write \[fd00::5\]:7072"),
    ],
)
def test_what_is_no_address_is_refused_with_what_to_do(address: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem) as caught:
        check_address("--listen", address)
    assert caught.value.field == "--listen"


def test_an_ipv6_pod_is_advertised_with_its_brackets() -> None:
    assert reachable_address("--advertise", "[fd00::5]:0", "[::]:7072") == "[fd00::5]:7072"
    for wanted in ("fd00::5:7072", "[::]:7072"):
        with pytest.raises(InvalidRequest):
            reachable_address("--advertise", wanted, "[::]:7072")


@pytest.mark.parametrize(
    ("address", "told"),
    [
        *((near, True) for near in ("unix:/tmp/v.sock", "127.0.0.1:7", "127.0.1.9:7", "localhost:7", "[::1]:7")),
        *((far, False) for far in ("10.0.0.2:7072", "127-racks:7", "host:1", "[fd00::5]:7")),
    ],
)
def test_addresses_tell_who_is_of_this_machine(address: str, told: bool) -> None:
    assert is_of_this_machine(address) is told
