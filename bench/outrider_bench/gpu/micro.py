"""What requests cost that are decoded together, by micro-benchmarks: beside those of one request (outrider_bench.micro), what each further
one adds to a round, with guesses and without, how long a burst waits for its first tokens, and what a drafted token takes for so many
sessions at once.

Taken on prompts of their own between the turns of the cells; medians. Must not know policies.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from outrider.session.pacing.contract import CostCurve
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.v1 import identity_pb2
from outrider_bench.contestants import Stack
from outrider_bench.gpu.bursts import Burst, burst
from outrider_bench.grid.direct_drafts import Asked, draft_times
from outrider_bench.measurement import Prompt
from outrider_bench.micro import DRAFTED, PLAIN_TOKENS, MicroBenchmarks
from verifier_service.cost_model import rising


@dataclass(frozen=True, slots=True)
class BurstCosts:
    """one: of a single request. session_us: of a round, for each request but the first, beside the step's rows; guess_us: for each with
    guesses, beside that. first_us: until every request of a burst has its first token. draft: a drafted token by sessions."""

    one: MicroBenchmarks
    session_us: int
    guess_us: int
    first_us: float
    draft: CostCurve


class BurstMicro:
    """Of bursts of these prompts. drafter: its address; it must replay each prompt's text, of which `texts` are the tokens."""

    def __init__(
        self,
        plain: Stack,
        prompts: Sequence[Prompt],
        texts: Sequence[Sequence[int]],
        temperature: float,
        drafter: str,
        identity: identity_pb2.ModelIdentity,
        pool: Executor,
    ) -> None:
        self._plain, self._prompts, self._temperature, self._pool = plain, prompts, temperature, pool
        self._drafter, self._identity = drafter, identity
        sampling = SamplingParams(temperature=temperature)
        self._asked = [
            Asked(tuple(text), len(prompt.token_ids), sampling, NoiseAddress(0)) for prompt, text in zip(prompts, texts, strict=True)
        ]
        self._drafted = Stack("drafts in turns", plain.gateway, DRAFTED, plain.threads)
        self._bursts: list[Burst] = []
        self._drafted_bursts: list[Burst] = []
        self._drafts_us: list[float] = []

    def sample(self) -> None:
        """One plain burst, the same one drafted in turns, and drafts for all of its requests at once."""
        for stack, found in ((self._plain, self._bursts), (self._drafted, self._drafted_bursts)):
            found.append(burst(stack, self._prompts, PLAIN_TOKENS, self._temperature, self._pool))
        self._drafts_us.append(draft_times(self._drafter, self._identity, self._asked).token_us)

    def result(self, one: MicroBenchmarks) -> BurstCosts:
        """Of all samples, of which there is at least one."""
        num = len(self._prompts)
        first_us = statistics.median(1000.0 * max(answer.first_token_ms for answer in found.answers) for found in self._bursts)
        if num == 1:
            return BurstCosts(one, 0, one.guess_us, first_us, CostCurve(((1, one.draft_us),)))
        draft = rising((1, num), (one.draft_us, statistics.median(self._drafts_us)))
        session_us = max(0.0, self._beside_us(one)) / (num - 1)
        guess_us = max(0.0, self._beside_drafted_us(one, draft) - session_us * (num - 1)) / num
        return BurstCosts(one, round(session_us), round(guess_us), first_us, draft)

    def _beside_us(self, one: MicroBenchmarks) -> float:
        """What a plain round takes beside its step and what one request's takes beside its own."""
        round_us = statistics.median(round_us_of(found) for found in self._bursts)
        return round_us - one.verify.verify_us(len(self._prompts)) - one.step_overhead_us

    def _beside_drafted_us(self, one: MicroBenchmarks, draft: CostCurve) -> float:
        """The same of a round of drafts in turns, its drafting and a message there and back left out too."""
        num = len(self._prompts)
        beside = []
        for found in self._drafted_bursts:
            guesses = found.summary.drafted_per_round
            step_us = one.verify.verify_us(round(num * (1.0 + guesses)))
            beside.append(round_us_of(found) - step_us - one.step_overhead_us - guesses * draft.verify_us(num) - one.round_trip_us)
        return statistics.median(beside)


def round_us_of(found: Burst) -> float:
    """Of a burst: from when every request has its first token to the end of the last, over the rounds of the one that has most."""
    begun_ms = max(answer.first_token_ms for answer in found.answers)
    ended_ms = max(answer.total_ms for answer in found.answers)
    num_rounds = max(answer.draft.num_rounds if answer.draft is not None else len(answer.tokens) for answer in found.answers)
    return 1000.0 * (ended_ms - begun_ms) / max(1, num_rounds - 1)
