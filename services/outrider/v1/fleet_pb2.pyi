from outrider.v1 import identity_pb2 as _identity_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_ROLE_UNSPECIFIED: _ClassVar[ReplicaRole]
    REPLICA_ROLE_VERIFIER: _ClassVar[ReplicaRole]
    REPLICA_ROLE_DRAFTER: _ClassVar[ReplicaRole]
REPLICA_ROLE_UNSPECIFIED: ReplicaRole
REPLICA_ROLE_VERIFIER: ReplicaRole
REPLICA_ROLE_DRAFTER: ReplicaRole

class PairMeasurement(_message.Message):
    __slots__ = ("drafter", "round_trip_us", "acceptance_rate", "connected", "late_share")
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_US_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_RATE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LATE_SHARE_FIELD_NUMBER: _ClassVar[int]
    drafter: str
    round_trip_us: int
    acceptance_rate: float
    connected: bool
    late_share: float
    def __init__(self, drafter: _Optional[str] = ..., round_trip_us: _Optional[int] = ..., acceptance_rate: _Optional[float] = ..., connected: _Optional[bool] = ..., late_share: _Optional[float] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("replica_id", "incarnation", "role", "endpoint", "identity", "draining", "live", "max_sessions", "block_len", "cost_rows", "cost_us", "queue_us", "draft_us", "pairs", "read_us", "cost_sequence_us")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_LEN_FIELD_NUMBER: _ClassVar[int]
    COST_ROWS_FIELD_NUMBER: _ClassVar[int]
    COST_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    READ_US_FIELD_NUMBER: _ClassVar[int]
    COST_SEQUENCE_US_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: int
    role: ReplicaRole
    endpoint: str
    identity: _identity_pb2.ModelIdentity
    draining: bool
    live: _identity_pb2.LiveCounts
    max_sessions: int
    block_len: int
    cost_rows: _containers.RepeatedScalarFieldContainer[int]
    cost_us: _containers.RepeatedScalarFieldContainer[float]
    queue_us: float
    draft_us: float
    pairs: _containers.RepeatedCompositeFieldContainer[PairMeasurement]
    read_us: float
    cost_sequence_us: float
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., role: _Optional[_Union[ReplicaRole, str]] = ..., endpoint: _Optional[str] = ..., identity: _Optional[_Union[_identity_pb2.ModelIdentity, _Mapping]] = ..., draining: _Optional[bool] = ..., live: _Optional[_Union[_identity_pb2.LiveCounts, _Mapping]] = ..., max_sessions: _Optional[int] = ..., block_len: _Optional[int] = ..., cost_rows: _Optional[_Iterable[int]] = ..., cost_us: _Optional[_Iterable[float]] = ..., queue_us: _Optional[float] = ..., draft_us: _Optional[float] = ..., pairs: _Optional[_Iterable[_Union[PairMeasurement, _Mapping]]] = ..., read_us: _Optional[float] = ..., cost_sequence_us: _Optional[float] = ...) -> None: ...

class AnnounceRequest(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ...) -> None: ...

class AnnounceResponse(_message.Message):
    __slots__ = ("epoch", "announce_every_ms", "drain")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCE_EVERY_MS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    announce_every_ms: int
    drain: bool
    def __init__(self, epoch: _Optional[int] = ..., announce_every_ms: _Optional[int] = ..., drain: _Optional[bool] = ...) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("request_id", "tenant", "prefix_len", "max_tokens", "num_samples", "fingerprint", "exclude", "wants_drafts", "prefix_digests", "prefix_digest_lens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    WANTS_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_DIGEST_LENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    prefix_len: int
    max_tokens: int
    num_samples: int
    fingerprint: str
    exclude: _containers.RepeatedScalarFieldContainer[str]
    wants_drafts: bool
    prefix_digests: _containers.RepeatedScalarFieldContainer[bytes]
    prefix_digest_lens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., prefix_len: _Optional[int] = ..., max_tokens: _Optional[int] = ..., num_samples: _Optional[int] = ..., fingerprint: _Optional[str] = ..., exclude: _Optional[_Iterable[str]] = ..., wants_drafts: _Optional[bool] = ..., prefix_digests: _Optional[_Iterable[bytes]] = ..., prefix_digest_lens: _Optional[_Iterable[int]] = ...) -> None: ...

class PlaceResponse(_message.Message):
    __slots__ = ("placement_id", "verifier", "drafters", "drafts_off", "token_us", "alternatives", "epoch")
    PLACEMENT_ID_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_OFF_FIELD_NUMBER: _ClassVar[int]
    TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    placement_id: int
    verifier: str
    drafters: _containers.RepeatedScalarFieldContainer[str]
    drafts_off: bool
    token_us: float
    alternatives: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    def __init__(self, placement_id: _Optional[int] = ..., verifier: _Optional[str] = ..., drafters: _Optional[_Iterable[str]] = ..., drafts_off: _Optional[bool] = ..., token_us: _Optional[float] = ..., alternatives: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ...) -> None: ...

class FinishRequest(_message.Message):
    __slots__ = ("placement_id", "num_tokens", "token_us", "failure", "epoch", "request_id")
    PLACEMENT_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    placement_id: int
    num_tokens: int
    token_us: float
    failure: str
    epoch: int
    request_id: str
    def __init__(self, placement_id: _Optional[int] = ..., num_tokens: _Optional[int] = ..., token_us: _Optional[float] = ..., failure: _Optional[str] = ..., epoch: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class FinishResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTopologyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTopologyResponse(_message.Message):
    __slots__ = ("epoch", "replicas")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("replica_id",)
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    def __init__(self, replica_id: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
