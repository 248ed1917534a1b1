"""What tests of failover share: a script that is hard to cut, quick limits, and the parts of an answer.

Knows the fakes of fakes_verifier.py and the client's events. Must not know what is asserted of them.
"""

from __future__ import annotations

from dataclasses import replace

from fakes_verifier import MODEL_DIR, FakeVerifier, GatewayUnderTest, fake_identity, gateway_over
from outrider.gateway.limits import LivenessLimits
from outrider.gateway.tokenizer import load_tokenizer
from outrider.telemetry import names
from outrider.types.generation import AnswerEvent, Delta, Finished, GenerationRequest

TOKENIZER = load_tokenizer(MODEL_DIR)
EOS = 3
# An emoji of four byte tokens, then a letter that combines with an accent of two, then what begins a stop string and does not end one.
SCRIPT = [*TOKENIZER.encode("x😀e\u0301!nevnev"), *TOKENIZER.encode(" and on"), EOS]
STOPPED = [token for letter in "x\u00e9nevnever" for token in TOKENIZER.encode(letter)] + TOKENIZER.encode("zz")[:1] * 2
REQUEST = GenerationRequest(prompt="Say something:", seed=7, stop=("never", "!ax"), top_logprobs=1)
QUICK = LivenessLimits(silence_s=0.1, probe_timeout_s=0.4, stuck_s=0.6)
OTHER = replace(fake_identity(), fingerprint="dd" * 16)
TIMEOUT_S = 20.0


async def stream(
    under_test: GatewayUnderTest, request: GenerationRequest = REQUEST, timeout_s: float | None = TIMEOUT_S
) -> list[AnswerEvent]:
    return [event async for event in under_test.client.generate(request, timeout_s)]


def text_of(events: list[AnswerEvent], index: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.index == index)


def tokens_of(events: list[AnswerEvent], index: int = 0) -> list[int]:
    return [token for event in events if isinstance(event, Delta) and event.index == index for token in event.token_ids]


def finished(events: list[AnswerEvent], index: int = 0) -> Finished:
    (found,) = [event for event in events if isinstance(event, Finished) and event.index == index]
    return found


def deltas(events: list[AnswerEvent]) -> list[Delta]:
    return [event for event in events if isinstance(event, Delta)]


def counted(under_test: GatewayUnderTest, metric: names.Metric = names.NUM_FAILOVERS) -> dict[str, float]:
    """By cause, those that happened."""
    found = [series for series in under_test.gateway.servicer.metrics.snapshot() if series.metric is metric and series.value]
    return {series.label_values[1]: series.value for series in found}


async def undisturbed() -> list[AnswerEvent]:
    async with gateway_over(FakeVerifier(SCRIPT)) as under_test:
        return await stream(under_test)
