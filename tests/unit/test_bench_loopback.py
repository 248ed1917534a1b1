"""Addresses that are given out one after another, before anybody listens at any of them.

Run: pytest tests/unit/test_bench_loopback.py
"""

from __future__ import annotations

from outrider_bench.loopback import free_address

HOST = "127.0.1.77"


def test_no_address_is_given_out_twice_in_a_row() -> None:
    """At random, of a thousand some twenty would be: a process and the wire before it once had the same."""
    given = [free_address(HOST) for _ in range(1_000)]
    assert len(set(given)) == len(given)
