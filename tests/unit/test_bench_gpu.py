"""The run on a card, as far as it needs none: sizes, random targets, refusals, bursts, predictions, rows and reports."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from outrider.cli import bench as bench_command
from outrider.cli.__main__ import build_parser, main
from outrider.cli.connection import Connection
from outrider.engine.config import DType, EngineConfig, EngineKind
from outrider.engine.load import load_engine
from outrider.engine.vocabulary import read_vocabulary
from outrider.errors import InvalidRequest, Unavailable
from outrider.session.pacing.contract import CostCurve
from outrider.session.pacing.registry import make_pacing
from outrider.v1 import identity_pb2
from outrider_bench.baseline import GenerateSettings
from outrider_bench.contestants import DraftWishes, Stack
from outrider_bench.gpu import driver, random_target, target_folder
from outrider_bench.gpu.batches import CHOOSING_ROUNDS, CHOOSING_TOKENS, choose
from outrider_bench.gpu.bursts import FIRST_ID, Burst, burst, random_prompts
from outrider_bench.gpu.card import Card, find_card
from outrider_bench.gpu.card_probe import missing_for_cuda
from outrider_bench.gpu.driver import CONTESTANTS, Amount
from outrider_bench.gpu.micro import BurstCosts, BurstMicro, round_us_of
from outrider_bench.gpu.prediction import burst_world, predict
from outrider_bench.gpu.report import GpuCell, GpuFound, count_flips, draw, markdown, num_generate_unlike, result, rows_of
from outrider_bench.gpu.shapes import SIZES, TargetShape, draft_us
from outrider_bench.measurement import Answer, DraftNumbers, Prompt
from outrider_bench.micro import MicroBenchmarks
from outrider_bench.predictions import Circumstances, predicted_tokens_per_s
from outrider_bench.results import GENERATE, PLAIN
from outrider_bench.simulation.event_loop import simulate
from outrider_bench.simulation.world import Shape, World

SMALL = TargetShape(2, 64, 4, 2, 16, 96, 2500)
ONE = MicroBenchmarks(CostCurve(((1, 2000.0), (8, 2400.0), (64, 4000.0))), 150, 900.0, 300.0, 160.0, 512, 100)
COSTS = BurstCosts(ONE, 40, 100, 5000.0, CostCurve(((1, 300.0), (4, 320.0))))
SERIAL = "outrider serial"
DRAFTED = DraftNumbers(
    num_rounds=4, num_drafted=10, num_accepted=6, verify_ms=1.0, draft_ms=1.0, overlapped_draft_ms=0.0, draft_wait_ms=0.0
)


def given(*words: str) -> Amount:
    return Amount.of(build_parser().parse_args(["bench", "gpu", *words]))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small target and its drafter's stand-in."""
    folder = tmp_path_factory.mktemp("target")
    shards: list[None] = []
    random_target.write_target(SMALL, folder, lambda: shards.append(None))
    assert len(shards) == random_target.num_shards(SMALL)
    return folder


# --- what is served ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "billions"), [("1b", (1.2, 1.5)), ("3b", (3.2, 3.7)), ("8b", (8.0, 8.1))])
def test_a_size_is_that_of_the_models_it_is_named_after(size: str, billions: tuple[float, float]) -> None:
    assert billions[0] <= SIZES[size].num_parameters / 1e9 <= billions[1]


def test_the_command_line_knows_every_size() -> None:
    assert set(bench_command.TARGET_SIZES) == set(SIZES)


