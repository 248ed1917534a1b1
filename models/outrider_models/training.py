"""One resumable training run: batches in, weights out, a checkpoint every few minutes.

Knows how the parts (packer, gradients, optimizer, schedule, export) work together; must not know which model is
worth training. The saved state holds everything: rerunning continues exactly where the last checkpoint was.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer

from outrider_models.batches import Curriculum, Packer, Row
from outrider_models.depth import fit_depth
from outrider_models.export import export_model, load_weights
from outrider_models.gradient import GradientPool
from outrider_models.network import Weights, init_weights, rotary_tables
from outrider_models.optimizer import Optimizer, Rates
from outrider_models.paths import checkpoint_path, corpus_dir, model_dir
from outrider_models.progress import TrainingProgress
from outrider_models.schedule import Budget
from outrider_models.shapes import SHAPES

_EMA_SPAN_STEPS = 60  # snapshots taken before the decay are averaged over about this many batches


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What distinguishes one run from another; every default is what the committed models used."""

    name: str
    budget: Budget
    rates: Rates
    curriculum: Curriculum = field(default_factory=Curriculum)
    rows: int = 8
    late_rows: int = 16  # once a third of the budget is spent
    row_len: int = 512
    micro_rows: int = 2
    num_workers: int = 1
    seed: int = 0
    device: str = "cpu"
    autocast: torch.dtype | None = None
    init_from: Path | None = None
    checkpoint_minutes: float = 4.0
    snapshot_minutes: float = 20.0
    fresh: bool = False


@dataclass(slots=True)
class _State:
    """Everything that a checkpoint holds."""

    weights: Weights
    average: Weights
    optimizer: Optimizer
    position: int = 0
    num_tokens: int = 0
    spent_s: float = 0.0
    loss: float = math.nan


def train(options: RunOptions) -> None:
    """Train until the budget is spent, then export to the model's folder and drop nothing.

    Raises FileNotFoundError when the corpus or the `init_from` weights are missing.
    """
    shape, device = SHAPES[options.name], torch.device(options.device)
    tokenizer = Tokenizer.from_file(str(model_dir(options.name) / "tokenizer.json"))
    state = _resume(options, device) or _begin(options, device)
    threads_each = torch.get_num_threads() if device.type == "cuda" else 1
    with (
        ThreadPoolExecutor(options.num_workers, initializer=torch.set_num_threads, initargs=(threads_each,)) as executor,
        TrainingProgress(options.name) as shown,
    ):
        tables = rotary_tables(options.row_len, shape.head_dim, device)
        pool = GradientPool(executor, shape, tables, options.num_workers, options.micro_rows, options.autocast)
        packer = Packer(corpus_dir(), options.row_len, options.seed, options.curriculum)
        saved_s = snapshot_s = state.spent_s
        while (share := options.budget.progress(state.spent_s / 60, state.num_tokens)) < 1.0:
            rows = options.rows if share < 1 / 3 else options.late_rows
            _one_batch(state, packer.batch(state.position, rows, share), pool, options.budget.rate_scale(share), executor)
            shown.update(share, f"loss {state.loss:.4f}  {state.num_tokens / 1e6:.2f}M tokens  {_speed(state)}")
            if state.spent_s - saved_s > 60 * options.checkpoint_minutes:
                _save(options, state)
                saved_s = state.spent_s
            if state.spent_s - snapshot_s > 60 * options.snapshot_minutes and share < 0.9:
                export_model(state.average, shape, tokenizer, model_dir(options.name))
                snapshot_s = state.spent_s
    _save(options, state)
    export_model(state.weights, shape, tokenizer, model_dir(options.name))
    _write_record(options, state)
    print(f"{options.name}: {state.num_tokens} tokens in {state.spent_s / 60:.1f} minutes, loss {state.loss:.4f}", flush=True)


def _one_batch(state: _State, batch: Sequence[Row], pool: GradientPool, scale: float, executor: ThreadPoolExecutor) -> None:
    began_s = time.monotonic()
    gradients = pool.compute(state.weights, batch)
    state.optimizer.step(gradients.by_name, scale, executor)
    with torch.no_grad():
        keep = min(1 - 1 / _EMA_SPAN_STEPS, 1 - 1 / (1 + state.position))
        torch._foreach_lerp_(list(state.average.values()), list(state.weights.values()), 1 - keep)
    state.position += 1
    state.num_tokens += sum(row.inputs.size for row in batch)
    state.loss = gradients.loss if math.isnan(state.loss) else 0.97 * state.loss + 0.03 * gradients.loss
    state.spent_s += time.monotonic() - began_s


def _speed(state: _State) -> str:
    return f"{state.num_tokens / max(state.spent_s, 1e-9):.0f} tokens/s"


def _write_record(options: RunOptions, state: _State) -> None:
    """training.json beside the weights: what the model card says about this run."""
    hardware = torch.cuda.get_device_name() if options.device == "cuda" else f"{options.num_workers} CPU threads"
    record = {
        "parameters": sum(weight.numel() for weight in state.weights.values()),
        "tokens": state.num_tokens,
        "minutes": round(state.spent_s / 60, 1),
        "hardware": hardware,
        "notes": f"continued from {options.init_from.name}" if options.init_from else "",
    }
    (model_dir(options.name) / "training.json").write_text(json.dumps(record, indent=1) + "\n")


def _begin(options: RunOptions, device: torch.device) -> _State:
    shape = SHAPES[options.name]
    source = fit_depth(load_weights(options.init_from), shape) if options.init_from else init_weights(shape, options.seed)
    weights = {name: weight.to(device).requires_grad_() for name, weight in source.items()}
    average = {name: weight.detach().clone() for name, weight in weights.items()}
    return _State(weights, average, Optimizer(weights, options.rates))


def _resume(options: RunOptions, device: torch.device) -> _State | None:
    path = checkpoint_path(options.name)
    if options.fresh or not path.exists():
        return None
    saved = torch.load(path, map_location=device, weights_only=True)
    weights = {name: weight.requires_grad_() for name, weight in saved["weights"].items()}
    optimizer = Optimizer(weights, options.rates, saved["num_steps"], saved["first"], saved["second"])
    return _State(weights, saved["average"], optimizer, saved["position"], saved["num_tokens"], saved["spent_s"], saved["loss"])


def _save(options: RunOptions, state: _State) -> None:
    path = checkpoint_path(options.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(
        {
            "weights": {name: weight.detach() for name, weight in state.weights.items()},
            "average": state.average,
            "first": state.optimizer.first,
            "second": state.optimizer.second,
            "num_steps": state.optimizer.num_steps,
            "position": state.position,
            "num_tokens": state.num_tokens,
            "spent_s": state.spent_s,
            "loss": state.loss,
        },
        partial,
    )
    os.replace(partial, path)
