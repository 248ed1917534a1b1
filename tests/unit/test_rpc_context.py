"""What of a caller's call goes on: a trace context and a deadline, and nothing that grpc or a peer would refuse in a call of ours.

pytest tests/unit/test_rpc_context.py
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from outrider.rpc.context import MAX_TIMEOUT_S, Context, propagated_metadata, remaining_s

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, SPAN = PARENT.split("-")[1:3]


def propagated(*metadata: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return propagated_metadata(cast(Context, SimpleNamespace(invocation_metadata=lambda: metadata)))


@pytest.mark.parametrize("parent", [PARENT, f"00-{TRACE}-{SPAN}-00", f"01-{TRACE}-{SPAN}-01-what-comes-later"])
def test_a_trace_context_goes_on_as_it_came(parent: str) -> None:
    assert propagated(("other", "x"), ("traceparent", parent)) == (("traceparent", parent),)
    both = (("traceparent", parent), ("tracestate", "a=1,b=2"))
    assert propagated(*both) == both
    assert propagated(("tracestate", "a=1"), ("traceparent", parent), ("tracestate", "b=2")) == both


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "garbage",
        "00-1-2-01",
        "caf\u00e9",
        "a\tb",
        PARENT + "\n",
        PARENT.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        PARENT + "-\u00e9",
        PARENT + "-" + "x" * 10_000,
    ],
)
def test_one_that_is_none_does_not_and_takes_its_state_with_it(parent: str) -> None:
    assert propagated(("traceparent", parent), ("tracestate", "a=1")) == ()


def test_nor_do_two_of_them_or_a_state_alone() -> None:
    assert propagated(("traceparent", PARENT), ("traceparent", PARENT)) == ()
    assert propagated(("tracestate", "a=1")) == ()


@pytest.mark.parametrize("state", ["", "caf\u00e9", "a=\x00", "a=" + "x" * 12_000])
def test_a_state_that_peers_would_refuse_is_left_behind(state: str) -> None:
    assert propagated(("traceparent", PARENT), ("tracestate", state)) == (("traceparent", PARENT),)


@pytest.mark.parametrize(
    ("left_s", "goes_on_s"),
    [(None, None), (-1.0, 0.0), (5.0, 5.0), (MAX_TIMEOUT_S, MAX_TIMEOUT_S), (2562047 * 3600.0, None), ((2**64 - 1) / 1e6, None)],
)
def test_a_deadline_so_far_away_that_grpc_takes_it_for_one_that_has_passed_is_none(left_s: float | None, goes_on_s: float | None) -> None:
    """The two are what callers say who mean none: the longest time of a Go client, and the largest number of `CallBegin.timeout_us`, which
    a gateway answered with INTERNAL."""
    assert remaining_s(cast(Context, SimpleNamespace(time_remaining=lambda: left_s))) == goes_on_s