def test_a_targets_files_hold_the_numbers_its_shape_counts(written: Path) -> None:
    index = json.loads((written / "target" / "model.safetensors.index.json").read_text())
    numbers = 0
    for file in sorted((written / "target").glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 it is no mapping
                assert index["weight_map"][name] == file.name
                tensor = tensors.get_tensor(name)
                assert tensor.dtype == torch.bfloat16
                assert float(tensor.float().abs().min(dim=-1).values.max()) > 0.0  # nothing that a product could leave out
                numbers += tensor.numel()
    assert numbers == SMALL.num_parameters
    assert index["metadata"]["total_size"] == SMALL.file_bytes == 2 * numbers


def test_target_and_stand_in_share_every_id(written: Path) -> None:
    vocabularies = [read_vocabulary(written / name) for name in ("target", "draft")]
    assert vocabularies[0] is not None
    assert vocabularies[0] == vocabularies[1]
    assert vocabularies[0].size == SMALL.num_ids
    assert not vocabularies[0].missing_ids
    assert len({entry.content for entry in vocabularies[0].entries}) == SMALL.num_ids


def test_the_best_token_leads_far_at_temperature_0_and_loses_now_and_then_at_the_other(written: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(written / "target", dtype=torch.float32).eval()
    ids = torch.randint(FIRST_ID, SMALL.num_ids, (4, 64), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        logits = model(ids).logits
    assert torch.equal(logits.argmax(-1), (ids + random_target.STRIDE) % SMALL.num_ids)
    best, second = logits.topk(2, dim=-1).values.unbind(-1)
    assert float((best - second).min()) > 1.0  # rounding of bfloat16 is a hundredth of that
    best_share = (logits / random_target.SURPRISE_TEMPERATURE).softmax(-1).max(-1).values
    assert 0.95 < float(best_share.mean()) < 0.998  # 0.99 but for what the layers add


def test_layers_take_part(written: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(written / "target", dtype=torch.float32).eval()
    ids = torch.arange(FIRST_ID, FIRST_ID + 8)[None]
    with torch.inference_mode():
        alone, behind = model(ids[:, -1:]).logits[0, -1], model(ids).logits[0, -1]
    assert float((alone - behind).abs().max()) > 0.1


def test_the_engine_serves_it_and_its_own_check_passes(written: Path) -> None:
    identity = load_engine(EngineConfig(str(written / "target"), EngineKind.LEAN, DType.BFLOAT16, kv_budget_mib=16)).identity
    assert identity.vocab_size == SMALL.num_ids
    assert not identity.eos_token_ids


def test_a_target_is_written_once_and_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def write(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        Path(command[-1], "target").mkdir()
        return subprocess.CompletedProcess(command, len(commands) == 1)  # the first one fails

    monkeypatch.setattr(subprocess, "run", write)
    with pytest.raises(Unavailable, match="size tiny could not be written"):
        target_folder.find_or_write("tiny", tmp_path)
    assert not list(tmp_path.iterdir())
    target, draft = target_folder.find_or_write("tiny", tmp_path)
    assert Path(target).is_dir()
    assert Path(draft).name == "draft"
    assert target_folder.find_or_write("tiny", tmp_path) == (target, draft)
    assert len(commands) == 2
    assert len(list(tmp_path.iterdir())) == 1


def test_a_disk_without_room_is_refused_with_both_amounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 << 30))
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1))  # should it try all the same
    with pytest.raises(Unavailable, match=r"needs 16\.0 GiB .* where 3\.0 GiB are free.*nothing ran"):
        target_folder.find_or_write("8b", tmp_path)
    assert not list(tmp_path.iterdir())


# --- what is missing --------------------------------------------------------------------------------------------------------


def test_without_a_card_nothing_runs_and_one_line_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["bench", "gpu"]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert len(said.err.splitlines()) == 1
    assert "no CUDA" in said.err
    assert "nothing ran" in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("built_for", "available", "bf16", "said"),
    [
        (None, True, True, "build without it"),
        ("12.8", False, True, "sees none"),
        ("12.8", True, False, "no bfloat16"),
        ("12.8", True, True, ""),
    ],
)
def test_what_a_target_needs_of_a_card(built_for: str | None, available: bool, bf16: bool, said: str) -> None:
    missing = missing_for_cuda(built_for, lambda: available, lambda: bf16)
    assert said in missing
    assert bool(missing) == bool(said)


