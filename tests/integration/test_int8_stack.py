"""Weights kept as int8, through real processes in `invariant` numerics: drafts change no token of an int8 verifier, nor an int8 drafter one
of a full verifier; and an int8 verifier's text is what the independent oracle says of a checkpoint that was rounded beforehand.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes_models import worn
from forked_services import ForkedDeployment
from mostly_slow import mostly_slow
from outrider.cli.connection import Connection
from outrider.cli.starting import await_pair
from outrider.launch.deployment import DeploymentSpec
from outrider.launch.threads import ThreadPlan
from outrider_bench.identity_cases import make_cases
from outrider_bench.oracle import Oracle
from outrider_models.paths import model_dir
from unchanged_drafts import assert_drafts_change_nothing

NUM_CASES = 8
NUM_TOKENS = 64
PACINGS = ("serial", "pearl")
MAX_NEAR_TIES = 2
TARGET = model_dir("ref-large")
WEAR = 0.3  # of the draft, which is right too often otherwise for anything to be rejected


def rounded(model: Path, directory: Path) -> Path:
    """A copy of a model whose layers' matrices are multiples of their channel's step already, in float32."""
    shutil.copytree(model, directory, dirs_exist_ok=True)
    weights = {name: weight.float() for name, weight in load_file(str(model / "model.safetensors")).items()}
    for name, weight in weights.items():
        if name.endswith("_proj.weight"):
            matrix = weight.numpy()
            step = np.abs(matrix).max(axis=1, keepdims=True) / np.float32(127)
            weights[name] = torch.from_numpy(np.rint(matrix / step) * step)
    save_file(weights, str(directory / "model.safetensors"), metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize("target_weights", mostly_slow(["int8", "full"], 1))
def test_drafts_of_an_int8_drafter_change_no_token(target_weights: str, tmp_path: Path) -> None:
    models = str(TARGET), str(worn(model_dir("ref-small"), tmp_path / "worn", WEAR))
    spec = DeploymentSpec(*models, "serial", ThreadPlan(1, 1), numerics="invariant", target_weights=target_weights, draft_weights="int8")
    with ForkedDeployment(spec) as deployment, Connection(deployment.gateway) as gateway:
        info = await_pair(deployment)
        assert info.identity.dtype == ("float32, int8 weights" if target_weights == "int8" else "float32")
        assert [pair.identity.dtype for pair in info.pairs] == ["float32, int8 weights"]
        cases = make_cases(gateway, NUM_CASES, NUM_TOKENS, len(PACINGS))
        plain = assert_drafts_change_nothing(gateway, cases, PACINGS)
    oracle = Oracle(str(rounded(TARGET, tmp_path / "rounded") if target_weights == "int8" else TARGET), "float32")
    found = [
        disagreement
        for case, answer in zip(cases, plain.answers, strict=True)
        for disagreement in oracle.judge(case.prompt.token_ids, answer, case.sampling, case.address)
    ]
    assert [disagreement for disagreement in found if not disagreement.near_tie] == []
    assert len(found) <= MAX_NEAR_TIES
