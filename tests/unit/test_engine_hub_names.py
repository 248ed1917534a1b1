"""Models by hub name: found in the local hub cache without a network, by branch and by commit; a name that is nowhere is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

import fakes_models
from outrider.engine.config import EngineConfig
from outrider.engine.load import load_engine
from outrider.engine.model_files import find_model
from outrider.errors import ModelRefused
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan

NAME, COMMIT = "acme/tiny-llama", "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(name="snapshot")
def _snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache as a download leaves it: one commit, which `main` names."""
    repository = tmp_path / ("models--" + NAME.replace("/", "--"))
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    fakes_models.make_model("llama", snapshot)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return snapshot


@pytest.mark.parametrize("revision", ["", "main", COMMIT])
def test_a_hub_name_becomes_its_cached_snapshot(snapshot: Path, revision: str) -> None:
    files = find_model(NAME, revision)
    assert files.directory == snapshot
    assert files.revision == (revision or COMMIT)


def test_a_model_by_hub_name_steps_and_says_its_commit(snapshot: Path) -> None:
    engine = load_engine(EngineConfig(NAME, num_blocks=8, block_len=16))
    assert engine.identity.revision == COMMIT
    assert engine.identity.model == NAME
    none = np.empty(0, np.int32)
    engine.open(1, SequenceSpec(SamplingParams(temperature=0.0), NoiseAddress(0), 3, 16, 0))
    result = engine.step(StepPlan((SequenceRows(1, np.array([5, 6, 7], np.int32), none, none),)))
    assert 0 <= int(result.results[0].picks[0]) < engine.identity.vocab_size


def test_a_name_that_is_nowhere_is_refused_with_the_name(snapshot: Path) -> None:
    with pytest.raises(ModelRefused, match="acme/absent"):
        find_model("acme/absent")
    with pytest.raises(ModelRefused, match=NAME):
        find_model(NAME, "no-such-branch")
