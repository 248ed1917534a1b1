"""What one gateway process takes on, and the model it serves: numbers every check refers to.

Knows nothing but values. Bounds that a deployment tunes are fields; bounds of the API are constants next to their checks (checks.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.types.identity import ModelIdentity

MAX_LIVE_REQUESTS = 64
MAX_LIVE_SAMPLES = 128
MAX_PROMPT_BYTES = 2**20
MAX_QUEUED_EVENTS = 16
DRAIN_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """max_live_requests, max_live_samples: more are RESOURCE_EXHAUSTED. max_prompt_tokens, max_completion_tokens: None means what the
    context leaves. max_prompt_bytes: text of a prompt or conversation before tokenisation. max_queued_events: messages of one answer
    that may wait for a slow reader before its verifier streams are no longer read."""

    max_live_requests: int = MAX_LIVE_REQUESTS
    max_live_samples: int = MAX_LIVE_SAMPLES
    max_prompt_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_prompt_bytes: int = MAX_PROMPT_BYTES
    max_queued_events: int = MAX_QUEUED_EVENTS

    def prompt_tokens(self, identity: ModelIdentity) -> int:
        """Most prompt tokens: one position of the context must be left for the answer."""
        room = identity.max_context - 1
        return room if self.max_prompt_tokens is None else min(room, self.max_prompt_tokens)

    def completion_tokens(self, identity: ModelIdentity) -> int:
        """Most tokens of one answer."""
        room = identity.max_context - 1
        return room if self.max_completion_tokens is None else min(room, self.max_completion_tokens)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The target as clients name it. name: what answers are labelled with; a request may also use identity.model."""

    name: str
    identity: ModelIdentity
