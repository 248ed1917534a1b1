"""Small files that spare a later start work that would come out the same, in the user's cache folder.

Each is named by a hash of everything that it follows from, this code included, so that none is ever out of date, and begins with a hash
of the rest. One that is damaged or cannot be read or written is made again, and a line of the log says so. Must not know what is in them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import tempfile
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

import outrider.engine
import outrider_kernels
from outrider_kernels.cache_folder import cache_folder

_LOG = logging.getLogger(__name__)

MAX_KEPT_FILES = 64  # of one kind: those not asked for the longest go first
_HASH_LEN = 32  # bytes


class KeptFiles:
    """Of one kind. folder: of them all, the user's unless said."""

    def __init__(self, kind: str, folder: Path | None = None) -> None:
        self._folder = (cache_folder() if folder is None else folder) / kind

    def find(self, name: str) -> bytes | None:
        """What was kept under a name; None: nothing."""
        path = self._folder / name
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            _LOG.warning("%s cannot be read, and is made again: %s", path, error)
            return None
        if content[:_HASH_LEN] != _hash(content[_HASH_LEN:]):
            _LOG.warning("%s is damaged, and is made again", path)
            return None
        with suppress(OSError):  # of a folder that is read-only, which nobody tidies either
            os.utime(path)
        return content[_HASH_LEN:]

    def keep(self, name: str, content: bytes) -> None:
        """Whole or not at all, also while others write the same."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self._folder / name, _hash(content) + content)
            self._leave_newest()
        except OSError as error:
            _LOG.warning("%s cannot be written to, so that the next start takes as long again: %s", self._folder, error)

    def _write(self, path: Path, content: bytes) -> None:
        handle, unfinished = tempfile.mkstemp(prefix=".", dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            os.replace(unfinished, path)
        finally:
            Path(unfinished).unlink(missing_ok=True)

    def _leave_newest(self) -> None:
        ages = []
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):  # another process was quicker
                ages.append((path.stat().st_mtime, path))
        for _, path in sorted(ages)[:-MAX_KEPT_FILES]:
            path.unlink(missing_ok=True)


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def name_of(**facts: object) -> str:
    """Of what follows from these facts (anything that JSON takes), our own code, the libraries that models are read with and the kind of
    processor."""
    facts |= {
        "code": _code(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _code() -> str:
    """Of every module that reads a model or computes with one."""
    digest = hashlib.sha256()
    for package in (outrider.engine, outrider_kernels):
        for path in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()
