"""What a grid's processes cost, one thing at a time: a target in this process, a verifier of its own, and a drafter that nobody else asks.

A step by rows, alone, beside a drafter and beside another verifier; a round of plain decoding beside its step, a request beside its
rounds, guesses in a round; a message; a drafted token by sessions, and a prompt's at the drafter; processor time of gateway and client
for a delta. Times of rounds are differences of whole answers of two lengths: tokens may come to a client several at a time. Samples are
taken between the cells' turns; medians.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from outrider.cli.connection import CollectedAnswer
from outrider.engine.contract import Engine
from outrider.session.pacing.contract import CostCurve
from outrider.v1 import identity_pb2
from outrider_bench.contestants import DraftWishes, Stack
from outrider_bench.cost import cpu_s
from outrider_bench.grid.costs import Costs
from outrider_bench.grid.direct_drafts import SHORT_PROMPT, Asked, DraftTimes, beginning, draft_times, kept_drafting
from outrider_bench.grid.step_times import StepTimes, time_together
from outrider_bench.link import round_trips_us
from outrider_bench.measurement import Prompt
from verifier_service.cost_model import rising

SHORT, LONG = 8, 96  # tokens
FEW_TRIPS, MANY_TRIPS = 8, 72


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds that a long answer has more than a short one, of the same request; and the short one as a whole.

    num_guesses: in a round. wait_us: in a round, ready and waiting for guesses. step_us: of a step, as the verifier timed it; reading_us:
    of the short answer's first one, which reads the prompt. draft_us: of drafting, in a round. delta_us: processor time of gateway and
    client for a message to the client; short_cpu_us: for all of the short answer, of short_deltas.
    """

    round_us: float
    num_guesses: float
    wait_us: float
    step_us: float
    draft_us: float
    delta_us: float
    reading_us: float
    short_us: float
    short_rounds: int
    short_cpu_us: float
    short_deltas: int


@dataclass(slots=True)
class GridSamples:
    """What was measured, sample by sample. alone, busy, crowded: steps of the target in this process, with nobody else at work, while a
    drafter drafts (busy_draft_us: its tokens meanwhile), and while a verifier decodes plainly; together_us: alone, plain ones of several
    sessions. together: plain answers that were asked at the same time. drafts: by sessions; short_drafts: of one with hardly any prompt.
    message_cpu_us: of messages there and back."""

    alone: StepTimes = field(default_factory=StepTimes)
    busy: StepTimes = field(default_factory=StepTimes)
    crowded: StepTimes = field(default_factory=StepTimes)
    together_us: list[float] = field(default_factory=list)
    plain: list[Rounds] = field(default_factory=list)
    together: list[Rounds] = field(default_factory=list)
    drafted: list[Rounds] = field(default_factory=list)
    drafts: dict[int, list[DraftTimes]] = field(default_factory=dict)
    short_drafts: list[DraftTimes] = field(default_factory=list)
    message_cpu_us: list[float] = field(default_factory=list)
    busy_draft_us: list[float] = field(default_factory=list)