def test_a_processor_is_asked_for_the_same_facts() -> None:
    host = find_card("cpu")
    assert host.free_bytes > 0
    assert host.copy_bytes_per_s > 1e8
    assert {"card", "torch", "triton"} <= host.facts.keys()


def test_a_card_without_room_is_refused_with_both_amounts() -> None:
    card, shape = Card({}, 30 << 30, 1e12), SIZES["8b"]
    with pytest.raises(Unavailable, match=r"needs up to 3\d\.\d GiB .* 30\.0 GiB are free"):
        card.check_room("8b", shape, given().cache_bytes(shape))
    card.check_room("1b", SIZES["1b"], given().cache_bytes(SIZES["1b"]))
    exactly = Card({}, shape.memory_bytes(1 << 30), 1e12)
    exactly.check_room("8b", shape, 1 << 30)
    with pytest.raises(Unavailable):
        exactly.check_room("8b", shape, (1 << 30) + 1)


def test_the_drafter_is_paced_by_the_bytes_of_a_twentieth() -> None:
    assert draft_us(SIZES["8b"], 4e12) == pytest.approx(1e6 * 15.01e9 / 20 / 4e12, abs=1)


def test_the_cache_holds_every_request_of_the_largest_burst() -> None:
    amount, shape = given("--requests", "1", "16", "--max-tokens", "200"), SIZES["8b"]
    assert amount.cache_bytes(shape) >= 16 * (driver.PROMPT_LEN + 200) * shape.kv_bytes
    assert amount.cache_bytes(shape) % driver.MIB == 0


