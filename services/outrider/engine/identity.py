"""Who a loaded model is: the handshake's identity, and the fingerprint of its numerics.

Equal fingerprints give equal bits in `invariant`: so everything that decides the order of a sum is hashed. Must not know sequences.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, replace
from pathlib import Path

import torch

from outrider.engine.admission import refusing
from outrider.engine.config import EngineConfig, WeightFormat
from outrider.engine.model_files import ModelFiles
from outrider.engine.vocabulary import Vocabulary, read_vocabulary, unnamed_vocabulary
from outrider.errors import ModelRefused
from outrider.types.identity import ModelIdentity

_LOG = logging.getLogger(__name__)

# Of a configuration, what bears on no number: the same model is saved with one or another of these.
_UNNUMBERED = frozenset(
    {
        "_name_or_path",
        "architectures",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "pad_token_id",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)

KERNEL_REVISION = 1
INT8_REVISION = 1  # of how weights become int8
_KEPT = {WeightFormat.FULL: "", WeightFormat.INT8: ", int8 weights", WeightFormat.QUICK: ", int8 weights and 16-bit rows"}


def vocabulary_for(files: ModelFiles, num_logits: int) -> Vocabulary:
    """The tokenizer's vocabulary, or numbered ids for a model without one. Raises ModelRefused when the head is too short for it."""
    with refusing(f"the tokenizer.json of {str(files.directory)!r} cannot be read"):
        vocabulary = read_vocabulary(files.directory)
    if vocabulary is None:
        return unnamed_vocabulary(num_logits)
    if vocabulary.size > num_logits:
        raise ModelRefused(
            f"the tokenizer has ids up to {vocabulary.size - 1} but the model's head only {num_logits} columns; "
            f"take the added_tokens from id {num_logits} on out of tokenizer.json, or save the model with the rows they lack "
            "(resize_token_embeddings)"
        )
    return vocabulary


def model_identity(
    files: ModelFiles, file_hash: str, config: EngineConfig, backend: str, vocabulary: Vocabulary, max_context: int, eos: tuple[int, ...]
) -> ModelIdentity:
    """The identity of a model as loaded by a backend. file_hash: of its weights (weights_hash)."""
    unfinished = ModelIdentity(
        model=config.model,
        revision=files.revision,
        weights_hash=_loaded_hash(file_hash, config.weights),
        vocab_hash=vocabulary.hash,
        vocab_size=vocabulary.size,
        dtype=config.dtype.value + _KEPT[config.weights],
        numerics=config.numerics,
        fingerprint="",
        max_context=max_context,
        eos_token_ids=eos,
    )
    return replace(unfinished, fingerprint=fingerprint(unfinished, _configuration_hash(files), config, backend))


def _loaded_hash(file_hash: str, weights: WeightFormat) -> str:
    """Of the weights as they are used: rounded ones are others than those of the files."""
    if weights is WeightFormat.FULL:
        return file_hash
    return hashlib.sha256(f"{weights.value} {INT8_REVISION} {file_hash}".encode()).hexdigest()


def _configuration_hash(files: ModelFiles) -> str:
    """Of what config.json says of the numbers: with another RoPE, or epsilon, the same weights are another model."""
    fields = json.loads((files.directory / "config.json").read_text("utf-8"))
    numbered = {name: value for name, value in fields.items() if name not in _UNNUMBERED}
    return hashlib.sha256(json.dumps(numbered, sort_keys=True).encode()).hexdigest()


def fingerprint(identity: ModelIdentity, configuration_hash: str, config: EngineConfig, backend: str) -> str:
    """Hex hash over weights, the model's configuration, dtype, numerics, kernels, libraries, CPU capability and layout."""
    parts = {
        "weights": identity.weights_hash,
        "configuration": configuration_hash,
        "dtype": identity.dtype,
        "numerics": identity.numerics.value,
        "backend": backend,
        "kernels": KERNEL_REVISION,
        "sizes": asdict(config.invariant),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability() if config.device == "cpu" else torch.cuda.get_device_name(config.device),
        "threads": torch.get_num_threads() if config.device == "cpu" else 0,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def eos_token_ids(directory: Path, configured: int | list[int] | None, vocab_size: int) -> tuple[int, ...]:
    """Ids that end an answer: generation_config.json's, else the model configuration's, ascending. Raises ModelRefused.

    configured: the latter's. vocab_size: emittable ids. Others are left out with a warning, for no answer can end with them: -1 stands for
    none in some checkpoints, and others name a token of a longer vocabulary.
    """
    path = directory / "generation_config.json"
    with refusing(f"the ids that end an answer of {str(directory)!r} cannot be read"):
        ids = json.loads(path.read_text("utf-8")).get("eos_token_id") if path.is_file() else None
        if ids is None:
            ids = configured
        if ids is None:
            return ()
        named = {int(token) for token in (ids if isinstance(ids, list | tuple) else [ids])}
    emitted = {token for token in named if 0 <= token < vocab_size}
    if emitted != named:
        never = sorted(named - emitted)
        _LOG.warning("%r has ids below %d: no answer ends with its eos_token_id %s", str(directory), vocab_size, never)
    return tuple(sorted(emitted))
