"""The repository's own files, without what it ignores: where the house tests look. Knows paths only; needs no git."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

IGNORED_NAMES = {"__pycache__", "node_modules", "build", "dist"}
IGNORED_PATHS = {Path("models/checkpoints"), Path("models/cache")}
HIDDEN_BUT_OURS = {".ci", ".gitignore"}


def own_files(root: Path = ROOT) -> Iterator[Path]:
    """Every file of ours below root, as paths relative to it, in order."""
    pending = [root]
    while pending:
        for path in sorted(pending.pop().iterdir()):
            relative = path.relative_to(root)
            if path.name in IGNORED_NAMES or relative in IGNORED_PATHS or path.name.endswith((".egg-info", ".log")):
                continue
            if path.name.startswith(".") and path.name not in HIDDEN_BUT_OURS:
                continue
            if path.is_dir():
                pending.append(path)
            else:
                yield relative


def is_generated(path: Path) -> bool:
    """Whether a relative path is written by `make proto`."""
    return path.parent == Path("services/outrider/v1") and "_pb2" in path.name
