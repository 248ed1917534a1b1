"""What one gateway process takes on, and the model it serves: numbers every check refers to.

Knows nothing but values. Bounds that a deployment tunes are fields; bounds of the API are constants next to their checks (checks.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from outrider.types.identity import ModelIdentity

MAX_LIVE_REQUESTS = 64
MAX_LIVE_SAMPLES = 128
MAX_PROMPT_BYTES = 2**20
MAX_QUEUED_EVENTS = 16
MAX_UNREAD_S = 300
DRAIN_GRACE_S = 10.0

# A stopped verifier is found within SILENCE_S, a fifth of it, and PROBE_TIMEOUT_S.
SILENCE_S = 0.5
PROBE_TIMEOUT_S = 1.0
STUCK_S = 20.0
PLACE_TIMEOUT_S = 15.0
BEGIN_TIMEOUT_S = 5.0
MAX_FAILOVERS = 8
MAX_FRUITLESS_FAILOVERS = 2
MAX_OPENINGS = 24
FIRST_DELAY_S = 0.05
MIN_BACKOFF_S = 0.1
MAX_BACKOFF_S = 1.0
HANDOVER_MIN_TOKENS = 32
HANDOVER_SPREAD_S = 0.25
HANDOVER_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """max_live_requests, max_live_samples: more are RESOURCE_EXHAUSTED. max_prompt_tokens, max_completion_tokens: None means what the
    context leaves. max_prompt_bytes: text of a prompt or conversation before tokenisation. max_queued_events: messages of one answer
    of several samples that may wait for a slow reader before its verifier streams are no longer read; with one sample none waits.
    max_unread_s: a request whose client leaves a message unread for this long is ended."""

    max_live_requests: int = MAX_LIVE_REQUESTS
    max_live_samples: int = MAX_LIVE_SAMPLES
    max_prompt_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_prompt_bytes: int = MAX_PROMPT_BYTES
    max_queued_events: int = MAX_QUEUED_EVENTS
    max_unread_s: float = MAX_UNREAD_S

    def prompt_tokens(self, max_context: int) -> int:
        """Most prompt tokens: one position of the context must be left for the answer."""
        room = max_context - 1
        return room if self.max_prompt_tokens is None else min(room, self.max_prompt_tokens)

    def completion_tokens(self, max_context: int) -> int:
        """Most tokens of one answer."""
        room = max_context - 1
        return room if self.max_completion_tokens is None else min(room, self.max_completion_tokens)


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """When a verifier counts as lost. silence_s: a stream may wait so long for a message before the verifier is asked whether it lives.
    probe_timeout_s: it must answer within this. stuck_s: a verifier that answers must have taken a step within this."""

    silence_s: float = SILENCE_S
    probe_timeout_s: float = PROBE_TIMEOUT_S
    stuck_s: float = STUCK_S


@dataclass(frozen=True, slots=True)
class FailoverLimits:
    """How a sample whose verifier was lost finds the next one.

    place_timeout_s: to find one; a verifier that is being restarted may come back within it. begin_timeout_s: the same for a request
    that none has taken yet, which a client may as well ask again. max_failovers: of one sample.
    max_fruitless_failovers: in a row without a token in between; the request may be what kills them. max_openings: of one failover.
    first_delay_s: the first opening waits up to this, by chance, so that many gateways do not fall on one verifier together.
    min_backoff_s, max_backoff_s: between further rounds over all verifiers, doubled each time, times a number between 0.5 and 1.5.
    handover_min_tokens: an answer that may have fewer left ends where it is, though its verifier drains. handover_spread_s: others leave
    within this, by chance; nobody waits for them meanwhile. handover_timeout_s: for all others together to take one.
    """

    place_timeout_s: float = PLACE_TIMEOUT_S
    begin_timeout_s: float = BEGIN_TIMEOUT_S
    max_failovers: int = MAX_FAILOVERS
    max_fruitless_failovers: int = MAX_FRUITLESS_FAILOVERS
    max_openings: int = MAX_OPENINGS
    first_delay_s: float = FIRST_DELAY_S
    min_backoff_s: float = MIN_BACKOFF_S
    max_backoff_s: float = MAX_BACKOFF_S
    handover_min_tokens: int = HANDOVER_MIN_TOKENS
    handover_spread_s: float = HANDOVER_SPREAD_S
    handover_timeout_s: float = HANDOVER_TIMEOUT_S

    def backoffs_s(self) -> Iterator[float]:
        """Pauses between rounds over the verifiers, without end."""
        backoff_s = self.min_backoff_s
        while True:
            yield backoff_s * random.uniform(0.5, 1.5)
            backoff_s = min(2 * backoff_s, self.max_backoff_s)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The target as clients name it. name: what answers are labelled with; a request may also use identity.model.

    contexts: of the verifiers that take requests now, which may hold more or less of the model's; empty: the identity's.
    """

    name: str
    identity: ModelIdentity
    contexts: tuple[int, ...] = ()

    @property
    def max_context(self) -> int:
        """The largest: a request that asks for more fits nowhere."""
        return max(self.contexts, default=self.identity.max_context)

    def context_for(self, num_prompt: int) -> int:
        """The smallest that leaves such a prompt an answer: one that asks for no length may then be decoded, and go on, wherever its prompt
        fits. The largest where none does."""
        return min((context for context in self.contexts if context > num_prompt), default=self.max_context)
