"""Where random targets lie: written once into this user's cache folder, whole or not at all.

Knows folders and free space. Must not know weights: a process of its own writes them, so that the one that asks stays free of torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from outrider.errors import Unavailable
from outrider.launch.threads import thread_environment, usable_cores
from outrider_bench.gpu.shapes import SIZES
from outrider_kernels.cache_folder import cache_folder

REVISION = 1  # of what random_target.py writes: targets of another one are written anew
SPARE_BYTES = 1 << 30  # of the disk, left to others
GIB = 1 << 30


def targets_folder() -> Path:
    """Of this user."""
    return cache_folder() / "random-targets"


def find_or_write(size: str, cache: Path) -> tuple[str, str]:
    """Folders of the target and of the drafter's stand-in, written if they are not there. Raises Unavailable, saying why they cannot be."""
    folder = cache / f"{size}-{REVISION}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        _check_space(size, cache)
        _write(size, cache, folder)
    return str(folder / "target"), str(folder / "draft")


def _check_space(size: str, cache: Path) -> None:
    needed, free = SIZES[size].file_bytes + SPARE_BYTES, shutil.disk_usage(cache).free
    if free < needed:
        raise Unavailable(
            f"the target of size {size} needs {needed / GIB:.1f} GiB below {cache}, where {free / GIB:.1f} GiB are free; "
            "free some, set XDG_CACHE_HOME to a larger disk, or take a smaller --size; nothing ran"
        )


def _write(size: str, cache: Path, folder: Path) -> None:
    """Beside its place first: what is in place is whole."""
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=cache))
    try:
        command = [sys.executable, "-m", "outrider_bench.gpu.random_target", size, str(unfinished)]
        written = subprocess.run(command, check=False, env=child_environment(len(usable_cores())))
        if written.returncode:
            raise Unavailable(f"the target of size {size} could not be written (exit code {written.returncode}, the reason is above)")
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another run was quicker, and wrote the same
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def child_environment(num_threads: int) -> dict[str, str]:
    """Of a process that imports what this one can import, and computes on so many threads."""
    paths = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
    return {**os.environ, "PYTHONPATH": paths, **thread_environment(num_threads)}
