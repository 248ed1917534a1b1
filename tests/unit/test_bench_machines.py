"""What the three-machine run makes of its numbers: ratios, the worst of them, flips, tables, the amount that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from described_keys import described_keys
from outrider.cli.__main__ import build_parser
from outrider_bench.distant_pair import NUM_MACHINES, three_machines
from outrider_bench.machines import POLICIES, Amount
from outrider_bench.machines_report import EVERY_TASK, Spot, ThreeMachines, draw, markdown, result
from outrider_bench.machines_wish import LoopbackMachines
from outrider_bench.measurement import Summary
from outrider_bench.results import ADAPTIVE, PLAIN, Flip, Row

# Tokens per second of plain decoding, serial, pearl and adaptive.
SPEEDS = {
    (0, "copying"): (100.0, 200.0, 180.0, 210.0),
    (0, EVERY_TASK): (100.0, 150.0, 160.0, 170.0),
    (20_000, "copying"): (100.0, 40.0, 60.0, 96.0),
    (20_000, EVERY_TASK): (100.0, 50.0, 70.0, 98.0),
}
FLIP = Flip("0 ms, copying, T = 0", ADAPTIVE, 1, 7, 3, 4)


def found(*flips: Flip) -> ThreeMachines:
    rows = [
        Row(Spot(*at).cell, name, Summary(speed, 1.0, 0.7, 2.0, 0.3, 0.5, 4.0, 96), 0.04, 0.8, (speed,))
        for at, speeds in SPEEDS.items()
        for name, speed in zip((PLAIN, "outrider serial", "outrider pearl", ADAPTIVE), speeds, strict=True)
    ]
    return ThreeMachines([Spot(*at) for at in SPEEDS], rows, flips, {})


def test_the_least_ratio_is_over_single_tasks_and_says_where() -> None:
    told = result(found(), {"date": "today"})
    assert (told["adaptive_min_vs_plain"], told["adaptive_min_at"]) == (0.96, "20 ms, copying, T = 0")
    assert told["adaptive_min_vs_plain_all_tasks"] == 0.98
    assert told["vs_plain_by_delay_ms"] == {
        "serial": {"0": 1.5, "20": 0.5}, "pearl": {"0": 1.6, "20": 0.7}, "adaptive": {"0": 1.7, "20": 0.98},
    }  # fmt: skip
    assert told["identical"] is True
    assert described_keys("outrider bench machines") == told.keys() | {"pair"}


def test_a_row_of_the_table_is_a_distance_and_a_task() -> None:
    report = markdown({"date": "today"}, found())
    assert "| one-way delay | task | plain tokens/s | spread | serial | spread | pearl | spread | adaptive | spread |" in report
    assert "| 20 ms | copying | 100 | 4% | 0.40 | 4% | 0.60 | 4% | 0.96 | 4% |" in report
    assert "### 0 ms, all tasks, T = 0" in report


def test_flips_are_told_and_more_than_a_few_are_unsound() -> None:
    once = found(FLIP)
    assert (result(once, {})["identical"], result(once, {})["num_flips"]) == (False, 1)
    assert "outrider adaptive, prompt 1: token 7" in markdown({}, once)
    assert not once.is_sound, "one in 768 tokens of single tasks"
    assert found().is_sound


def test_the_picture_has_a_panel_for_each_task(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert draw(found(), tmp_path / "machines.svg")
    assert (tmp_path / "machines.svg").read_text().count("<svg") == 1


def test_the_amount_comes_from_the_command_line() -> None:
    parser = build_parser()
    amount = Amount.of(parser.parse_args(["bench", "machines", "--delays-ms", "0", "1.5", "--tasks", "prose", "--repeats", "2"]))
    assert (amount.delays_us, amount.tasks, amount.repeats) == ((0, 1_500), ("prose",), 2)
    assert amount.num_turns == 2 * (1 + len(POLICIES)) * 2
    assert Amount.of(parser.parse_args(["bench", "machines"])).delays_us == (0, 1_000, 5_000, 20_000)
    assert Amount.of(parser.parse_args(["bench", "machines", "--delays-ms", "5", "1", "5"])).delays_us == (5_000, 1_000)


def test_every_machine_has_an_address_of_its_own_and_the_wire_is_on_the_drafters() -> None:
    gateway, verifier, drafter = LoopbackMachines(NUM_MACHINES).machines
    places = three_machines((gateway, verifier, drafter))
    hosts = [address.partition(":")[0] for address in (places.gateway, places.verifier, places.near, places.far) if address]
    assert hosts == [gateway.host, verifier.host, drafter.host, drafter.host]
    assert len({gateway.host, verifier.host, drafter.host}) == 3
    assert places.near != places.far
    assert places.machines["relay"] is drafter
