"""What the two-machine and load runs make of their numbers: judgements, percentiles, flips, worlds from the command line."""

from __future__ import annotations

from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest

from described_keys import described_keys
from outrider.cli.__main__ import build_parser
from outrider.cli.connection import Connection
from outrider.errors import InvalidRequest
from outrider.launch.deployment import Deployment, DeploymentSpec
from outrider.launch.threads import ThreadPlan
from outrider.session.pacing.contract import CostCurve
from outrider_bench import load, lone_verifier, network
from outrider_bench.distant_pair import World
from outrider_bench.load import Burst, LoadCell, count_flips, percentile, rows_of, token_times_ms
from outrider_bench.measurement import Prompt, Summary
from outrider_bench.micro import MicroBenchmarks
from outrider_bench.network_report import TwoMachines, judge, markdown, result
from outrider_bench.predictions import Circumstances, Prediction
from outrider_bench.prompt_files import NO_FILES
from outrider_bench.report import as_json
from outrider_bench.results import ADAPTIVE, PLAIN, Row

MICRO = MicroBenchmarks(CostCurve(((1, 2000.0), (8, 4000.0))), 150, 900.0, 520.0, 10_160.0, 512)
AT = Circumstances(MICRO, 0.7, 5, 5_000)


def row(world: World, contestant: str, speed: float, overlap: float = 0.0) -> Row:
    summary = Summary(speed, 1.0, 0.7, 2.0, overlap, 0.5, 4.0, 96, reconcile_share=0.012)
    return Row(network.cell_of(world), contestant, summary, 0.1, 0.8, (speed,))


def test_adaptive_is_judged_against_the_fastest_of_all_others() -> None:
    world = World(5_000, 0.7)
    rows = [
        row(world, PLAIN, 100.0),
        row(world, "outrider serial", 80.0),
        row(world, "outrider pearl", 125.0),
        row(world, ADAPTIVE, 150.0, 0.4),
    ]
    judged = judge(world, rows)
    assert judged.best_fixed == "outrider pearl"
    assert judged.vs_best_fixed == pytest.approx(1.2)
    assert judged.vs_plain == pytest.approx(1.5)
    assert judged.overlap_share == 0.4
    found = TwoMachines(rows, [judged], 0, [Prediction(rows[0], AT, 80.0), Prediction(rows[2], AT, 137.5)], {})
    told = result(found, {})
    assert told["two_machine_5ms_a07_vs_best_fixed"] == pytest.approx(1.2)
    assert told["two_machine_bound_fraction"] == 0.8
    cells = [as_json(each) for each in rows]
    assert told["cells"] == cells
    assert cells[-1]["bound_share"] == 0.8, "and so of every world"
    assert told["two_machine_bound_fraction_at"] == "outrider adaptive, 5 ms, acceptance 0.7"
    assert (told["reconcile_share"], told["reconcile_share_at"]) == (0.012, "outrider plain, 5 ms, acceptance 0.7, T = 0")
    assert described_keys("outrider bench network") == told.keys() | {"pair"}
    assert told["identical"] is True
    assert (told["sim_max_error"], told["sim_max_error_at"]) == (0.2, "outrider plain, 5 ms, acceptance 0.7, T = 0")
    report = markdown({"date": "today"}, found)
    assert "| 5 ms, acceptance 0.7, T = 0 | outrider pearl | 138 | 125 | 1.10 |" in report
    assert "| 5 ms | 0.7 | 150 | 1.50 | pearl | 1.20 | 40% | 80% | 1.2% |" in report
    assert "| 5 ms, acceptance 0.7, T = 0 | 150 | 900 | 520 | 80 | 0 |  | 1.00 | 1: 2.00, 8: 4.00 |" in report
    assert "### 5 ms, acceptance 0.7, T = 0" in report


def test_plain_decoding_is_one_of_the_fixed_policies() -> None:
    world = World(20_000, 0.5)
    judged = judge(world, [row(world, PLAIN, 100.0), row(world, "outrider serial", 80.0), row(world, ADAPTIVE, 97.0)])
    assert judged.best_fixed == PLAIN
    assert judged.vs_best_fixed == pytest.approx(0.97)
    found = TwoMachines([], [judged], 1, [], {})
    assert (
        not {"two_machine_5ms_a07_vs_best_fixed", "two_machine_bound_fraction", "reconcile_share", "sim_max_error"}
        & result(found, {}).keys()
    )
    assert not found.is_sound


