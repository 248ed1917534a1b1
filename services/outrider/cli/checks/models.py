"""The models: are the files here, does each load and pass the engine's probe, and do the two fit each other?

Knows model folders and the engine's loader, which is imported only when a model is really loaded. Must not run a service.
"""

from __future__ import annotations

import json
from pathlib import Path

from outrider.cli.checks.finding import Finding, broken, fine, note
from outrider.cli.deployment_options import NO_DRAFT, model_path
from outrider.errors import OutriderError
from outrider.types.identity import ModelIdentity, incompatibility
from outrider_models.paths import MODEL_NAMES, model_dir

NEEDED_FILES = ("config.json", "tokenizer.json")


def check_models(target: str, draft: str, dtype: str, weights: tuple[str, str] = ("full", "full")) -> list[Finding]:
    """The reference models, both models of the pair, and the pair. weights: what is kept of the target's matrices and of the draft's."""
    findings = [_reference_models()]
    names = [target] if draft == NO_DRAFT else [target, draft]
    identities = []
    for name, kept in zip(names, weights, strict=False):
        found, identity = _model(name, dtype, kept)
        findings += found
        identities += [identity] if identity is not None else []
    if len(identities) == 2:
        findings.append(_pair(identities[0], identities[1]))
    return findings


def _reference_models() -> Finding:
    missing = [name for name in MODEL_NAMES if not any(model_dir(name).glob("*.safetensors"))]
    if missing:
        return note("reference models", f"{', '.join(missing)} not trained", "train them with `make models`, or name other models")
    return fine("reference models", ", ".join(MODEL_NAMES))


def _model(name: str, dtype: str, weights: str) -> tuple[list[Finding], ModelIdentity | None]:
    """Findings about one model, and who it is if it loads."""
    try:
        path = model_path(name)
    except OutriderError as error:
        return [broken(f"model {name}", str(error), "see the sentence before")], None
    folder = Path(path)
    if folder.is_dir():
        missing = [file for file in NEEDED_FILES if not (folder / file).is_file()]
        if missing:
            return [broken(f"model {name}", f"{folder} lacks {', '.join(missing)}", "copy the model's folder again, with every file")], None
    return _load(name, path, dtype, weights)


def _load(name: str, path: str, dtype: str, weights: str) -> tuple[list[Finding], ModelIdentity | None]:
    from outrider.engine.config import DType, EngineConfig, WeightFormat
    from outrider.engine.load import load_engine

    try:
        identity = load_engine(EngineConfig(model=path, dtype=DType(dtype), weights=WeightFormat(weights))).identity
    except OutriderError as error:
        return [broken(f"model {name}", str(error), "serve another model, or another dtype; the sentence says what the engine met")], None
    except (OSError, ValueError) as error:
        return [broken(f"model {name}", f"does not load: {error}", "check the name, the files and (for a hub name) the network")], None
    found = f"{identity.dtype}, {identity.vocab_size} tokens, context {identity.max_context}, {_num_parameters(path)}probe passed"
    return [fine(f"model {name}", found)], identity


def _pair(target: ModelIdentity, draft: ModelIdentity) -> Finding:
    problem = incompatibility(draft, target)
    if problem is not None:
        return broken("pair", problem, "choose a draft model of the target's own family, with the same tokenizer files")
    if draft.max_context < target.max_context:
        found = f"the draft's context ({draft.max_context}) is shorter than the target's ({target.max_context})"
        return note("pair", found, "nothing need be done: beyond it the target decodes without drafts")
    return fine("pair", f"same tokenizer (vocabulary {target.vocab_hash[:12]}), same noise, context {target.max_context}")


def _num_parameters(path: str) -> str:
    """`16.2 M parameters, ` from the files' own headers; empty when they are not here."""
    count = 0
    for file in Path(path).glob("*.safetensors"):
        with file.open("rb") as weights:
            header = json.loads(weights.read(int.from_bytes(weights.read(8), "little")))
        for key, tensor in header.items():
            if key != "__metadata__":
                size = 1
                for length in tensor["shape"]:
                    size *= length
                count += size
    return f"{count / 1e6:.1f} M parameters, " if count else ""
