"""The benchmarks of operations on a CPU: each checks before it times, counts what it says it counts, and times nothing that is wrong.

Run: pytest tests/kernels/test_host_benchmarks.py
"""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fakes_timed import ONE_S, CountingClock, once_s
from house.repository import ROOT
from outrider_kernels import host_ceilings
from outrider_kernels.card_ceilings import GOAL_SHARE, CardCeilings, best_s
from outrider_kernels.host_ceilings import HostClock
from outrider_kernels.interpreted_process import _module
from outrider_kernels.thin_team import ThinTeam

CEILINGS = CardCeilings("none", 1e12, 1e15)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "thin_attention": (80,),
    "thin_gate": (24,),
    "thin_pick": (3, 700),
    "thin_chain": (2, 64, 3),
    "invariant_attention": (300,),
}
TEAMS = ("thin_attention", "thin_pick", "thin_chain")


def path_of(name: str) -> Path:
    return ROOT / "kernels" / "benchmarks" / f"bench_{name}.py"


def measured(name: str, module: ModuleType) -> Any:
    teams = (ThinTeam(1),) if name in TEAMS else ()
    return module.measure(*ARGUMENTS[name], *teams, CEILINGS, once_s)


@pytest.mark.parametrize("name", list(ARGUMENTS))
def test_a_benchmark_checks_prepares_and_counts(name: str) -> None:
    torch.set_num_threads(1)
    module = _module(str(path_of(name)))
    report = measured(name, module)
    for found in [report] if "us" in report else report.values():
        assert found["us"] == pytest.approx(1e6 * ONE_S)
        assert found["mbytes"] > 0
        assert found["larger_share"] >= found["of_product_rate"] > 0
        assert found["goal"] == GOAL_SHARE


def test_an_mlp_is_timed_as_a_whole() -> None:
    """Between two readings of a clock that goes on by a second at each: every number of rows, all layers."""
    mlp = _module(str(path_of("thin_mlp")))
    clock = itertools.count()
    found = mlp.measure(64, 32, 2, ThinTeam(1), lambda: float(next(clock)))
    assert found == dict.fromkeys(mlp.ROWS, 1000.0)
    assert next(clock) == len(mlp.ROWS) * 2 * mlp.REPEATS * 2


def test_bytes_are_those_that_must_move() -> None:
    gate = measured("thin_gate", _module(str(path_of("thin_gate"))))
    assert gate[4]["mbytes"] == pytest.approx(3 * 4 * 24 * 4 / 1e6)
    attention = measured("thin_attention", _module(str(path_of("thin_attention"))))
    assert attention[1]["mbytes"] == attention[16]["mbytes"] == pytest.approx(2 * 4 * 80 * 64 * 4 / 1e6)
    assert attention[16]["mega_operations"] == pytest.approx(16 * attention[1]["mega_operations"])
    assert measured("thin_pick", _module(str(path_of("thin_pick"))))["warm"]["mbytes"] == pytest.approx(3 * 700 * 4 / 1e6)


WRONG = {
    "thin_attention": ("expected = reference_tree_attention(query, keys", "expected = reference_tree_attention(query, values"),
    "thin_gate": ("out - reference_gate(gate_up)", "out + reference_gate(gate_up)"),
    "thin_pick": ("reference_pick(row, params, KEY,", "reference_pick(row, params, KEY + 1,"),
    "thin_chain": ("[(RULE, [position + 1])]", "[(RULE, [position])]"),
    "invariant_attention": ("masked_fill(hidden, HIDDEN_SCORE)", "masked_fill(hidden, 0.0)"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_benchmark_of_a_wrong_operation_times_nothing(name: str, tmp_path: Path) -> None:
    right, wrong = WRONG[name]
    source = path_of(name).read_text("utf-8")
    assert source.count(right) == 1
    broken = tmp_path / f"broken_{name}.py"
    broken.write_text(source.replace(right, wrong), "utf-8")
    with pytest.raises(SystemExit, match="Nothing was timed"):
        measured(name, _module(str(broken)))


def test_a_processors_clock_goes_forward_and_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_ceilings, "FLUSH_BYTES", 64)
    clock = HostClock()
    clock.flush()
    begin = clock.mark()
    assert clock.between_s(begin, clock.mark()) >= 0.0


def test_ceilings_are_bytes_and_operations_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy reads and writes; a product multiplies and adds."""
    monkeypatch.setattr(host_ceilings, "COPY_BYTES", 1000)
    monkeypatch.setattr(host_ceilings, "PRODUCT_LEN", 10)
    clock = CountingClock([2.0, 0.5])
    monkeypatch.setattr(host_ceilings, "host_best_s", lambda work: best_s(work, 1, clock))
    ceilings = host_ceilings.measure_host_ceilings(1)
    assert ceilings.bytes_per_s == 2 * 1000 / 2.0
    assert ceilings.operations_per_s == 2 * 10**3 / 0.5
    assert ceilings.name == "1 threads"
