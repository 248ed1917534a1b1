"""A pair some way apart: verifier and gateway here, a drafter behind a relay that takes as long as a network would.

The drafter replays drafts of a fixed acceptance at a fixed pace, and side branches if it is given second choices; or it is the draft model
itself. The verifier stays up; drafter and relay are started anew for every world. Without a delay there is no relay. They meet over unix
sockets, or on three machines with an address each (`three_machines`). Must not know policies, prompts or results.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from outrider.cli.connection import Connection
from outrider.cli.deployment_options import model_path
from outrider.cli.starting import await_pair
from outrider.errors import InvalidRequest
from outrider.launch.deployment import START_DEADLINE_S, Deployment, DeploymentSpec
from outrider.launch.process import ServiceCommand, ServiceProcess
from outrider.launch.threads import ThreadPlan, usable_cores
from outrider.v1 import verifier_pb2
from outrider_bench.machine import Machine
from outrider_bench.replay import replay_arguments

NUM_MACHINES = 3  # of gateway, verifier and drafter
# Every answer reads its own prompt: the same ones are asked again and again. What is measured is the drafter's guesses.
EVERY_ANSWER_ALONE = ("--no-prefix-cache", "--no-lookup")
STOP_S = 5.0  # nothing is in flight when a world ends


@dataclass(frozen=True, slots=True)
class World:
    """delay_us: one way, added to what the machine's own sockets take. acceptance: of each drafted token."""

    delay_us: int
    acceptance: float


def two_machines() -> ThreadPlan:
    """A core for the verifier and one for the drafter. Raises InvalidRequest where there is only one."""
    cores = usable_cores()
    if len(cores) < 2:
        raise InvalidRequest("network", f"two machines need a core each, and this process may use {len(cores)}")
    return ThreadPlan(1, 1, cores[:1], cores[1:2])


@dataclass(frozen=True, slots=True)
class Places:
    """Who is called where. gateway, verifier: None for unix sockets of their own. near: where the verifier calls the drafter; far: where
    the drafter is when a wire stands before it. machines: of processes, by name; the others are here."""

    near: str
    far: str
    gateway: str | None = None
    verifier: str | None = None
    machines: Mapping[str, Machine] = field(default_factory=dict)

    def inside(self, name: str) -> AbstractContextManager[None]:
        """Where the process of that name is started."""
        machine = self.machines.get(name)
        return nullcontext() if machine is None else machine.inside()


def three_machines(machines: Sequence[Machine]) -> Places:
    """Gateway, verifier and drafter on a machine each, over TCP: two processes of one machine have a quicker way than a network. The wire
    stands before the drafter, on its machine."""
    gateway, verifier, drafter = machines
    of = {"gateway": gateway, "verifier": verifier, "drafter": drafter, "relay": drafter}
    return Places(drafter.free_address(), drafter.free_address(), gateway.free_address(), verifier.free_address(), of)


class _SpreadDeployment(Deployment):
    """Each service on its machine."""

    def __init__(self, spec: DeploymentSpec, places: Places, deadline_s: float) -> None:
        self._places = places
        super().__init__(spec, deadline_s)

    def launch(self, command: ServiceCommand) -> ServiceProcess:
        with self._places.inside(command.name):
            return super().launch(command)


