"""Checks a written solution step by step: the right operation, every equality true, the right final answer.

Knows the text format of solutions and nothing about who wrote them. Judges what it can parse and calls
everything else malformed; never evaluates code. The router learns from these verdicts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from outrider_models.arithmetic import Problem, Step

_NUMBER = r"\d{1,6}"
_EXPRESSION = re.compile(rf"{_NUMBER}(?: [+*/-] {_NUMBER}){{0,3}}")
_TOKEN = re.compile(rf"{_NUMBER}|[+*/-]")
_ANSWER = re.compile(rf"Answer: ({_NUMBER})")


class Verdict(Enum):
    """What is wrong with a step, first fault first."""

    CORRECT = "correct"
    MALFORMED = "malformed"  # not `label: expression = expression ...`
    WRONG_OPERATION = "wrong operation"  # does not start from the operation that the story asks for
    WRONG_ARITHMETIC = "wrong arithmetic"  # the operation is right, some equality is false
    MISSING = "missing"  # the solution ended before this step


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """Judgement of one line; `begin`, `end` locate it in the text as a half-open character range."""

    verdict: Verdict
    line: str
    begin: int
    end: int

    @property
    def correct(self) -> bool:
        """Whether this step is entirely right."""
        return self.verdict is Verdict.CORRECT


def check_solution(problem: Problem, text: str) -> list[StepVerdict]:
    """One verdict for each step of `problem`, then one for each surplus line before `Answer:` (malformed)."""
    lines = _step_lines(text)
    verdicts = []
    for index, (line, begin) in enumerate(lines):
        fault = _judge(problem.steps[index], line) if index < len(problem.steps) else Verdict.MALFORMED
        verdicts.append(StepVerdict(fault, line, begin, begin + len(line)))
    missing = StepVerdict(Verdict.MISSING, "", len(text), len(text))
    return verdicts + [missing] * (len(problem.steps) - len(lines))


def final_answer(text: str) -> int | None:
    """The number of the last `Answer: N` line, or None when there is none."""
    for line in reversed(text.split("\n")):
        found = _ANSWER.fullmatch(line.strip())
        if found:
            return int(found.group(1))
    return None


def answer_correct(problem: Problem, text: str) -> bool:
    """Whether the final answer is right, whatever the steps say."""
    return final_answer(text) == problem.answer


def evaluate_expression(expression: str) -> Fraction | None:
    """Value of `a + b * c ...` with the usual precedence, or None when it is malformed or divides by zero."""
    if not _EXPRESSION.fullmatch(expression):
        return None
    tokens = _TOKEN.findall(expression)
    terms = [Fraction(int(tokens[0]))]
    for sign, digits in zip(tokens[1::2], tokens[2::2], strict=True):
        number = Fraction(int(digits))
        if sign == "*":
            terms[-1] *= number
        elif sign == "/":
            if not number:
                return None
            terms[-1] /= number
        else:
            terms.append(number if sign == "+" else -number)
    return sum(terms, Fraction(0))


def _step_lines(text: str) -> list[tuple[str, int]]:
    """Lines before the answer with their offsets; blank lines do not count."""
    found, offset = [], 0
    for line in text.split("\n"):
        if _ANSWER.fullmatch(line.strip()):
            break
        if line.strip():
            found.append((line, offset))
        offset += len(line) + 1
    return found


def _judge(step: Step, line: str) -> Verdict:
    expressions = line.rpartition(": ")[2].split(" = ")
    values = [evaluate_expression(expression) for expression in expressions]
    if ": " not in line or len(expressions) < 2 or None in values:
        return Verdict.MALFORMED
    if expressions[0] != f"{step.left} {step.operator.value} {step.right}":
        return Verdict.WRONG_OPERATION
    settled = expressions[-1] == str(step.result)
    return Verdict.CORRECT if settled and len(set(values)) == 1 else Verdict.WRONG_ARITHMETIC
