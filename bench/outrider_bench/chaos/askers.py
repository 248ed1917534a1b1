"""Clients that ask seeded requests over and over until they are told to stop, and keep what came, and when.

Knows the client API. Must not know faults.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.cli.connection import CollectedAnswer, Connection
from outrider.errors import OutriderError
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import sampling_pb2
from outrider_bench.chaos.stalls import Gap

JOIN_TIMEOUT_S = 300.0


@dataclass(slots=True)
class Harvest:
    """What all clients got. answers: (request, its tokens). errors: of requests that ended with one. num_accepted: tokens that a drafter
    had guessed. num_failovers: times that answers went on elsewhere."""

    answers: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    errors: list[tuple[int, str]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    num_accepted: int = 0
    num_failovers: int = 0


class Askers:
    """num: that many at a time. Use as a context manager: leaving it waits for the answers under way."""

    def __init__(self, gateway: str, requests: Sequence[pb.GenerateRequest], num: int) -> None:
        self.harvest = Harvest()
        self._gateway = gateway
        self._requests = requests
        self._turn = itertools.count()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._ask_on, name=f"asker {number}", daemon=True) for number in range(num)]

    def _ask_on(self) -> None:
        with Connection(self._gateway) as connection:
            while not self._stopping.is_set():
                with self._lock:
                    number = next(self._turn) % len(self._requests)
                self._ask(connection, number)

    def _ask(self, connection: Connection, number: int) -> None:
        times = [time.monotonic()]

        def note(event: pb.GenerateResponse) -> None:
            if event.HasField("delta") and event.delta.token_ids:
                times.append(time.monotonic())

        try:
            answer = connection.ask(self._requests[number], note)
        except OutriderError as error:
            with self._lock:
                self.harvest.errors.append((number, str(error)))
            return
        with self._lock:
            self.harvest.answers.append((number, tuple(answer.first.token_ids)))
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
