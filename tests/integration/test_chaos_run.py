"""The chaos driver itself, shortly: real processes, a handful of faults, and nothing lost."""

from __future__ import annotations

import json

import pytest

from outrider.cli.__main__ import main
from outrider_bench.chaos.driver import QUICK_LONE_FAULTS
from outrider_bench.chaos.schedule import Kind


@pytest.mark.slow
@pytest.mark.parametrize("wish", ["auto", "loopback"])
def test_a_few_faults_cost_no_request_and_no_token(wish: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "chaos", "--faults", str(len(Kind)), "--fault-seed", "3", "--machines", wish]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1].removeprefix("RESULT "))
    assert result["faults"] == len(Kind)
    assert result["requests"] > 16
    assert wish == "auto" or result["machines"] == "loopback addresses"
    assert result["counts"].keys() == set(map(str, Kind))
    assert result["alone"]["faults"] == QUICK_LONE_FAULTS
    assert result["alone"]["stalls_median_ms"].keys() == {"kill drafter", "stop drafter"}
    assert 0 < result["stall_calm_p99_ms"] <= result["stall_calm_ms"]
    assert (result["drains_unclean"], result["replicas_unknown"]) == (0, 0)
    assert min(result["failovers"], result["accepted_tokens"]) > 0, "faults hit answers, and drafters took part"
    assert result["redis_entries"] > 0, "after every fault the verifiers share again"
    assert result["resumes"] > 0, "clients of the killed gateway asked the other one"
    assert (result["zombies"], result["zombies_unaware"], result["answers_inexact"]) == (1, 0, 0)
    assert (result["requests_lost"], result["tokens_differing"], result["leaks"]) == (0, 0, 0)
