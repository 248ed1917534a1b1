"""Builds one arithmetic word problem: a story of three to six chained steps, its worked solution, its answer.

Knows how patterns, numbers and names are drawn; all values stay in 0..999 and all divisions are exact.
Must not know chat templates or tokens. Deterministic given the `random.Random` it is handed.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from outrider_models.decomposition import MAX_VALUE, apply_operator, work_out
from outrider_models.lexicon import DAYS, THEMES, draw_people
from outrider_models.stories import (
    LEAD_INS,
    OPENING_LEAD_INS,
    OPENINGS,
    PATTERNS,
    QUESTIONS,
    Framing,
    Operator,
    Pattern,
    Shape,
    choose_wording,
    lead,
)

MIN_STEPS, MAX_STEPS = 3, 6
_STEP_COUNTS, _STEP_COUNT_WEIGHTS = (3, 4, 5, 6), (30, 30, 25, 15)
_OPERATOR_WEIGHTS = {Operator.ADD: 30, Operator.SUB: 30, Operator.MUL: 25, Operator.DIV: 40}
_HELD_OUT_SHARE = 0.35  # of the sentences of a held-out problem
_GROUPED_SHARE = 0.15
_LEAD_IN_SHARE = 0.45  # of the sentences that tell an amount


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the solution: `label: left operator right = ... = result`."""

    operator: Operator
    left: int
    right: int
    result: int
    label: str
    pattern: str  # key of the sentence it comes from


@dataclass(frozen=True, slots=True)
class Problem:
    """A story with everything a checker needs. `held_out_pattern`: some sentence was never trained on."""

    story: str
    steps: tuple[Step, ...]
    answer: int
    patterns: tuple[str, ...]
    held_out_pattern: bool


@dataclass(slots=True)
class _Draft:
    """A story being written: who and what it is about, the running value, sentences and steps so far."""

    random: Random
    held_out: bool
    fields: dict[str, str]
    value: int
    sentences: list[str]
    steps: list[Step]
    patterns: list[str]
    any_held_out: bool


def write_problem(random: Random, held_out: bool) -> Problem:
    """A new problem; `held_out` draws names never seen in training and mixes in sentences never seen."""
    num_steps = random.choices(_STEP_COUNTS, _STEP_COUNT_WEIGHTS)[0]
    draft = _open(random, held_out, num_steps)
    while len(draft.steps) < num_steps:
        room = num_steps - len(draft.steps)
        if not (room >= 2 and random.random() < _GROUPED_SHARE and _tell_grouped(draft)):
            _tell_single(draft)
    question = _choose(draft, QUESTIONS)
    _note(draft, question.key, question.tell, question.held_out, {})
    return Problem(" ".join(draft.sentences), tuple(draft.steps), draft.value, tuple(draft.patterns), draft.any_held_out)


def write_solution(problem: Problem, random: Random) -> str:
    """The worked solution: one step a line, then `Answer: N`. The line style is the only free choice."""
    # The label follows a space, as its verb does in the story: the same token there and here, so it can be copied.
    style = random.choices(("- {label}", "{number}) {label}", "Step {number}, {label}"), (8, 1, 1))[0]
    lines = [
        style.format(label=step.label, number=index + 1) + ": " + work_out(step.operator, step.left, step.right)
        for index, step in enumerate(problem.steps)
    ]
    return "\n".join([*lines, f"Answer: {problem.answer}"])


def draw_operand(random: Random, limit: int, length_weights: tuple[int, int, int] = (20, 50, 30)) -> int:
    """A number in 2..limit (or `limit` if that is less), its length drawn first: all three lengths are common."""
    assert limit >= 1
    length = min(random.choices((1, 2, 3), length_weights)[0], len(str(limit)))
    return random.randint(min(max(2, 10 ** (length - 1)), limit), min(10**length - 1, limit))


