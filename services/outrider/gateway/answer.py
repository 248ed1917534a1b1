"""One sample's answer as it grows: committed tokens in, text out, and where the answer ends.

Knows stop tokens, stop strings and max_tokens, and that whatever follows the end inside a run of tokens is nobody's. Pure: must not
know gRPC, verifiers or time. Tokens count up to and including the one that ended the answer; a stop token has no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from outrider.gateway.detokenizer import TextDecoder
from outrider.gateway.stop_strings import StopMatcher
from outrider.types.value import quickly_made


class End(Enum):
    """Why an answer ended by itself."""

    STOP_TOKEN = 1
    STOP_STRING = 2
    LENGTH = 3


@quickly_made
@dataclass(frozen=True, slots=True)
class Grown:
    """What a run of tokens did. text may leave now; num_taken of the run's tokens belong to the answer; end: None while it goes on."""

    text: str
    num_taken: int
    end: End | None = None
    stop_string: str = ""


class Answer:
    """Text and length of one sample; `push` runs of committed tokens until `end` is set, or `finish` it from outside."""

    def __init__(self, decoder: TextDecoder, stops: Sequence[str], stop_token_ids: frozenset[int], max_tokens: int) -> None:
        self._decoder = decoder
        self._matcher = StopMatcher(stops)
        self._stop_token_ids = stop_token_ids
        self._max_tokens = max_tokens
        self.num_tokens = 0
        self.end: End | None = None

    def push(self, token_ids: Sequence[int]) -> Grown:
        """Add a run; tokens after the end are left out."""
        assert self.end is None, "the answer has ended"
        num_free = self._num_free(token_ids)
        texts = [self._decoder.push_run(token_ids[:num_free])] if num_free else []
        self.num_tokens += num_free
        decode, match = self._decoder.push, self._matcher.push
        for num_taken, token_id in enumerate(token_ids[num_free:], num_free + 1):
            self.num_tokens += 1
            if token_id in self._stop_token_ids:
                return self._ended(texts, num_taken, End.STOP_TOKEN)
            released = match(decode(token_id))
            texts.append(released.text)
            if released.stop is not None:
                self.end = End.STOP_STRING
                return Grown("".join(texts), num_taken, End.STOP_STRING, released.stop)
            if self.num_tokens >= self._max_tokens:
                return self._ended(texts, num_taken, End.LENGTH)
        return Grown("".join(texts), len(token_ids))

    def _num_free(self, token_ids: Sequence[int]) -> int:
        """How many of the run's first tokens leave the answer going on, whatever their text is."""
        if self._matcher.has_stops:
            return 0
        num = min(len(token_ids), self._max_tokens - self.num_tokens - 1)
        if self._stop_token_ids.isdisjoint(token_ids):
            return num
        return min(num, next(place for place, token_id in enumerate(token_ids) if token_id in self._stop_token_ids))

    def finish(self, reason: End) -> Grown:
        """The verifier ended the answer (for instance at its context's end): what waited leaves."""
        assert self.end is None, "the answer has ended"
        return self._ended([], 0, reason)

    def _ended(self, texts: list[str], num_taken: int, reason: End) -> Grown:
        """Let go of what waited; the last, incomplete character may still complete a stop string."""
        released = self._matcher.push(self._decoder.flush())
        texts.append(released.text)
        if released.stop is not None:
            self.end = End.STOP_STRING
            return Grown("".join(texts), num_taken, End.STOP_STRING, released.stop)
        texts.append(self._matcher.flush())
        self.end = reason
        return Grown("".join(texts), num_taken, reason)
