"""What an answer costs beside time: the cores set aside for whoever answers, and the processor time its processes used.

Processor time is read from outside, by process id, in the same way for every contestant; the driver's own is nobody's. Spinning
threads count, as their core can do nothing else. Must not know how a contestant answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from outrider.launch.threads import ThreadPlan
from outrider_bench.contestants import Contestant
from outrider_bench.measurement import Answer, Prompt


@dataclass(frozen=True)
class Metered:
    """A contestant with its bill. pids: the processes that work for it. num_cores: set aside for it, whether busy or not."""

    contestant: Contestant
    pids: tuple[int, ...]
    num_cores: int
    read_cpu_s: Callable[[Sequence[int]], float]

    @property
    def name(self) -> str:
        """The contestant's."""
        return self.contestant.name

    @property
    def settings(self) -> str:
        """The contestant's, and the cores."""
        return f"{self.contestant.settings}; {self.num_cores} core{'' if self.num_cores == 1 else 's'}"

    def answer(self, prompt: Prompt, max_tokens: int, temperature: float, seed: int) -> Answer:
        """The contestant's answer, with what its processes used meanwhile."""
        before_s = self.read_cpu_s(self.pids)
        answer = self.contestant.answer(prompt, max_tokens, temperature, seed)
        return replace(answer, cpu_ms=1000.0 * (self.read_cpu_s(self.pids) - before_s))


def cpu_s(pids: Sequence[int]) -> float:
    """Processor time of living processes since they started, all threads, user and system. Raises OSError for a process that is gone."""
    # Linux numbers a process's clock by its id: the complement, shifted, and the scheduler's kind of clock.
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def cores_of(plan: ThreadPlan, num_cores: int, *, drafting: bool) -> int:
    """Cores a deployment needs to itself: a core for every thread of the verifier, and of the drafter that drafts or lends; at most all."""
    return min(num_cores, plan.verifier + max(plan.lent, plan.drafter if drafting else 0))
