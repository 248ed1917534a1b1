"""The run on a card, as far as it needs none: sizes, random targets, refusals, bursts, predictions, rows and reports."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from outrider.cli import bench as bench_command
from outrider.cli.__main__ import build_parser, main
from outrider.engine.config import DType, EngineConfig, EngineKind
from outrider.engine.load import load_engine
from outrider.engine.vocabulary import read_vocabulary
from outrider.errors import InvalidRequest, Unavailable
from outrider.session.pacing.contract import CostCurve
from outrider.session.pacing.registry import make_pacing
from outrider.types.identity import incompatibility
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider_bench.contestants import DraftWishes, Stack
from outrider_bench.gpu import driver, random_target, target_folder
from outrider_bench.gpu.bursts import FIRST_ID, Burst, burst, random_prompts
from outrider_bench.gpu.card import Card, find_card
from outrider_bench.gpu.card_probe import missing_for_cuda
from outrider_bench.gpu.driver import CONTESTANTS, Amount
from outrider_bench.gpu.micro import BurstCosts, BurstMicro, round_us_of
from outrider_bench.gpu.prediction import burst_world, predict
from outrider_bench.gpu.report import GpuCell, GpuFound, count_flips, draw, markdown, result, rows_of
from outrider_bench.gpu.shapes import SIZES, TargetShape, draft_us
from outrider_bench.measurement import Answer, DraftNumbers, Prompt
from outrider_bench.micro import MicroBenchmarks
from outrider_bench.predictions import Circumstances, Shape, predicted_tokens_per_s
from outrider_bench.results import PLAIN
from outrider_bench.simulation.event_loop import simulate
from outrider_bench.simulation.world import World

SMALL = TargetShape(2, 64, 4, 2, 16, 96, 2500)
ONE = MicroBenchmarks(CostCurve(((1, 2000.0), (8, 2400.0), (64, 4000.0))), 150, 900.0, 300.0, 160.0, 512, 100)
COSTS = BurstCosts(ONE, 40, 5000.0, CostCurve(((1, 300.0), (4, 320.0))))
SERIAL = "outrider serial"
DRAFTED = DraftNumbers(num_rounds=4, num_drafted=10, num_accepted=6, verify_ms=1.0, draft_ms=1.0, overlapped_draft_ms=0.0, draft_wait_ms=0.0)


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
    vocabulary = read_vocabulary(written / "target")
    assert vocabulary is not None
    assert vocabulary.size == SMALL.num_ids
    assert not vocabulary.missing_ids
    assert len({entry.content for entry in vocabulary.entries}) == SMALL.num_ids
    assert incompatibility(_engine(written / "draft").identity, _engine(written / "target").identity) is None


def _engine(folder: Path) -> "object":
    return load_engine(EngineConfig(str(folder), EngineKind.LEAN, DType.BFLOAT16, kv_budget_mib=16))
