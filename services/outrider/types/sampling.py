"""How a request wants its tokens chosen, and the key of its addressed noise.

Knows ranges and defaults (those of vLLM and OpenAI unless said otherwise). Must not know logits: the pick lives in the engine.
Order of application: logit bias and penalties, temperature, top-k, top-p, min-p (docs/noise.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import InvalidRequest

MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_TEMPERATURE = 10.0
# Beyond these a penalised float32 logit may become infinite, and an infinite best logit leaves nothing to pick from.
MIN_REPETITION_PENALTY = 1 / 128
MAX_REPETITION_PENALTY = 128.0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of the target distribution; every field enters the pick of the verifier and of the drafter alike.

    temperature: 0 is argmax (ties to the lowest token id), at most MAX_TEMPERATURE.
    top_k: 0 is off. top_p: in (0, 1], 1 is off. min_p: in [0, 1), 0 is off.
    repetition_penalty: in [MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY], 1 is off; counts prompt and output (Hugging Face's rule).
    presence_penalty, frequency_penalty: in [-2, 2], 0 is off; count output tokens only (OpenAI's rule).
    logit_bias: (token id, bias in [-100, 100]) pairs, ascending by id, at most MAX_LOGIT_BIAS_ENTRIES.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def has_penalties(self) -> bool:
        """Whether the pick depends on the tokens before it other than through the model."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def check(self, vocab_size: int) -> None:
        """Raise InvalidRequest naming the first field that is out of range; vocab_size bounds the biased ids."""
        _in_range("sampling.temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        if not self.top_k >= 0:
            raise InvalidRequest("sampling.top_k", f"must be 0 (off) or positive, got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidRequest("sampling.top_p", f"must be in (0, 1], got {self.top_p}")
        if not 0.0 <= self.min_p < 1.0:
            raise InvalidRequest("sampling.min_p", f"must be in [0, 1), got {self.min_p}")
        _in_range("sampling.repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
        _in_range("sampling.presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("sampling.frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if len(self.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
            raise InvalidRequest("sampling.logit_bias", f"has {len(self.logit_bias)} entries, at most {MAX_LOGIT_BIAS_ENTRIES}")
        for token, bias in self.logit_bias:
            if not 0 <= token < vocab_size:
                raise InvalidRequest("sampling.logit_bias", f"token id {token} is outside the vocabulary of {vocab_size}")
            _in_range(f"sampling.logit_bias[{token}]", bias, -100.0, 100.0)


@dataclass(frozen=True, slots=True)
class NoiseAddress:
    """Where a request's noise lives: keys are derived from this, never drawn.

    seed: unsigned 64 bits, the client's or minted by the gateway. sample_index: which of n samples (0-based).
    branch: 0 for the answer itself; later routed modes may branch.
    """

    seed: int
    sample_index: int = 0
    branch: int = 0


def _in_range(field: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # nor is NaN, for finite bounds
        raise InvalidRequest(field, f"must be in [{low:g}, {high:g}], got {value}")