@pytest.mark.parametrize(
    ("wrong", "named"), [(["--requests", "0"], "--requests"), (["--requests", "65"], "--requests"), (["--max-tokens", "1"], "--max-tokens"),
                         (["--max-tokens", "4000"], "--max-tokens")],
)  # fmt: skip
def test_amounts_that_cannot_be_are_refused_by_name(wrong: list[str], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        given(*wrong)


def test_the_issues_cells_are_what_is_measured_unless_told_otherwise() -> None:
    amount = given()
    assert (amount.acceptances, amount.temperatures, amount.requests) == ((0.6, 0.8, 0.9), (0.0, 0.8), (1, 16))
    assert amount.repeats >= 5
    assert given("--replay-acceptances", "0.5", "--requests", "2").cells(0.5) == [GpuCell(0.0, 2, 0.5), GpuCell(0.8, 2, 0.5)]


# --- bursts and what is made of them ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Echo:
    """Answers with the prompt, and says what it was asked."""

    asked: list[tuple[tuple[int, ...], int, float, int]]

    def answer(self, prompt: Prompt, max_tokens: int, temperature: float, seed: int) -> Answer:
        self.asked.append((prompt.token_ids, max_tokens, temperature, seed))
        return Answer(prompt.token_ids, 1.0 + seed, 10.0 + seed)


def test_prompts_are_all_different_and_the_same_again() -> None:
    prompts = random_prompts(50, 8, 300, 7)
    assert len({prompt.token_ids for prompt in prompts}) == 50
    assert prompts == random_prompts(50, 8, 300, 7) != random_prompts(50, 8, 300, 8)
    assert all(FIRST_ID <= token < 300 for prompt in prompts for token in prompt.token_ids)


def test_no_prompt_serves_two_temperatures_or_a_micro_benchmark() -> None:
    prompts = driver._Prompts(given("--requests", "3"), 4096, 23)
    of_all = [*prompts.reported.values(), *prompts.apart.values()]
    assert [len(each) for each in of_all] == [3] * 4
    assert len({prompt.token_ids for each in of_all for prompt in each}) == 12


def test_a_burst_keeps_the_order_of_its_prompts_and_gives_each_its_seed() -> None:
    prompts, echo = random_prompts(3, 4, 100, 1), Echo([])
    with ThreadPoolExecutor(3) as pool:
        found = burst(cast("Stack", echo), prompts, 9, 0.8, pool)
    assert [answer.tokens for answer in found.answers] == [prompt.token_ids for prompt in prompts]
    assert sorted(echo.asked, key=lambda each: each[3]) == [(prompt.token_ids, 9, 0.8, seed) for seed, prompt in enumerate(prompts)]
    assert found.tokens_per_s == pytest.approx(1000 * 12 / 12.0)  # the slowest of 10, 11, 12 ms
    assert found.token_ms == pytest.approx((10 + 11 + 12) / 3 / 4)


SETTINGS = [GenerateSettings(), GenerateSettings(cache="static"), GenerateSettings(cache="static", compiled=True)]


def test_transformers_decodes_a_burst_as_one_batch_with_what_is_quickest_for_its_size() -> None:
    asked: list[tuple[int, int, float, str]] = []

    def answer(
        prompts: Sequence[tuple[int, ...]], max_tokens: int, temperature: float, seed: int, settings: GenerateSettings
    ) -> list[Answer]:
        before = sum(each[3] == settings.name for each in asked)
        asked.append((len(prompts), max_tokens, temperature, settings.name))
        ms = {"sdpa dynamic": 20.0, "sdpa static": 30.0 - 6 * len(prompts), "sdpa static compiled": 15.0}[settings.name]
        return [Answer((7,) * max_tokens, 1.0, ms if before else 9000.0)] * len(prompts)  # the first time compiles

    prompts = random_prompts(3, 4, 100, 1)
    batches = choose(answer, SETTINGS, prompts, (1, 3), 100)
    assert asked[0] == (1, CHOOSING_TOKENS, 0.0, "sdpa dynamic")
    assert len(asked) == len(SETTINGS) * 2 * CHOOSING_ROUNDS
    assert {num: settings.name for num, settings in batches.settings.items()} == {1: "sdpa static compiled", 3: "sdpa static"}
    assert batches.described == "1 at a time: sdpa static compiled; 3 at a time: sdpa static"
    found = batches.burst(prompts, 9, 0.8)
    assert asked[-1] == (3, 9, 0.8, "sdpa static")
    assert found.tokens_per_s == pytest.approx(1000 * 3 * 9 / 12.0)


def test_a_round_of_a_plain_burst_begins_when_all_have_begun() -> None:
    assert round_us_of(Burst((Answer((1,) * 11, 10.0, 100.0), Answer((1,) * 11, 50.0, 150.0)))) == pytest.approx(10_000)


def test_a_further_request_costs_what_a_burst_takes_beyond_its_step_and_guesses_what_a_drafted_one_takes_beyond_that() -> None:
    costs = sampled_micro(8).result(ONE)
    assert costs.session_us == 200  # 3,950 - 2,400 - 150 over 7
    # 24 rows a round of 7,000, beside a step of 24 rows, 150, drafting of two guesses, a message both ways and 7 further requests
    step_us = ONE.verify.verify_us(24)
    assert costs.guess_us == round((7000 - step_us - 150 - 2 * 320 - 160 - 7 * 200) / 8)
    assert costs.first_us == pytest.approx(5000)
    assert costs.draft.points == ((1, 300.0), (8, 320.0))


def test_one_request_costs_what_its_own_micro_benchmarks_say() -> None:
    costs = sampled_micro(1).result(ONE)
    assert (costs.session_us, costs.guess_us, costs.draft.points) == (0, ONE.guess_us, ((1, 300.0),))


def sampled_micro(num: int) -> BurstMicro:
    """After a sample: ten plain rounds of 3.95 ms, five drafted ones of 7 ms with two guesses each."""
    stack = Stack("plain", cast("Connection", None), DraftWishes("off"), "")
    prompts = random_prompts(num, 2, 100, 1)
    micro = BurstMicro(stack, prompts, [(1, 2)] * num, 0.0, "", identity_pb2.ModelIdentity(), cast("Executor", None))
    drafted = replace(DRAFTED, num_rounds=6, num_drafted=12)
    micro._bursts.append(Burst(tuple(Answer((1,) * 11, 5.0, 5.0 + 10 * 3.95) for _ in range(num))))
    micro._drafted_bursts.append(Burst(tuple(Answer((1,) * 11, 5.0, 5.0 + 5 * 7.0, drafted) for _ in range(num))))
    micro._drafts_us.append(320.0)
    return micro


def test_what_the_engine_said_of_its_steps_is_kept() -> None:
    log = "\n".join(
        [
            "2026-11-22 20:00:00,001 INFO outrider.engine.card_steps: recorded 1 of 9 graphs",
            "2026-11-22 20:00:00,002 INFO outrider.rpc.server: serving outrider.engine: here",
            "2026-11-22 20:00:01,001 WARNING outrider.engine.card_way: steps on cuda run on plain torch operations: no Triton",
        ]
    )
    assert driver.said_by_engine(log) == ("recorded 1 of 9 graphs; steps on cuda run on plain torch operations: no Triton")
    assert driver.said_by_engine("") == "nothing was said"


# --- predictions ------------------------------------------------------------------------------------------------------------


def test_one_request_is_predicted_as_other_runs_predict_it() -> None:
    shape = Shape(64, 60)
    reading_us = ONE.verify.verify_us(64) + ONE.step_overhead_us
    costs = BurstCosts(ONE, 0, ONE.guess_us, reading_us + ONE.request_us, CostCurve(((1, 300.0),)))
    for wishes in CONTESTANTS.values():
        ours = predict(wishes, costs, 0.8, 1, shape)
        assert ours == pytest.approx(predicted_tokens_per_s(wishes, Circumstances(ONE, 0.8, 5, 0), [shape]), rel=0.01)


def test_a_plain_burst_is_its_first_tokens_and_then_a_step_a_token() -> None:
    shape = Shape(64, 60)
    round_us = ONE.verify.verify_us(4) + ONE.step_overhead_us + 3 * COSTS.session_us
    expected = 1e6 * 4 * 60 / (COSTS.first_us + 59 * round_us)
    assert predict(DraftWishes("off"), COSTS, 0.8, 4, shape) == pytest.approx(expected, rel=0.02)
    assert predict(DraftWishes("off"), replace(COSTS, first_us=25_000.0), 0.8, 4, shape) < 0.95 * expected


def test_better_drafts_are_predicted_to_pay_more_and_dearer_ones_less() -> None:
    shape, wishes = Shape(64, 60), CONTESTANTS[SERIAL]
    speeds = [predict(wishes, COSTS, acceptance, 4, shape) for acceptance in (0.0, 0.6, 0.9)]
    assert speeds == sorted(speeds)
    assert predict(wishes, replace(COSTS, draft=CostCurve(((1, 300.0), (4, 3000.0)))), 0.9, 4, shape) < speeds[-1]
    assert burst_world(wishes, COSTS, 0.9, 4, shape).num_sessions == 4


@pytest.mark.parametrize("policy", ["serial", "adaptive", "pearl"])
def test_a_request_that_ends_before_its_drafter_hears_of_it_ends_no_simulation(policy: str) -> None:
    far = World(CostCurve(((1, 1000.0), (64, 2000.0))), CostCurve(((1, 100.0),)), delay_us=40_000, output_len=32)
    assert simulate(far, make_pacing(policy), 96).num_tokens >= 96


# --- rows and reports -------------------------------------------------------------------------------------------------------

CELL, COLD = GpuCell(0.0, 2, 0.8), GpuCell(0.8, 2, 0.8)


def answers(total_ms: float, tokens: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8), draft: DraftNumbers | None = None) -> Burst:
    return Burst((Answer(tuple(tokens), 1.0, total_ms, draft), Answer((9,) * 8, 1.0, total_ms / 2, draft)))


