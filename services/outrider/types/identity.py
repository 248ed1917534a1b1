"""Who a model is: what two sides of a pair must agree on, and the sentence that says why they do not.

Knows the handshake of docs/architecture.md section 6. Must not load models or speak to the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PROTOCOL_VERSION = 1
NOISE_REVISION = 1


class Numerics(Enum):
    """INVARIANT: bit-exact whatever shares the batch. FAST: quickest shapes, near ties may flip."""

    INVARIANT = "invariant"
    FAST = "fast"


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """One side of a pair.

    vocab_hash: canonical hash over id -> bytes and special tokens of the ids the model can emit (hex); padding rows are not counted.
    vocab_size: emittable ids. weights_hash: of the weights as loaded (hex). fingerprint: hash over weights, dtype, numerics, kernels
    and layout: equal fingerprints give equal bits in `invariant`. adapter: LoRA name or empty.
    max_context: positions. eos_token_ids: ids that end an answer.
    """

    model: str
    revision: str
    weights_hash: str
    vocab_hash: str
    vocab_size: int
    dtype: str
    numerics: Numerics
    fingerprint: str
    max_context: int
    eos_token_ids: tuple[int, ...]
    adapter: str = ""
    noise_revision: int = NOISE_REVISION
    protocol_version: int = PROTOCOL_VERSION


def incompatibility(drafter: ModelIdentity, verifier: ModelIdentity) -> str | None:
    """None when the pair can work together, else one sentence saying which side has what."""
    if drafter.protocol_version != verifier.protocol_version:
        return _differ("draft protocol version", drafter, verifier, str(drafter.protocol_version), str(verifier.protocol_version))
    if drafter.noise_revision != verifier.noise_revision:
        return _differ("noise revision", drafter, verifier, str(drafter.noise_revision), str(verifier.noise_revision))
    if drafter.vocab_size != verifier.vocab_size:
        return _differ("number of emittable token ids", drafter, verifier, str(drafter.vocab_size), str(verifier.vocab_size))
    if drafter.vocab_hash != verifier.vocab_hash:
        return _differ("tokenizer (vocabulary hash)", drafter, verifier, drafter.vocab_hash[:12], verifier.vocab_hash[:12])
    return None


def _differ(what: str, drafter: ModelIdentity, verifier: ModelIdentity, left: str, right: str) -> str:
    return (
        f"{what} differs: the drafter {drafter.model!r} has {left}, the verifier {verifier.model!r} has {right}; "
        "serve a draft model with the target's own tokenizer"
    )
