"""Prompts from a user's own files: what a public benchmark's JSON Lines hold, a JSON list, or lines of text; a file is a task.

Settings are chosen on a part of each file that is never reported. Must not know tokens, models or contestants.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType

from outrider.errors import InvalidRequest

OPTION, FIELD_OPTION = "--prompts-from", "--prompt-field"
# Where public sets keep what a user says, the likeliest first.
FIELDS = ("prompt", "turns", "question", "messages", "conversations", "text", "problem", "instruction")
CONTENTS = ("content", "value")  # of a message of a conversation
MAX_BYTES = 1 << 28  # of a file
TUNING_PART = 4  # one in so many prompts is for choosing settings
_ORDER_SEED = 11  # which those are
_SUFFIXES = (".jsonl", ".json", ".txt")


@dataclass(frozen=True, slots=True)
class PromptFiles:
    """Texts by task, the files' names without their endings, with the folder's where two are alike; none: the reference tasks are asked
    instead."""

    texts: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def tasks(self) -> tuple[str, ...]:
        """In the order of the files."""
        return tuple(self.texts)

    def drawn(self, task: str, seed: int, *, to_tune: bool) -> Iterator[str]:
        """Texts of a file in an order of this seed's own: of the part on which settings are chosen, or of all others."""
        texts = self.texts[task]
        order = Random(_ORDER_SEED).sample(range(len(texts)), len(texts))
        num_apart = -(-len(texts) // TUNING_PART)
        part = sorted(order[:num_apart] if to_tune else order[num_apart:])
        Random(f"{task}/{seed}").shuffle(part)
        return (texts[at] for at in part)


NO_FILES = PromptFiles()


def read_files(paths: Sequence[Path], name: str | None) -> PromptFiles:
    """name: of the field that holds the text, if none of FIELDS does. Raises InvalidRequest naming the file, and what to do."""
    texts: dict[str, tuple[str, ...]] = {}
    num_called = Counter(path.stem for path in paths)
    for path in paths:
        task = path.stem if num_called[path.stem] == 1 else f"{path.parent.name}/{path.stem}"
        if task in texts:
            raise InvalidRequest(OPTION, f"two files are called {task}, and a task has the name of its file: rename one")
        texts[task] = tuple(_texts(path, name))
        if not texts[task]:
            raise InvalidRequest(OPTION, f"{path} holds no prompt")
    return PromptFiles(texts)


def _texts(path: Path, name: str | None) -> Iterator[str]:
    for number, record in enumerate(_records(path), 1):
        text = _text(record, name)
        if text is None:
            looked_for = name or ", ".join(FIELDS)
            raise InvalidRequest(OPTION, f"{path}, record {number}: no text under {looked_for}; say where it is with {FIELD_OPTION}")
        if text.strip():
            yield text


def _records(path: Path) -> Iterator[object]:
    if path.suffix not in _SUFFIXES:
        raise InvalidRequest(
            OPTION, f"{path}: a prompt file is one of {', '.join(_SUFFIXES)} (a JSON record a line, a list, a prompt a line)"
        )
    content = _content(path)  # whose lines end at \n alone: a JSON text may hold U+2028, at which splitlines would split it
    if path.suffix == ".txt":
        yield from content.split("\n")
        return
    try:
        if path.suffix == ".json":
            listed = json.loads(content)
            if not isinstance(listed, list):
                raise InvalidRequest(OPTION, f"{path} is no JSON list")
            yield from listed
        else:
            yield from (json.loads(line) for line in content.split("\n") if line.strip())
    except (json.JSONDecodeError, RecursionError) as error:  # the latter of lists in lists in lists
        raise InvalidRequest(OPTION, f"{path} is not {path.suffix[1:]}: {error}") from error


def _content(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidRequest(OPTION, f"{path} has more than {MAX_BYTES >> 20} MiB; cut a part out of it")
        return path.read_text(encoding="utf-8-sig")  # a mark of the byte order is no part of the first prompt
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(OPTION, f"{path} cannot be read as text: {error}") from error


def _text(record: object, name: str | None) -> str | None:
    """What a user says first in a record."""
    if isinstance(record, str):
        return record
    if not isinstance(record, dict):
        return None
    found = (record[each] for each in ([name] if name else FIELDS) if each in record)
    return next((said for each in found if (said := _said(each)) is not None), None)


def _said(value: object) -> str | None:
    """A text, the first of several, or the first message of a conversation that is not the system's."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    for each in value:
        if isinstance(each, str):
            return each
        if isinstance(each, dict) and "system" not in (each.get("role"), each.get("from")):
            return next((each[key] for key in CONTENTS if isinstance(each.get(key), str)), None)
    return None