BURSTS = {
    (CELL, GENERATE): [answers(40.0, (1, 2, 3, 4, 5, 6, 7, 9))] * 3,
    (CELL, PLAIN): [answers(10.0), answers(20.0), answers(16.0)],
    (CELL, SERIAL): [answers(8.0, draft=DRAFTED), answers(8.0, (1, 2, 3, 4, 5, 6, 7, 0), DRAFTED), answers(4.0, draft=DRAFTED)],
}
SIMULATED = {(CELL, PLAIN): 800.0, (CELL, SERIAL): 2500.0}


def found_of(num_flips: int) -> GpuFound:
    return GpuFound(rows_of(BURSTS, SIMULATED), {CELL: COSTS}, num_flips, 12, 96)


def test_rows_are_medians_beside_plain_decoding_and_the_simulator() -> None:
    generate, plain, serial = rows_of(BURSTS, SIMULATED)
    assert (generate.tokens_per_s, generate.vs_plain, generate.vs_generate, generate.error) == (400.0, 0.4, 1.0, None)
    assert (plain.vs_generate, serial.vs_generate) == (2.5, 5.0)
    assert (plain.tokens_per_s, plain.vs_plain, plain.simulated_vs_plain) == (1000.0, 1.0, 1.0)
    assert plain.error == pytest.approx(0.2)
    assert plain.token_ms == pytest.approx(0.75 * 16 / 8)
    assert plain.spread == pytest.approx((1600 - 800) / 1000)
    assert (serial.tokens_per_s, serial.vs_plain, serial.simulated_vs_plain) == (2000.0, 2.0, 3.125)
    assert serial.error == pytest.approx(0.25)
    assert serial.tokens_per_round == pytest.approx(2.0)
    assert serial.right_share == pytest.approx(0.6)


