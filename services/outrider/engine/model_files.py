"""Where a model's files are, and the hash of its weights.

A path is used as it is; a hub name becomes a local snapshot first, so that everything after sees a directory. Safetensors only:
pickled weights are never read. Must not know torch or model classes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from outrider.engine.admission import refusing
from outrider.errors import ModelRefused

_HUB_FILES = ["*.json", "model*.safetensors", "tokenizer*", "*.model", "*.jinja", "*.txt"]
_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_READ_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """directory: holds config.json and weights. revision: the hub's commit, or as configured for a path."""

    directory: Path
    revision: str

    @property
    def weights(self) -> tuple[Path, ...]:
        """The safetensors files, ascending by name: those that transformers reads too, where others lie beside them (a second copy under
        another name, an adapter). Raises ModelRefused when the index names a file that is not there, or cannot be read."""
        if (self.directory / _WHOLE).is_file():
            return (self.directory / _WHOLE,)
        if (self.directory / _INDEX).is_file():
            return self._shards(self.directory / _INDEX)
        return tuple(sorted(self.directory.glob("*.safetensors")))

    def _shards(self, index: Path) -> tuple[Path, ...]:
        with refusing(f"{str(index)!r} cannot be read"):
            shards = tuple(self.directory / name for name in sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values())))
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing:
            raise ModelRefused(f"{str(self.directory)!r} lacks {', '.join(missing[:3])}, which {_INDEX} names; download the model again")
        return shards


def find_model(model: str, revision: str = "") -> ModelFiles:
    """Locate a model by path or hub name. Raises ModelRefused when it is nowhere or has no safetensors weights."""
    directory = Path(model).expanduser()
    if directory.is_file():
        raise ModelRefused(f"{model!r} is a file; name the folder that it lies in")
    if not directory.is_dir():
        directory = _snapshot(model, revision)
        revision = revision or directory.name
    files = ModelFiles(directory, revision)
    if not (directory / "config.json").is_file():
        raise ModelRefused(f"{model!r} has no config.json; {_no_config(directory)}")
    if not files.weights:
        raise ModelRefused(
            f"{model!r} has no safetensors weights, and pickled weights or GGUF files are never loaded; write them once with transformers: "
            "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
        )
    return files


def _no_config(directory: Path) -> str:
    """What a folder without one is, and what to do."""
    if (directory / "adapter_config.json").is_file():
        return "it is an adapter: merge it into its base model (merge_and_unload of peft), save that and serve it"
    return "it is not a transformers model"


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
