"""A client's request and the answer's messages as values: what the Python client speaks instead of protobuf.

Knows the fields of generation.proto. Must not know grpc or text processing. Ranges are the gateway's to check; what is None here is
left unset on the wire, so that the deployment's default applies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from outrider.types.identity import ModelIdentity
from outrider.types.sampling import SamplingParams
from outrider.types.statistics import DraftStatistics
from outrider.types.tree import TokenOrigin
from outrider.types.value import quickly_made


class FinishReason(Enum):
    """Why a sample ended. No gateway sends CANCELLED: an aborted request raises Cancelled."""

    STOP_TOKEN = 1
    STOP_STRING = 2
    LENGTH = 3
    CANCELLED = 4


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn: role is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class DraftWishes:
    """A request's wishes about speculation; None leaves a wish to the deployment. None of them changes a lossless answer.

    no_lookup: no guesses from the request's own text or from earlier answers, nor is its answer kept for others."""

    off: bool | None = None
    max_len: int | None = None
    tree_width: int | None = None
    stop_below: float | None = None
    pacing: str | None = None
    svip_threshold: float | None = None
    no_lookup: bool | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request. Exactly one of prompt, token_ids and messages is set.

    seed: None lets the gateway mint one (returned in Started). stop: a string is one stop string. acceptance: "coupled" or "rejection".
    top_logprobs: None means none. resume_token_ids: what this request is already known to have answered with; resume_fingerprints: the
    numerics that made it, without which the rest is not called exact. takes_over: of a live request with this id. cache_salt: the tenant;
    requests share prompts that were read with those of an equal salt only.
    """

    prompt: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[ChatMessage, ...] | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_samples: int = 1
    top_logprobs: int | None = None
    draft: DraftWishes = field(default_factory=DraftWishes)
    acceptance: str = "coupled"
    request_id: str = ""
    model: str = ""
    adapter: str = ""
    resume_token_ids: tuple[int, ...] = ()
    cache_salt: str = ""
    resume_fingerprints: tuple[str, ...] = ()
    takes_over: bool = False


@quickly_made
@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Raw natural log-probability of one emitted token, and the best (token id, log-probability) pairs, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; completion counts every committed token, with the stop or end token."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Sum of both."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Started:
    """First message. exact: whether the text is exactly the target's for this seed. fingerprint: the verifier's numerics."""

    request_id: str
    model: str
    seed: int
    num_prompt_tokens: int
    fingerprint: str
    exact: bool


@quickly_made
@dataclass(frozen=True, slots=True)
class Delta:
    """New text of one sample and the tokens committed since its last delta; text may lag behind tokens. logprobs: () unless asked for.
    fingerprint: "" unless a verifier of other numerics than before committed them."""

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    origins: tuple[TokenOrigin, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """Last message of one sample; times in microseconds since the request reached the gateway. stop_string: "" unless one ended it.

    num_failovers: times it went on at another verifier. exact: whether all of it is exactly the target's for this seed.
    """

    index: int
    reason: FinishReason
    stop_string: str
    usage: Usage
    statistics: DraftStatistics
    time_to_first_token_us: int
    total_us: int
    num_failovers: int = 0
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """Last message: prompt counted once, completions of all samples together."""

    usage: Usage


AnswerEvent = Started | Delta | Finished | Done


@dataclass(frozen=True, slots=True)
class Sample:
    """One whole sample."""

    text: str
    token_ids: tuple[int, ...]
    origins: tuple[TokenOrigin, ...]
    logprobs: tuple[TokenLogprob, ...]
    finished: Finished


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; samples by index."""

    started: Started
    samples: tuple[Sample, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class LiveCounts:
    """What a service holds right now; all zero when it is idle and nothing leaked."""

    sessions: int
    streams: int
    kv_blocks_used: int
    kv_blocks_total: int
    queued: int


@dataclass(frozen=True, slots=True)
class ServedModelInfo:
    """What a gateway serves."""

    target: ModelIdentity
    drafters: tuple[ModelIdentity, ...]
    max_prompt_tokens: int
    max_completion_tokens: int
    max_live_requests: int
    has_chat_template: bool
    live: LiveCounts
