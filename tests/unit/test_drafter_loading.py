"""From a command line to a loaded drafter, in this process: bounds from the model, replayed texts from a file, refusals by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from drafter_service.draft_time import READ_ROWS, measure_read_us
from drafter_service.drafting_thread import LoadedDrafter
from drafter_service.loading import load_drafter
from drafter_service.settings import parse_settings
from fakes import TableEngine, TruthTable
from fakes_models import VOCAB, make_model
from outrider.drafting.contract import ProposeRequest, SourceSession
from outrider.engine.config import AUTO_SHORTLIST
from outrider.errors import InvalidRequest
from outrider.types.frames import DraftLimits
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import StepPlan, StepResult


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft-model")
    make_model("llama", folder)
    return folder


def loaded(model: Path, *extra: str) -> LoadedDrafter:
    return load_drafter(parse_settings(["--model", str(model), "--listen", "127.0.0.1:0", "--no-probe", *extra]))


def test_bounds_come_from_the_model_and_the_command_line(model: Path) -> None:
    whole = loaded(model).bounds
    assert (whole.vocab_size, whole.max_len, whole.max_prefix_len, whole.source) == (VOCAB, 512, 512, "model")
    small = loaded(model, "--max-len", "100", "--max-prefix-len", "60").bounds
    assert (small.max_len, small.max_prefix_len) == (100, 60)
    assert loaded(model, "--max-len", "100000").bounds.max_len == 512
    assert loaded(model, "--max-len", "100").engine.limits.max_context == 100  # a model may be served up to there and no further


def test_texts_that_the_source_would_not_read_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"--replay-texts: only --source replay reads them, and it is 'model' here"):
        parse_settings(["--model", "somewhere", "--listen", "127.0.0.1:0", "--replay-texts", "texts.json"])


def test_sessions_share_what_was_read_unless_told_otherwise() -> None:
    given = ["--model", "somewhere", "--listen", "127.0.0.1:0"]
    assert parse_settings(given).engine.prefix_cache
    assert not parse_settings([*given, "--no-prefix-cache"]).engine.prefix_cache


def test_weights_are_kept_as_int8_when_told_to(model: Path, tmp_path: Path) -> None:
    assert loaded(model).engine.identity.dtype == "float32"
    assert loaded(model, "--weights", "int8").engine.identity.dtype == "float32, int8 weights"
    with pytest.raises(InvalidRequest, match="replayed drafts") as caught:
        loaded(model, "--weights", "int8", "--source", "replay", "--replay-texts", str(tmp_path / "texts.json"))
    assert caught.value.field == "--weights"


def test_guesses_are_chosen_among_as_many_ids_as_it_is_told(model: Path, tmp_path: Path) -> None:
    given = ["--model", "somewhere", "--listen", "127.0.0.1:0"]
    assert parse_settings(given).engine.shortlist == AUTO_SHORTLIST
    assert [parse_settings([*given, "--shortlist", text]).engine.shortlist for text in ("off", "20000")] == [0, 20000]
    for wrong in (["--shortlist", "12"], ["--shortlist", "2000", "--source", "replay", "--replay-texts", str(tmp_path / "texts.json")]):
        with pytest.raises(InvalidRequest) as caught:
            loaded(model, *wrong)
        assert caught.value.field == "--shortlist"


def test_replayed_texts_come_from_a_file(model: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.json"
    texts.write_text(json.dumps({"texts": [list(range(1, 90))]}))
    source = loaded(model, "--source", "replay", "--replay-texts", str(texts)).source
    prefix = np.arange(1, 40, dtype=np.int32)
    source.open(SourceSession(1, prefix, 39, SamplingParams(), NoiseAddress(7), DraftLimits(100)))
    assert source.propose([ProposeRequest(1, 0, 47)])[0].tokens == tuple(range(40, 48))


@pytest.mark.parametrize("content", ['{"texts": 3}', "[[1, 2]]", '{"texts": [[1, 100000]]}', '{"texts": [["one"]]}', "no JSON"])
def test_a_file_of_something_else_is_refused(model: Path, tmp_path: Path, content: str) -> None:
    texts = tmp_path / "texts.json"
    texts.write_text(content)
    with pytest.raises(InvalidRequest, match="texts"):
        loaded(model, "--source", "replay", "--replay-texts", str(texts))
    with pytest.raises(InvalidRequest, match="texts"):
        loaded(model, "--source", "replay", "--replay-texts", str(tmp_path / "nowhere.json"))


@pytest.mark.parametrize("flag", ["--threads", "--max-sessions", "--max-message-mib"])
def test_a_number_out_of_range_names_its_flag(model: Path, flag: str) -> None:
    with pytest.raises(InvalidRequest, match=flag):
        loaded(model, flag, "0")


@pytest.mark.parametrize("flag", ["--max-len", "--max-prefix-len", "--max-sessions-per-stream", "--drain-grace-s"])
def test_a_bound_below_zero_would_refuse_everything_and_is_refused_itself(model: Path, flag: str) -> None:
    with pytest.raises(InvalidRequest, match=flag):
        loaded(model, f"{flag}=-1")


def test_an_unknown_source_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="oracle"):
        loaded(tmp_path / "no-model-here", "--source", "oracle")


def test_a_member_of_a_fleet_knows_from_the_start_what_a_token_costs(model: Path) -> None:
    member = loaded(model, "--coordinator", "localhost:1", "--replica-id", "d")
    assert 0.0 < member.read_us < 3 * member.token_us, "a token of many in a step is no dearer than one by itself"
    assert member.engine.num_free_blocks == member.engine.limits.num_blocks, "nothing is held"
    assert (loaded(model).token_us, loaded(model).read_us) == (0.0, 0.0), "nobody asks"


class Compiling(TableEngine):
    """Its first step takes a thousand times as long as others."""

    is_compiled = False

    def step(self, plan: StepPlan) -> StepResult:
        result = super().step(plan)
        first, self.is_compiled = not self.is_compiled, True
        return replace(result, step_us=1_000 * result.step_us) if first else result


@pytest.mark.parametrize(("max_rows", "num_rows"), [(256, READ_ROWS), (40, 40)])
def test_reading_is_measured_in_a_step_of_many_rows(max_rows: int, num_rows: int) -> None:
    engine = TableEngine(TruthTable(), max_rows=max_rows, step_us=2_560)
    assert measure_read_us(engine) == 2_560 / num_rows
    assert engine.num_free_blocks == engine.limits.num_blocks
    assert measure_read_us(TableEngine(TruthTable(), num_blocks=2)) == 0.0, "no room to measure in is no reason not to start"


def test_where_steps_are_compiled_the_second_is_measured() -> None:
    engine = Compiling(TruthTable(), step_us=2_560)
    assert measure_read_us(engine, compiles=True) == 2_560 / READ_ROWS
    assert measure_read_us(Compiling(TruthTable(), step_us=2_560)) == 2_560_000 / READ_ROWS, "the same, not told"
    assert engine.num_free_blocks == engine.limits.num_blocks
