"""How often a draft model's pick equals the target's, under shared noise, on the target's own text.

The measure that decides how fast speculation is: both pick argmax(logits + T * gumbel) with the same noise at the
same position; the draft is teacher-forced on what the target wrote, so each position counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from outrider_models.chat import render_prompt
from outrider_models.decode import Sampled, sample_batch
from outrider_models.network import Weights, forward, rotary_tables
from outrider_models.scores import MAX_NEW_TOKENS, Share
from outrider_models.shapes import Shape
from outrider_models.tasks import Task

_BATCH_ROWS = 16


@dataclass(frozen=True, slots=True)
class Model:
    """Weights with their sizes."""

    weights: Weights
    shape: Shape


@torch.no_grad()
def measure_acceptance(
    target: Model, drafts: dict[str, Model], tokenizer: Tokenizer, tasks: Sequence[Task], temperature: float, seed: int
) -> dict[str, Share]:
    """Accepted positions of all positions that the target wrote, for each draft by its name."""
    counts = {name: Share(0, 0) for name in drafts}
    prompts = [tokenizer.encode(render_prompt(task.prompt)).ids for task in tasks]
    for begin in range(0, len(prompts), _BATCH_ROWS):
        batch = prompts[begin : begin + _BATCH_ROWS]
        samples = sample_batch(target.weights, target.shape, batch, MAX_NEW_TOKENS, temperature, seed + begin)
        for prompt, sampled in zip(batch, samples, strict=True):
            for name, draft in drafts.items():
                num_right = int((_picks(draft, prompt, sampled, temperature) == sampled.tokens).sum())
                counts[name] = Share(counts[name].num_right + num_right, counts[name].num_all + len(sampled.tokens))
    return counts


def _picks(draft: Model, prompt: Sequence[int], sampled: Sampled, temperature: float) -> Tensor:
    """What the draft would pick at each position of the target's text, [length] int64."""
    ids = torch.cat((torch.tensor(list(prompt)), sampled.tokens))[:-1]
    tables = rotary_tables(len(ids), draft.shape.head_dim, torch.device("cpu"))
    logits = forward(draft.weights, draft.shape, ids, [len(ids)], tables)[len(prompt) - 1 :]
    return (logits if sampled.noise is None else logits + temperature * sampled.noise).argmax(-1)
