"""Sentences of the arithmetic stories: one pattern for what is told and one for how a step is named.

Knows wording and which operator a sentence means; must not know numbers or how a step is computed.
A pattern whose `held_out` is true is never used for training. Fields a pattern may use: {name} {she} {her}
{friend} {items} {item} {boxes} {box} {place} {day} {n}, and {k} groups of {m} for a grouped amount.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Operator(Enum):
    """The four operators, by the sign used in a step."""

    ADD = "+"
    SUB = "-"
    MUL = "*"
    DIV = "/"


class Shape(Enum):
    """How a sentence gives its amount."""

    SINGLE = "single"  # one number, one step
    GROUPED = "grouped"  # k groups of m: a multiplication step, then the operator


@dataclass(frozen=True, slots=True)
class Pattern:
    """A story sentence (`tell`) and the short name of its step (`label`)."""

    key: str
    operator: Operator
    shape: Shape
    tell: str
    label: str
    held_out: bool = False


@dataclass(frozen=True, slots=True)
class Framing:
    """An opening or a question; no operator of its own."""

    key: str
    tell: str
    shape: Shape = Shape.SINGLE
    held_out: bool = False


_ADD = (
    ("{she} buys {n} more {items}.", "buys {n}"),
    ("{friend} gives {her} {n} {items}.", "{friend} gives {n}"),
    ("Then {n} {items} arrive by truck.", "{n} arrive"),
    ("{she} finds {n} {items} in the {place}.", "finds {n}"),
    ("A neighbor brings {n} extra {items}.", "neighbor brings {n}"),
    ("On {day}, {name} collects another {n} {items}.", "collects {n}"),
    ("{she} receives {n} {items} from {friend}.", "receives {n}"),
    ("Another {n} {items} are added to the rest.", "{n} added"),
    ("{name} wins {n} {items} in a game.", "wins {n}"),
    ("{friend} drops off {n} more {items} at the {place}.", "{friend} drops off {n}"),
    ("Next, {name} makes {n} new {items}.", "makes {n}"),
    ("After that, {n} more {items} come in the mail.", "{n} come"),
)
_ADD_HELD_OUT = (
    ("On {day}, {friend} brings another {n} {items}.", "{friend} brings {n}"),
    ("At the {place}, {name} buys {n} extra {items}.", "buys {n}"),
)
_SUB = (
    ("{she} sells {n} {items}.", "sells {n}"),
    ("{she} gives away {n} {items}.", "gives away {n}"),
    ("{name} loses {n} {items} on the way.", "loses {n}"),
    ("{friend} borrows {n} of the {items}.", "{friend} borrows {n}"),
    ("Then {n} {items} break.", "{n} break"),
    ("On {day}, {name} donates {n} {items}.", "donates {n}"),
    ("{she} throws away {n} old {items}.", "throws away {n}"),
    ("A thief steals {n} {items}.", "thief steals {n}"),
    ("{name} sends {n} {items} to {friend}.", "sends {n}"),
    ("After that, {name} uses up {n} {items}.", "uses up {n}"),
    ("{n} of the {items} are taken back to the {place}.", "{n} taken back"),
    ("Next, {n} {items} get lost.", "{n} get lost"),
)
_SUB_HELD_OUT = (
    ("On {day}, {name} sells {n} of the {items} to {friend}.", "sells {n}"),
    ("After that, {friend} steals {n} {items}.", "{friend} steals {n}"),
)
_MUL = (
    ("Then the number of {items} grows to {n} times as many.", "{n} times as many"),
    ("{she} works hard until there are {n} times as many {items}.", "{n} times as many"),
    ("{name} trades every {item} for {n} new ones.", "trades each for {n}"),
    ("For each {item}, {friend} hands over {n} and takes the old one.", "each becomes {n}"),
    ("A machine turns each {item} into {n} {items}.", "each becomes {n}"),
    ("On {day}, the stock is multiplied by {n}.", "multiplied by {n}"),
    ("A week later {name} has {n} times what {she_low} had.", "{n} times"),
    ("{friend} swaps each {item} for {n} better ones.", "swaps each for {n}"),
)
_MUL_HELD_OUT = (
    ("On {day}, {name} trades each {item} for {n} {items}.", "trades each for {n}"),
    ("A week later there are {n} times as many {items}.", "{n} times as many"),
)
_DIV = (
    ("{she} splits the {items} equally into {n} {boxes} and keeps one {box}.", "one of {n} {boxes}"),
    ("{name} shares the {items} equally among {n} friends, and we follow one share.", "one of {n} shares"),
    ("The {items} are put into {n} equal piles and only one pile stays.", "one of {n} piles"),
    ("On {day}, {name} divides them by {n} and keeps one part.", "divided by {n}"),
    ("{name} needs {n} {items} to make one big set, and makes sets of all of them; now count the sets.", "sets of {n}"),
    ("Every {n} {items} are traded for one better one.", "{n} for one"),
    ("{friend} divides the {items} equally among {n} people, and {name} gets one share.", "one of {n} shares"),
    ("Then only one of {n} equal parts is left.", "one of {n} parts"),
)
_DIV_HELD_OUT = (
    ("On {day}, {name} puts the {items} into {n} equal {boxes} and keeps one {box}.", "one of {n} {boxes}"),
    ("{name} divides the {items} equally among {n} friends, and we follow one share.", "one of {n} shares"),
)
_ADD_GROUPED = (
    ("{she} buys {k} {boxes} of {m} {items} each.", "buys {k} {boxes} of {m}"),
    ("{friend} brings {k} {boxes} with {m} {items} in each.", "{friend} brings {k} {boxes} of {m}"),
    ("For {k} days, {name} collects {m} {items} a day.", "{k} days of {m}"),
    ("Then {k} {boxes} of {m} {items} arrive by truck.", "{k} {boxes} of {m} arrive"),
    ("{name} finds {k} {boxes} with {m} {items} in each.", "finds {k} {boxes} of {m}"),
    ("{friend} gives {her} {k} {boxes} of {m} {items} each.", "{friend} gives {k} {boxes} of {m}"),
    ("Another {k} {boxes} of {m} {items} are added to the rest.", "{k} {boxes} of {m} added"),
)
_ADD_GROUPED_HELD_OUT = (("{she} receives {k} {boxes} of {m} {items} each.", "receives {k} {boxes} of {m}"),)
_SUB_GROUPED = (
    ("{she} sells {k} {boxes} of {m} {items} each.", "sells {k} {boxes} of {m}"),
    ("{name} gives {m} {items} to each of {k} friends.", "gives {k} friends {m}"),
    ("For {k} days, {name} uses up {m} {items} a day.", "uses {k} days of {m}"),
    ("A thief steals {k} {boxes} with {m} {items} in each.", "thief steals {k} {boxes} of {m}"),
    ("{name} donates {k} {boxes} of {m} {items}.", "donates {k} {boxes} of {m}"),
    ("Then {k} {boxes} of {m} {items} each get broken.", "{k} {boxes} of {m} broken"),
)
_SUB_GROUPED_HELD_OUT = (("{name} loses {k} {boxes} of {m} {items} each.", "loses {k} {boxes} of {m}"),)


def _patterns(prefix: str, operator: Operator, shape: Shape, rows: tuple[tuple[str, str], ...], held_out: bool) -> list[Pattern]:
    mark = "held-" if held_out else ""
    return [Pattern(f"{prefix}-{mark}{index}", operator, shape, tell, label, held_out) for index, (tell, label) in enumerate(rows)]


def _all_patterns() -> tuple[Pattern, ...]:
    single, grouped = Shape.SINGLE, Shape.GROUPED
    table = (
        ("add", Operator.ADD, single, _ADD, _ADD_HELD_OUT),
        ("sub", Operator.SUB, single, _SUB, _SUB_HELD_OUT),
        ("mul", Operator.MUL, single, _MUL, _MUL_HELD_OUT),
        ("div", Operator.DIV, single, _DIV, _DIV_HELD_OUT),
        ("add-grouped", Operator.ADD, grouped, _ADD_GROUPED, _ADD_GROUPED_HELD_OUT),
        ("sub-grouped", Operator.SUB, grouped, _SUB_GROUPED, _SUB_GROUPED_HELD_OUT),
    )
    found: list[Pattern] = []
    for prefix, operator, shape, rows, kept in table:
        found += _patterns(prefix, operator, shape, rows, False) + _patterns(prefix, operator, shape, kept, True)
    return tuple(found)


PATTERNS = _all_patterns()

LEAD_INS = ("Then ", "Next, ", "After that, ", "A week later ", "On {day}, ", "At the {place}, ", "Later ")

OPENINGS = (
    Framing("open-0", "{name} has {n} {items}."),
    Framing("open-1", "There are {n} {items} in {name}'s {place}."),
    Framing("open-2", "{name} starts the week with {n} {items}."),
    Framing("open-3", "At the {place}, {name} counts {n} {items}."),
    Framing("open-4", "In the morning {name} has {n} {items} at the {place}."),
    Framing("open-5", "{name} begins with {n} {items} in the {place}."),
    Framing("open-6", "{friend} leaves {name} {n} {items}."),
    Framing("open-grouped-0", "{name} has {k} {boxes} with {m} {items} in each.", Shape.GROUPED),
    Framing("open-grouped-1", "There are {k} {boxes} of {m} {items} in {name}'s {place}.", Shape.GROUPED),
    Framing("open-grouped-2", "At the {place}, {name} counts {k} {boxes} of {m} {items} each.", Shape.GROUPED),
    Framing("open-grouped-3", "{friend} leaves {name} {k} {boxes} of {m} {items}.", Shape.GROUPED),
    Framing("open-grouped-4", "In the morning there are {k} {boxes} at the {place}, with {m} {items} in each.", Shape.GROUPED),
    Framing("open-grouped-5", "{name} begins with {k} {boxes} of {m} {items} each.", Shape.GROUPED),
    Framing("open-held-0", "On {day}, {name} counts {n} {items} at the {place}.", Shape.SINGLE, True),
    Framing("open-grouped-held-0", "{name} starts the week with {k} {boxes} of {m} {items}.", Shape.GROUPED, True),
)

QUESTIONS = (
    Framing("ask-0", "How many {items} does {name} have now?"),
    Framing("ask-1", "How many {items} are there in the end?"),
    Framing("ask-2", "What is the final number of {items}?"),
    Framing("ask-3", "How many {items} are left?"),
    Framing("ask-4", "Find the number of {items} at the end."),
    Framing("ask-held-0", "What is the number of {items} {name} has in the end?", Shape.SINGLE, True),
)
