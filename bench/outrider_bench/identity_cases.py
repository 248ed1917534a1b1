"""Requests of an identity run: many prompts, and every sampling parameter in many combinations.

A pure function of the index, so that a failing request can be asked again alone. Must not know who answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.cli.connection import Connection
from outrider.rpc.convert.sampling import as_sent, sampling_to_proto
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.v1 import generation_pb2
from outrider_bench.contestants import DraftWishes
from outrider_bench.measurement import Prompt
from outrider_bench.prompts import make_prompts

PROMPT_SEED = 31
TASKS = ("arithmetic", "copying", "prose")
TEMPERATURES = (0.0, 0.8, 1.0, 0.5, 1.3)
TOP_PS = (1.0, 0.95, 0.8)
TOP_KS = (0, 40, 0, 0)
MIN_PS = (0.0, 0.0, 0.05, 0.0, 0.0, 0.0, 0.02)
REPETITION_PENALTIES = (1.0, 1.0, 1.1)
PRESENCE_PENALTIES = (0.0, 0.0, 0.0, 0.4)
FREQUENCY_PENALTIES = (0.0, 0.0, 0.3, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Case:
    """One request: its answer has exactly max_tokens tokens (end tokens do not end it)."""

    index: int
    prompt: Prompt
    sampling: SamplingParams
    seed: int
    max_tokens: int

    @property
    def address(self) -> NoiseAddress:
        """Where its noise lies."""
        return NoiseAddress(self.seed)

    def request(self, wishes: DraftWishes) -> generation_pb2.GenerateRequest:
        """As a client sends it."""
        return generation_pb2.GenerateRequest(
            token_ids=generation_pb2.TokenIds(ids=self.prompt.token_ids),
            sampling=sampling_to_proto(self.sampling, self.seed),
            max_tokens=self.max_tokens,
            ignore_eos=True,
            draft=wishes.to_proto(),
        )


def sampling_of(index: int) -> SamplingParams:
    """The index's combination, rounded to what the wire carries. The lists' lengths differ, so that combinations vary."""
    return as_sent(
        SamplingParams(
            temperature=TEMPERATURES[index % len(TEMPERATURES)],
            top_k=TOP_KS[index % len(TOP_KS)],
            top_p=TOP_PS[index // 2 % len(TOP_PS)],
            min_p=MIN_PS[index % len(MIN_PS)],
            repetition_penalty=REPETITION_PENALTIES[index // 3 % len(REPETITION_PENALTIES)],
            presence_penalty=PRESENCE_PENALTIES[index // 5 % len(PRESENCE_PENALTIES)],
            frequency_penalty=FREQUENCY_PENALTIES[index // 7 % len(FREQUENCY_PENALTIES)],
        )
    )


def make_cases(gateway: Connection, num: int, max_tokens: int, num_cells: int) -> list[Case]:
    """num requests over all tasks, to be dealt out in turn to num_cells cells."""
    prompts = [iter(make_prompts(gateway, task, num, PROMPT_SEED)) for task in TASKS]
    return [Case(index, next(prompts[task_of(index, num_cells)]), sampling_of(index), 1000 + index, max_tokens) for index in range(num)]


def task_of(index: int, num_cells: int) -> int:
    """Which of TASKS: a cell's requests (every num_cells-th) go through them in turn, and so do the cells."""
    return (index + index // num_cells * (1 - num_cells)) % len(TASKS)
