"""`outrider bench chaos` (`make chaos`): no request lost, no token different, nothing leaked, whoever is killed, stopped, cut off, drained.

Answers are recorded undisturbed, then asked again, 16 at a time, while a seeded schedule of faults strikes real processes on three machines
(network namespaces, or loopback addresses where these are not permitted). One verifier at least is left well by every fault; which one,
nobody is told. Then drafters die and stop under one request at a time: what a client waits for then is not a core.
"""

from __future__ import annotations

import argparse
import heapq
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from outrider.cli.connection import Connection
from outrider.cli.console import make_console
from outrider.cli.deployment_options import model_path
from outrider.errors import OutriderError
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import identity_pb2, sampling_pb2
from outrider_bench.chaos.askers import Askers, ask_once
from outrider_bench.chaos.coordinator import Coordinator
from outrider_bench.chaos.gateway_process import GatewayProcess
from outrider_bench.chaos.phase import Phase
from outrider_bench.chaos.report import make_report, stall_table
from outrider_bench.chaos.schedule import OF_VERIFIERS, Fault, Kind, make_lone_schedule, make_schedule
from outrider_bench.chaos.site import NUM_MACHINES, POLL_S, SLOW_S, UNPLUGGABLE, Replica, Site, Zombie
from outrider_bench.chaos.stalls import Stretch, Struck
from outrider_bench.facts import measurement_facts
from outrider_bench.machines_wish import Machines, MachinesWish, machines_for
from outrider_bench.progress import make_progress
from outrider_bench.prompts import make_prompts

NUM_FAULTS, QUICK_FAULTS = 200, len(Kind)
NUM_LONE_FAULTS, QUICK_LONE_FAULTS = 16, 4
CALM_S, QUICK_CALM_S = 20.0, 5.0
BEGIN_S = 2.0  # all clients begin at once, which is no calm
NUM_AT_A_TIME = 16
NUM_PROMPTS = 12
MAX_TOKENS = 96
TASKS = ("arithmetic", "copying")
TEMPERATURES = (0.0, 0.8)
PACINGS = ("", "", "adaptive")  # the verifiers' own, and one that takes guesses from earlier answers too
MUST_BE_NONE = (
    "requests_lost", "tokens_differing", "answers_inexact", "leaks", "drains_unclean", "zombies_unaware", "replicas_unknown",
)  # fmt: skip
WELL_TIMEOUT_S = 60.0
ALL_COORDINATORS_EVERY = 3  # on average, of the times when one is killed
FREE_TIMEOUT_S = 30.0
BUSY_TIMEOUT_S = 5.0  # after it, a drafter that nobody uses will do


