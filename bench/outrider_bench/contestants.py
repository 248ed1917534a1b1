"""Who answers: transformers with some settings, or our stack with some draft options. One interface, so that all are treated alike.

Knows how to ask; must not know which prompts, how often or in which order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outrider.cli.connection import Connection
from outrider.v1 import generation_pb2, sampling_pb2, verifier_pb2
from outrider_bench.baseline import GenerateSettings, TransformersBaseline
from outrider_bench.measurement import Answer, DraftNumbers, Prompt

DRAFTLESS = frozenset({"off", "plain", "lookup"})  # what our stack does without a drafter, and without its cores


class Contestant(Protocol):
    """Answers one prompt at a time."""

    @property
    def name(self) -> str:
        """Column in tables."""
        ...

    @property
    def settings(self) -> str:
        """What was chosen for it, with threads."""
        ...

    def answer(self, prompt: Prompt, max_tokens: int, temperature: float, seed: int) -> Answer:
        """The answer to one prompt and what it cost."""
        ...


@dataclass(frozen=True)
class Transformers:
    """transformers' generate or assisted generation."""

    name: str
    baseline: TransformersBaseline
    generate: GenerateSettings
    num_threads: int

    @property
    def settings(self) -> str:
        """Cache, attention, assistant, dtype, threads."""
        return f"{self.generate.name}; {self.baseline.dtype}; {threads_text(self.num_threads)}"

    def answer(self, prompt: Prompt, max_tokens: int, temperature: float, seed: int) -> Answer:
        """Through transformers' own random numbers: texts at T > 0 differ from ours, speeds compare."""
        return self.baseline.answer(prompt.token_ids, max_tokens, temperature, seed, self.generate)


@dataclass(frozen=True)
class DraftWishes:
    """A request's draft options; None leaves the deployment's default. pacing "off" is draft.off."""

    pacing: str
    max_len: int | None = None
    stop_below: float | None = None
    tree_width: int | None = None
    no_lookup: bool = False

    def to_proto(self) -> generation_pb2.DraftOptions:
        """The client API's message."""
        if self.pacing == "off":
            return generation_pb2.DraftOptions(off=True)
        return generation_pb2.DraftOptions(
            max_len=self.max_len,
            stop_below=self.stop_below,
            tree_width=self.tree_width,
            pacing=self.pacing,
            no_lookup=self.no_lookup or None,
        )

    @property
    def text(self) -> str:
        """Only what was wished for."""
        wishes = {"max_len": self.max_len, "stop_below": self.stop_below, "tree_width": self.tree_width}
        return " ".join([self.pacing, *(f"{name}={value:g}" for name, value in wishes.items() if value is not None)])


@dataclass(frozen=True)
class Stack:
    """Our gateway, verifier and drafter, asked through the client API."""

    name: str
    gateway: Connection
    wishes: DraftWishes
    threads: str

    @property
    def settings(self) -> str:
        """Draft options and threads of each process."""
        return f"{self.wishes.text}; {self.threads}"

    def request(self, prompt: Prompt, max_tokens: int, temperature: float, seed: int) -> generation_pb2.GenerateRequest:
        """The client API's message."""
        return generation_pb2.GenerateRequest(
            token_ids=generation_pb2.TokenIds(ids=prompt.token_ids),
            sampling=sampling_pb2.SamplingParams(temperature=temperature, seed=seed),
            max_tokens=max_tokens,
            draft=self.wishes.to_proto(),
        )

    def answer(self, prompt: Prompt, max_tokens: int, temperature: float, seed: int) -> Answer:
        """Times are the client's own."""
        collected = self.gateway.ask(self.request(prompt, max_tokens, temperature, seed))
        sample = collected.first
        return Answer(
            tokens=tuple(sample.token_ids),
            first_token_ms=1000.0 * collected.first_token_s,
            total_ms=1000.0 * collected.total_s,
            draft=draft_numbers(sample.finished.statistics),
        )


def threads_text(num_threads: int) -> str:
    """For settings."""
    return f"{num_threads} thread{'' if num_threads == 1 else 's'}"


def draft_numbers(statistics: generation_pb2.DraftStatistics) -> DraftNumbers:
    """The client API's statistics as numbers of ours."""
    return DraftNumbers(
        num_rounds=statistics.num_rounds,
        num_drafted=statistics.num_drafted,
        num_accepted=statistics.num_accepted,
        verify_ms=statistics.verify_us / 1000.0,
        draft_ms=statistics.draft_us / 1000.0,
        overlapped_draft_ms=statistics.overlapped_draft_us / 1000.0,
        draft_wait_ms=statistics.draft_wait_us / 1000.0,
        num_drafter_losses=statistics.num_drafter_losses,
        num_looked_up=statistics.num_looked_up,
        reconcile_ms=statistics.reconcile_us / 1000.0,
        session_ms=statistics.session_us / 1000.0,
        plan_ms=statistics.plan_us / 1000.0,
    )


def verify_ms(info: verifier_pb2.VerifierServiceGetInfoResponse, num_rows: float) -> float:
    """Measured cost of a step of this many rows alone, milliseconds; linear between the verifier's own points, 0 when it has none."""
    points = sorted(zip(info.cost_rows, info.cost_us, strict=True))
    if not points:
        return 0.0
    rows_b, us_b = points[0]
    for rows_a, us_a in points:
        if num_rows <= rows_a:
            share = 1.0 if rows_a == rows_b else (num_rows - rows_b) / (rows_a - rows_b)
            return (us_b + share * (us_a - us_b)) / 1000.0
        rows_b, us_b = rows_a, us_a
    return us_b / 1000.0