class DistantPair:
    """A verifier with its gateway, and room for a drafter. Use as a context manager."""

    def __init__(
        self,
        args: argparse.Namespace,
        threads: ThreadPlan,
        max_sessions: int = 32,
        places: Places | None = None,
        hedge_acceptance: float = 0.0,
        verifier_extra: tuple[str, ...] = (),
        start_s: float = START_DEADLINE_S,
    ) -> None:
        """Start verifier and gateway; there is no drafter before `play`. max_sessions: at a time. places: None for unix sockets.
        hedge_acceptance: of a replaying drafter's second choice where the first is wrong; 0: it sends none. verifier_extra: further
        words of the verifier's command line. start_s: what loading may take at most.

        Raises what a start raises.
        """
        self.threads = threads
        self._draft, self._dtype, self._draft_us = model_path(args.draft), args.dtype, args.draft_us
        self._hedge_acceptance = hedge_acceptance
        self._folder = Path(tempfile.mkdtemp(prefix="outrider-wire-"))
        self._places = places or Places(f"unix:{self._folder}/near.sock", f"unix:{self._folder}/far.sock")
        self._played: list[ServiceProcess] = []
        wired: tuple[str, ...] = ("--drafter", self._places.near, "--wait-drafters-s", "0", *EVERY_ANSWER_ALONE)
        wired += ("--max-sessions", str(max_sessions))
        spec = DeploymentSpec(
            model_path(args.target), None, "serial", threads,
            dtype=args.dtype, listen=self._places.gateway, verifier_listen=self._places.verifier, verifier_extra=(*wired, *verifier_extra),
            gateway_extra=("--verifier-timeout-s", str(start_s)),
        )  # fmt: skip
        try:
            self._deployment = _SpreadDeployment(spec, self._places, start_s)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self.gateway = Connection(self._deployment.gateway)
        with Connection(self._deployment.verifier) as verifier:
            self.verifier: verifier_pb2.VerifierServiceGetInfoResponse = verifier.verifier_info()

    @property
    def drafter(self) -> str:
        """Where the verifier finds the drafter of the world in play: at the near end of the wire."""
        return self._places.near

    @property
    def verifier_log(self) -> str:
        """What the verifier has written so far."""
        return (self._deployment.folder / "verifier.log").read_text("utf-8", "replace")

    def know(self, texts: Sequence[Sequence[int]]) -> None:
        """What the drafter of every later world replays: prompt and answer of each request."""
        self._texts.write_text(json.dumps({"texts": [list(text) for text in texts]}))

    def play(self, world: World) -> None:
        """Put a drafter of this acceptance this far away, and wait until the verifier has found it."""
        replayed = replay_arguments(str(self._texts), world.acceptance, self._draft_us)
        self._play(world.delay_us, (*replayed, "--replay-hedge-acceptance", str(self._hedge_acceptance)))

    def play_model(self, delay_us: int) -> None:
        """The same with the draft model itself, which reads every prompt anew as the verifier does."""
        self._play(delay_us, ("--no-prefix-cache",))

    def _play(self, delay_us: int, drafting: tuple[str, ...]) -> None:
        self._stop_played()
        deadline_s = time.monotonic() + START_DEADLINE_S
        for command in self._commands(delay_us, drafting):
            with self._places.inside(command.name):
                self._played.append(ServiceProcess(command, self._folder / f"{command.name}.log"))
            self._played[-1].wait_ready(deadline_s)
        await_pair(self._deployment)

    def __enter__(self) -> DistantPair:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.gateway.close()
        self._deployment.stop()
        self._stop_played()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- what stands behind the wire --------------------------------------------------------------------------------------

    def _commands(self, delay_us: int, drafting: tuple[str, ...]) -> Iterator[ServiceCommand]:
        yield self._drafter(self._places.far if delay_us else self._places.near, drafting)
        if delay_us:
            wire = ("--listen", self._places.near, "--to", self._places.far, "--delay-us", str(delay_us))
            yield ServiceCommand("relay", ("-m", "outrider_bench.relay", *wire), 1)

    def _drafter(self, listen: str, drafting: tuple[str, ...]) -> ServiceCommand:
        arguments = (
            *("-m", "drafter_service", "--model", self._draft, "--listen", listen, "--dtype", self._dtype),
            *("--threads", str(self.threads.drafter)),
            *drafting,
        )
        return ServiceCommand("drafter", arguments, self.threads.drafter, self.threads.drafter_cores)

    def _stop_played(self) -> None:
        while self._played:
            self._played.pop().stop(STOP_S)
        for address in (self._places.near, self._places.far):
            if address.startswith("unix:"):
                Path(address.removeprefix("unix:")).unlink(missing_ok=True)

    @property
    def _texts(self) -> Path:
        return self._folder / "replayed.json"