class GridMicro:
    """target: in this process, with one thread and its verifiers' options. plain: our stack without drafts, past every coordinator; other:
    the same of another verifier. drafter: its address; pids: plain's gateway's and the drafter's. asked: requests to draft for, as many
    at once as 1, 2, 4, ... of them."""

    def __init__(
        self,
        target: Engine,
        plain: Stack,
        other: Stack,
        identity: identity_pb2.ModelIdentity,
        drafter: str,
        prompt: Prompt,
        asked: Sequence[Asked],
        pids: tuple[int, int],
        num_cores: int,
    ) -> None:
        self._target, self._plain, self._other, self._prompt = target, plain, other, prompt
        self._identity, self._drafter = identity, drafter
        self._drafted = Stack("drafts in turns", plain.gateway, DraftWishes("serial", no_lookup=True), plain.threads)
        (gateway_pid, self._drafter_pid), self._asked, self._num_cores = pids, asked, num_cores
        self._clerks = (gateway_pid, os.getpid())
        self._samples = GridSamples()

    def sample(self) -> None:
        """Everything once."""
        samples = self._samples
        samples.alone.time(self._target)
        samples.together_us += time_together(self._target, len(self._asked), len(self._prompt.token_ids))
        for num_sessions in session_counts(len(self._asked)):
            times = draft_times(self._drafter, self._identity, self._asked[:num_sessions])
            samples.drafts.setdefault(num_sessions, []).append(times)
        samples.short_drafts.append(draft_times(self._drafter, self._identity, [beginning(self._asked[0])]))
        samples.message_cpu_us.append(self._message_cpu_us())
        samples.drafted.append(self._rounds(self._drafted))
        with kept_drafting(self._drafter, self._identity, self._asked[0]) as drafting:
            samples.busy.time(self._target)
        samples.busy_draft_us.append(statistics.median(drafting.tokens_us))
        samples.plain.append(self._rounds(self._plain))
        samples.together += self._rounds_together()
        self._time_crowded()

    def result(self) -> Costs:
        """Of all samples, of which there is at least one."""
        read_len, max_rows = self._asked[0].prompt_len - SHORT_PROMPT, self._target.limits.max_rows
        return costs_of(self._samples, Lengths(len(self._prompt.token_ids), read_len, max_rows, len(self._asked)), self._num_cores)

    def _message_cpu_us(self) -> float:
        """Of a message to the drafter and its answer, at both ends: by what more of them take, so that the line itself is not counted."""
        taken_us = []
        for num_trips in (FEW_TRIPS, MANY_TRIPS):
            before_s = cpu_s((self._drafter_pid, os.getpid()))
            round_trips_us(self._drafter, self._identity, num_trips, credit=0)
            taken_us.append(1e6 * (cpu_s((self._drafter_pid, os.getpid())) - before_s))
        return max(0.0, taken_us[1] - taken_us[0]) / (MANY_TRIPS - FEW_TRIPS)

    def _time_crowded(self) -> None:
        """While another verifier decodes an answer that is longer than this takes."""
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(self._ask, self._other, 2 * (SHORT + LONG))
            self._samples.crowded.time(self._target)
            other.result()

    def _rounds(self, stack: Stack) -> Rounds:
        (short, short_cpu_s), (long, long_cpu_s) = self._ask(stack, SHORT), self._ask(stack, LONG)
        return rounds_between(short, long, 1e6 * short_cpu_s, 1e6 * long_cpu_s)

    def _rounds_together(self) -> list[Rounds]:
        """Of as many plain answers at a time as there are requests to draft for."""
        num = len(self._asked)
        with ThreadPoolExecutor(num) as pool:
            shorts, longs = (list(pool.map(self._ask, [self._plain] * num, [tokens] * num)) for tokens in (SHORT, LONG))
        return [rounds_between(short, long, 0.0, 0.0) for (short, _), (long, _) in zip(shorts, longs, strict=True)]

    def _ask(self, stack: Stack, num_tokens: int) -> tuple[CollectedAnswer, float]:
        request = stack.request(self._prompt, num_tokens, 0.0, seed=0)
        request.ignore_eos = True
        before_s = cpu_s(self._clerks)
        return stack.gateway.ask(request), cpu_s(self._clerks) - before_s


def rounds_between(short: CollectedAnswer, long: CollectedAnswer, short_cpu_us: float, long_cpu_us: float) -> Rounds:
    """*_cpu_us: processor time of gateway and client for either."""
    ours, theirs = short.first.finished.statistics, long.first.finished.statistics
    num_rounds = max(1, theirs.num_rounds - ours.num_rounds)
    num_deltas = max(1, len(long.first.arrivals) - len(short.first.arrivals))
    step_us = max(0, theirs.verify_us - ours.verify_us) / num_rounds
    return Rounds(
        round_us=max(0.0, 1e6 * (long.total_s - short.total_s)) / num_rounds,
        num_guesses=max(0, theirs.num_drafted - ours.num_drafted) / num_rounds,
        wait_us=max(0, theirs.draft_wait_us - ours.draft_wait_us) / num_rounds,
        step_us=step_us,
        draft_us=max(0, theirs.draft_us - ours.draft_us) / num_rounds,
        delta_us=max(0.0, long_cpu_us - short_cpu_us) / num_deltas,
        reading_us=max(0.0, ours.verify_us - (ours.num_rounds - 1) * step_us),
        short_us=1e6 * short.total_s,
        short_rounds=ours.num_rounds,
        short_cpu_us=short_cpu_us,
        short_deltas=len(short.first.arrivals),
    )


@dataclass(frozen=True, slots=True)
class Lengths:
    """prompt_len: of the request that rounds are of. read_len: by how much the prompts of drafts and short drafts differ. max_rows: of a
    step. num_together: answers at a time where several were asked."""

    prompt_len: int
    read_len: int
    max_rows: int
    num_together: int


