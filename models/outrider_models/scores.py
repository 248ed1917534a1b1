"""Accuracy of one model on held-out problems, split by what a problem is made of.

Knows tasks, checkers and decoding; must not know training. One pass at temperature 0 gives every split.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from outrider_models.chat import render_prompt
from outrider_models.checker import check_solution
from outrider_models.decode import sample_batch
from outrider_models.network import Weights
from outrider_models.shapes import END_ID, Shape
from outrider_models.tasks import Task

MAX_NEW_TOKENS = 320
_BATCH_ROWS = 50


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many were right."""

    num_right: int
    num_all: int

    @property
    def value(self) -> float:
        """Right / all, or 0 when there were none."""
        return self.num_right / self.num_all if self.num_all else 0.0


Splits = dict[str, dict[str, Share]]  # "by number of steps" -> "steps-3" -> share


def answer_tasks(
    weights: Weights, shape: Shape, tokenizer: Tokenizer, tasks: Sequence[Task], temperature: float = 0.0, seed: int = 0
) -> list[str]:
    """The model's answers, in the order of `tasks`; similar lengths are decoded together."""
    prompts = [tokenizer.encode(render_prompt(task.prompt)).ids for task in tasks]
    order = sorted(range(len(tasks)), key=lambda index: len(prompts[index]))
    texts = [""] * len(tasks)
    for begin in range(0, len(order), _BATCH_ROWS):
        chosen = order[begin : begin + _BATCH_ROWS]
        batch = [prompts[index] for index in chosen]
        samples = sample_batch(weights, shape, batch, MAX_NEW_TOKENS, temperature, seed + begin)
        for index, sampled in zip(chosen, samples, strict=True):
            ids = [token for token in sampled.tokens.tolist() if token != END_ID]
            texts[index] = tokenizer.decode(ids, skip_special_tokens=False)
    return texts


def score_arithmetic(tasks: Sequence[Task], texts: Sequence[str]) -> Splits:
    """Final answers by everything a problem contains; single steps by operator."""
    marks: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for task, text in zip(tasks, texts, strict=True):
        problem, right = task.problem, task.is_correct(text)
        assert problem is not None, "only arithmetic tasks have problems"
        marks["answers"]["all"].append(right)
        marks["answers"]["some sentence held out" if problem.held_out_pattern else "only known sentences"].append(right)
        marks["answers by number of steps"][str(len(problem.steps))].append(right)
        for key in set(problem.patterns):
            marks["answers by template"][key].append(right)
        verdicts = check_solution(problem, text)
        for step, verdict in zip(problem.steps, verdicts, strict=False):
            marks["steps by operator"][step.operator.value].append(verdict.correct)
        for verdict in verdicts:
            marks["step verdicts"][verdict.verdict.value].append(True)
    return _shares(marks)


def score_copying(tasks: Sequence[Task], texts: Sequence[str]) -> Splits:
    """Exact matches by kind of edit."""
    marks: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for task, text in zip(tasks, texts, strict=True):
        marks["exact copies"]["all"].append(task.is_correct(text))
        marks["exact copies by kind"][task.variant].append(task.is_correct(text))
    return _shares(marks)


def _shares(marks: dict[str, dict[str, list[bool]]]) -> Splits:
    return {split: {key: Share(sum(right), len(right)) for key, right in sorted(rows.items())} for split, rows in marks.items()}