def test_worlds_come_from_the_command_line_in_milliseconds() -> None:
    parser = build_parser()
    amount = network.Amount.of(parser.parse_args(["bench", "network", "--delays-ms", "0", "1.5", "--replay-acceptances", "0.9"]))
    assert amount.worlds == (World(0, 0.9), World(1_500, 0.9))
    assert len(network.Amount.of(parser.parse_args(["bench", "network"])).worlds) == 12
    assert network.Amount.of(parser.parse_args(["bench", "network", "--quick"])).worlds == (World(5_000, 0.7),)
    assert network.Amount.of_goal().worlds == (World(5_000, 0.7),)
    assert load.Amount.of(parser.parse_args(["bench", "load", "--requests", "2", "3"])).sizes == (2, 3)
    assert load.Amount.of(parser.parse_args(["bench", "load"])).acceptances == load.ACCEPTANCES
    assert load.Amount.of(parser.parse_args(["bench", "load", "--replay-acceptances", "0.8"])).acceptances == (0.8,)


def test_a_world_that_is_named_twice_is_measured_once() -> None:
    """Its cell had twice the answers that there are prompts, at which the predictions failed when everything was measured."""
    words = ["--delays-ms", "0", "0.0001", "5", "0", "--replay-acceptances", "0.9", "0.9"]
    assert network.Amount.of(build_parser().parse_args(["bench", "network", *words])).worlds == (World(0, 0.9), World(5_000, 0.9))


@pytest.mark.parametrize("wrong", [["--delays-ms", "-1"], ["--replay-acceptances", "1.5"]])
def test_a_world_that_cannot_be_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["bench", "network", *wrong])
    assert wrong[0] in capsys.readouterr().err


def test_tokens_of_one_delta_share_its_time_and_the_first_delta_is_the_prompts() -> None:
    assert token_times_ms([(0.5, 3), (0.6, 1), (0.9, 3)]) == pytest.approx([100.0, 100.0, 100.0, 100.0])
    assert token_times_ms([(0.5, 3)]) == []


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile([7.0], 0.99) == 7.0
    values = [float(value) for value in range(1, 201)]
    assert percentile(values, 0.99) == 198.0
    assert percentile(values, 0.5) == 100.0


def test_bursts_are_compared_with_plain_ones_of_their_own_cell() -> None:
    busy, alone = LoadCell("two machines", 4, 0.7), LoadCell("two machines", 1, 0.7)
    bursts = {
        (busy, PLAIN): [Burst(100.0, 9.0, ((1, 2),)), Burst(300.0, 9.0, ((1, 2),)), Burst(120.0, 9.0, ((1, 2),))],
        (busy, ADAPTIVE): [Burst(75.0, 8.0, ((1, 3),)), Burst(270.0, 8.0, ((1, 2),)), Burst(60.0, 8.0, ((1, 2),))],
        (busy, load.ALONE): [Burst(125.0, 8.0, ((1, 2),)), Burst(300.0, 8.0, ((1, 2),)), Burst(240.0, 8.0, ((1, 2),))],
        (alone, PLAIN): [Burst(50.0, 9.0, ((1, 2),))],
        (alone, ADAPTIVE): [Burst(100.0, 9.0, ((1, 2),))],
        (alone, load.ALONE): [Burst(50.0, 9.0, ((1, 2),))],
    }
    ratios = {(each.cell.size, each.contestant): (each.vs_plain, each.vs_alone) for each in rows_of(bursts)}
    assert ratios[4, PLAIN] == (1.0, 0.8)
    assert ratios[4, ADAPTIVE] == (0.75, 0.6)
    assert ratios[4, load.ALONE] == (1.25, 1.0)
    assert (ratios[1, PLAIN], ratios[1, ADAPTIVE]) == ((1.0, 1.0), (2.0, 2.0))
    assert count_flips(bursts) == (1, 24)
    told = load.result(rows_of(bursts), 1, {})
    assert told["load_min_vs_plain_two_machines"] == 0.75
    assert told["load_min_off_vs_no_drafter_two_machines"] == 0.8
    assert told["identical"] is False
    assert "load_ramp_min_vs_plain_two_machines" not in told


def test_plain_decoding_is_asked_of_a_verifier_with_a_drafter_and_of_one_without(tmp_path: Path) -> None:
    """Both have the same options and cores, but for the drafter's: its is lent to the one, and the other's own."""
    attached, alone = cast("Connection", object()), cast("Connection", object())
    shared = ThreadPlan(1, 1, lent=1)
    asked = load.contestants_of(attached, alone, shared)
    assert tuple(each.name for each in asked) == load.CONTESTANTS
    assert [(each.gateway is alone, each.wishes.pacing) for each in asked] == [(False, "off"), (False, "adaptive"), (True, "off")]
    assert asked[2].threads.startswith("verifier 2 threads")
    (tmp_path / "model.safetensors").write_bytes(b"")
    spec = lone_verifier.spec_of(Namespace(target=str(tmp_path), dtype="float32"), shared, 16)
    assert (spec.draft, spec.threads.verifier, spec.threads.lent) == (None, 2, 0)
    assert {"--no-prefix-cache", "--no-lookup", "--max-sessions", "16"} == set(spec.verifier_extra)
    assert "--drafter" not in [word for command in commands_of(spec) for word in command]
    apart = ThreadPlan(1, 1, (0,), (1,))
    assert lone_verifier.without_drafter(apart) == apart


