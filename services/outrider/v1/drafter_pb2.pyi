from outrider.v1 import identity_pb2 as _identity_pb2
from outrider.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CloseReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLOSE_REASON_UNSPECIFIED: _ClassVar[CloseReason]
    CLOSE_REASON_FINISHED: _ClassVar[CloseReason]
    CLOSE_REASON_CANCELLED: _ClassVar[CloseReason]
    CLOSE_REASON_PROTOCOL: _ClassVar[CloseReason]
    CLOSE_REASON_OVERLOADED: _ClassVar[CloseReason]
    CLOSE_REASON_DRAINING: _ClassVar[CloseReason]
    CLOSE_REASON_FAILED: _ClassVar[CloseReason]

class TailEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TAIL_END_UNSPECIFIED: _ClassVar[TailEnd]
    TAIL_END_CREDIT: _ClassVar[TailEnd]
    TAIL_END_CONFIDENCE: _ClassVar[TailEnd]
    TAIL_END_LIMIT: _ClassVar[TailEnd]
    TAIL_END_EOS: _ClassVar[TailEnd]
    TAIL_END_EMPTY: _ClassVar[TailEnd]
CLOSE_REASON_UNSPECIFIED: CloseReason
CLOSE_REASON_FINISHED: CloseReason
CLOSE_REASON_CANCELLED: CloseReason
CLOSE_REASON_PROTOCOL: CloseReason
CLOSE_REASON_OVERLOADED: CloseReason
CLOSE_REASON_DRAINING: CloseReason
CLOSE_REASON_FAILED: CloseReason
TAIL_END_UNSPECIFIED: TailEnd
TAIL_END_CREDIT: TailEnd
TAIL_END_CONFIDENCE: TailEnd
TAIL_END_LIMIT: TailEnd
TAIL_END_EOS: TailEnd
TAIL_END_EMPTY: TailEnd

