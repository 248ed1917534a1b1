"""The solution checker: right steps pass, each kind of fault is named, hostile text is only malformed."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_models.checker import Verdict, answer_correct, check_solution, evaluate_expression, final_answer
from outrider_models.decomposition import apply_operator, work_out
from outrider_models.stories import Operator
from outrider_models.tasks import Task, make_tasks


def _verdicts(task: Task, text: str) -> list[Verdict]:
    assert task.problem is not None
    return [verdict.verdict for verdict in check_solution(task.problem, text)]


@pytest.fixture(name="task")
def _task() -> Task:
    return make_tasks("arithmetic", 1, 11, held_out=False)[0]


def test_reference_solutions_are_entirely_correct() -> None:
    for task in make_tasks("arithmetic", 300, 9, held_out=True):
        assert set(_verdicts(task, task.reference)) == {Verdict.CORRECT}
        assert task.is_correct(task.reference)


def test_every_changed_digit_after_an_equals_sign_is_caught() -> None:
    random = Random(1)
    for task in make_tasks("arithmetic", 60, 10, held_out=False):
        lines = task.reference.split("\n")
        row = random.randrange(len(lines) - 1)
        begin = lines[row].index(" = ") + 3
        spots = [index for index in range(begin, len(lines[row])) if lines[row][index].isdigit()]
        spot = random.choice(spots)
        changed = str((int(lines[row][spot]) + random.randint(1, 9)) % 10)
        lines[row] = lines[row][:spot] + changed + lines[row][spot + 1 :]
        verdicts = _verdicts(task, "\n".join(lines))
        assert verdicts[row] in (Verdict.WRONG_ARITHMETIC, Verdict.MALFORMED)
        assert [verdict for index, verdict in enumerate(verdicts) if index != row] == [Verdict.CORRECT] * (len(verdicts) - 1)


def test_right_arithmetic_on_the_wrong_operation_is_caught(task: Task) -> None:
    assert task.problem is not None
    lines = task.reference.split("\n")
    step = task.problem.steps[0]
    lines[0] = f"{step.label}: {work_out(Operator.ADD, step.left, step.right + 1)}"
    assert _verdicts(task, "\n".join(lines))[0] is Verdict.WRONG_OPERATION


def test_missing_and_surplus_steps_are_reported(task: Task) -> None:
    lines = task.reference.split("\n")
    assert _verdicts(task, "\n".join(lines[:1]))[1:] == [Verdict.MISSING] * (len(lines) - 2)
    doubled = [*lines[:-1], lines[-2], lines[-1]]
    assert _verdicts(task, "\n".join(doubled))[-1] is Verdict.MALFORMED


def test_verdicts_locate_their_lines(task: Task) -> None:
    assert task.problem is not None
    for verdict in check_solution(task.problem, task.reference):
        assert task.reference[verdict.begin : verdict.end] == verdict.line


def test_final_answer_is_the_last_answer_line() -> None:
    assert final_answer("Answer: 3\nAnswer: 14") == 14
    assert final_answer("The Answer: 14 is near") is None
    assert final_answer("") is None


def test_wrong_answer_after_right_steps_is_wrong(task: Task) -> None:
    assert task.problem is not None
    broken = task.reference.rsplit("\n", 1)[0] + f"\nAnswer: {task.problem.answer + 1}"
    assert not answer_correct(task.problem, broken)


def test_expressions_follow_precedence_and_reject_what_they_do_not_know() -> None:
    assert evaluate_expression("100 + 138 / 6") == 123
    assert evaluate_expression("7 / 2") == Fraction(7, 2)
    for malformed in ("", "1 / 0", "2 ** 3", "-5", "1 +", "9999999", "__import__('os')", "1 + 2 + 3 + 4 + 5"):
        assert evaluate_expression(malformed) is None


@given(st.text(max_size=200))
def test_hostile_text_never_raises_and_is_never_correct(text: str) -> None:
    task = make_tasks("arithmetic", 1, 11, held_out=False)[0]
    assert Verdict.CORRECT not in _verdicts(task, text)


@given(st.sampled_from(Operator), st.integers(1, 999), st.integers(1, 999))
def test_every_link_of_a_worked_chain_has_the_same_value(operator: Operator, left: int, right: int) -> None:
    if operator is Operator.SUB:
        left, right = max(left, right), min(left, right)
    elif operator in (Operator.MUL, Operator.DIV):
        right = right % 8 + 2
        left = left * right if operator is Operator.DIV else left
    values = [evaluate_expression(expression) for expression in work_out(operator, left, right).split(" = ")]
    assert set(values) == {Fraction(apply_operator(operator, left, right))}
