"""Dense practice text: many worked operations one below the other, without a story.

A story spends two thirds of its tokens on words; a drill spends nearly all on digits, so a small model
learns its one-digit facts from fewer tokens. Used for training only.
"""

from __future__ import annotations

from random import Random

from outrider_models.arithmetic import draw_operand
from outrider_models.decomposition import MAX_VALUE, work_out
from outrider_models.stories import Operator

_OPERATORS = (Operator.ADD, Operator.SUB, Operator.MUL, Operator.DIV)


def write_drill(random: Random, num_lines: int) -> str:
    """`num_lines` unrelated operations, worked out."""
    return "\n".join(_line(random) for _ in range(num_lines))


def _line(random: Random) -> str:
    operator = random.choices(_OPERATORS, (3, 3, 3, 4))[0]
    if operator is Operator.ADD:
        left = draw_operand(random, MAX_VALUE - 2, (5, 35, 60))
        return work_out(operator, left, draw_operand(random, MAX_VALUE - left))
    if operator is Operator.SUB:
        left = random.randint(3, MAX_VALUE)
        return work_out(operator, left, draw_operand(random, left - 1))
    factor = random.randint(2, 9)
    number = draw_operand(random, MAX_VALUE // factor, (5, 35, 60))
    if operator is Operator.MUL:
        return work_out(operator, number, factor)
    return work_out(operator, number * factor, factor)