class Hello(_message.Message):
    __slots__ = ("verifier", "verifier_id")
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_ID_FIELD_NUMBER: _ClassVar[int]
    verifier: _identity_pb2.ModelIdentity
    verifier_id: str
    def __init__(self, verifier: _Optional[_Union[_identity_pb2.ModelIdentity, _Mapping]] = ..., verifier_id: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("drafter", "clock_ns", "max_sessions", "lane_token")
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    CLOCK_NS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LANE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    drafter: _identity_pb2.ModelIdentity
    clock_ns: int
    max_sessions: int
    lane_token: bytes
    def __init__(self, drafter: _Optional[_Union[_identity_pb2.ModelIdentity, _Mapping]] = ..., clock_ns: _Optional[int] = ..., max_sessions: _Optional[int] = ..., lane_token: _Optional[bytes] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("sent_ns",)
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    sent_ns: int
    def __init__(self, sent_ns: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("sent_ns", "clock_ns")
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_NS_FIELD_NUMBER: _ClassVar[int]
    sent_ns: int
    clock_ns: int
    def __init__(self, sent_ns: _Optional[int] = ..., clock_ns: _Optional[int] = ...) -> None: ...

class DraftLimits(_message.Message):
    __slots__ = ("max_len", "max_nodes", "tree_width", "stop_below", "svip_threshold", "flush_nodes", "hedge_nodes")
    MAX_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    TREE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    STOP_BELOW_FIELD_NUMBER: _ClassVar[int]
    SVIP_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    FLUSH_NODES_FIELD_NUMBER: _ClassVar[int]
    HEDGE_NODES_FIELD_NUMBER: _ClassVar[int]
    max_len: int
    max_nodes: int
    tree_width: int
    stop_below: float
    svip_threshold: float
    flush_nodes: int
    hedge_nodes: int
    def __init__(self, max_len: _Optional[int] = ..., max_nodes: _Optional[int] = ..., tree_width: _Optional[int] = ..., stop_below: _Optional[float] = ..., svip_threshold: _Optional[float] = ..., flush_nodes: _Optional[int] = ..., hedge_nodes: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("session", "incarnation", "request_id", "token_ids", "prefix_len", "num_prompt_tokens", "sampling", "noise", "limits", "draft_until", "with_rows", "tenant", "adapter")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_LEN_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_UNTIL_FIELD_NUMBER: _ClassVar[int]
    WITH_ROWS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: int
    request_id: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    prefix_len: int
    num_prompt_tokens: int
    sampling: _sampling_pb2.SamplingParams
    noise: _sampling_pb2.NoiseAddress
    limits: DraftLimits
    draft_until: int
    with_rows: bool
    tenant: str
    adapter: str
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[int] = ..., request_id: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., prefix_len: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., noise: _Optional[_Union[_sampling_pb2.NoiseAddress, _Mapping]] = ..., limits: _Optional[_Union[DraftLimits, _Mapping]] = ..., draft_until: _Optional[int] = ..., with_rows: _Optional[bool] = ..., tenant: _Optional[str] = ..., adapter: _Optional[str] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("session", "incarnation", "begin", "token_ids", "prefix_hash", "num_accepted", "verify_us", "draft_until", "hedge_nodes", "flush_nodes")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_UNTIL_FIELD_NUMBER: _ClassVar[int]
    HEDGE_NODES_FIELD_NUMBER: _ClassVar[int]
    FLUSH_NODES_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: int
    begin: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    prefix_hash: int
    num_accepted: int
    verify_us: int
    draft_until: int
    hedge_nodes: int
    flush_nodes: int
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[int] = ..., begin: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., prefix_hash: _Optional[int] = ..., num_accepted: _Optional[int] = ..., verify_us: _Optional[int] = ..., draft_until: _Optional[int] = ..., hedge_nodes: _Optional[int] = ..., flush_nodes: _Optional[int] = ...) -> None: ...

class Feedback(_message.Message):
    __slots__ = ("session", "incarnation", "positions", "k", "top_token_ids", "top_logprobs", "hidden")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: int
    positions: _containers.RepeatedScalarFieldContainer[int]
    k: int
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    hidden: _containers.RepeatedCompositeFieldContainer[HiddenStates]
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[int] = ..., positions: _Optional[_Iterable[int]] = ..., k: _Optional[int] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., hidden: _Optional[_Iterable[_Union[HiddenStates, _Mapping]]] = ...) -> None: ...

class HiddenStates(_message.Message):
    __slots__ = ("layer", "dtype", "width", "values")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    layer: int
    dtype: str
    width: int
    values: bytes
    def __init__(self, layer: _Optional[int] = ..., dtype: _Optional[str] = ..., width: _Optional[int] = ..., values: _Optional[bytes] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("session", "incarnation", "reason", "detail")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: int
    reason: CloseReason
    detail: str
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[int] = ..., reason: _Optional[_Union[CloseReason, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session", "incarnation", "prefilled_to")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PREFILLED_TO_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: int
    prefilled_to: int
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[int] = ..., prefilled_to: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("session", "incarnation", "reason")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: int
    reason: str
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Tail(_message.Message):
    __slots__ = ("session", "incarnation", "tree_id", "first_node", "base", "prefix_hash", "token_ids", "parents", "scores", "end", "source", "draft_us", "begin_ns", "end_ns", "rows", "hedge_us", "first_us")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TREE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_NODE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    BEGIN_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    HEDGE_US_FIELD_NUMBER: _ClassVar[int]
    FIRST_US_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: int
    tree_id: int
    first_node: int
    base: int
    prefix_hash: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    end: TailEnd
    source: str
    draft_us: int
    begin_ns: int
    end_ns: int
    rows: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.DraftRow]
    hedge_us: int
    first_us: int
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[int] = ..., tree_id: _Optional[int] = ..., first_node: _Optional[int] = ..., base: _Optional[int] = ..., prefix_hash: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[float]] = ..., end: _Optional[_Union[TailEnd, str]] = ..., source: _Optional[str] = ..., draft_us: _Optional[int] = ..., begin_ns: _Optional[int] = ..., end_ns: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[_sampling_pb2.DraftRow, _Mapping]]] = ..., hedge_us: _Optional[int] = ..., first_us: _Optional[int] = ...) -> None: ...

class DraftRequestFrame(_message.Message):
    __slots__ = ("hello", "open", "commit", "feedback", "close", "ping")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    open: Open
    commit: Commit
    feedback: Feedback
    close: Close
    ping: Ping
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., feedback: _Optional[_Union[Feedback, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[DraftRequestFrame]
    def __init__(self, frames: _Optional[_Iterable[_Union[DraftRequestFrame, _Mapping]]] = ...) -> None: ...

class DraftResponseFrame(_message.Message):
    __slots__ = ("welcome", "opened", "refused", "tail", "close", "pong")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    opened: Opened
    refused: Refused
    tail: Tail
    close: Close
    pong: Pong
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., tail: _Optional[_Union[Tail, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[DraftResponseFrame]
    def __init__(self, frames: _Optional[_Iterable[_Union[DraftResponseFrame, _Mapping]]] = ...) -> None: ...

class DrafterServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrafterServiceGetInfoResponse(_message.Message):
    __slots__ = ("identity", "sources", "live", "max_sessions", "num_threads")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_THREADS_FIELD_NUMBER: _ClassVar[int]
    identity: _identity_pb2.ModelIdentity
    sources: _containers.RepeatedScalarFieldContainer[str]
    live: _identity_pb2.LiveCounts
    max_sessions: int
    num_threads: int
    def __init__(self, identity: _Optional[_Union[_identity_pb2.ModelIdentity, _Mapping]] = ..., sources: _Optional[_Iterable[str]] = ..., live: _Optional[_Union[_identity_pb2.LiveCounts, _Mapping]] = ..., max_sessions: _Optional[int] = ..., num_threads: _Optional[int] = ...) -> None: ...