def costs_of(samples: GridSamples, lengths: Lengths, num_cores: int) -> Costs:
    """Of all samples."""
    round_us = statistics.median(rounds.round_us for rounds in samples.plain)
    overhead_us = max(0.0, statistics.median(rounds.round_us - rounds.step_us for rounds in samples.plain))
    verify = read_too(samples.alone.curve(), lengths.prompt_len, statistics.median(rounds.reading_us for rounds in samples.plain))
    request_us = (
        statistics.median(one.short_us - one.reading_us - (one.short_rounds - 1) * one.round_us for one in samples.plain) - overhead_us
    )
    # Beyond its step and drafting a round in turns takes messages, and time that belongs to nobody: what of that the verifier waits for
    # leaves its core to others, and is waited for once by all sessions of a step.
    message_us = statistics.median(samples.message_cpu_us)
    beyond_us = statistics.median(one.round_us - one.step_us - one.draft_us for one in samples.drafted) - overhead_us - message_us
    waited_us = statistics.median(one.wait_us - one.draft_us for one in samples.drafted) - message_us
    link_us = max(0.0, min(beyond_us, waited_us))
    drafts = {num: statistics.median(times.token_us for times in found) for num, found in samples.drafts.items()}
    start_us = statistics.median(times.first_us for times in samples.short_drafts)
    # A drafter that has rested during a step begins slower than one that was asked just before: its core's caches are others' by then.
    rested_us = statistics.median(one.draft_us - one.num_guesses * drafts[1] for one in samples.drafted)
    delta_us = statistics.median(rounds.delta_us for rounds in samples.plain)
    request_cpu_us = statistics.median(one.short_cpu_us - one.short_deltas * delta_us for one in samples.plain)
    return Costs(
        verify=verify,
        draft=rising(list(drafts), drafts.values()),
        draft_start_us=max(0.0, start_us - drafts[1], rested_us),
        read_us=max(0.0, statistics.median(times.first_us for times in samples.drafts[1]) - start_us) / max(1, lengths.read_len),
        step_overhead_us=round(overhead_us),
        session_us=round(_session_us(samples, overhead_us, lengths.num_together)),
        guess_us=max(0, round(beyond_us - link_us)),
        message_us=message_us / 2,
        link_wait_us=link_us / 2,
        request_cpu_us=max(0.0, request_cpu_us),
        request_wait_us=max(0.0, request_us - request_cpu_us),
        delta_us=delta_us,
        verify_slowdown=max(1.0, samples.busy.over(samples.alone)),
        draft_slowdown=max(1.0, statistics.median(samples.busy_draft_us) / drafts[1]),
        max_rows=lengths.max_rows,
        verify_crowding=max(1.0, samples.crowded.over(samples.alone) / crowding(delta_us / max(1.0, round_us), num_cores)),
    )


def read_too(curve: CostCurve, prompt_len: int, reading_us: float) -> CostCurve:
    """The curve with a step of a whole prompt, which is longer than any that verifiers measure at their start; else as it is."""
    rows, times_us = zip(*curve.points, strict=True)
    return rising((*rows, prompt_len), (*times_us, reading_us)) if prompt_len > rows[-1] else curve


def session_counts(most: int) -> list[int]:
    """1, 2, 4, ... and the most itself."""
    counts = [1]
    while 2 * counts[-1] < most:
        counts.append(2 * counts[-1])
    return list(dict.fromkeys((*counts, most)))


def crowding(clerk_share: float, num_cores: int) -> float:
    """How much longer two processes take that compute all the time, for the share of the cores that gateway and client take: that is the
    sharing of cores, which is modelled by itself. clerk_share: of the time in which gateway and client are busy, for one request."""
    share = min(1.0, clerk_share)
    crowded_speed = min(1.0, num_cores / 3)
    return 1.0 / (1.0 - share * (1.0 - crowded_speed))


def _session_us(samples: GridSamples, overhead_us: float, num: int) -> float:
    """What each further session adds to a round: to its step, beyond a row of the same sequence, and beside it. overhead_us: of one."""
    if num < 2:
        return 0.0
    within_us = statistics.median(samples.together_us) - samples.alone.curve().verify_us(num)
    beside_us = statistics.median(one.round_us - one.step_us for one in samples.together) - overhead_us
    return (max(0.0, within_us) + max(0.0, beside_us)) / (num - 1)