def _open(random: Random, held_out: bool, num_steps: int) -> _Draft:
    person, friend = draw_people(random, 2, held_out)
    theme = random.choice(THEMES)
    fields = {
        "name": person.name, "she": person.subject, "she_low": person.subject.lower(), "her": person.object,
        "friend": friend.name, "items": theme.items, "item": theme.item, "boxes": theme.boxes, "box": theme.box,
        "place": theme.place,
    }  # fmt: skip
    draft = _Draft(random, held_out, fields, 0, [], [], [], False)
    opening = _choose(draft, OPENINGS)
    if opening.shape is Shape.GROUPED:
        groups = random.randint(2, 9)
        each = draw_operand(random, min(99, MAX_VALUE // groups))
        values = {"k": groups, "m": each}
        label = f"{groups} {theme.boxes} of {each}"
        _step(draft, Operator.MUL, each, groups, label, opening.key)
        draft.value = each * groups
    else:
        draft.value = draw_operand(random, MAX_VALUE, (5, 45, 50))
        values = {"n": draft.value}
    _note(draft, opening.key, opening.tell, opening.held_out, values)
    return draft


def _choose(draft: _Draft, framings: tuple[Framing, ...]) -> Framing:
    kept = draft.held_out and draft.random.random() < _HELD_OUT_SHARE
    return draft.random.choice([framing for framing in framings if framing.held_out == kept])


def _pattern(draft: _Draft, operator: Operator, shape: Shape) -> Pattern:
    kept = draft.held_out and draft.random.random() < _HELD_OUT_SHARE
    return draft.random.choice([p for p in PATTERNS if p.operator is operator and p.shape is shape and p.held_out == kept])


def _note(draft: _Draft, key: str, tell: str, held_out: bool, values: dict[str, int]) -> None:
    """Append a sentence (with a fresh day) and remember which pattern it came from."""
    numbers = {name: str(value) for name, value in values.items()}
    tell = choose_wording(tell, draft.random)
    if values and not held_out and draft.random.random() < _LEAD_IN_SHARE:
        tell = lead(draft.random.choice(LEAD_INS if draft.sentences else OPENING_LEAD_INS), tell)
    draft.sentences.append(tell.format(**draft.fields, day=draft.random.choice(DAYS), **numbers))
    draft.patterns.append(key)
    draft.any_held_out |= held_out


def _step(draft: _Draft, operator: Operator, left: int, right: int, label: str, key: str) -> None:
    draft.steps.append(Step(operator, left, right, apply_operator(operator, left, right), label, key))


def _tell_single(draft: _Draft) -> None:
    """One sentence, one step: draw an operator that the running value allows, then a fitting number."""
    choices = _feasible(draft.value)
    weights = [_OPERATOR_WEIGHTS[operator] for operator in choices]
    operator = draft.random.choices(list(choices), weights)[0]
    right = draft.random.choice(choices[operator]) if operator in _FACTORS else _operand(draft, operator)
    pattern = _pattern(draft, operator, Shape.SINGLE)
    values = {"n": right}
    label = pattern.label.format(**draft.fields, n=right)
    _step(draft, operator, draft.value, right, label, pattern.key)
    draft.value = draft.steps[-1].result
    _note(draft, pattern.key, pattern.tell, pattern.held_out, values)


def _tell_grouped(draft: _Draft) -> bool:
    """Two steps from one sentence: k groups of m, then added or taken. False when no amount fits."""
    operator = draft.random.choice((Operator.ADD, Operator.SUB))
    limit = MAX_VALUE - draft.value if operator is Operator.ADD else draft.value
    groups = draft.random.randint(2, 9)
    if limit // groups < 2:
        return False
    each = max(2, draw_operand(draft.random, min(99, limit // groups)))
    pattern = _pattern(draft, operator, Shape.GROUPED)
    label = pattern.label.format(**draft.fields, k=groups, m=each)
    _step(draft, Operator.MUL, each, groups, label, pattern.key)
    _step(draft, operator, draft.value, groups * each, "total" if operator is Operator.ADD else "rest", pattern.key)
    draft.value = draft.steps[-1].result
    _note(draft, pattern.key, pattern.tell, pattern.held_out, {"k": groups, "m": each})
    return True


_FACTORS = (Operator.MUL, Operator.DIV)


def _feasible(value: int) -> dict[Operator, list[int]]:
    """Operators that keep 0..999 and exactness, with the allowed factors (empty for add and subtract)."""
    found: dict[Operator, list[int]] = {}
    if value < MAX_VALUE:
        found[Operator.ADD] = []
    if value > 2:
        found[Operator.SUB] = []
    if value >= 2:
        factors = [factor for factor in range(2, 10) if value * factor <= MAX_VALUE]
        divisors = [divisor for divisor in range(2, 10) if value % divisor == 0 and value > divisor]
        found |= {op: nums for op, nums in ((Operator.MUL, factors), (Operator.DIV, divisors)) if nums}
    return found


def _operand(draft: _Draft, operator: Operator) -> int:
    limit = MAX_VALUE - draft.value if operator is Operator.ADD else draft.value - 1
    return draw_operand(draft.random, limit)
