"""Sentences of the arithmetic stories: one pattern for what is told and one for how a step is named.

Knows wording and which operator a sentence means; must not know numbers or how a step is computed.
A pattern whose `held_out` is true is never used for training. Fields a pattern may use: {name} {she} {her}
{friend} {items} {item} {boxes} {box} {place} {day} {n}, and {k} groups of {m} for a grouped amount; `[a|b|]` is one of
several wordings, drawn anew for each sentence. A label never holds a name: what a step does is read from the verb.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from itertools import product
from random import Random

_WORDINGS = re.compile(r"\[([^]]*)\]")


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
    ("{she} buys [{n} more|another {n}|{n} new|{n}] {items}[| in the {place}].", "buys {n}"),
    ("{friend} gives {her} [{n}|{n} more|another {n}|{n} extra] {items}.", "gives {n}"),
    ("{n} [|more ]{items} arrive[| by truck| at the {place}].", "{n} arrive"),
    ("{she} finds [{n}|{n} more|another {n}] {items}[| in the {place}| on the way].", "finds {n}"),
    ("A neighbor brings [{n}|{n} extra|{n} more|another {n}] {items}.", "brings {n}"),
    ("{name} collects [{n}|another {n}|{n} more|{n} extra] {items}.", "collects {n}"),
    ("{she} receives [{n}|{n} more|{n} new] {items} from {friend}.", "receives {n}"),
    ("[Another {n}|{n} more|{n} extra] {items} are added[| to the rest].", "{n} added"),
    ("{name} wins [{n}|{n} more|another {n}] {items}[| in a game| at the {place}].", "wins {n}"),
    ("{friend} [drops off|leaves] [{n}|{n} more|{n} extra] {items}[| at the {place}| in the {place}].", "drops off {n}"),
    ("{name} makes [{n}|{n} new|{n} more|another {n}] {items}.", "makes {n}"),
    ("[{n}|{n} more|Another {n}] {items} come in the mail.", "{n} come"),
    ("{friend} brings [{n}|{n} more|{n} new] {items}[| to the {place}].", "brings {n}"),
    ("{she} gets [{n}|{n} more|another {n}|{n} extra] {items} from [{friend}|a neighbor|a friend].", "gets {n}"),
)
_ADD_HELD_OUT = (
    ("On {day}, {friend} brings another {n} {items}.", "brings {n}"),
    ("At the {place}, {name} buys {n} extra {items}.", "buys {n}"),
)
_SUB = (
    ("{she} sells {n} [|old |of the ]{items}[| at the {place}].", "sells {n}"),
    ("{she} gives away {n} [|old |of the ]{items}.", "gives away {n}"),
    ("{name} loses {n} [|of the ]{items}[| on the way| at the {place}].", "loses {n}"),
    ("{friend} borrows {n} [|of the ]{items}.", "borrows {n}"),
    ("{n} [|old |of the ]{items} break.", "{n} break"),
    ("{name} donates {n} [|old |of the ]{items}[| to {friend}| to the {place}].", "donates {n}"),
    ("{she} throws away {n} [|old |of the ]{items}.", "throws away {n}"),
    ("A thief steals {n} [|of the ]{items}[| from {name}| from the {place}].", "steals {n}"),
    ("{name} sends {n} [|of the ]{items} to {friend}.", "sends {n}"),
    ("{name} uses up {n} [|old |of the ]{items}.", "uses up {n}"),
    ("{n} of the {items} are taken [back|away][| to the {place}].", "{n} taken"),
    ("{n} [|of the |old ]{items} get lost[| at the {place}].", "{n} get lost"),
    ("{friend} takes {n} [|of the |old ]{items}[| away].", "takes {n}"),
    ("{name} hands {n} [|of the ]{items} to {friend}.", "hands {n}"),
)
_SUB_HELD_OUT = (
    ("On {day}, {name} sells {n} of the {items} to {friend}.", "sells {n}"),
    ("After that, {friend} steals {n} {items}.", "steals {n}"),
)
_MUL = (
    ("The number of {items} grows to {n} times [as many|what it was].", "{n} times"),
    ("{she} works hard until there are {n} times as many {items}.", "{n} times"),
    ("{name} trades every {item} for {n} [new ones|better ones|old ones|other {items}].", "trades each for {n}"),
    ("For each {item}, {friend} hands over {n} and takes the old one.", "each becomes {n}"),
    ("A machine turns [each|every] {item} into {n} {items}.", "each becomes {n}"),
    ("The stock is multiplied by {n}.", "multiplied by {n}"),
    ("{name} [now |]has {n} times [what {she_low} had|as many {items}].", "{n} times"),
    ("{friend} swaps [each|every] {item} for {n} [better ones|new ones|{items}].", "swaps each for {n}"),
    ("{friend} trades {her} {n} {items} for [each|every] {item}.", "trades each for {n}"),
)
_MUL_HELD_OUT = (
    ("On {day}, {name} trades each {item} for {n} {items}.", "trades each for {n}"),
    ("A week later there are {n} times as many {items}.", "{n} times"),
)
_DIV = (
    ("{she} splits the {items} [equally|evenly] into {n} {boxes} and keeps one[| {box}].", "one of {n}"),
    ("{name} shares the {items} [equally|evenly] among {n} friends, and we follow one share.", "one of {n}"),
    ("The {items} are put into {n} equal [piles|parts|heaps] and only one[| of them] stays.", "one of {n}"),
    ("{name} divides [them|the {items}] by {n} and keeps one part.", "divided by {n}"),
    ("{name} needs {n} {items} to make one big set, and makes sets of all of them; now count the sets.", "sets of {n}"),
    ("Every {n} {items} are traded for one better one.", "{n} for one"),
    ("{friend} divides the {items} [equally|evenly] among {n} [people|others], and {name} gets one share.", "one of {n}"),
    ("Only one of {n} equal [parts|piles|shares] is left.", "one of {n}"),
    ("{she} puts the {items} [equally |evenly |]into {n} {boxes} and keeps [only one|one of them].", "one of {n}"),
)
_DIV_HELD_OUT = (
    ("On {day}, {name} puts the {items} into {n} equal {boxes} and keeps one {box}.", "one of {n}"),
    ("{name} divides the {items} equally among {n} friends, and we follow one share.", "one of {n}"),
)
_ADD_GROUPED = (
    ("{she} buys {k} [|more |new ]{boxes} [of {m} {items} each|with {m} {items} in each].", "buys {k} {boxes} of {m}"),
    ("{friend} brings {k} [|more ]{boxes} [of {m} {items} each|with {m} {items} in each].", "brings {k} {boxes} of {m}"),
    ("For {k} days, {name} collects {m} {items} a day.", "{k} days of {m}"),
    ("{k} [|more ]{boxes} of {m} {items}[| each] arrive[| by truck| at the {place}].", "{k} {boxes} of {m} arrive"),
    ("{name} finds {k} {boxes} [of {m} {items} each|with {m} {items} in each].", "finds {k} {boxes} of {m}"),
    ("{friend} gives {her} {k} [|more ]{boxes} of {m} {items}[| each].", "gives {k} {boxes} of {m}"),
    ("Another {k} {boxes} of {m} {items}[| each] are added[| to the rest].", "{k} {boxes} of {m} added"),
)
_ADD_GROUPED_HELD_OUT = (("{she} receives {k} {boxes} of {m} {items} each.", "receives {k} {boxes} of {m}"),)
_SUB_GROUPED = (
    ("{she} sells {k} {boxes} [of {m} {items} each|with {m} {items} in each].", "sells {k} {boxes} of {m}"),
    ("{name} gives {m} {items} to each of {k} friends.", "gives {k} friends {m}"),
    ("For {k} days, {name} uses up {m} {items} a day.", "{k} days of {m}"),
    ("A thief steals {k} {boxes} [of {m} {items} each|with {m} {items} in each].", "steals {k} {boxes} of {m}"),
    ("{name} donates {k} {boxes} of {m} {items}[| each].", "donates {k} {boxes} of {m}"),
    ("{k} {boxes} of {m} {items} each [get broken|break].", "{k} {boxes} of {m} broken"),
    ("{friend} takes {k} {boxes} [of {m} {items} each|with {m} {items} in each].", "takes {k} {boxes} of {m}"),
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

# Any training sentence may follow one of these: otherwise how a sentence begins would give its operator away.
LEAD_INS = ("Then ", "Next, ", "After that, ", "A week later ", "On {day}, ", "At the {place}, ", "Later ")

OPENINGS = (
    Framing("open-0", "{name} has {n} {items}."),
    Framing("open-1", "There are {n} {items} in {name}'s {place}."),
    Framing("open-2", "{name} starts [|the week |the day ]with {n} {items}."),
    Framing("open-3", "{name} counts {n} {items}[| in the {place}]."),
    Framing("open-4", "{name} has {n} {items} at the {place}."),
    Framing("open-5", "{name} begins with {n} {items}[| in the {place}]."),
    Framing("open-6", "{friend} leaves {name} {n} {items}."),
    Framing("open-grouped-0", "{name} has {k} {boxes} [of {m} {items} each|with {m} {items} in each].", Shape.GROUPED),
    Framing("open-grouped-1", "There are {k} {boxes} of {m} {items} in {name}'s {place}.", Shape.GROUPED),
    Framing("open-grouped-2", "{name} counts {k} {boxes} of {m} {items} each.", Shape.GROUPED),
    Framing("open-grouped-3", "{friend} leaves {name} {k} {boxes} of {m} {items}[| each].", Shape.GROUPED),
    Framing("open-grouped-4", "There are {k} {boxes} at the {place}, with {m} {items} in each.", Shape.GROUPED),
    Framing("open-grouped-5", "{name} begins with {k} {boxes} of {m} {items} each.", Shape.GROUPED),
    Framing("open-held-0", "On {day}, {name} counts {n} {items} at the {place}.", Shape.SINGLE, True),
    Framing("open-grouped-held-0", "{name} starts the week with {k} {boxes} of {m} {items}.", Shape.GROUPED, True),
)
OPENING_LEAD_INS = ("In the morning ", "On {day}, ", "At first ", "At the {place}, ")

QUESTIONS = (
    Framing("ask-0", "How many {items} does {name} have [now|at the end]?"),
    Framing("ask-1", "How many {items} are there in the end?"),
    Framing("ask-2", "What is the [final|last] number of {items}?"),
    Framing("ask-3", "How many {items} are left[| in the end]?"),
    Framing("ask-4", "Find the number of {items} at the end."),
    Framing("ask-held-0", "What is the number of {items} {name} has in the end?", Shape.SINGLE, True),
)


def choose_wording(tell: str, random: Random) -> str:
    """`tell` with one of the wordings of each `[a|b|]` drawn."""
    return _WORDINGS.sub(lambda found: random.choice(found[1].split("|")), tell)


def all_wordings(tell: str) -> list[str]:
    """Every sentence that `choose_wording` can draw from `tell`."""
    parts = _WORDINGS.split(tell)  # text, wordings, text, ...
    choices = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*choices)]


def lead(lead_in: str, tell: str) -> str:
    """`tell` after `lead_in`: the person is named, an ordinary first word becomes lower case."""
    for pronoun in ("{she} ", "{name} "):
        if tell.startswith(pronoun):
            return f"{lead_in}{{name}} {tell.removeprefix(pronoun)}"
    return lead_in + tell[0].lower() + tell[1:]
