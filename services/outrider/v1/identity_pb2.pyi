from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Numerics(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NUMERICS_UNSPECIFIED: _ClassVar[Numerics]
    NUMERICS_INVARIANT: _ClassVar[Numerics]
    NUMERICS_FAST: _ClassVar[Numerics]
NUMERICS_UNSPECIFIED: Numerics
NUMERICS_INVARIANT: Numerics
NUMERICS_FAST: Numerics

class ModelIdentity(_message.Message):
    __slots__ = ("model", "revision", "weights_hash", "vocab_hash", "vocab_size", "dtype", "numerics", "fingerprint", "max_context", "eos_token_ids", "adapter", "noise_revision", "protocol_version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_HASH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_HASH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    NOISE_REVISION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    revision: str
    weights_hash: str
    vocab_hash: str
    vocab_size: int
    dtype: str
    numerics: Numerics
    fingerprint: str
    max_context: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    adapter: str
    noise_revision: int
    protocol_version: int
    def __init__(self, model: _Optional[str] = ..., revision: _Optional[str] = ..., weights_hash: _Optional[str] = ..., vocab_hash: _Optional[str] = ..., vocab_size: _Optional[int] = ..., dtype: _Optional[str] = ..., numerics: _Optional[_Union[Numerics, str]] = ..., fingerprint: _Optional[str] = ..., max_context: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., adapter: _Optional[str] = ..., noise_revision: _Optional[int] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class LiveCounts(_message.Message):
    __slots__ = ("sessions", "streams", "kv_blocks_used", "kv_blocks_total", "queued")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    streams: int
    kv_blocks_used: int
    kv_blocks_total: int
    queued: int
    def __init__(self, sessions: _Optional[int] = ..., streams: _Optional[int] = ..., kv_blocks_used: _Optional[int] = ..., kv_blocks_total: _Optional[int] = ..., queued: _Optional[int] = ...) -> None: ...
