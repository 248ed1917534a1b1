"""What a deployment costs by micro-benchmarks, none of them a cell of the tables: steps, rounds, requests, messages, drafted tokens.

Each is measured apart, on a prompt that no cell uses: what is predicted from them (predictions.py) is predicted, not fitted. All but the
steps are measured in the minutes of the cell they serve, as a virtual machine's speed drifts. Times in microseconds.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from outrider.cli.connection import CollectedAnswer
from outrider.session.pacing.contract import CostCurve
from outrider.v1 import verifier_pb2
from outrider_bench.contestants import DRAFTLESS, DraftWishes, Stack
from outrider_bench.link import round_trips_us
from outrider_bench.measurement import Prompt

PLAIN_TOKENS = 64
MAX_ASKED = 5  # times, for an answer that does not come all at once
PLAIN_POLICY = "plain"  # of an answer without drafts, by its name in the registry
DRAFTED = DraftWishes("serial", no_lookup=True)
OVERLAPPED = DraftWishes("pearl", no_lookup=True)


@dataclass(frozen=True, slots=True)
class MicroBenchmarks:
    """verify: a step by rows, as the verifier measured it before its first request, at the pace of these minutes (Pace); unlent: the
    same while a drafter of its machine may be at work, at the pace of such steps, None where nothing is lent. step_overhead_us: of a
    round of plain decoding, between one token's arrival and the next, beside its step. request_us: until an answer's first token arrives,
    beside the step that reads its prompt (below 0 where reading is cheaper than the curve goes on to say). draft_us: a replayed token.
    round_trip_us: a message to the drafter's thread and its answer, the network's delay included. guess_us: what a round of drafts in turns
    takes beyond its step, a plain round's overhead, its drafting and a message there and back.
    plan_us: what plans take in a round, by policy, in the service, on the same prompt. draft_slowdown: how many times as long a token
    is drafted beside the target, where drafter and verifier share cores.
    """

    verify: CostCurve
    step_overhead_us: int
    request_us: float
    draft_us: float
    round_trip_us: float
    max_rows: int
    guess_us: int = 0
    unlent: CostCurve | None = None
    plan_us: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    draft_slowdown: float = 1.0


@dataclass(frozen=True, slots=True)
class DraftedRounds:
    """Means of an answer's rounds of drafts in turns, the first one left out. step_us: as the verifier counts it."""

    round_us: float
    num_guesses: float
    draft_us: float  # a token
    step_us: float

    def told_us(self, verify: CostCurve) -> float:
        """Of its step, by a curve."""
        return verify_between(verify, 1.0 + self.num_guesses)

    def beyond_us(self, verify: CostCurve) -> float:
        """What a round takes beside its step and its drafting."""
        return self.round_us - self.told_us(verify) - self.num_guesses * self.draft_us


