from outrider.v1 import generation_pb2 as _generation_pb2
from outrider.v1 import identity_pb2 as _identity_pb2
from outrider.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DecodeStart(_message.Message):
    __slots__ = ("session_id", "incarnation", "prefix", "num_prompt_tokens", "sampling", "noise", "max_tokens", "stop_token_ids", "top_logprobs", "draft", "acceptance", "drafters", "paused", "tenant", "adapter", "takes_end", "has_stop_strings", "no_drafters")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TAKES_END_FIELD_NUMBER: _ClassVar[int]
    HAS_STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    NO_DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    incarnation: int
    prefix: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: int
    sampling: _sampling_pb2.SamplingParams
    noise: _sampling_pb2.NoiseAddress
    max_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: int
    draft: _generation_pb2.DraftOptions
    acceptance: _sampling_pb2.Acceptance
    drafters: _containers.RepeatedScalarFieldContainer[str]
    paused: bool
    tenant: str
    adapter: str
    takes_end: bool
    has_stop_strings: bool
    no_drafters: bool
    def __init__(self, session_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., prefix: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., noise: _Optional[_Union[_sampling_pb2.NoiseAddress, _Mapping]] = ..., max_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[int] = ..., draft: _Optional[_Union[_generation_pb2.DraftOptions, _Mapping]] = ..., acceptance: _Optional[_Union[_sampling_pb2.Acceptance, str]] = ..., drafters: _Optional[_Iterable[str]] = ..., paused: _Optional[bool] = ..., tenant: _Optional[str] = ..., adapter: _Optional[str] = ..., takes_end: _Optional[bool] = ..., has_stop_strings: _Optional[bool] = ..., no_drafters: _Optional[bool] = ...) -> None: ...

class DecodeAppend(_message.Message):
    __slots__ = ("begin", "token_ids")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    begin: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, begin: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DecodeUntil(_message.Message):
    __slots__ = ("max_tokens", "boundary_token_ids", "first_guess")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_GUESS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    boundary_token_ids: _containers.RepeatedScalarFieldContainer[int]
    first_guess: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, max_tokens: _Optional[int] = ..., boundary_token_ids: _Optional[_Iterable[int]] = ..., first_guess: _Optional[_Iterable[int]] = ...) -> None: ...

class DecodeStop(_message.Message):
    __slots__ = ("detail",)
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    detail: str
    def __init__(self, detail: _Optional[str] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("start", "append", "until", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: DecodeStart
    append: DecodeAppend
    until: DecodeUntil
    stop: DecodeStop
    def __init__(self, start: _Optional[_Union[DecodeStart, _Mapping]] = ..., append: _Optional[_Union[DecodeAppend, _Mapping]] = ..., until: _Optional[_Union[DecodeUntil, _Mapping]] = ..., stop: _Optional[_Union[DecodeStop, _Mapping]] = ...) -> None: ...

class DecodeStarted(_message.Message):
    __slots__ = ("fingerprint", "pacing")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PACING_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    pacing: str
    def __init__(self, fingerprint: _Optional[str] = ..., pacing: _Optional[str] = ...) -> None: ...

class DecodeCommitted(_message.Message):
    __slots__ = ("begin", "token_ids", "origins", "logprobs", "draining", "end")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    begin: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    origins: _containers.RepeatedScalarFieldContainer[_sampling_pb2.TokenOrigin]
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenLogprob]
    draining: bool
    end: DecodeFinished
    def __init__(self, begin: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., origins: _Optional[_Iterable[_Union[_sampling_pb2.TokenOrigin, str]]] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TokenLogprob, _Mapping]]] = ..., draining: _Optional[bool] = ..., end: _Optional[_Union[DecodeFinished, _Mapping]] = ...) -> None: ...

class DecodePaused(_message.Message):
    __slots__ = ("committed_len",)
    COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    committed_len: int
    def __init__(self, committed_len: _Optional[int] = ...) -> None: ...