def test_every_answer_is_compared_with_the_plain_one_of_its_temperature() -> None:
    truths: dict[float, list[tuple[int, ...]]] = {0.0: [(1, 2, 3, 4, 5, 6, 7, 8), (9,) * 8, (5, 5)], 0.8: [(3,), (4,)]}
    assert count_flips(BURSTS, truths) == (1, 12, 96)
    assert count_flips({(COLD, PLAIN): [answers(1.0)]}, truths) == (2, 2, 16)
    assert num_generate_unlike(BURSTS, truths) == 3, "the first answer of each burst has another last token"
    assert num_generate_unlike({(COLD, GENERATE): [answers(1.0)]}, truths) == 0, "it draws other noise"


def test_more_flips_than_fast_numerics_may_have_are_an_error() -> None:
    assert found_of(0).is_sound
    assert not found_of(1).is_sound


def test_a_report_has_every_cell_and_the_result_the_extremes(tmp_path: Path) -> None:
    found = found_of(1)
    report = markdown({"card": "none"}, found)
    assert "| 0 | 2 | 0.8 | outrider serial | 2000 | 100% | 0.75 | 2.00 | 60% | 5.00 | 2.00 | 2500 | 3.12 | 25.0% |" in report
    assert "| 0 | 2 | 0.8 | transformers generate | 400 | 0% | 3.75 | 1.00 |  | 1.00 | 0.40 |  |  |  |" in report
    assert "| 0 | 2 | 0.8 | 150 | 40 | 100 | 5.0 | 1: 300, 4: 320 | 80 | 1: 2.00, 8: 2.40, 64: 4.00 |" in report
    assert "Answers that differ from plain decoding: 1 of 12." in report
    told = result(found, {"card": "none"})
    assert (told["gpu_min_serial_vs_plain"], told["gpu_max_serial_vs_plain"]) == (2.0, 2.0)
    assert (told["gpu_min_serial_vs_generate"], told["gpu_max_plain_vs_generate"]) == (5.0, 2.5)
    assert "gpu_min_transformers generate_vs_plain" not in told
    assert (told["sim_max_error"], told["sim_mean_error"], told["identical"]) == (0.25, 0.225, False)
    assert told["sim_max_error_at"] == "outrider serial, T = 0, 2 at a time, acceptance 0.8"
    json.dumps(told)
    if draw(found.rows, tmp_path / "gpu.svg"):
        assert "simulated" in (tmp_path / "gpu.svg").read_text() or (tmp_path / "gpu.svg").stat().st_size > 1000