@dataclass
class Havoc:
    """The schedule being carried out."""

    site: Site
    struck: list[Struck] = field(default_factory=list)
    _endings: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _clock: threading.Event = field(default_factory=threading.Event)

    def wreak(self, schedule: Sequence[Fault], on_fault: Callable[[], None]) -> None:
        """Every fault in turn, and the end of each that lasts; all are ended at the return."""
        for fault in schedule:
            self._wait_until(time.monotonic() + fault.gap_s)
            self._strike(fault)
            on_fault()
        while self._endings:
            self._wait_until(self._endings[0][0])

    def _wait_until(self, until_s: float) -> None:
        """Faults whose time is over end meanwhile."""
        while self._endings and self._endings[0][0] <= until_s:
            due_s, _, end = heapq.heappop(self._endings)
            self._clock.wait(max(0.0, due_s - time.monotonic()))
            end()
        self._clock.wait(max(0.0, until_s - time.monotonic()))

    def _strike(self, fault: Fault) -> None:
        begin, end = self._deed(fault)
        at_s = time.monotonic()
        begin()
        self.struck.append(Struck(fault.kind, at_s, at_s + fault.lasts_s))
        if end is not None:
            heapq.heappush(self._endings, (at_s + fault.lasts_s, len(self.struck), end))

    def _deed(self, fault: Fault) -> tuple[Callable[[], None], Callable[[], None] | None]:
        """What begins the fault and what ends it; None: nothing does."""
        site = self.site
        if fault.kind is Kind.KILL_COORDINATOR:
            return partial(site.kill_coordinators, self._coordinators(fault)), site.start_coordinators
        if fault.kind is Kind.KILL_GATEWAY:
            return self._gateway(fault).kill, site.start_gateways
        if fault.kind is Kind.REPLACE_VERIFIER:
            return self._replacing(self._victim(fault))
        if fault.kind in (Kind.KILL_REDIS, Kind.STOP_REDIS):
            self._await(site.redis.is_serving, fault.kind)
            return (site.redis.kill, site.start_redis) if fault.kind is Kind.KILL_REDIS else (site.redis.pause, site.redis.go_on)
        if fault.kind is Kind.CUT_COORDINATOR:
            coordinators = self._coordinators(fault)
            return partial(site.cut_coordinators, coordinators), partial(site.mend_coordinators, coordinators)
        if fault.kind is Kind.UNPLUG_MACHINE:
            machine = self._machine(fault)
            return partial(site.unplug, machine), partial(site.plug, machine)
        begin, end = {
            Kind.KILL_VERIFIER: (site.kill, None),
            Kind.KILL_DRAFTER: (site.kill, None),
            Kind.STOP_VERIFIER: (site.stop, site.go_on),
            Kind.STOP_DRAFTER: (site.stop, site.go_on),
            Kind.CUT_VERIFIER: (site.cut, site.mend),
            Kind.CUT_DRAFTER: (site.cut, site.mend),
            Kind.DRAIN_VERIFIER: (site.drain, site.replace),
            Kind.DRAIN_DRAFTER: (site.drain, site.replace),
            Kind.SLOW_DRAFTER: (lambda one: site.slow(one, SLOW_S), lambda one: site.slow(one, 0.0)),
        }[fault.kind]
        victim = self._victim(fault)
        return partial(begin, victim), None if end is None else partial(end, victim)

    def _gateway(self, fault: Fault) -> GatewayProcess:
        """One of them; another is left. Raises OutriderError when there is none in time."""
        gateways = self.site.gateways
        self._await(lambda: all(one.is_serving() for one in gateways), fault.kind)
        return gateways[fault.target % len(gateways)]

    def _replacing(self, victim: Replica) -> tuple[Callable[[], None], Callable[[], None]]:
        """The stopped process is woken in the end, whoever has its name then."""
        zombies: list[Zombie] = []
        return lambda: zombies.append(self.site.supersede(victim)), lambda: self.site.wake(zombies[0])

    def _coordinators(self, fault: Fault) -> Sequence[Coordinator]:
        """One of them, now and then all. Raises OutriderError when they do not all serve in time."""
        coordinators = self.site.coordinators
        self._await(lambda: all(one.is_serving() for one in coordinators), fault.kind)
        return coordinators if fault.target % ALL_COORDINATORS_EVERY == 0 else [coordinators[fault.target % len(coordinators)]]

    def _machine(self, fault: Fault) -> int:
        """The number of one without which a verifier is left well. Raises OutriderError when there is none in time."""
        may: list[int] = []

        def are_some() -> bool:
            may[:] = [number for number in UNPLUGGABLE if self.site.may_unplug(number)]
            return bool(may)

        self._await(are_some, fault.kind)
        return may[fault.target % len(may)]

    def _victim(self, fault: Fault) -> Replica:
        """Of those who are well; of verifiers, one must remain; of drafters, one that has something to do, if one gets it in time. Raises
        OutriderError when none gets well in time."""
        is_verifier = fault.kind in OF_VERIFIERS
        well: list[Replica] = []

        def are_enough() -> bool:
            well[:] = [one for one in (self.site.verifiers if is_verifier else self.site.drafters) if one.is_serving()]
            return len(well) > (1 if is_verifier else 0)

        self._await(are_enough, fault.kind)
        if not is_verifier:
            well = self._busy(well) or well
        return well[fault.target % len(well)]

    def _busy(self, drafters: Sequence[Replica]) -> list[Replica]:
        """Those that hold a session, as soon as one does; none after BUSY_TIMEOUT_S."""
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while not (busy := [one for one in drafters if self.site.num_sessions(one)]) and time.monotonic() < deadline:
            self._wait_until(time.monotonic() + POLL_S)
        return busy

    def _await(self, is_so: Callable[[], bool], kind: Kind) -> None:
        deadline = time.monotonic() + WELL_TIMEOUT_S
        while not is_so():
            if time.monotonic() > deadline:
                raise OutriderError(f"nobody is well enough for a fault ({kind}) within {WELL_TIMEOUT_S:g} s; see the logs")
            self._wait_until(time.monotonic() + POLL_S)