class DecodeFinished(_message.Message):
    __slots__ = ("finish_reason", "statistics")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    finish_reason: _generation_pb2.FinishReason
    statistics: _generation_pb2.DraftStatistics
    def __init__(self, finish_reason: _Optional[_Union[_generation_pb2.FinishReason, str]] = ..., statistics: _Optional[_Union[_generation_pb2.DraftStatistics, _Mapping]] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("started", "committed", "paused", "finished")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    started: DecodeStarted
    committed: DecodeCommitted
    paused: DecodePaused
    finished: DecodeFinished
    def __init__(self, started: _Optional[_Union[DecodeStarted, _Mapping]] = ..., committed: _Optional[_Union[DecodeCommitted, _Mapping]] = ..., paused: _Optional[_Union[DecodePaused, _Mapping]] = ..., finished: _Optional[_Union[DecodeFinished, _Mapping]] = ...) -> None: ...

class VerifierServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PairInfo(_message.Message):
    __slots__ = ("endpoint", "connected", "problem", "identity", "round_trip_us", "has_lane")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_US_FIELD_NUMBER: _ClassVar[int]
    HAS_LANE_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    connected: bool
    problem: str
    identity: _identity_pb2.ModelIdentity
    round_trip_us: int
    has_lane: bool
    def __init__(self, endpoint: _Optional[str] = ..., connected: _Optional[bool] = ..., problem: _Optional[str] = ..., identity: _Optional[_Union[_identity_pb2.ModelIdentity, _Mapping]] = ..., round_trip_us: _Optional[int] = ..., has_lane: _Optional[bool] = ...) -> None: ...

class VerifierServiceGetInfoResponse(_message.Message):
    __slots__ = ("identity", "pairs", "live", "max_sessions", "max_rows", "cost_rows", "cost_us", "pacings", "num_threads", "lent_threads", "num_steps", "num_lent_steps", "cost_unlent_us", "carries_calls")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    COST_ROWS_FIELD_NUMBER: _ClassVar[int]
    COST_US_FIELD_NUMBER: _ClassVar[int]
    PACINGS_FIELD_NUMBER: _ClassVar[int]
    NUM_THREADS_FIELD_NUMBER: _ClassVar[int]
    LENT_THREADS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_LENT_STEPS_FIELD_NUMBER: _ClassVar[int]
    COST_UNLENT_US_FIELD_NUMBER: _ClassVar[int]
    CARRIES_CALLS_FIELD_NUMBER: _ClassVar[int]
    identity: _identity_pb2.ModelIdentity
    pairs: _containers.RepeatedCompositeFieldContainer[PairInfo]
    live: _identity_pb2.LiveCounts
    max_sessions: int
    max_rows: int
    cost_rows: _containers.RepeatedScalarFieldContainer[int]
    cost_us: _containers.RepeatedScalarFieldContainer[float]
    pacings: _containers.RepeatedScalarFieldContainer[str]
    num_threads: int
    lent_threads: int
    num_steps: int
    num_lent_steps: int
    cost_unlent_us: _containers.RepeatedScalarFieldContainer[float]
    carries_calls: bool
    def __init__(self, identity: _Optional[_Union[_identity_pb2.ModelIdentity, _Mapping]] = ..., pairs: _Optional[_Iterable[_Union[PairInfo, _Mapping]]] = ..., live: _Optional[_Union[_identity_pb2.LiveCounts, _Mapping]] = ..., max_sessions: _Optional[int] = ..., max_rows: _Optional[int] = ..., cost_rows: _Optional[_Iterable[int]] = ..., cost_us: _Optional[_Iterable[float]] = ..., pacings: _Optional[_Iterable[str]] = ..., num_threads: _Optional[int] = ..., lent_threads: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_lent_steps: _Optional[int] = ..., cost_unlent_us: _Optional[_Iterable[float]] = ..., carries_calls: _Optional[bool] = ...) -> None: ...
