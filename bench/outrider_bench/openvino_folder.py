"""Where converted models lie: made once for each state of the weights and version of OpenVINO, in the repository's ignored folder.

A conversion runs in a process of its own and appears under its final name only when it is complete. Must not import OpenVINO.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from outrider.errors import InvalidRequest, Unavailable

CACHE = Path(__file__).resolve().parents[2] / ".outrider" / "openvino"
PACKAGES = ("openvino", "openvino-genai", "openvino-tokenizers")
WITHOUT_REPORTING = {"CI": "true"}  # OpenVINO's converter reports its use to its makers, except in CI
EXPORT_DEADLINE_S = 900.0
MAX_SHOWN_ERROR = 2000


def installed_versions() -> dict[str, str]:
    """Versions of OpenVINO's packages. Raises InvalidRequest with the remedy where one is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name.replace("-", "_")) is None]
    if missing:
        raise InvalidRequest("bench peers", f"{', '.join(missing)} is not installed: `make bench-peers` installs the extra `peers`")
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def converted(model_path: str, cache: Path = CACHE) -> Path:
    """Folder of the converted model; converts when there is none yet. Raises Unavailable with the converter's last words."""
    folder = cache / f"{Path(model_path).name}-{_fingerprint(model_path)}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=cache))
    try:
        _export(model_path, unfinished)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _export(model_path: str, folder: Path) -> None:
    paths = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "outrider_bench.openvino_export", model_path, str(folder)],
            env={**os.environ, **WITHOUT_REPORTING, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=EXPORT_DEADLINE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{model_path} was not converted to OpenVINO within {EXPORT_DEADLINE_S:g} s: try a smaller model") from error
    if done.returncode != 0:
        raise Unavailable(f"{model_path} could not be converted to OpenVINO:\n{done.stderr[-MAX_SHOWN_ERROR:]}")


def _fingerprint(model_path: str) -> str:
    """Of the weights' state (a folder's sizes and times, a hub's name) and of the versions that convert them."""
    state = json.dumps([model_path, list(_file_states(Path(model_path))), installed_versions()])
    return hashlib.sha256(state.encode()).hexdigest()[:12]


def _file_states(folder: Path) -> Iterator[tuple[str, int, int]]:
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        if path.suffix in {".json", ".safetensors"}:
            stat = path.stat()
            yield path.name, stat.st_size, stat.st_mtime_ns