def commands_of(spec: DeploymentSpec) -> list[tuple[str, ...]]:
    deployment = object.__new__(Deployment)  # its start would start processes
    deployment.spec, deployment.folder, deployment.ready = spec, Path("folder"), {}
    return [command.arguments for command in deployment.commands()]


class Pair:
    """Plays whatever it is told."""

    gateway = None

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None: ...

    def know(self, texts: object) -> None: ...

    def play(self, world: World) -> None: ...


def test_ramps_are_asked_as_often_as_bursts_and_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One contestant's behind the other's, minutes apart, once: the hour made a verifier with a drafter half as quick as one without."""
    monkeypatch.setattr(load, "DistantPair", lambda *_: Pair())
    monkeypatch.setattr(load, "lone_verifier", lambda *_: nullcontext())
    monkeypatch.setattr(load, "make_prompts", lambda _, task, num, seed, source: [Prompt(task, (1,))] * num)
    monkeypatch.setattr(load, "burst", lambda _, prompts, *more: Burst(1.0, 1.0, ((1,),) * len(prompts)))
    amount = load.Amount((1, 4), 8, 3, (0.7, 0.0))
    args = build_parser().parse_args(["bench", "load"])
    args.prompt_files = NO_FILES
    plan = ThreadPlan(1, 1, (), (), lent=1)
    asked = [(cell.stage, name) for cell, name, _ in load.measure(args, "shared cores", plan, amount) if cell.acceptance and cell.stage]
    stages = [stage for _, stage in load.ramp_of((1, 4))]
    ramps = [asked[at : at + len(stages)] for at in range(0, len(asked), len(stages))]
    assert all([stage for stage, _ in ramp] == stages and len({name for _, name in ramp}) == 1 for ramp in ramps), "each without a break"
    order = [ramp[0][1] for ramp in ramps]
    assert [set(order[at : at + 3]) for at in (0, 3, 6)] == [set(load.CONTESTANTS)] * 3
    assert len({tuple(order[at : at + 3]) for at in (0, 3, 6)}) == 3


def test_a_ramp_goes_up_and_down_again_and_is_told_apart_from_bursts() -> None:
    stages = [(1, "going up"), (4, "going up"), (16, "at the top"), (4, "going down"), (1, "going down")]
    assert load.ramp_of((4, 16, 1, 4)) == stages
    assert load.ramp_of((8,)) == [(8, "at the top")]
    cells = [LoadCell("shared cores", 4, 0.0, stage) for stage in ("", "going up", "going down")]
    speeds = dict(zip(cells, (99.0, 98.0, 60.0), strict=True))
    bursts = {(cell, name): [Burst(100.0, 9.0, ((1,),))] for cell in cells for name in (PLAIN, load.ALONE)}
    rows = rows_of(bursts | {(cell, ADAPTIVE): [Burst(speed, 9.0, ((1,),))] for cell, speed in speeds.items()})
    told = load.result(rows, 0, {})
    assert (told["load_min_vs_plain_shared_cores"], told["load_ramp_min_vs_plain_shared_cores"]) == (0.99, 0.6)
    assert [cell.requests for cell in cells] == ["4", "4 going up", "4 going down"]
    assert described_keys("outrider bench load") == {key.replace("shared_cores", "LAYOUT") for key in told}


@pytest.mark.parametrize("sizes", [["0"], ["4", "-1"], ["5000"]])
def test_so_many_requests_cannot_be_asked(sizes: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="--requests"):
        load.Amount.of(build_parser().parse_args(["bench", "load", "--requests", *sizes]))


def test_small_loads_are_repeated_more_often_for_a_burst_of_theirs_is_short() -> None:
    amount = load.Amount((1, 4, 16, 64), 64, 6)
    assert [amount.repeats_of(size) for size in amount.sizes] == [48, 24, 12, 6]
    assert [amount.warm_ups_of(size) for size in amount.sizes] == [12, 6, 3, 1]
    assert load.Amount((1, 1024), 64, 3).repeats_of(1) == 3 * load.MOST_REPEATED
    assert load.Amount((5,), 64, 3).repeats_of(5) == 3
