from outrider.v1 import identity_pb2 as _identity_pb2
from outrider.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerationMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GENERATION_MODE_UNSPECIFIED: _ClassVar[GenerationMode]
    GENERATION_MODE_LOSSLESS: _ClassVar[GenerationMode]
    GENERATION_MODE_ARBITRAGE: _ClassVar[GenerationMode]
    GENERATION_MODE_ENTROPY: _ClassVar[GenerationMode]
    GENERATION_MODE_LEADER: _ClassVar[GenerationMode]
    GENERATION_MODE_REWARD: _ClassVar[GenerationMode]
    GENERATION_MODE_JUDGE: _ClassVar[GenerationMode]
    GENERATION_MODE_TARGET_ONLY: _ClassVar[GenerationMode]
    GENERATION_MODE_DRAFT_ONLY: _ClassVar[GenerationMode]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP_TOKEN: _ClassVar[FinishReason]
    FINISH_REASON_STOP_STRING: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
GENERATION_MODE_UNSPECIFIED: GenerationMode
GENERATION_MODE_LOSSLESS: GenerationMode
GENERATION_MODE_ARBITRAGE: GenerationMode
GENERATION_MODE_ENTROPY: GenerationMode
GENERATION_MODE_LEADER: GenerationMode
GENERATION_MODE_REWARD: GenerationMode
GENERATION_MODE_JUDGE: GenerationMode
GENERATION_MODE_TARGET_ONLY: GenerationMode
GENERATION_MODE_DRAFT_ONLY: GenerationMode
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP_TOKEN: FinishReason
FINISH_REASON_STOP_STRING: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class ChatMessages(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DraftOptions(_message.Message):
    __slots__ = ("off", "max_len", "tree_width", "stop_below", "pacing", "no_lookup", "svip_threshold")
    OFF_FIELD_NUMBER: _ClassVar[int]
    MAX_LEN_FIELD_NUMBER: _ClassVar[int]
    TREE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    STOP_BELOW_FIELD_NUMBER: _ClassVar[int]
    PACING_FIELD_NUMBER: _ClassVar[int]
    NO_LOOKUP_FIELD_NUMBER: _ClassVar[int]
    SVIP_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    off: bool
    max_len: int
    tree_width: int
    stop_below: float
    pacing: str
    no_lookup: bool
    svip_threshold: float
    def __init__(self, off: _Optional[bool] = ..., max_len: _Optional[int] = ..., tree_width: _Optional[int] = ..., stop_below: _Optional[float] = ..., pacing: _Optional[str] = ..., no_lookup: _Optional[bool] = ..., svip_threshold: _Optional[float] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "model", "prompt", "token_ids", "chat", "sampling", "max_tokens", "stop", "stop_token_ids", "ignore_eos", "n", "top_logprobs", "draft", "acceptance", "mode", "adapter", "resume_token_ids", "cache_salt", "resume_fingerprints", "takes_over")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    RESUME_FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    TAKES_OVER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    prompt: str
    token_ids: TokenIds
    chat: ChatMessages
    sampling: _sampling_pb2.SamplingParams
    max_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    n: int
    top_logprobs: int
    draft: DraftOptions
    acceptance: _sampling_pb2.Acceptance
    mode: GenerationMode
    adapter: str
    resume_token_ids: _containers.RepeatedScalarFieldContainer[int]
    cache_salt: str
    resume_fingerprints: _containers.RepeatedScalarFieldContainer[str]
    takes_over: bool
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., prompt: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., chat: _Optional[_Union[ChatMessages, _Mapping]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., n: _Optional[int] = ..., top_logprobs: _Optional[int] = ..., draft: _Optional[_Union[DraftOptions, _Mapping]] = ..., acceptance: _Optional[_Union[_sampling_pb2.Acceptance, str]] = ..., mode: _Optional[_Union[GenerationMode, str]] = ..., adapter: _Optional[str] = ..., resume_token_ids: _Optional[_Iterable[int]] = ..., cache_salt: _Optional[str] = ..., resume_fingerprints: _Optional[_Iterable[str]] = ..., takes_over: _Optional[bool] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("request_id", "model", "seed", "num_prompt_tokens", "fingerprint", "exact")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    seed: int
    num_prompt_tokens: int
    fingerprint: str
    exact: bool
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., seed: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., fingerprint: _Optional[str] = ..., exact: _Optional[bool] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("index", "text", "token_ids", "origins", "logprobs", "fingerprint")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    origins: _containers.RepeatedScalarFieldContainer[_sampling_pb2.TokenOrigin]
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenLogprob]
    fingerprint: str
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., origins: _Optional[_Iterable[_Union[_sampling_pb2.TokenOrigin, str]]] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TokenLogprob, _Mapping]]] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "total_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ...) -> None: ...

