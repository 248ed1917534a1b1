"""`outrider scale` and whom it tells: orders over real gRPC, carried out by a function of the test's.

pytest tests/unit/test_scaling_door.py
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fakes_coordinator import FakeFleet, coordinator_over
from outrider.cli import scale
from outrider.coordinator.scaling_door import Scale, ScalingDoor
from outrider.errors import InvalidRequest, Overloaded, Unavailable
from outrider.launch.process import StartFailed
from outrider.v1 import scaling_pb2 as pb

WAIT_S = 30.0
NOW = {"verifier-n-0": "10.0.0.2:4711", "drafter-n-0": "10.0.0.2:4712"}


@contextlib.contextmanager
def door(carry_out: Scale, folder: Path) -> Iterator[str]:
    opened = ScalingDoor(f"unix:{folder / 's.sock'}", carry_out)
    try:
        yield opened.address
    finally:
        opened.close()


def given(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    scale.add_parser(parser.add_subparsers())
    return parser.parse_args(["scale", *arguments])


def test_an_order_is_carried_out_and_what_is_not_said_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orders: list[tuple[int | None, int | None]] = []

    def carry_out(num_verifiers: int | None, num_drafters: int | None) -> Mapping[str, str]:
        orders.append((num_verifiers, num_drafters))
        return NOW

    with door(carry_out, tmp_path) as address:
        assert scale.run(given("--at", address, "--verifiers", "3")) == 0
        assert scale.run(given("--at", address, "--drafters", "0")) == 0
        assert scale.run(given("--at", address, "--verifiers", "1", "--drafters", "2")) == 0
    assert orders == [(3, None), (None, 0), (1, 2)]
    assert "verifier-n-0" in (told := capsys.readouterr().out)
    assert "10.0.0.2:4712" in told


@pytest.mark.parametrize(
    ("raised", "expected", "told"),
    [
        (InvalidRequest("num_verifiers", "must be in range, got 300"), InvalidRequest, "num_verifiers: must be in range"),
        (Overloaded("another change is under way"), Overloaded, "another change is under way"),
        (StartFailed("verifier-n-1 is not ready after 300 s"), Unavailable, "verifier-n-1 is not ready"),
    ],
)
def test_a_refusal_arrives_as_what_it_was(tmp_path: Path, raised: Exception, expected: type[Exception], told: str) -> None:
    def refuse(num_verifiers: int | None, num_drafters: int | None) -> Mapping[str, str]:
        raise raised

    with door(refuse, tmp_path) as address, pytest.raises(expected, match=told):
        scale.ask(address, pb.ScaleRequest(num_verifiers=300))


async def test_the_address_of_another_service_is_said_to_be_one() -> None:
    """Those of the coordinator and of the gateway stand beside it in what `outrider up --ray` prints."""
    async with coordinator_over(FakeFleet()) as address:
        with pytest.raises(InvalidRequest, match=f"{address} is another service, and takes no such orders") as caught:
            await asyncio.to_thread(scale.run, given("--at", address, "--verifiers", "2"))
    assert caught.value.field == "--at"


def test_a_door_that_closes_waits_for_what_is_being_carried_out(tmp_path: Path) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def carry_out(num_verifiers: int | None, num_drafters: int | None) -> Mapping[str, str]:
        begun.set()
        assert go_on.wait(WAIT_S)
        ended.set()
        return NOW

    opened = ScalingDoor(f"unix:{tmp_path / 's.sock'}", carry_out)
    asking = threading.Thread(target=_ask, args=(opened.address,))
    asking.start()
    assert begun.wait(WAIT_S)
    closing = threading.Thread(target=opened.close)
    closing.start()
    go_on.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert ended.is_set()
    opened.close()
    asking.join(WAIT_S)


def _ask(address: str) -> None:
    with contextlib.suppress(Unavailable):
        scale.ask(address, pb.ScaleRequest(num_verifiers=1))


def test_a_place_that_cannot_be_listened_at_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot bind"):
        ScalingDoor(f"unix:{tmp_path / 'nowhere' / 's.sock'}", lambda *_: NOW)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--at", "unix:/s.sock"), "--verifiers"),
        (("--at", "unix:/s.sock", "--verifiers", "-1"), "--verifiers"),
        (("--at", "unix:/s.sock", "--drafters", "5000000000"), "--drafters"),
        (("--at", "nowhere", "--drafters", "1"), "--at"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(arguments: tuple[str, ...], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        scale.run(given(*arguments))
    assert caught.value.field == field
