"""Rules about files as such: where packages may not be, how long a file may grow, and words that never enter the repository.

Knows text and paths. Must not know what the code does. The words are written in pieces, so that this file passes its own rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

GENERIC_FOLDERS = ("proto", "services", "kernels", "deploy", "tests", "models", "bench")
MAX_PYTHON_LINES = 450

_TEXT_SUFFIXES = {"", ".py", ".pyi", ".md", ".toml", ".txt", ".sh", ".awk", ".proto", ".yaml", ".yml", ".json", ".js", ".mjs", ".cfg"}

# Where something was built says nothing to its reader, and a registry is the reader's own choice.
EVERYWHERE = {
    "a path of one machine": r"(?<![\w.}])/(?:" + "|".join(("wo" + "rk", "ro" + "ot", "ho" + "me/[a-z]")) + ")/",
    "a registry's host": "|".join(
        ("py" + r"pi\.org", "python" + r"hosted\.org", "npm" + r"js\.(?:org|com)", "download" + r"\.pytorch\.org")
    ),
}
IN_PYTHON = {
    "unfinished work": r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error")) + r")\b",
    "a test that does not run": "|".join(("x" + "fail", r"mark\.sk" + r"ip\b", r"pytest\.sk" + r"ip\(")),
    "a swallowed exception": r"except (?:Base)?Exception(?: as \w+)?:\s*" + "pass",
}


def misplaced_packages(files: Iterable[Path]) -> list[str]:
    """`__init__.py` files that would make a generic folder an import name and hide an installed package of that name."""
    wrong = (path for path in files if path.name == "__init__.py" and path.parts[0] in GENERIC_FOLDERS)
    return [str(path) for path in wrong if len(path.parts) == 2 or path.parts[0] in {"proto", "deploy", "tests"}]


def too_long(root: Path, files: Iterable[Path]) -> list[str]:
    """Python files above MAX_PYTHON_LINES lines."""
    lengths = ((path, len((root / path).read_text(encoding="utf-8").splitlines())) for path in files if path.suffix == ".py")
    return [f"{path}: {length} lines, at most {MAX_PYTHON_LINES}" for path, length in lengths if length > MAX_PYTHON_LINES]


def forbidden_words(root: Path, files: Iterable[Path]) -> Iterator[str]:
    """'path:line: what' for every forbidden word."""
    for path in files:
        if path.suffix not in _TEXT_SUFFIXES or path.name in {"tokenizer.json", "package-lock.json"}:
            continue
        text = (root / path).read_text(encoding="utf-8")
        rules = EVERYWHERE | (IN_PYTHON if path.suffix == ".py" else {})
        for what, pattern in rules.items():
            for match in re.finditer(pattern, text):
                yield f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {what}: {match.group()!r}"