class DraftStatistics(_message.Message):
    __slots__ = ("num_rounds", "num_drafted", "num_accepted", "mean_emitted_per_round", "acceptance_rate", "drafted_by_depth", "accepted_by_depth", "verify_us", "draft_us", "overlapped_draft_us", "reconcile_us", "draft_wait_us", "pacing", "num_drafter_losses", "num_cached_prompt_tokens", "num_looked_up", "num_looked_up_accepted", "num_hedge_tests", "num_hedge_hits", "session_us", "plan_us", "num_guessed")
    NUM_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MEAN_EMITTED_PER_ROUND_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_RATE_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_BY_DEPTH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_DEPTH_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    OVERLAPPED_DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    RECONCILE_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WAIT_US_FIELD_NUMBER: _ClassVar[int]
    PACING_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTER_LOSSES_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOOKED_UP_FIELD_NUMBER: _ClassVar[int]
    NUM_LOOKED_UP_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_HEDGE_TESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_HEDGE_HITS_FIELD_NUMBER: _ClassVar[int]
    SESSION_US_FIELD_NUMBER: _ClassVar[int]
    PLAN_US_FIELD_NUMBER: _ClassVar[int]
    NUM_GUESSED_FIELD_NUMBER: _ClassVar[int]
    num_rounds: int
    num_drafted: int
    num_accepted: int
    mean_emitted_per_round: float
    acceptance_rate: float
    drafted_by_depth: _containers.RepeatedScalarFieldContainer[int]
    accepted_by_depth: _containers.RepeatedScalarFieldContainer[int]
    verify_us: int
    draft_us: int
    overlapped_draft_us: int
    reconcile_us: int
    draft_wait_us: int
    pacing: str
    num_drafter_losses: int
    num_cached_prompt_tokens: int
    num_looked_up: int
    num_looked_up_accepted: int
    num_hedge_tests: int
    num_hedge_hits: int
    session_us: int
    plan_us: int
    num_guessed: int
    def __init__(self, num_rounds: _Optional[int] = ..., num_drafted: _Optional[int] = ..., num_accepted: _Optional[int] = ..., mean_emitted_per_round: _Optional[float] = ..., acceptance_rate: _Optional[float] = ..., drafted_by_depth: _Optional[_Iterable[int]] = ..., accepted_by_depth: _Optional[_Iterable[int]] = ..., verify_us: _Optional[int] = ..., draft_us: _Optional[int] = ..., overlapped_draft_us: _Optional[int] = ..., reconcile_us: _Optional[int] = ..., draft_wait_us: _Optional[int] = ..., pacing: _Optional[str] = ..., num_drafter_losses: _Optional[int] = ..., num_cached_prompt_tokens: _Optional[int] = ..., num_looked_up: _Optional[int] = ..., num_looked_up_accepted: _Optional[int] = ..., num_hedge_tests: _Optional[int] = ..., num_hedge_hits: _Optional[int] = ..., session_us: _Optional[int] = ..., plan_us: _Optional[int] = ..., num_guessed: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("index", "finish_reason", "stop_string", "usage", "statistics", "time_to_first_token_us", "total_us", "num_failovers", "exact")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILOVERS_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    index: int
    finish_reason: FinishReason
    stop_string: str
    usage: Usage
    statistics: DraftStatistics
    time_to_first_token_us: int
    total_us: int
    num_failovers: int
    exact: bool
    def __init__(self, index: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., stop_string: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., statistics: _Optional[_Union[DraftStatistics, _Mapping]] = ..., time_to_first_token_us: _Optional[int] = ..., total_us: _Optional[int] = ..., num_failovers: _Optional[int] = ..., exact: _Optional[bool] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("usage",)
    USAGE_FIELD_NUMBER: _ClassVar[int]
    usage: Usage
    def __init__(self, usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "delta", "finished", "done", "following")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    started: Started
    delta: Delta
    finished: Finished
    done: Done
    following: _containers.RepeatedCompositeFieldContainer[GenerateResponse]
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., following: _Optional[_Iterable[_Union[GenerateResponse, _Mapping]]] = ...) -> None: ...

class GenerateOnceRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: GenerateRequest
    def __init__(self, request: _Optional[_Union[GenerateRequest, _Mapping]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("index", "text", "token_ids", "origins", "logprobs", "finished")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    origins: _containers.RepeatedScalarFieldContainer[_sampling_pb2.TokenOrigin]
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenLogprob]
    finished: Finished
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., origins: _Optional[_Iterable[_Union[_sampling_pb2.TokenOrigin, str]]] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TokenLogprob, _Mapping]]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class GenerateOnceResponse(_message.Message):
    __slots__ = ("started", "samples", "usage")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    started: Started
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    usage: Usage
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelInfoResponse(_message.Message):
    __slots__ = ("target", "drafters", "max_prompt_tokens", "max_completion_tokens", "max_live_requests", "has_chat_template", "live")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    target: _identity_pb2.ModelIdentity
    drafters: _containers.RepeatedCompositeFieldContainer[_identity_pb2.ModelIdentity]
    max_prompt_tokens: int
    max_completion_tokens: int
    max_live_requests: int
    has_chat_template: bool
    live: _identity_pb2.LiveCounts
    def __init__(self, target: _Optional[_Union[_identity_pb2.ModelIdentity, _Mapping]] = ..., drafters: _Optional[_Iterable[_Union[_identity_pb2.ModelIdentity, _Mapping]]] = ..., max_prompt_tokens: _Optional[int] = ..., max_completion_tokens: _Optional[int] = ..., max_live_requests: _Optional[int] = ..., has_chat_template: _Optional[bool] = ..., live: _Optional[_Union[_identity_pb2.LiveCounts, _Mapping]] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("text", "chat")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: ChatMessages
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[ChatMessages, _Mapping]] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("token_ids", "token_bytes")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    token_bytes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., token_bytes: _Optional[_Iterable[bytes]] = ...) -> None: ...
