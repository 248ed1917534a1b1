"""Where a model's files are, and the hash of its weights.

A path is used as it is; a hub name becomes a local snapshot first, so that everything after sees a directory. Safetensors only:
pickled weights are never read. Must not know torch or model classes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ModelRefused

_HUB_FILES = ["*.json", "model*.safetensors", "tokenizer*", "*.model", "*.jinja", "*.txt"]
_READ_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """directory: holds config.json and weights. revision: the hub's commit, or as configured for a path."""

    directory: Path
    revision: str

    @property
    def weights(self) -> tuple[Path, ...]:
        """The safetensors files, ascending by name."""
        return tuple(sorted(self.directory.glob("*.safetensors")))


def find_model(model: str, revision: str = "") -> ModelFiles:
    """Locate a model by path or hub name. Raises ModelRefused when it is nowhere or has no safetensors weights."""
    directory = Path(model).expanduser()
    if not directory.is_dir():
        directory = _snapshot(model, revision)
        revision = revision or directory.name
    files = ModelFiles(directory, revision)
    if not (directory / "config.json").is_file():
        raise ModelRefused(f"{model!r} has no config.json; it is not a transformers model")
    if not files.weights:
        raise ModelRefused(f"{model!r} has no safetensors weights; convert it, pickled weights are never loaded")
    return files


def weights_hash(files: ModelFiles) -> str:
    """Hex SHA-256 over the bytes of the safetensors files in order of their names."""
    digest = hashlib.sha256()
    for path in files.weights:
        with path.open("rb") as stream:
            while chunk := stream.read(_READ_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def _snapshot(model: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return Path(snapshot_download(model, revision=revision or None, allow_patterns=_HUB_FILES))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise ModelRefused(f"{model!r} is neither a directory nor reachable on the hub: {error}") from error
