"""The committed models: they load, stay within their sizes, agree with transformers, and know what the card says."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from tokenizers import Tokenizer

from outrider_models.acceptance import Model, measure_acceptance
from outrider_models.chat import render_prompt
from outrider_models.decode import sample_batch
from outrider_models.export import WEIGHTS_FILE, load_weights
from outrider_models.network import forward, rotary_tables
from outrider_models.paths import MODEL_NAMES, MODELS_ROOT, model_dir
from outrider_models.scores import answer_tasks, score_arithmetic
from outrider_models.shapes import SHAPES
from outrider_models.tasks import make_tasks

TOKENIZER = Tokenizer.from_file(str(model_dir("ref-large") / "tokenizer.json"))


@cache
def _model(name: str) -> Model:
    return Model(load_weights(model_dir(name)), SHAPES[name])


def _num_parameters(name: str) -> int:
    return sum(weight.numel() for weight in _model(name).weights.values())


def test_sizes_are_within_their_limits() -> None:
    assert 10e6 <= _num_parameters("ref-large") <= 20e6
    assert _num_parameters("ref-small") <= 1.5e6
    assert _num_parameters("ref-small") < _num_parameters("ref-medium") < _num_parameters("ref-large")
    assert sum((model_dir(name) / WEIGHTS_FILE).stat().st_size for name in MODEL_NAMES) <= 48e6


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_transformers_computes_the_same_logits_and_greedy_text(name: str) -> None:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    theirs = AutoModelForCausalLM.from_pretrained(str(model_dir(name)), dtype=torch.float32)
    prompts = [TOKENIZER.encode(render_prompt(task.prompt)).ids for task in make_tasks("arithmetic", 2, 3, held_out=True)]
    model = _model(name)
    for prompt in prompts:
        ids = torch.tensor(prompt)
        ours = forward(model.weights, model.shape, ids, [len(ids)], rotary_tables(len(ids), model.shape.head_dim, torch.device("cpu")))
        torch.testing.assert_close(ours, theirs(ids[None]).logits[0].detach(), rtol=1e-3, atol=1e-3)
    samples = sample_batch(model.weights, model.shape, prompts, 24, 0.0, seed=0)  # of unequal lengths: padded
    for prompt, sampled in zip(prompts, samples, strict=True):
        expected = theirs.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :]
        assert sampled.tokens.tolist() == expected.tolist()


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_folders_say_bf16_and_carry_their_training_record(name: str) -> None:
    config = json.loads((model_dir(name) / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert config["architectures"] == ["LlamaForCausalLM"]
    record = json.loads((model_dir(name) / "training.json").read_text())
    assert record["parameters"] == _num_parameters(name)
    assert record["tokens"] > 0


@pytest.mark.slow
def test_large_model_answers_as_often_as_its_card_says_and_a_damaged_twin_does_not() -> None:
    report = json.loads((MODELS_ROOT / "eval.json").read_text())
    share = report["ref-large"]["answers"]["new problems, known names and sentences"]["share"]
    tasks = make_tasks("arithmetic", 24, 901, held_out=False)
    model = _model("ref-large")
    intact = score_arithmetic(tasks, answer_tasks(model.weights, model.shape, TOKENIZER, tasks))["answers"]["all"].value
    allowed = 3 * (share * (1 - share) / len(tasks)) ** 0.5 + 0.04
    assert abs(intact - share) <= allowed, f"{intact:.0%} here, {share:.0%} on the card"
    broken = {name: weight * (0 if "layers.0.mlp" in name else 1) for name, weight in model.weights.items()}
    damaged = score_arithmetic(tasks[:8], answer_tasks(broken, model.shape, TOKENIZER, tasks[:8]))["answers"]["all"].value
    assert damaged < intact - 0.3


@pytest.mark.slow
def test_a_model_accepts_itself_and_a_smaller_one_accepts_less() -> None:
    tasks = make_tasks("arithmetic", 4, 11, held_out=False)
    medium, small = _model("ref-medium"), _model("ref-small")
    for temperature in (0.0, 1.0):
        found = measure_acceptance(medium, {"itself": medium, "small": small}, TOKENIZER, tasks, temperature, seed=5)
        assert found["itself"].value > 0.99
        assert 0.3 < found["small"].value < found["itself"].value
