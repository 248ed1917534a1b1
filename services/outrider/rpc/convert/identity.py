"""ModelIdentity between protobuf and values, for handshakes and GetInfo.

Knows which fields a usable identity must have. Must not judge a pair: types/identity.py owns `incompatibility`.
"""

from __future__ import annotations

from outrider.errors import InvalidRequest
from outrider.rpc.convert.bounds import MAX_POSITION, bounded, integers, name
from outrider.types.identity import ModelIdentity, Numerics
from outrider.v1 import identity_pb2 as pb

MAX_EOS_TOKENS = 64
MAX_MODEL_NAME_LEN = 4096
_NUMERICS_VALUES = {Numerics.INVARIANT: pb.NUMERICS_INVARIANT, Numerics.FAST: pb.NUMERICS_FAST}
_NUMERICS: dict[int, Numerics] = {int(value): numerics for numerics, value in _NUMERICS_VALUES.items()}


def identity_to_proto(identity: ModelIdentity) -> pb.ModelIdentity:
    """Every field of a served model's identity."""
    return pb.ModelIdentity(
        model=identity.model,
        revision=identity.revision,
        weights_hash=identity.weights_hash,
        vocab_hash=identity.vocab_hash,
        vocab_size=identity.vocab_size,
        dtype=identity.dtype,
        numerics=_NUMERICS_VALUES[identity.numerics],
        fingerprint=identity.fingerprint,
        max_context=identity.max_context,
        eos_token_ids=identity.eos_token_ids,
        adapter=identity.adapter,
        noise_revision=identity.noise_revision,
        protocol_version=identity.protocol_version,
    )


def identity_from_proto(message: pb.ModelIdentity, field: str = "identity") -> ModelIdentity:
    """Raises InvalidRequest naming the first field that no served model could have."""
    numerics = _NUMERICS.get(int(message.numerics))
    if numerics is None:
        raise InvalidRequest(f"{field}.numerics", f"{int(message.numerics)} is neither invariant nor fast")
    if len(message.eos_token_ids) > MAX_EOS_TOKENS:
        raise InvalidRequest(f"{field}.eos_token_ids", f"has {len(message.eos_token_ids)} entries, at most {MAX_EOS_TOKENS}")
    return ModelIdentity(
        model=name(f"{field}.model", message.model, MAX_MODEL_NAME_LEN),
        revision=name(f"{field}.revision", message.revision),
        weights_hash=name(f"{field}.weights_hash", message.weights_hash),
        vocab_hash=name(f"{field}.vocab_hash", message.vocab_hash),
        vocab_size=bounded(f"{field}.vocab_size", message.vocab_size, 1),
        dtype=name(f"{field}.dtype", message.dtype),
        numerics=numerics,
        fingerprint=name(f"{field}.fingerprint", message.fingerprint),
        max_context=bounded(f"{field}.max_context", message.max_context, 1),
        eos_token_ids=tuple(integers(f"{field}.eos_token_ids", message.eos_token_ids, 0).tolist()),
        adapter=name(f"{field}.adapter", message.adapter),
        noise_revision=bounded(f"{field}.noise_revision", message.noise_revision, 0, MAX_POSITION),
        protocol_version=bounded(f"{field}.protocol_version", message.protocol_version, 0, MAX_POSITION),
    )
