"""A verifier that has no drafter and its gateway: what a verifier with one and `draft.off` is held against.

It serves as `distant_pair` has its verifier serve, but for the drafter: that one's cores are its own for good. Must not know policies,
prompts or results.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from outrider.cli.connection import Connection
from outrider.cli.deployment_options import model_path
from outrider.launch.deployment import Deployment, DeploymentSpec
from outrider.launch.threads import ThreadPlan
from outrider_bench.distant_pair import EVERY_ANSWER_ALONE


def without_drafter(threads: ThreadPlan) -> ThreadPlan:
    """What the verifier of a plan has where there is no drafter: what it was lent is its own."""
    return replace(threads, verifier=threads.verifier + threads.lent, lent=0)


def spec_of(args: argparse.Namespace, threads: ThreadPlan, max_sessions: int) -> DeploymentSpec:
    """args: target and dtype. threads: of the pair that it is held against. max_sessions: at a time."""
    options = (*EVERY_ANSWER_ALONE, "--max-sessions", str(max_sessions))
    return DeploymentSpec(model_path(args.target), None, "plain", without_drafter(threads), dtype=args.dtype, verifier_extra=options)


@contextmanager
def lone_verifier(args: argparse.Namespace, threads: ThreadPlan, max_sessions: int) -> Iterator[Connection]:
    """To its gateway; raises what a start raises."""
    with Deployment(spec_of(args, threads, max_sessions)) as deployment, Connection(deployment.gateway) as gateway:
        yield gateway
