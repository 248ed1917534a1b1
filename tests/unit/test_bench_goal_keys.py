"""A speed run's RESULT line has every number the goals are stated in; who is run in one process, and in how many of them."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outrider.cli.__main__ import build_parser
from outrider.launch.threads import ThreadPlan
from outrider.session.pacing.contract import CostCurve
from outrider.v1 import generation_pb2, verifier_pb2
from outrider_bench import one_process
from outrider_bench.baseline import ASSISTANTS, PLAIN_CANDIDATES
from outrider_bench.contestants import Contestant, DraftWishes, Stack
from outrider_bench.distant_pair import World
from outrider_bench.facts import pair_name
from outrider_bench.goals import one_process_name, stack_name
from outrider_bench.measurement import Answer, Prompt, Summary
from outrider_bench.micro import MicroBenchmarks
from outrider_bench.network_report import TwoMachines, judge
from outrider_bench.one_process import InOneProcess, twins
from outrider_bench.predictions import Circumstances, Prediction
from outrider_bench.results import ADAPTIVE, ASSISTED, GENERATE, PLAIN, Cell, Flip, Row
from outrider_bench.speed import Found, result
from outrider_bench.stage import Served, Stage

ISSUE_KEYS = (
    "iso_t0_vs_generate iso_t08_vs_generate iso_t0_vs_assisted iso_t0_vs_own_plain min_cell_vs_plain stack_ratio "
    "stack_ratio_best bound_fraction two_machine_5ms_a07_vs_best_fixed two_machine_bound_fraction sim_max_error identical "
    "prose_t0_vs_own_plain prose_t08_vs_own_plain reconcile_share draft_token_share"
).split()
SPEEDS = {
    GENERATE: 100.0,
    ASSISTED: 150.0,
    PLAIN: 200.0,
    ADAPTIVE: 380.0,
    stack_name("serial"): 400.0,
    one_process_name("serial"): 500.0,
}
CELLS = [Cell(task, temperature) for task in ("arithmetic", "copying", "prose") for temperature in (0.0, 0.8)]
REPLAYED = Cell("replayed drafts, acceptance 0.6", 0.0)
DISTANT = Cell("5 ms, acceptance 0.7", 0.0)
MICRO = MicroBenchmarks(CostCurve(((1, 2000.0),)), 100, 900.0, 500.0, 160.0, 512)


def row(cell: Cell, contestant: str, speed: float) -> Row:
    share = 0.02 if cell == DISTANT else 0.01
    return Row(cell, contestant, Summary(speed, 1.0, 0.5, 2.0, 0.0, 0.5, 4.0, 50_000, reconcile_share=share), 0.1, 0.75, (speed,))


def found(*flips: Flip, two_machines: TwoMachines | None = None) -> Found:
    rows = [row(cell, name, speed) for cell in CELLS for name, speed in SPEEDS.items()]
    replayed = [row(REPLAYED, PLAIN, 200.0), row(REPLAYED, ADAPTIVE, 190.0)]
    predictions = [Prediction(replayed[1], Circumstances(MICRO, 0.6, 5, 0), 209.0)]
    return Found(rows, replayed, predictions, list(flips), ["serial", "adaptive"], {}, {}, 700, two_machines, 20_000.0)


def distant(num_flips: int = 0) -> TwoMachines:
    rows = [row(DISTANT, PLAIN, 100.0), row(DISTANT, ADAPTIVE, 90.0)]
    at = Circumstances(MICRO, 0.7, 5, 5_000)
    return TwoMachines(rows, [judge(World(5_000, 0.7), rows)], num_flips, [Prediction(rows[1], at, 108.0)], {})


def test_every_number_of_the_goal_is_in_the_result_of_a_full_run() -> None:
    told = result(found(two_machines=distant()))
    assert set(ISSUE_KEYS) <= told.keys()
    assert (told["iso_t0_vs_generate"], told["iso_t0_vs_assisted"], told["iso_t0_vs_own_plain"]) == (4.0, 2.667, 2.0)
    assert (told["min_cell_vs_plain"], told["min_cell_vs_plain_at"]) == (0.9, "outrider adaptive, 5 ms, acceptance 0.7, T = 0")
    assert (told["stack_ratio"], told["stack_ratio_best"], told["bound_fraction"]) == (0.8, 0.8, 0.75)
    assert (told["prose_t0_vs_own_plain"], told["prose_t08_vs_own_plain"], told["draft_token_share"]) == (1.9, 1.9, 0.035)
    assert (told["reconcile_share"], told["reconcile_share_at"]) == (0.02, "outrider plain, 5 ms, acceptance 0.7, T = 0")
    assert (told["two_machine_bound_fraction"], told["two_machine_bound_fraction_at"]) == (0.75, "outrider adaptive, 5 ms, acceptance 0.7")
    assert (told["sim_max_error"], told["sim_max_error_at"]) == (0.2, "outrider adaptive, 5 ms, acceptance 0.7, T = 0")
    assert told["two_machine_5ms_a07_vs_best_fixed"] == 0.9
    assert told["identical"] is True


def test_a_quick_run_has_all_but_the_two_machines() -> None:
    told = result(found())
    assert set(ISSUE_KEYS) - told.keys() == {"two_machine_5ms_a07_vs_best_fixed", "two_machine_bound_fraction"}
    assert told["reconcile_share"] == 0.01
    assert (told["min_cell_vs_plain"], told["sim_max_error"]) == (0.95, 0.1)


def test_a_flip_anywhere_is_told_and_too_many_are_a_failure() -> None:
    flip = Flip("copying, T = 0", "one process serial", 0, 1, 2, 9)
    assert result(found(flip))["identical"] is False
    assert result(found(two_machines=distant(1)))["num_flips"] == 1
    assert found(flip, two_machines=distant(1)).is_sound
    assert not found(*[flip] * 2000).is_sound
    assert not found(two_machines=distant(200)).is_sound


class FakeProcess:
    """Counts itself and echoes what it is asked."""

    made: list[object] = []  # noqa: RUF012 -- reset by the test that counts
    num_threads = 2

    def __init__(self, deployment: object) -> None:
        self.made.append(deployment)
        self.ended = False

    def ask(self, request: dict[str, str]) -> Answer:
        message = generation_pb2.GenerateRequest.FromString(bytes.fromhex(request["request"]))
        return Answer(tuple(message.token_ids.ids), message.sampling.temperature, float(message.max_tokens))

    def __enter__(self) -> FakeProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.ended = True


def test_policies_that_can_take_turns_have_a_twin_with_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_process, "OneProcess", FakeProcess)
    monkeypatch.setattr(FakeProcess, "made", [])
    info = verifier_pb2.VerifierServiceGetInfoResponse()
    served = tuple(Served(ThreadPlan(2, 1), cast(Any, f"deployment {number}"), cast(Any, object()), info) for number in range(2))
    stage = Stage((cast(Any, SimpleNamespace(dtype="float32")),), 2, served)
    wishes = [(0, DraftWishes("off")), (0, DraftWishes("serial", 16, 0.25)), (1, DraftWishes("pearl")), (0, DraftWishes("adaptive"))]
    contestants: list[Contestant] = [Stack(f"outrider {each.pacing}", served[at].gateway, each, "") for at, each in wishes]
    with ExitStack() as stack:
        made = twins(contestants, stage, stack)
        assert [each.name for each in made] == ["one process serial", "one process adaptive"]
        assert FakeProcess.made == ["deployment 0"]
        assert made[0].settings == "serial max_len=16 stop_below=0.25; 2 threads"
        assert made[0].answer(Prompt("copying", (4, 5)), 7, 0.5, 3) == Answer((4, 5), 0.5, 7.0)
    assert isinstance(made[0], InOneProcess)
    assert cast(Any, made[0].process).ended


def test_transformers_takes_either_dtype_and_float32_where_nothing_is_chosen() -> None:
    """The quick run has no prompts to choose by, so one candidate of each kind."""
    info = verifier_pb2.VerifierServiceGetInfoResponse(pacings=["plain"])
    spec = SimpleNamespace(together=False)
    served = (Served(ThreadPlan(2, 1), cast(Any, SimpleNamespace(spec=spec)), cast(Any, object()), info),)
    stage = Stage(tuple(cast(Any, SimpleNamespace(dtype=dtype)) for dtype in ("float32", "bfloat16")), 2, served)
    for quick, dtypes in ((True, ["float32"]), (False, ["float32", "bfloat16"])):
        generate, assisted, _ = stage.families(quick)
        for family in (generate, assisted):
            assert sorted({each.settings.split("; ")[1] for each in family}, reverse=True) == dtypes
        assert (len(generate), len(assisted)) == ((1, 1) if quick else (2 * len(PLAIN_CANDIDATES), 2 * len(ASSISTANTS)))


def test_the_pair_is_named_by_its_folders_or_by_its_family() -> None:
    parser = build_parser()
    assert pair_name(parser.parse_args(["bench", "--target", "models/big", "--draft", "ref-small"])) == "big + ref-small"
    assert pair_name(parser.parse_args(["bench", "--made", "qwen3"])).startswith("qwen3, made on the spot")