@dataclass(frozen=True, slots=True)
class OverlappedSteps:
    """Of an answer whose drafter is at work all along: a mean step but for the first, which reads the prompt and takes late_us longer than
    the same of plain decoding. draft_us: a guess, verified or not."""

    num_rows: float
    step_us: float
    late_us: float
    draft_us: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How many times as long as before the first request steps take in these minutes: of num_few rows, and of num_many, which may be
    another matter, for one row waits for memory where many compute. Between the two by the logarithm of rows, beyond them no more."""

    num_few: float
    of_few: float
    num_many: float
    of_many: float

    def of(self, num_rows: int) -> float:
        """Of so many rows."""
        if self.num_many <= self.num_few:
            return self.of_few
        share = math.log(max(1, num_rows) / self.num_few) / math.log(self.num_many / self.num_few)
        return self.of_few + min(1.0, max(0.0, share)) * (self.of_many - self.of_few)

    def apply(self, curve: CostCurve) -> CostCurve:
        """The curve of these minutes, never falling."""
        rows, times_us = zip(*((num, us * self.of(num)) for num, us in curve.points), strict=True)
        return CostCurve(tuple(zip(rows, itertools.accumulate(times_us, max), strict=True)))


@dataclass(frozen=True, slots=True)
class Sample:
    """Of a plain answer: round_us between tokens, step_us of a step but the first, first_us until its first token. drafts, beside: of the
    same in turns, and overlapped where cores are lent. trips_us: of messages. plans_us: in a round, by policy."""

    repetition: int
    round_us: float
    step_us: float
    first_us: float
    drafts: DraftedRounds
    beside: OverlappedSteps | None
    trips_us: tuple[float, ...]
    plans_us: Mapping[str, float]


class MicroBenchmark:
    """Samples taken between the turns of a cell, so that whatever drifts falls on both alike; medians in the end.

    plain: our stack without drafts. info: of the verifier before its first request. drafter: its address, as the verifier reaches it; it
    must replay the prompt's `replayed_text` of the same temperature as well. prompt: none of a cell's. policies: whose plans are timed,
    beside those that everything else is measured with.
    """

    def __init__(
        self,
        plain: Stack,
        info: verifier_pb2.VerifierServiceGetInfoResponse,
        drafter: str,
        prompt: Prompt,
        temperature: float = 0.0,
        policies: Sequence[str] = (),
    ) -> None:
        self._plain, self._drafter, self._prompt, self._temperature = plain, drafter, prompt, temperature
        unlent = tuple(zip(info.cost_rows, info.cost_unlent_us, strict=True)) if info.cost_unlent_us else ()
        self._unlent = CostCurve(unlent) if unlent else None
        timed = (DraftWishes(policy, no_lookup=True) for policy in policies if policy not in DRAFTLESS)
        asked = (DRAFTED, *((OVERLAPPED,) if unlent else ()), *timed)
        self._drafting = {wishes.pacing: Stack(wishes.text, plain.gateway, wishes, plain.threads) for wishes in asked}
        self._identity = info.identity
        self._verify = CostCurve(tuple(zip(info.cost_rows, info.cost_us, strict=True)) or ((1, 1.0),))
        self._max_rows = info.max_rows
        self._samples: list[Sample] = []

    def sample(self, repetition: int = 0) -> None:
        """One plain answer and its first token alone, the same one drafted under each policy, and messages. repetition: of the cell."""
        first = _ask(self._plain, self._prompt, self._temperature, 1)
        answer = _ask(self._plain, self._prompt, self._temperature)
        asked = {policy: _ask(stack, self._prompt, self._temperature) for policy, stack in self._drafting.items()}
        answers = {PLAIN_POLICY: answer, **asked}
        self._samples.append(
            Sample(
                repetition,
                token_us(answer),
                further_step_us(first, answer),
                1e6 * answer.first_token_s,
                drafted_rounds(first, asked[DRAFTED.pacing]),
                None if self._unlent is None else overlapped_steps(first, answer, asked[OVERLAPPED.pacing]),
                tuple(round_trips_us(self._drafter, self._identity)),
                {policy: planned_us(first, given) for policy, given in answers.items()},
            )
        )

    def result(self) -> MicroBenchmarks:
        """Of all samples, of which there is at least one."""
        return self._result(self._samples)

    def by_repetition(self) -> tuple[MicroBenchmarks, ...]:
        """Of each repetition's samples alone; each has had at least one."""
        numbers = sorted({sample.repetition for sample in self._samples})
        return tuple(self._result([sample for sample in self._samples if sample.repetition == number]) for number in numbers)

    def _result(self, samples: Sequence[Sample]) -> MicroBenchmarks:
        round_us = statistics.median(sample.round_us for sample in samples)
        # The machine's pace has changed since the curve was measured; a round holds its step all the same.
        drafts = [sample.drafts for sample in samples]
        pace = self._pace(min(round_us, statistics.median(sample.step_us for sample in samples)), drafts)
        verify = pace.apply(self._verify)
        overhead_us = max(0, round(round_us - verify.verify_us(1)))
        reading_us = verify.verify_us(len(self._prompt.token_ids)) + overhead_us
        request_us = statistics.median(sample.first_us for sample in samples) - reading_us
        trip_us = statistics.median(trip_us for sample in samples for trip_us in sample.trips_us)
        draft_us = statistics.median(each.draft_us for each in drafts)
        guess_us = max(0, round(statistics.median(each.beyond_us(verify) for each in drafts) - overhead_us - trip_us))
        plan_us = {name: statistics.median(sample.plans_us[name] for sample in samples) for name in samples[0].plans_us}
        overlapped = [sample.beside for sample in samples if sample.beside is not None]
        beside = self._unlent_now(verify, overlapped), plan_us, _draft_slowdown(draft_us, overlapped)
        return MicroBenchmarks(verify, overhead_us, request_us, draft_us, trip_us, self._max_rows, guess_us, *beside)

    def _pace(self, plain_us: float, drafts: Sequence[DraftedRounds]) -> Pace:
        """plain_us: of a step of one row, now."""
        num_rows = 1.0 + statistics.median(each.num_guesses for each in drafts)
        of_many = statistics.median(each.step_us / each.told_us(self._verify) for each in drafts)
        return Pace(1.0, plain_us / self._verify.verify_us(1), num_rows, of_many)

    def _unlent_now(self, verify: CostCurve, beside: Sequence[OverlappedSteps]) -> CostCurve | None:
        """Of steps beside a drafter at work, by those of an overlapped answer and its prompt's. verify: of the others, now: sharing cores
        makes nothing faster."""
        measured = self._unlent
        if measured is None:
            return None
        num_rows = statistics.median(steps.num_rows for steps in beside)
        of_few = statistics.median(steps.step_us / verify_between(measured, steps.num_rows) for steps in beside)
        num_read = len(self._prompt.token_ids)
        reading_us = verify.verify_us(num_read) + statistics.median(steps.late_us for steps in beside)
        paced = Pace(num_rows, of_few, num_read, reading_us / measured.verify_us(num_read)).apply(measured)
        return CostCurve(tuple((rows, max(us, verify.verify_us(rows))) for rows, us in paced.points))


