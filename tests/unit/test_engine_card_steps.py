"""Steps in the card's own way, kernels interpreted on the CPU and graphs stood in for by recordings, against today's engine on the same
plans: logits within the rounding of other sums, and exactly the picks that the general pick makes of them. Broken twins are caught.

Run: pytest tests/unit/test_engine_card_steps.py
"""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import GptOssConfig

import fakes_models
from fakes_kernel_places import interpreted_process
from mostly_slow import mostly_slow
from outrider_kernels.interpreted_process import InterpretedProcess

TOLERANCE = 2e-4  # of logits between -5 and 5; two orders of fp32 sums differ by some 1e-6
TOLERANCES_16 = {"bfloat16": 0.1, "float16": 0.02}  # a few units in the last place of hidden states, through the head
TWIN_STEPS, TWIN_SEED = 5, 11
NUM_STEPS, SEED = 14, 3
NUM_PENALTY_STEPS = 6  # of the same schedule: a pick under penalties is among them


@pytest.fixture
def interpreted() -> InterpretedProcess:
    """The interpreter cannot be switched on in pytest's own process, where other libraries have imported triton already."""
    return interpreted_process()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose every layer has a window of 12, two query heads to a key head."""
    path: Path = tmp_path_factory.mktemp("mistral")
    fakes_models.make_model("mistral", path, num_hidden_layers=1, vocab_size=fakes_models.VOCAB)
    return str(path)


def test_recorded_steps_are_todays(interpreted: InterpretedProcess, folder: str) -> None:
    report = interpreted.call("fakes_card_steps", "compare", folder, NUM_STEPS, SEED)
    assert report["num_recordings"] == 7
    assert report["num_played"] > 6
    assert len(report["played"]) > 3
    assert report["num_own"] > 0
    assert report["num_moved"] > 0
    assert report["largest_error"] < TOLERANCE
    assert report["different_picks"] == report["different_results"] == 0
    assert 0 < report["num_left"] < report["num_picks"]
    assert report["num_penalised"] > 5


def test_long_prefixes_are_split_and_groups_may_be_wide(interpreted: InterpretedProcess, tmp_path: Path) -> None:
    """A long context makes the recorded attention split every prefix, also those too short to need it; four query heads to a key head."""
    fakes_models.make_model("llama_tied_one_kv_head", tmp_path, num_hidden_layers=1)
    report = interpreted.call("fakes_card_steps", "compare", str(tmp_path), 6, 8, max_context=512)
    assert report["num_played"] > 2
    assert report["largest_error"] < TOLERANCE
    assert report["different_picks"] == report["different_results"] == 0


@pytest.mark.parametrize("dtype", mostly_slow(["bfloat16", "float16"], 1))
def test_recorded_steps_of_16_bits_are_todays(interpreted: InterpretedProcess, tmp_path: Path, dtype: str) -> None:
    """As cards run models, fused between products, norms of heads included; the kernels widen bfloat16 here, for the interpreter's
    arithmetic with it is wrong."""
    fakes_models.make_model("qwen3", tmp_path, num_hidden_layers=1)
    fakes_models.draw_norms(tmp_path)
    report = interpreted.call("fakes_card_steps", "compare", str(tmp_path), TWIN_STEPS, TWIN_SEED, dtype=dtype)
    assert report["num_played"] > 2
    assert report["largest_error"] < TOLERANCES_16[dtype]
    assert report["different_picks"] == report["different_results"] == 0


def test_recorded_steps_of_a_mixture_with_sinks_are_todays(interpreted: InterpretedProcess, tmp_path: Path) -> None:
    """gpt-oss, by transformers' own layers."""
    config = GptOssConfig(
        **fakes_models.TINY_SIZES, num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=12, pad_token_id=0
    )
    fakes_models.write_model(config, tmp_path)
    reports = [
        interpreted.call("fakes_card_steps", "compare", str(tmp_path), TWIN_STEPS, TWIN_SEED, kind="transformers", broken=broken)
        for broken in ("", "no head has a sink")
    ]
    assert reports[0]["num_played"] > 2
    assert reports[0]["largest_error"] < TOLERANCE
    assert reports[0]["different_picks"] == reports[0]["different_results"] == 0
    assert reports[1]["largest_error"] > 100 * TOLERANCE


@pytest.mark.parametrize("graphs", mostly_slow(["failing", "launched"], 1))
def test_steps_that_are_not_recorded_are_todays(interpreted: InterpretedProcess, tmp_path: Path, graphs: str) -> None:
    """Because nobody wants recordings, or because one of them failed."""
    fakes_models.make_model("qwen3", tmp_path, num_hidden_layers=1)
    report = interpreted.call("fakes_card_steps", "compare", str(tmp_path), 5, 8, graphs=graphs)
    assert report["num_played"] == report["num_recordings"] == 0
    assert report["largest_error"] < TOLERANCE
    assert report["different_picks"] == report["different_results"] == 0


TWINS = [
    "reads Python when played",
    "padding writes into a sequence",
    "padding is picked at",
    "nodes see no node",
    "one block a sequence",
]


@pytest.mark.parametrize("broken", mostly_slow(TWINS, 2))
def test_a_broken_step_is_caught(interpreted: InterpretedProcess, folder: str, broken: str) -> None:
    report = interpreted.call("fakes_card_steps", "compare", folder, TWIN_STEPS, TWIN_SEED, broken=broken)
    assert report["largest_error"] > 100 * TOLERANCE


@pytest.mark.parametrize("broken", mostly_slow(["penalties forget the path", "penalties are never sent"], 1))
def test_a_broken_penalty_is_caught(interpreted: InterpretedProcess, folder: str, broken: str) -> None:
    report = interpreted.call("fakes_card_steps", "compare", folder, NUM_PENALTY_STEPS, SEED, broken=broken)
    assert report["largest_error"] < TOLERANCE
    assert report["different_picks"] > 0


def test_what_the_broken_steps_come_from_is_right(interpreted: InterpretedProcess, folder: str) -> None:
    report = interpreted.call("fakes_card_steps", "compare", folder, TWIN_STEPS, TWIN_SEED)
    assert report["largest_error"] < TOLERANCE


def test_a_number_from_the_host_cannot_be_recorded(interpreted: InterpretedProcess) -> None:
    assert interpreted.call("fakes_card_steps", "records_a_question") == "HostInRecording"


@pytest.mark.parametrize("num_rows", [1, 40, 600])
def test_rows_are_moved_over_one_another_as_by_torch(interpreted: InterpretedProcess, num_rows: int) -> None:
    """600 are more than the kernel takes in one call."""
    assert interpreted.call("fakes_card_steps", "moved_both_ways", num_rows)


@pytest.mark.parametrize(
    ("graphs", "broken", "left"),
    [
        ("recorded", "", "recorded"),
        ("failing", "", "launched"),
        ("recorded", "reads Python when played", "launched"),
        ("recorded", "nodes see no node", "plain"),
    ],
)
def test_the_probe_leaves_what_is_right(interpreted: InterpretedProcess, folder: str, graphs: str, broken: str, left: str) -> None:
    assert interpreted.call("fakes_card_steps", "probed", folder, graphs, broken) == left
