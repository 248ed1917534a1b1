"""What is up during a speed run, and which contestants it offers: the transformers baseline, and a deployment for each thread plan.

Must not know cells, prompts or results.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from outrider.cli.connection import Connection
from outrider.cli.console import make_console
from outrider.cli.deployment_options import model_path
from outrider.cli.dtype_choice import FLOAT32
from outrider.cli.starting import start
from outrider.launch.deployment import Deployment, DeploymentSpec
from outrider.launch.threads import ThreadPlan, plan_threads, usable_cores
from outrider.v1 import verifier_pb2
from outrider_bench.baseline import ASSISTANTS, GenerateSettings, TransformersBaseline, generate_candidates
from outrider_bench.contestants import DRAFTLESS, Contestant, DraftWishes, Stack, Transformers
from outrider_bench.goals import stack_name
from outrider_bench.results import ASSISTED, GENERATE, PLAIN

# (max_len, stop_below, tree_width) of chains, and of trees, which a drafter grows in width beside fewer levels: full runs only.
Wish = tuple[int | None, float | None, int | None]
CHAINS: tuple[Wish, ...] = tuple((*chain, None) for chain in ((None, None), (4, None), (8, None), (16, None), (16, 0.3), (24, 0.5)))
TREES: tuple[Wish, ...] = ((4, None, 2), (4, None, 4), (8, None, 2), (16, 0.3, 2))
QUICK_WISHES = CHAINS[:1]
OVERLAPPING = frozenset({"pearl"})  # in one process such a policy would be compared as something it is not
# Every contestant is asked the same prompts, and the baseline reads each of them to its end.
READ_ALL_PROMPTS = ("--no-prefix-cache",)


@dataclass(frozen=True, slots=True)
class Served:
    """A deployment under one thread plan, and a connection to its gateway.

    verifier: its identity, policies and step costs as measured alone, before the first request: later ones hold contention too.
    """

    threads: ThreadPlan
    deployment: Deployment
    gateway: Connection
    verifier: verifier_pb2.VerifierServiceGetInfoResponse

    def describe(self) -> str:
        """Threads of each, for people."""
        return self.threads.describe() + (", one process" if self.deployment.spec.together else "")


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that can answer; only one of them computes at a time. device: of every model, cpu or cuda.

    baselines: transformers, a process for each dtype that it may take, float32 first.
    """

    baselines: tuple[TransformersBaseline, ...]
    num_cores: int
    served: tuple[Served, ...]
    device: str = "cpu"

    @property
    def apart(self) -> Served:
        """Verifier and drafter as processes of their own: what overlaps can overlap, and the drafter can be another."""
        return next(served for served in self.served if not served.deployment.spec.together)

    @property
    def policies(self) -> list[str]:
        """Registered policies that guess."""
        return [name for name in self.served[0].verifier.pacings if name != "plain"]

    def serving(self, gateway: Connection) -> Served:
        """Which deployment a connection belongs to."""
        return next(served for served in self.served if served.gateway is gateway)

    def families(self, quick: bool) -> Iterator[list[Contestant]]:
        """Candidates by kind, to choose one of each from; the quick run takes each kind's default."""
        baselines = self.baselines[:1] if quick else self.baselines  # nothing is chosen then, and float32 is mostly the quicker
        kinds = {GENERATE: generate_candidates(self.device), ASSISTED: tuple(GenerateSettings(assistant=each) for each in ASSISTANTS)}
        for name, candidates in kinds.items():
            chosen = candidates[: 1 if quick else None]
            yield [Transformers(name, baseline, settings, self.num_cores) for settings in chosen for baseline in baselines]
        yield [*self.plain(quick)]
        for policy in self.policies:
            yield [*self.candidates(policy, quick)]

    def plain(self, quick: bool) -> Iterator[Stack]:
        """Our stack without drafts, under each thread plan."""
        for each in self.served[: 1 if quick else None]:
            yield Stack(PLAIN, each.gateway, DraftWishes("off"), each.describe())

    def candidates(self, policy: str, quick: bool) -> Iterator[Stack]:
        """Our stack with a policy, its draft options under each thread plan."""
        ways = (self.apart,) if policy in OVERLAPPING else self.served
        for each in ways[: 1 if quick else None]:
            for wish in QUICK_WISHES if quick else wishes_of(policy):
                yield Stack(stack_name(policy), each.gateway, DraftWishes(policy, *wish), each.describe())


def wishes_of(policy: str) -> tuple[Wish, ...]:
    """What a policy is tried with: trees only where a drafter can grow any."""
    return CHAINS if policy in DRAFTLESS else (*CHAINS, *TREES)


def set_up(args: argparse.Namespace, stack: ExitStack) -> Stage:
    """Start everything, on args.device; the stack ends it."""
    target, draft = model_path(args.target), model_path(args.draft)
    num_cores = len(usable_cores())
    progress = make_console(stderr=True)
    options = (*READ_ALL_PROMPTS, "--device", args.device)
    served = []
    # Both ways of sharing the cores that `outrider up` knows: one process of everything, which takes turns, and one each, where the drafter
    # lends its cores to the verifier.
    for threads, together in ((plan_threads(num_cores, "serial"), True), (plan_threads(num_cores, "serial", lends=True), False)):
        spec = DeploymentSpec(
            target,
            draft,
            "serial",
            threads,
            dtype=args.dtype,
            draft_weights="auto",
            draft_shortlist=args.draft_shortlist,
            together=together,
            gateway_inside=together,
            drafter_extra=options,
            verifier_extra=options,
        )
        deployment = stack.enter_context(start(spec, progress))
        with Connection(deployment.verifier) as verifier:
            info = verifier.verifier_info()
        served.append(Served(threads, deployment, stack.enter_context(Connection(deployment.gateway)), info))
    # torch's bfloat16 is slower than its float32 on many processors: a peer takes what suits it.
    dtypes = dict.fromkeys((*(() if args.device == "cuda" else (FLOAT32,)), args.dtype))
    baselines = tuple(stack.enter_context(TransformersBaseline(target, draft, dtype, num_cores, args.device)) for dtype in dtypes)
    return Stage(baselines, num_cores, tuple(served), args.device)
