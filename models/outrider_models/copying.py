"""Tasks whose answer is mostly copied from the request: edit a list, fill a JSON, repeat with one change.

Knows how to write the request and the one right answer; 30 to 150 words are copied, so a draft model that
only copies does well. Deterministic given the `random.Random` it is handed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from outrider_models.lexicon import DAYS, THEMES, Person, draw_people
from outrider_models.prose import write_paragraph
from outrider_models.words import ADJECTIVES, NOUNS

_People = Callable[[int], list[Person]]  # draws so many different people


@dataclass(frozen=True, slots=True)
class Copied:
    """A request, its only right answer, and the kind of edit."""

    prompt: str
    answer: str
    variant: str


def write_copying(random: Random, held_out: bool) -> Copied:
    """One copying task; `held_out` draws the names that training never sees."""
    return random.choice(_WRITERS)(random, lambda count: draw_people(random, count, held_out))


def _entry(random: Random) -> str:
    return f"{random.choice(ADJECTIVES)} {random.choice(NOUNS)}"


def _entries(random: Random, low: int, high: int) -> list[str]:
    """Distinct list entries of two words each."""
    wanted = random.randint(low, high)
    found: dict[str, None] = {}
    while len(found) < wanted:
        found[_entry(random)] = None
    return list(found)


def _bullets(entries: list[str]) -> str:
    return "\n".join(f"- {entry}" for entry in entries)


def _remove(random: Random, people: _People) -> Copied:
    entries = _entries(random, 8, 16)
    gone = random.choice(entries)
    request = random.choice(("Remove {x} from this list:", "Copy this list without {x}:", "Delete {x} from the list:"))
    kept = [entry for entry in entries if entry != gone]
    return Copied(f"{request.format(x=gone)}\n{_bullets(entries)}", _bullets(kept), "list-remove")


def _replace(random: Random, people: _People) -> Copied:
    entries = _entries(random, 8, 16)
    old, new = random.choice(entries), f"{random.choice(ADJECTIVES)} {random.choice(NOUNS)}"
    request = random.choice(("Replace {x} with {y} in this list:", "Copy this list, but change {x} to {y}:"))
    edited = [new if entry == old else entry for entry in entries]
    return Copied(f"{request.format(x=old, y=new)}\n{_bullets(entries)}", _bullets(edited), "list-replace")


def _append(random: Random, people: _People) -> Copied:
    entries = _entries(random, 8, 15)
    new = _entry(random)
    request = random.choice(("Add {x} at the end of this list:", "Append {x} to the list:"))
    return Copied(f"{request.format(x=new)}\n{_bullets(entries)}", _bullets([*entries, new]), "list-append")


def _order(random: Random, people: _People) -> Copied:
    entries = _entries(random, 5, 9)
    order = random.sample(range(len(entries)), len(entries))
    listed = "\n".join(f"{index + 1}. {entry}" for index, entry in enumerate(entries))
    wanted = ", ".join(str(index + 1) for index in order)
    answer = "\n".join(f"{index + 1}. {entries[index]}" for index in order)
    return Copied(f"Write these lines in the order {wanted}:\n{listed}", answer, "list-order")


def _order_json(random: Random, people: _People) -> Copied:
    buyer, seller = people(2)
    theme = random.choice(THEMES)
    record = {
        "buyer": buyer.name,
        "seller": seller.name,
        "item": f"{random.choice(ADJECTIVES)} {theme.items}",
        "count": random.randint(2, 999),
        "price": random.randint(2, 999),
        "day": random.choice(DAYS),
        "place": f"{random.choice(ADJECTIVES)} {theme.place}",
        "note": _entry(random),
    }
    told = random.choice(
        (
            "On {day}, {buyer} bought {count} {item} from {seller} for {price} coins at the {place}. The note says {note}.",
            "{seller} sold {count} {item} to {buyer} on {day}. The price was {price} coins, the place was the {place}, "
            "and the note says {note}.",
        )
    ).format(**record)
    answer = json.dumps(record, indent=2)
    form = json.dumps(dict.fromkeys(record, ""), indent=2)
    return Copied(f"Fill this JSON from the text.\n{told}\n{form}", answer, "json-order")


def _people_json(random: Random, people: _People) -> Copied:
    chosen = people(random.randint(2, 4))
    records = [{"name": p.name, "age": random.randint(18, 90), "likes": _entry(random)} for p in chosen]
    told = " ".join("{name} is {age} years old and likes the {likes}.".format(**record) for record in records)
    answer = "[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]"
    return Copied(f"Write the people in this text as a JSON list.\n{told}", answer, "json-people")


def _rename(random: Random, people: _People) -> Copied:
    """Repeat a text in which one noun, guaranteed to occur once, becomes another."""
    text = write_paragraph(random, random.randint(3, 7))
    words = [word.strip(".,") for word in text.split()]
    once = [word for word in words if word in NOUNS and words.count(word) == 1 and text.count(word) == 1]
    if not once:
        return _replace(random, people)
    old = random.choice(once)
    new = random.choice([noun for noun in NOUNS if noun not in words])
    request = random.choice(("Repeat this text, but change {x} to {y}:", "Copy the text with {y} instead of {x}:"))
    return Copied(f"{request.format(x=old, y=new)}\n{text}", text.replace(old, new), "text-rename")


def _repeat(random: Random, people: _People) -> Copied:
    text = write_paragraph(random, random.randint(3, 7))
    request = random.choice(("Repeat this text:", "Copy this text exactly:"))
    return Copied(f"{request}\n{text}", text, "text-repeat")


_Writer = Callable[[Random, _People], Copied]
_WRITERS: tuple[_Writer, ...] = (
    _remove, _replace, _append, _order, _order_json, _people_json, _rename, _rename, _repeat,
)  # fmt: skip
