"""Our stack without being a stack: the same requests, models, policies and settings in one process, without gateway, sockets and gRPC.

What the services cost is what this is faster by. Knows how to ask the worker; must not know cells or results.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from outrider.launch.deployment import Deployment
from outrider_bench.contestants import Contestant, Stack, threads_text
from outrider_bench.goals import one_process_name
from outrider_bench.measurement import Answer, Prompt
from outrider_bench.stage import Stage
from outrider_bench.worker import Worker

# Policies that lose nothing by taking turns, or can. A policy that lives by overlapping would be compared with a crippled twin.
POLICIES = ("serial", "adaptive")


class OneProcess(Worker):
    """A worker with a deployment's target and draft model, loaded by the services' own command lines."""

    def __init__(self, deployment: Deployment) -> None:
        arguments = [json.dumps(deployment.pair_options())]
        self.num_threads = deployment.spec.threads.verifier
        super().__init__("the one process", "outrider_bench.one_process_worker", arguments, self.num_threads, {})


@dataclass(frozen=True)
class InOneProcess:
    """stack: whose requests and settings these are."""

    stack: Stack
    process: OneProcess

    @property
    def name(self) -> str:
        """Column in tables."""
        return one_process_name(self.stack.wishes.pacing)

    @property
    def settings(self) -> str:
        """The stack's draft options; both models share the verifier's threads."""
        return f"{self.stack.wishes.text}; {threads_text(self.process.num_threads)}"

    def answer(self, prompt: Prompt, max_tokens: int, temperature: float, seed: int) -> Answer:
        """Times are the worker's own."""
        request = self.stack.request(prompt, max_tokens, temperature, seed)
        return self.process.ask({"request": request.SerializeToString().hex()})


def twins(contestants: Sequence[Contestant], stage: Stage, stack: ExitStack) -> list[InOneProcess]:
    """A twin for each of our contestants that can take turns; those of one deployment share a process, which the exit stack ends."""
    processes: dict[int, OneProcess] = {}
    found = []
    for contestant in contestants:
        if not isinstance(contestant, Stack) or contestant.wishes.pacing not in POLICIES:
            continue
        served = stage.serving(contestant.gateway)
        if id(served) not in processes:
            processes[id(served)] = stack.enter_context(OneProcess(served.deployment))
        found.append(InOneProcess(contestant, processes[id(served)]))
    return found
