"""What a deployment costs by micro-benchmarks, none of them a cell of the tables: steps, rounds, requests, messages, drafted tokens.

Each is measured apart, on prompts that no cell uses: what is predicted from them (predictions.py) is predicted, not fitted. All but the
steps are measured in the minutes of the cell they serve, as a virtual machine's speed drifts. Times in microseconds.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from drafter_service.inbox import FramesArrived, Inbox
from drafter_service.outbox import Outbox
from drafter_service.scheduler import Scheduler, SchedulerLimits
from outrider.cli.connection import CollectedAnswer
from outrider.drafting.replay_source import ReplayOptions, ReplaySource
from outrider.session.drafter_admission import DrafterBounds
from outrider.session.pacing.contract import CostCurve
from outrider.types.frames import DraftLimits, Open
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.v1 import verifier_pb2
from outrider_bench.contestants import Stack
from outrider_bench.link import round_trips_us
from outrider_bench.measurement import Prompt

PLAIN_TOKENS = 64
DRAFTED_TOKENS = 48
_VOCAB_SIZE = 16


@dataclass(frozen=True, slots=True)
class MicroBenchmarks:
    """verify: a step by rows, as the verifier measured it before its first request (scaled where a whole round now takes less than one row
    did then). step_overhead_us: of a round of plain decoding, between one token's arrival and the next, beside that step. request_us: until
    an answer's first token arrives, beside the step that reads its prompt (below 0 where reading is cheaper than the curve goes on to say).
    draft_us: a replayed token. round_trip_us: a message to the drafter's thread and its answer, the network's delay included."""

    verify: CostCurve
    step_overhead_us: int
    request_us: float
    draft_us: float
    round_trip_us: float
    max_rows: int

    @property
    def steps_text(self) -> str:
        """For reports."""
        return ", ".join(f"{rows}: {us / 1000:.2f}" for rows, us in self.verify.points)


class MicroBenchmark:
    """Samples taken between the turns of a cell, so that whatever drifts falls on both alike; medians in the end.

    plain: our stack without drafts. info: of the verifier before its first request. drafter: its address, as the verifier reaches it; it
    must replay. prompt: none of a cell's. step_us: the pace that replayed drafts are asked to keep.
    """

    def __init__(self, plain: Stack, info: verifier_pb2.VerifierServiceGetInfoResponse, drafter: str, prompt: Prompt, step_us: int) -> None:
        self._plain, self._drafter, self._prompt, self._step_us = plain, drafter, prompt, step_us
        self._identity = info.identity
        self._verify = CostCurve(tuple(zip(info.cost_rows, info.cost_us, strict=True)) or ((1, 1.0),))
        self._max_rows = info.max_rows
        self._rounds_us: list[float] = []
        self._firsts_us: list[float] = []
        self._drafts_us: list[float] = []
        self._trips_us: list[float] = []

    @property
    def num_samples(self) -> int:
        """How many were taken."""
        return len(self._rounds_us)

    def sample(self) -> None:
        """One plain answer, a few replayed tokens and a few messages."""
        answer = _ask(self._plain, self._prompt)
        self._rounds_us.append(token_us(answer))
        self._firsts_us.append(1e6 * answer.first_token_s)
        self._drafts_us.append(replayed_token_us(self._step_us))
        self._trips_us += round_trips_us(self._drafter, self._identity)

    def result(self) -> MicroBenchmarks:
        """Of all samples, of which there is at least one."""
        round_us = statistics.median(self._rounds_us)
        # A round holds its step: where it is the shorter, the machine has become faster since the curve was measured.
        faster = min(1.0, round_us / self._verify.verify_us(1))
        verify = CostCurve(tuple((rows, us * faster) for rows, us in self._verify.points))
        overhead_us = max(0, round(round_us - verify.verify_us(1)))
        reading_us = verify.verify_us(len(self._prompt.token_ids)) + overhead_us
        request_us = statistics.median(self._firsts_us) - reading_us
        draft_us, trip_us = statistics.median(self._drafts_us), statistics.median(self._trips_us)
        return MicroBenchmarks(verify, overhead_us, request_us, draft_us, trip_us, self._max_rows)


def token_us(answer: CollectedAnswer) -> float:
    """Mean time between tokens, the first left out."""
    (first_s, num_first), *_, (last_s, _) = answer.first.arrivals
    return 1e6 * (last_s - first_s) / max(1, answer.num_tokens - num_first)


def replayed_token_us(step_us: int) -> float:
    """A token of the drafter's own loop with the replay source, asked for again and again: its pause and all that happens around it."""
    text = tuple(position % _VOCAB_SIZE for position in range(DRAFTED_TOKENS + 2))
    source = ReplaySource(ReplayOptions((text,), 1.0, _VOCAB_SIZE, step_us=step_us))
    inbox, outbox = Inbox(1, lambda: None), Outbox(DRAFTED_TOKENS)
    bounds = DrafterBounds(source.name, _VOCAB_SIZE, frozenset(), len(text), len(text), DRAFTED_TOKENS)
    scheduler = Scheduler(source, bounds, SchedulerLimits(), inbox, lambda _: None, lambda: None)
    scheduler.attach(1, outbox)
    limits = DraftLimits(len(text), max_nodes=DRAFTED_TOKENS)
    opening = Open(1, 1, "micro", np.array(text[:1], np.int32), 1, 1, SamplingParams(), NoiseAddress(0), limits, 1 + DRAFTED_TOKENS)
    assert inbox.offer(FramesArrived(1, (opening,)))
    times_us = []
    while not (scheduler.is_idle and inbox.is_empty):
        begun_s = time.perf_counter()
        scheduler.turn()
        times_us.append(1e6 * (time.perf_counter() - begun_s))
    return statistics.median(times_us)


def _ask(plain: Stack, prompt: Prompt) -> CollectedAnswer:
    request = plain.request(prompt, PLAIN_TOKENS, 0.0, seed=0)
    request.ignore_eos = True
    return plain.gateway.ask(request)