def run(args: argparse.Namespace) -> int:
    """Strike, compare, print; 1 when anything was lost, differs, is not called exact or leaked, a drain or a zombie ended badly, or a
    coordinator lacks a replica."""
    num_faults = args.faults or (QUICK_FAULTS if args.quick else NUM_FAULTS)
    is_short = num_faults < NUM_FAULTS
    num_lone, calm_s = (QUICK_LONE_FAULTS, QUICK_CALM_S) if is_short else (NUM_LONE_FAULTS, CALM_S)
    console = make_console()
    with (
        tempfile.TemporaryDirectory(prefix="outrider-chaos-") as folder,
        machines_for(MachinesWish(args.machines), NUM_MACHINES, console) as machines,
        make_progress() as progress,
        site_of(args, Path(folder), machines) as site,
    ):
        requests = make_requests(site.gateway, args.prompt_seed)
        truth = ask_once(site.gateway, requests)
        schedules = {NUM_AT_A_TIME: make_schedule(num_faults, args.fault_seed), 1: make_lone_schedule(num_lone, args.fault_seed)}
        bar = progress.add_task("faults", total=sum(map(len, schedules.values())))
        phases = [
            go_through(site, requests, num_at_a_time, calm_s, schedule, lambda: progress.advance(bar))
            for num_at_a_time, schedule in schedules.items()
        ]
        zombie_codes = site.ends_of_zombies()
        leaks = find_leaks(site)
        unknown, num_entries = find_unknown(site), site.redis.num_entries()
    crowd, alone = phases
    report = make_report(crowd, alone, truth, site.drains, zombie_codes, leaks) | {
        "replicas_unknown": unknown,
        "redis_entries": num_entries,
        "machines": machines.kind,
    }
    for phase in phases:
        console.print(stall_table(phase))
    for number, error in [error for phase in phases for error in phase.harvest.errors][:8]:
        console.print(f"lost: request {number}: {error}", markup=False)
    for drain in site.drains:
        if drain.code != 0:
            console.print(f"unclean: {drain.name} ended its drain with exit code {drain.code} after {drain.took_s:.1f} s", markup=False)
    print("RESULT " + json.dumps(report | {"facts": measurement_facts()}))
    return 0 if not any(report[count] for count in MUST_BE_NONE) else 1


def site_of(args: argparse.Namespace, folder: Path, machines: Machines) -> Site:
    """What runs on the machines, with the models that the command line names."""
    return Site(model_path(args.target), model_path(args.draft), folder, machines)


def go_through(
    site: Site,
    requests: Sequence[pb.GenerateRequest],
    num_at_a_time: int,
    calm_s: float,
    schedule: Sequence[Fault],
    on_fault: Callable[[], None],
) -> Phase:
    """Ask without a pause, leave everybody in peace for calm_s seconds, then strike; returns when all that was asked is answered."""
    havoc = Havoc(site)
    begun_s = time.monotonic()
    calm = Stretch(begun_s + BEGIN_S, begun_s + BEGIN_S + calm_s)
    with Askers([one.address for one in site.gateways], requests, num_at_a_time) as askers:
        time.sleep(calm.end_s - begun_s)  # what is measured, not waited for
        havoc.wreak(schedule, on_fault)
        await_entries(site)
    return Phase(num_at_a_time, askers.harvest, calm, havoc.struck, time.monotonic() - begun_s)


def await_entries(site: Site) -> None:
    """Return once verifiers share through Redis again, while requests go on; after FREE_TIMEOUT_S at most."""
    deadline = time.monotonic() + FREE_TIMEOUT_S
    while not site.redis.num_entries() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def make_requests(gateway: str, seed: int) -> list[pb.GenerateRequest]:
    """Seeded requests of both tasks and temperatures, whose answers have their full length."""
    with Connection(gateway) as connection:
        prompts = [prompt for task in TASKS for prompt in make_prompts(connection, task, NUM_PROMPTS // len(TASKS), seed)]
    return [
        pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=prompt.token_ids),
            sampling=sampling_pb2.SamplingParams(temperature=temperature, seed=number),
            max_tokens=MAX_TOKENS,
            ignore_eos=True,
            draft=pb.DraftOptions(pacing=PACINGS[number % len(PACINGS)]),
        )
        for number, prompt in enumerate(prompts)
        for temperature in TEMPERATURES
    ]


def find_leaks(site: Site) -> dict[str, int]:
    """Sessions and KV blocks still held once every request has ended, by process; after FREE_TIMEOUT_S at most."""
    for gateway in site.gateways:
        gateway.await_ready()
    for replica in site.replicas():
        site.await_serving(replica)
    deadline = time.monotonic() + FREE_TIMEOUT_S
    while (held := _held(site)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return held


def find_unknown(site: Site) -> int:
    """Replicas that a coordinator does not know though they serve, over all coordinators; after FREE_TIMEOUT_S at most."""
    names = {replica.name for replica in site.replicas()}
    deadline = time.monotonic() + FREE_TIMEOUT_S
    while (num := sum(len(names - coordinator.known()) for coordinator in site.coordinators)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return num


def _held(site: Site) -> dict[str, int]:
    return {name: num for name, live in live_counts(site) if (num := live.sessions + live.kv_blocks_used)}


def live_counts(site: Site) -> Iterator[tuple[str, identity_pb2.LiveCounts]]:
    """What each process holds."""
    for process in site.gateways:
        with Connection(process.address) as gateway:
            yield process.name, gateway.model_info().live
    for replica in site.verifiers:
        with Connection(replica.endpoint) as verifier:
            yield replica.name, verifier.verifier_info().live
    for replica in site.drafters:
        with Connection(replica.endpoint) as drafter:
            yield replica.name, drafter.drafter_info().live