def _draft_slowdown(alone_us: float, beside: Sequence[OverlappedSteps]) -> float:
    """alone_us: of a token in turns. Sharing cores makes nothing faster."""
    if not beside or not alone_us:
        return 1.0
    return max(1.0, statistics.median(steps.draft_us for steps in beside) / alone_us)


def steps_text(curve: CostCurve) -> str:
    """For reports."""
    return ", ".join(f"{rows}: {us / 1000:.2f}" for rows, us in curve.points)


def replayed_text(plain: Stack, prompt: Prompt, temperature: float = 0.0) -> tuple[int, ...]:
    """The prompt and its plain answer, for a drafter to replay."""
    return (*prompt.token_ids, *_ask(plain, prompt, temperature).first.token_ids)


def token_us(answer: CollectedAnswer) -> float:
    """Mean time between tokens, the first left out."""
    (first_s, num_first), *_, (last_s, _) = answer.first.arrivals
    return 1e6 * (last_s - first_s) / max(1, answer.num_tokens - num_first)


def further_step_us(first: CollectedAnswer, answer: CollectedAnswer) -> float:
    """Of an answer, the mean step but for the one that reads the prompt, which is all that the first token alone takes."""
    reading, all_steps = (each.first.finished.statistics for each in (first, answer))
    return (all_steps.verify_us - reading.verify_us) / max(1, all_steps.num_rounds - reading.num_rounds)


def drafted_rounds(first: CollectedAnswer, answer: CollectedAnswer) -> DraftedRounds:
    """Of an answer that was drafted in turns. first: of the same prompt, its first token alone."""
    (first_s, _), *_, (last_s, _) = answer.first.arrivals
    counted = answer.first.finished.statistics
    num_rounds, draft_us = max(1, counted.num_rounds - 1), counted.draft_us / max(1, counted.num_drafted)
    round_us, num_guesses = 1e6 * (last_s - first_s) / num_rounds, counted.num_drafted / num_rounds
    step_us = min(further_step_us(first, answer), round_us - num_guesses * draft_us)  # a round holds its step
    return DraftedRounds(round_us, num_guesses, draft_us, step_us)


def overlapped_steps(first: CollectedAnswer, plain: CollectedAnswer, answer: CollectedAnswer) -> OverlappedSteps:
    """Of an answer that was drafted beside the target. first: of the same prompt, its first token alone; plain: all of it."""
    counted = answer.first.finished.statistics
    late_us = max(0.0, 1e6 * (answer.first_token_s - plain.first_token_s))
    num_rounds = max(1, counted.num_rounds - 1)
    steps_us = counted.verify_us - first.first.finished.statistics.verify_us - late_us
    draft_us = counted.draft_us / max(1, counted.num_guessed)
    return OverlappedSteps(1.0 + counted.num_drafted / num_rounds, max(1.0, steps_us / num_rounds), late_us, draft_us)


def planned_us(first: CollectedAnswer, answer: CollectedAnswer) -> float:
    """Of an answer, what its policy's plans took in a round but for the first. first: of the same prompt, its first token alone."""
    reading, counted = (each.first.finished.statistics for each in (first, answer))
    return max(0, counted.plan_us - reading.plan_us) / max(1, counted.num_rounds - 1)


def verify_between(verify: CostCurve, num_rows: float) -> float:
    """Of a step of so many rows in the mean, in microseconds."""
    lower, share = int(num_rows), num_rows % 1.0
    return (1.0 - share) * verify.verify_us(lower) + share * verify.verify_us(lower + 1)


def _ask(plain: Stack, prompt: Prompt, temperature: float, num_tokens: int = PLAIN_TOKENS) -> CollectedAnswer:
    """Raises RuntimeError where no answer tells when its tokens came: on a machine that stalls now and then, one in hundreds of a few
    dozen milliseconds comes in one message."""
    request = plain.request(prompt, num_tokens, temperature, seed=0)
    request.ignore_eos = True
    for _ in range(MAX_ASKED):
        answer = plain.gateway.ask(request)
        if num_tokens == 1 or len(answer.first.arrivals) > 1:
            return answer
    raise RuntimeError(f"{MAX_ASKED} answers of {num_tokens} tokens came in one message each: this machine stalls too often to be measured")
