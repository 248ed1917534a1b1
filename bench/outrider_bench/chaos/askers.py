"""Clients that ask seeded requests over and over until they are told to stop, and keep what came, and when.

Each knows all gateways and prefers one. Whoever loses it in the midst of an answer asks the next for the rest: by id, seed and the tokens
that came. Knows the client API. Must not know faults.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.cli.connection import CollectedAnswer, Connection
from outrider.errors import OutriderError, Overloaded, Unavailable
from outrider.resuming import AnswerSoFar
from outrider.rpc.convert.generation import event_from_proto
from outrider.types.generation import GenerationRequest
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import sampling_pb2
from outrider_bench.chaos.stalls import Gap

JOIN_TIMEOUT_S = 300.0
MAX_RESUMES = 64  # of one request; with a pause each, more than a gateway takes to be started anew
RESUME_PAUSE_S = 0.25


@dataclass(slots=True)
class Harvest:
    """What all clients got. answers: (request, its tokens). errors: of requests that ended with one. num_accepted: tokens that a drafter
    had guessed. num_failovers: times that answers went on elsewhere. num_resumes: times that a client asked another gateway, for the rest
    of an answer or for one that had not begun. num_inexact: answers that did not say that they are exact."""

    answers: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    errors: list[tuple[int, str]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    num_accepted: int = 0
    num_failovers: int = 0
    num_resumes: int = 0
    num_inexact: int = 0


class Caller:
    """One client of all gateways. preferred: the number of the one that is asked first. Use as a context manager. num_resumes: so far."""

    def __init__(self, gateways: Sequence[str], preferred: int) -> None:
        first = preferred % len(gateways)
        self._addresses = [*gateways[first:], *gateways[:first]]
        self._connection: Connection | None = None
        self.num_resumes = 0

    def ask(self, request: pb.GenerateRequest, times: list[float]) -> CollectedAnswer:
        """The whole answer, of however many gateways. times: is given the moment of every delta with tokens. Raises what a gateway says
        that is no loss, and Unavailable when none went on after MAX_RESUMES."""
        answer, so_far = CollectedAnswer(), AnswerSoFar(GenerationRequest(token_ids=(0,), seed=request.sampling.seed))
        for num_lost in itertools.count():
            asked = resumed(request, so_far) if num_lost else request
            try:
                self._read(asked, answer, so_far, times)
                return answer
            except (Unavailable, Overloaded) as error:
                if num_lost >= MAX_RESUMES or (isinstance(error, Overloaded) and not so_far.has_begun):
                    raise
            self._turn_to_next()
            self.num_resumes += 1
            if num_lost:  # the first other one is asked at once
                time.sleep(RESUME_PAUSE_S)
        raise AssertionError("counting has no end")

    def _read(self, request: pb.GenerateRequest, answer: CollectedAnswer, so_far: AnswerSoFar, times: list[float]) -> None:
        self._connection = self._connection or Connection(self._addresses[0])
        for message in self._connection.stream(request):
            now_s = time.monotonic()
            answer.add(message, now_s - times[0])
            so_far.add(event_from_proto(message))
            if message.delta.token_ids:
                times.append(now_s)

    def _turn_to_next(self) -> None:
        """A new connection: an old one would be tried again at its own pace."""
        self.close()
        self._addresses.append(self._addresses.pop(0))

    def close(self) -> None:
        """Leave; safe to repeat."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def resumed(request: pb.GenerateRequest, so_far: AnswerSoFar) -> pb.GenerateRequest:
    """The same request for what is missing."""
    rest, again = so_far.again(), pb.GenerateRequest()
    again.CopyFrom(request)
    again.request_id = rest.request_id
    again.resume_token_ids.extend(rest.resume_token_ids)
    again.resume_fingerprints.extend(rest.resume_fingerprints)
    again.takes_over = rest.takes_over
    return again


class Askers:
    """num: that many at a time; the gateways are preferred in turns. Use as a context manager: leaving it waits for the answers under
    way."""

    def __init__(self, gateways: Sequence[str], requests: Sequence[pb.GenerateRequest], num: int) -> None:
        self.harvest = Harvest()
        self._requests = requests
        self._turn = itertools.count()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask_on, args=(Caller(gateways, number),), name=f"asker {number}", daemon=True)
            for number in range(num)
        ]

    def _ask_on(self, caller: Caller) -> None:
        with caller:
            while not self._stopping.is_set():
                with self._lock:
                    number = next(self._turn) % len(self._requests)
                self._ask(caller, number)

    def _ask(self, caller: Caller, number: int) -> None:
        times = [time.monotonic()]
        num_before = caller.num_resumes
        try:
            answer = caller.ask(self._requests[number], times)
        except OutriderError as error:
            with self._lock:
                self.harvest.errors.append((number, str(error)))
                self.harvest.num_resumes += caller.num_resumes - num_before
            return
        with self._lock:
            self.harvest.answers.append((number, tuple(answer.first.token_ids)))
            self.harvest.num_resumes += caller.num_resumes - num_before
            self.harvest.num_inexact += not answer.first.finished.exact
            self.harvest.num_accepted += answer.first.origins.count(sampling_pb2.TOKEN_ORIGIN_ACCEPTED)
            self.harvest.num_failovers += answer.first.finished.num_failovers
            self.harvest.gaps += [Gap(before, after) for before, after in itertools.pairwise(times)]

    def __enter__(self) -> Askers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(JOIN_TIMEOUT_S)


def ask_once(gateway: str, requests: Sequence[pb.GenerateRequest]) -> list[tuple[int, ...]]:
    """The undisturbed answers, one after another."""
    with Connection(gateway) as connection:
        collected: list[CollectedAnswer] = [connection.ask(request) for request in requests]
    return [tuple(answer.first.token_ids) for answer in collected]
