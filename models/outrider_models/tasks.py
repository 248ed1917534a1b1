"""The public face of the generator: tasks of three kinds, each with a reference answer and a way to check.

Imports no torch and no tokenizer, so benches and tests can use it freely. Deterministic: the same
(kind, seed, held_out) gives the same tasks, and a longer list begins with the shorter one.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from outrider_models.arithmetic import Problem, write_problem, write_solution
from outrider_models.checker import answer_correct
from outrider_models.copying import write_copying
from outrider_models.prose import write_prose

TASK_KINDS = ("arithmetic", "copying", "prose")


@dataclass(frozen=True, slots=True)
class Task:
    """What to ask, a reference answer, and for arithmetic the problem that a checker needs."""

    kind: str  # one of TASK_KINDS
    prompt: str  # the user's message, before any chat template
    reference: str  # one good answer; for prose only one of very many
    variant: str  # the template it was made from
    problem: Problem | None = None  # set for arithmetic

    def is_correct(self, text: str) -> bool:
        """Arithmetic: the final answer is right. Copying: equal to the reference. Prose: not empty."""
        if self.problem is not None:
            return answer_correct(self.problem, text)
        return bool(text.strip()) if self.kind == "prose" else text.strip() == self.reference


def make_tasks(kind: str, num: int, seed: int, held_out: bool) -> list[Task]:
    """`num` tasks of `kind` ('arithmetic', 'copying' or 'prose').

    `held_out` uses names (and, for arithmetic, sentence templates) that never occur in training.
    Raises ValueError for an unknown kind or a negative `num`.
    """
    if kind not in TASK_KINDS:
        raise ValueError(f"unknown task kind {kind!r}; choose one of {', '.join(TASK_KINDS)}")
    if num < 0:
        raise ValueError(f"num must not be negative, got {num}")
    random = Random(f"outrider-tasks/{kind}/{seed}/{held_out}")
    return [make_task(kind, random, held_out) for _ in range(num)]


def make_task(kind: str, random: Random, held_out: bool) -> Task:
    """One task from the caller's random source; the corpus draws its training documents here."""
    if kind == "arithmetic":
        problem = write_problem(random, held_out)
        return Task(kind, problem.story, write_solution(problem, random), f"steps-{len(problem.steps)}", problem)
    if kind == "copying":
        copied = write_copying(random, held_out)
        return Task(kind, copied.prompt, copied.answer, copied.variant)
    prose = write_prose(random)
    return Task("prose", prose.prompt, prose.text, prose.variant)
