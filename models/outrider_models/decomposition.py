"""Writes one operation as a chain of equal expressions, by place value, the way one works it out by hand.

`347 + 268 = 547 + 68 = 607 + 8 = 615`; every expression between two equal signs has the same value, so a
program can check the chain and a small model need only learn one-digit facts. Knows numbers only.
"""

from __future__ import annotations

from outrider_models.stories import Operator

MAX_VALUE = 999


def apply_operator(operator: Operator, left: int, right: int) -> int:
    """The result; for a division the caller guarantees that it is exact."""
    if operator is Operator.ADD:
        return left + right
    if operator is Operator.SUB:
        return left - right
    if operator is Operator.MUL:
        return left * right
    assert right, f"{left} / {right} is not defined"
    assert left % right == 0, f"{left} / {right} is not exact"
    return left // right


def work_out(operator: Operator, left: int, right: int) -> str:
    """The chain from `left operator right` to the result, digits and signs separated by single spaces."""
    if operator is Operator.MUL:
        expressions = _multiply(left, right)
    elif operator is Operator.DIV:
        expressions = _divide(left, right)
    else:
        expressions = _move(operator, left, right)
    return " = ".join(expressions)


def _places(number: int) -> list[int]:
    """Non-zero place values, highest first: 608 gives [600, 8]."""
    digits = str(number)
    return [int(digit) * 10 ** (len(digits) - 1 - index) for index, digit in enumerate(digits) if digit != "0"]


def _move(operator: Operator, left: int, right: int) -> list[str]:
    """Add or subtract one place value of `right` at a time."""
    expressions, rest = [], right
    for place in _places(right):
        expressions.append(f"{left} {operator.value} {rest}")
        left, rest = apply_operator(operator, left, place), rest - place
    return [*expressions, str(left)] if expressions else [f"{left} {operator.value} 0", str(left)]


def _multiply(left: int, right: int) -> list[str]:
    """Multiply each place value of `left` by the one-digit `right`, then add from the left."""
    parts = [place * right for place in _places(left)]
    expressions = [f"{left} * {right}"]
    while len(parts) > 1:
        expressions.append(" + ".join(str(part) for part in parts))
        parts = [parts[0] + parts[1], *parts[2:]]
    return [*expressions, str(left * right)]


def _divide(left: int, right: int) -> list[str]:
    """Take the highest digit of the quotient out of `left`, again and again: 738 / 6 = 100 + 138 / 6 = ..."""
    expressions = [f"{left} / {right}"]
    quotient, taken = left // right, 0
    for place in _places(quotient)[:-1]:
        taken += place
        expressions.append(f"{taken} + {left - taken * right} / {right}")
    return [*expressions, str(quotient)]
