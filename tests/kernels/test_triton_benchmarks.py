"""The benchmarks for a card, as far as they can go without: their checks and every line that prepares, interpreted on the CPU; what they
time. That every kernel compiles for such a card is tests/kernels/test_triton_compile.py.

Run: pytest tests/kernels/test_triton_benchmarks.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fakes_kernel_places import interpreted_process
from fakes_timed import ONE_S, CountingClock, FasterEachTime, once_s
from house.repository import ROOT
from mostly_slow import mostly_slow_rows
from outrider_kernels.card_ceilings import FLUSH_BYTES, GOAL_SHARE, WARM_CALLS, CardCeilings, best_s, require_card
from outrider_kernels.decoder_pieces import HeadLayout
from outrider_kernels.interpreted_process import InterpretedProcess, InterpretedProcessDied
from outrider_kernels.triton_tree_attention import TileProgram

CEILINGS = CardCeilings("none", 1e12, 1e15)
CACHE_OF_AN_H200 = 50 << 20


def benchmark(name: str) -> str:
    return str(ROOT / "kernels" / "benchmarks" / f"bench_triton_{name}.py")


def call(name: str, function: str, *arguments: object) -> Any:
    return interpreted_process().call(benchmark(name), function, *arguments)


def test_a_time_is_the_best_of_calls_that_find_nothing_in_the_cache() -> None:
    clock = CountingClock([3.0, 1.0, 2.0])
    assert best_s(lambda: clock.asked.append("work"), 3, clock) == 1.0
    assert clock.asked == ["work"] * WARM_CALLS + ["flush", "mark", "work", "mark"] * 3
    assert FLUSH_BYTES >= 2 * CACHE_OF_AN_H200


def test_without_a_card_a_benchmark_ends_before_it_measures(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        require_card()
    assert ended.value.code == 2
    assert "Nothing was measured" in capsys.readouterr().err


@pytest.mark.parametrize(("num_bytes", "num_operations", "larger"), [(2e9, 3e11, 2.0), (2e8, 3e12, 3.0)])
def test_a_report_states_the_larger_share_and_the_goal(num_bytes: float, num_operations: float, larger: float) -> None:
    report = CEILINGS.report(ONE_S, num_bytes, num_operations)
    assert report["larger_share"] == pytest.approx(larger)
    assert report["goal"] == GOAL_SHARE == 0.7


def test_attention_is_checked_prepared_and_counted() -> None:
    report = call("tree_attention", "measure", 40, 3, 2, CEILINGS, "cpu", once_s, {"odd": (6, 2, 24)})
    keys, queries = 2 * (2 * (40 + 3) * 2 * 24), 2 * (2 * 4 * 6 * 24)
    assert report["odd"]["mbytes"] == pytest.approx(2 * (keys + queries) / 1e6)
    assert report["odd"]["us"] == report["odd"]["torch_us"] == pytest.approx(1e6 * ONE_S)


def test_a_sweep_times_every_program_and_begins_with_the_fastest() -> None:
    rows = call("tree_attention", "chain_rows", 5, 1, 1, "cpu")
    small, large = TileProgram(16, 16, 4, 2), TileProgram(32, 32, 4, 2)
    found = call("tree_attention", "sweep", rows, (2, 1, 16), FasterEachTime(), (small, large), (1, 2))
    assert [(program, splits) for _, program, splits in found] == [(large, 2), (large, 1), (small, 2), (small, 1)]
    assert found[-1][0] == ONE_S / 2


def test_pieces_are_checked_prepared_and_counted() -> None:
    report = call("pieces", "measure", 3, CEILINGS, "cpu", once_s, {"odd": (HeadLayout(4, 2, 24), 40)})["odd"]
    assert report["add_norm"]["mbytes"] == pytest.approx(2 * (4 * 3 * 96 + 96) / 1e6)
    assert report["gate"]["mbytes"] == pytest.approx(2 * 3 * 3 * 40 / 1e6)
    assert report["rotate"]["mbytes"] == pytest.approx((2 * 2 * 3 * 8 * 24 + 4 * 3 * 24) / 1e6)


def test_compaction_is_checked_prepared_and_counted() -> None:
    report = call("compact", "measure", 4, 40, CEILINGS, "cpu", once_s, {"odd": (3, 2, 24)})
    assert report["odd"]["mbytes"] == pytest.approx(2 * 2 * 2 * 3 * 2 * 24 * 4 / 1e6)  # read and write, keys and values, 2 bytes


def test_picks_are_checked_prepared_and_counted() -> None:
    call("pick", "check_noise", 4096, "cpu")
    call("pick", "check_picks", "cpu")
    report = call("pick", "measure", 2, 3000, CEILINGS, "cpu", once_s)
    assert set(report) == {"bfloat16", "float32"}
    assert report["float32"]["mbytes"] == pytest.approx(2 * 3000 * 4 / 1e6)


@pytest.mark.slow
def test_filtered_picks_are_checked_prepared_and_counted() -> None:
    call("filtered_pick", "check", "cpu")
    report = call("filtered_pick", "measure", 2, 3000, 30, CEILINGS, "cpu", once_s)
    assert set(report) == {"free", "filtered", "penalised"}
    assert report["penalised"]["mbytes"] == pytest.approx(2 * 2 * 3000 * 4 / 1e6)  # read for the winner, and for the masses


def test_walks_are_checked_prepared_and_counted() -> None:
    assert call("pick_walk", "measure", 3, 5, CEILINGS, "cpu", once_s)["us"] == pytest.approx(1e6 * ONE_S)


def test_rejection_is_checked_prepared_and_counted() -> None:
    report = call("rejection", "measure", 3, 2, 2100, CEILINGS, "cpu", once_s)
    assert report["float32"]["mbytes"] == pytest.approx(2 * 3 * (2100 + 1024) * 4 / 1e6)
    assert report["bfloat16"]["us"] == report["bfloat16"]["torch_us"] == pytest.approx(1e6 * ONE_S)


@pytest.mark.parametrize(
    ("name", "right", "wrong", "function", "arguments"),
    mostly_slow_rows(
        [
            ("tree_attention", "(query, keys, values, launch, shape", "(query, values, keys, launch, shape", "check", ((4, 2, 16), "cpu")),
            ("pieces", "by(add_norm)", "by(lambda s, a, w, e: add_norm(s, None, w, e))", "measure", (3, CEILINGS, "cpu", once_s)),
            ("pick", "gumbel(*on_card)", "gumbel(on_card[0] + 1, *on_card[1:])", "check_noise", (512, "cpu")),
            (
                "rejection",
                "uniforms(ACCEPT_KEY, num_nodes), uniforms(RESIDUAL_KEY, num",
                "uniforms(1, num_nodes), uniforms(3, num",
                "check",
                (2, "cpu"),
            ),
            ("filtered_pick", "torch.ones_like(ids), torch.z", "torch.zeros_like(ids) - 1, torch.z", "check", ("cpu",)),
            ("pick_walk", "walks = work()", "walks = work(); walks.paths[0, -1] = -1", "measure", (3, 5, CEILINGS, "cpu", once_s)),
        ],
        1,
    ),
)
def test_a_benchmark_of_a_wrong_kernel_times_nothing(
    tmp_path: Path, name: str, right: str, wrong: str, function: str, arguments: tuple[object, ...]
) -> None:
    source = Path(benchmark(name)).read_text("utf-8")
    assert source.count(right) == 1
    broken = tmp_path / f"broken_{name}.py"
    broken.write_text(source.replace(right, wrong), "utf-8")
    with InterpretedProcess() as process, pytest.raises(InterpretedProcessDied, match="Nothing was timed"):
        process.call(str(broken), function, *arguments)
