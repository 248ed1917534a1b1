"""What requests cost that are decoded together, by micro-benchmarks: beside those of one request (outrider_bench.micro), what each further
one adds to a round, how long a burst waits for its first tokens, and what a drafted token takes for so many sessions at once.

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
from outrider_bench.micro import PLAIN_TOKENS, MicroBenchmarks
from verifier_service.cost_model import rising


@dataclass(frozen=True, slots=True)
class BurstCosts:
    """one: of a single request. session_us: of a round, for each request but the first, beside the step's rows. first_us: until every
    request of a burst has its first token. draft: a drafted token by sessions."""

    one: MicroBenchmarks
    session_us: int
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
        self._bursts: list[Burst] = []
        self._drafts_us: list[float] = []

    def sample(self) -> None:
        """One plain burst, and drafts for all of its requests at once."""
        self._bursts.append(burst(self._plain, self._prompts, PLAIN_TOKENS, self._temperature, self._pool))
        self._drafts_us.append(draft_times(self._drafter, self._identity, self._asked).token_us)

    def result(self, one: MicroBenchmarks) -> BurstCosts:
        """Of all samples, of which there is at least one."""
        num = len(self._prompts)
        first_us = statistics.median(1000.0 * max(answer.first_token_ms for answer in found.answers) for found in self._bursts)
        draft = {1: one.draft_us, num: statistics.median(self._drafts_us)} if num > 1 else {1: one.draft_us}
        return BurstCosts(one, round(self._session_us(one)), first_us, rising(list(draft), draft.values()))

    def _session_us(self, one: MicroBenchmarks) -> float:
        num = len(self._prompts)
        if num == 1:
            return 0.0
        round_us = statistics.median(round_us_of(found) for found in self._bursts)
        return max(0.0, round_us - one.verify.verify_us(num) - one.step_overhead_us) / (num - 1)


def round_us_of(plain: Burst) -> float:
    """Between two tokens of a burst without drafts: from when every request has its first one to the end of the last, a token a round."""
    begun_ms = max(answer.first_token_ms for answer in plain.answers)
    ended_ms = max(answer.total_ms for answer in plain.answers)
    return 1000.0 * (ended_ms - begun_ms) / max(1, min(len(answer.tokens) for answer in plain.answers) - 1)
