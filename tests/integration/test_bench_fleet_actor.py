"""`outrider bench fleet --actor`: a real coordinator process hears of a whole fleet and places; with Ray, its actor too.

pytest tests/integration/test_bench_fleet_actor.py
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path
from typing import cast

import pytest

from outrider.cli.__main__ import main
from outrider.errors import Unavailable
from outrider.v1 import fleet_pb2 as pb
from outrider_bench.fleet import real_places
from outrider_bench.fleet.announced_world import PAIRS_A_VERIFIER, Heartbeats, replicas_of
from outrider_bench.fleet.coordinator_process import RealCoordinator
from outrider_bench.fleet.world import make_world

SMALL = ("bench", "fleet", "--actor", "--verifiers", "5", "--drafters", "9", "--sessions", "12", "--live", "4")
UNUSED_PID = 2**22 + 1  # beyond what Linux gives out


def result_of(printed: str) -> dict[str, dict[str, dict[str, float]]]:
    line = printed.splitlines()[-1]
    assert line.startswith("RESULT ")
    found: dict[str, dict[str, dict[str, float]]] = json.loads(line.removeprefix("RESULT "))["place"]
    return found


def check(phases: dict[str, dict[str, float]]) -> None:
    served, quiet = phases["with heartbeats"], phases["without"]
    assert (served["places"], served["refused"], quiet["places"], quiet["refused"]) == (12, 0, 12, 0)
    assert served["heartbeats_per_s"] > 0.0 == quiet["heartbeats_per_s"]
    assert 0.0 < served["wall_ms_p50"] <= served["wall_ms_p99"] <= served["wall_ms_p100"]
    assert 0.0 < quiet["cpu_ms_p50"] <= quiet["cpu_ms_p99"]
    assert "cpu_ms_p50" not in served, "it would count heartbeats"


def test_places_at_a_coordinator_process_are_timed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "actor.md"
    assert main([*SMALL, "--out", str(report)]) == 0
    found = result_of(capsys.readouterr().out)
    assert list(found) == ["process"]
    check(found["process"])
    assert "5 verifiers, 9 drafters" in report.read_text()
    assert "4 unfinished" in report.read_text()


def test_no_more_than_the_given_number_stays_unfinished() -> None:
    finished: list[int] = []

    class Coordinator:
        """Places everything, and counts what is told to be over."""

        def __init__(self) -> None:
            self.num_placed = 0

        async def Place(self, request: pb.PlaceRequest, timeout: float) -> pb.PlaceResponse:
            self.num_placed += 1
            return pb.PlaceResponse(placement_id=self.num_placed)

        async def Finish(self, request: pb.FinishRequest, timeout: float) -> pb.FinishResponse:
            finished.append(self.num_placed - len(finished))  # unfinished, when the next is about to be placed
            return pb.FinishResponse()

    num = 20 + real_places.WARM_UP
    phase = asyncio.run(real_places.Places(Coordinator(), cast("Heartbeats", None), real_places.wishes(num, 5, 1), 5).phase(20))
    assert len(phase.wall_s) == 20
    assert finished == [5] * (num - 5)


@pytest.mark.slow
def test_places_at_a_ray_actor_are_timed_or_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*SMALL, "--ray"])
    printed = capsys.readouterr()
    if importlib.util.find_spec("ray") is None:
        assert code == 2
        assert "Ray is not installed" in printed.err
        return
    assert code == 0
    found = result_of(printed.out)
    assert list(found) == ["process", "Ray actor"]
    check(found["Ray actor"])


def test_ray_without_a_real_coordinator_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "fleet", "--quick", "--ray"]) == 2
    assert "--actor" in capsys.readouterr().err


def test_every_replica_has_an_address_and_every_verifier_pairs() -> None:
    world = make_world(300, 600, 1)
    replicas = replicas_of(world)
    assert len({replica.endpoint for replica in replicas}) == 900
    drafters = {replica.endpoint for replica in replicas[300:]}
    assert all(len(replica.pairs) == PAIRS_A_VERIFIER and set(replica.pairs) <= drafters for replica in replicas[:300])


def test_the_time_of_a_process_that_is_gone_is_not_zero() -> None:
    with pytest.raises(Unavailable, match="processor time"):
        RealCoordinator("process", "h:1", UNUSED_PID).cpu_s()
