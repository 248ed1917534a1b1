"""Command line of the drafter: what to load, where to listen, how much to hold.

Knows defaults and ranges of the process's own settings. Must not import torch or grpc: a wrong flag is refused before either loads.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from drafter_service.scheduler import SchedulerLimits
from outrider.engine.config import (
    DRAFT_WEIGHTS_HELP,
    NO_CARD_GRAPHS_HELP,
    SHORTLIST_HELP,
    DType,
    EngineConfig,
    EngineKind,
    WeightFormat,
    shortlist_from,
)
from outrider.errors import InvalidRequest
from outrider.exposition.options import NOWHERE, MetricsAddress, add_metrics_options, metrics_address_from
from outrider.launch import numbers
from outrider.rpc.membership import NO_FLEET, Membership, add_membership_options, membership_from
from outrider.types.identity import Numerics

MAX_SESSIONS = 4096
MAX_LEN = 1 << 30
SPARE_LEN = (
    128  # tree rows of a session, as far as its context has to do with them: with side branches, twice what a verifier wants by default
)
MAX_GRACE_S = 3600


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Where replayed drafts come from. path: a JSON file {"texts": [[token, ...], ...]}, empty: none."""

    path: str = ""
    acceptance: float = 1.0
    seed: int = 0
    step_us: int = 0
    hedge_acceptance: float = 0.0


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """max_len: longest committed text of a session (0: the model's context). max_prefix_len: longest prefix (0: max_len).

    lanes: whether verifiers of this machine may send frames past gRPC (rpc/lane.py).
    """

    engine: EngineConfig
    listen: tuple[str, ...]
    source: str
    limits: SchedulerLimits
    max_len: int
    max_prefix_len: int
    max_message_bytes: int
    lanes: bool
    drain_grace_s: float
    replay: ReplaySettings
    membership: Membership = NO_FLEET
    metrics: MetricsAddress = NOWHERE


def parse_settings(argv: Sequence[str], *, serves: bool = True) -> DrafterSettings:
    """Settings of a command line; argparse exits on a malformed one, InvalidRequest names a value out of range.

    serves: it listens for verifiers; else it is one verifier's own, and an address is refused.
    """
    given = _parser().parse_args(argv)
    if serves != bool(given.listen):
        problem = "at least one address is needed" if serves else "a drafter in the verifier's process listens nowhere; leave it out"
        raise InvalidRequest("--listen", problem)
    membership = membership_from(given)
    if membership.coordinators and not serves:
        raise InvalidRequest("--coordinator", "a drafter in the verifier's process is announced by the verifier; leave it out")
    membership.check_listening(given.listen)
    metrics = metrics_address_from(given)
    if metrics.port is not None and not serves:
        raise InvalidRequest("--metrics-port", "a drafter in the verifier's process has the verifier's metrics; leave it out")
    engine = EngineConfig(
        model=given.model,
        max_context=given.max_len,
        kind=EngineKind(given.engine),
        dtype=DType(given.dtype),
        weights=WeightFormat(given.weights),
        shortlist=shortlist_from("--shortlist", given.shortlist),
        numerics=Numerics(given.numerics),
        num_threads=given.threads,
        num_blocks=given.kv_blocks,
        kv_budget_mib=given.kv_mib,
        max_rows=given.max_rows,
        spare_len=SPARE_LEN,
        device=given.device,
        card_graphs=not given.no_card_graphs,
        trust_remote_code=given.trust_remote_code,
        revision=given.revision,
        probe=not given.no_probe,
        prefix_cache=not given.no_prefix_cache,
    )
    _within("--max-sessions", given.max_sessions, 1, MAX_SESSIONS)
    _within("--max-sessions-per-stream", given.max_sessions_per_stream, 0, MAX_SESSIONS)
    _within("--max-message-mib", given.max_message_mib, 1, 1024)
    _within("--threads", given.threads, 1, numbers.MAX_THREADS)
    _within("--max-len", given.max_len, 0, MAX_LEN)
    _within("--max-prefix-len", given.max_prefix_len, 0, MAX_LEN)
    _within("--drain-grace-s", given.drain_grace_s, 0, MAX_GRACE_S)
    engine.check()
    if given.replay_texts and given.source != "replay":
        raise InvalidRequest("--replay-texts", f"only --source replay reads them, and it is {given.source!r} here; leave them out")
    if given.replay_texts and engine.weights is WeightFormat.INT8:
        raise InvalidRequest("--weights", "int8 would change nothing: replayed drafts come from a file, not from the model; leave it out")
    if given.replay_texts and engine.shortlist > 0:
        raise InvalidRequest("--shortlist", "would change nothing: replayed drafts come from a file, not from the model; leave it out")
    return DrafterSettings(
        engine=engine,
        listen=tuple(given.listen),
        source=given.source,
        limits=SchedulerLimits(given.max_sessions, given.max_sessions_per_stream or given.max_sessions),
        max_len=given.max_len,
        max_prefix_len=given.max_prefix_len,
        max_message_bytes=given.max_message_mib << 20,
        lanes=not given.no_lanes,
        drain_grace_s=given.drain_grace_s,
        replay=ReplaySettings(
            given.replay_texts, given.replay_acceptance, given.replay_seed, given.replay_step_us, given.replay_hedge_acceptance
        ),
        membership=membership,
        metrics=metrics,
    )


def _within(flag: str, value: float, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequest(flag, f"must be in [{least}, {most}], got {value}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m drafter_service", description="Serve a draft model to verifiers.")
    model = parser.add_argument_group("model")
    model.add_argument("--model", required=True, help="folder or hub name of the draft model")
    model.add_argument("--revision", default="", help="hub revision")
    model.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    model.add_argument("--engine", choices=[kind.value for kind in EngineKind], default=EngineKind.AUTO.value)
    model.add_argument("--dtype", choices=[dtype.value for dtype in DType], default=DType.FLOAT32.value)
    model.add_argument("--weights", choices=[kept.value for kept in WeightFormat], default=WeightFormat.FULL.value, help=DRAFT_WEIGHTS_HELP)
    model.add_argument("--shortlist", default="auto", metavar="IDS", help=SHORTLIST_HELP)
    model.add_argument("--numerics", choices=[numerics.value for numerics in Numerics], default=Numerics.FAST.value)
    model.add_argument("--device", default="cpu")
    model.add_argument("--no-card-graphs", action="store_true", help=NO_CARD_GRAPHS_HELP)
    model.add_argument("--threads", type=int, default=1, help="torch threads of the drafting thread")
    model.add_argument("--no-probe", action="store_true", help="do not check the model at load time")
    sizes = parser.add_argument_group("sizes")
    sizes.add_argument("--kv-mib", type=int, default=256, help="memory of the KV cache")
    sizes.add_argument("--kv-blocks", type=int, default=0, help="KV blocks; 0: from --kv-mib")
    sizes.add_argument(
        "--no-prefix-cache", action="store_true", help="read every prompt anew, though its beginning was read for another session"
    )
    sizes.add_argument("--max-rows", type=int, default=512, help="rows of one model step")
    sizes.add_argument("--max-sessions", type=int, default=256)
    sizes.add_argument("--max-sessions-per-stream", type=int, default=0, help="0: as many as --max-sessions")
    sizes.add_argument("--max-len", type=int, default=0, help="a session is drafted for until its text is so long; 0: the model's context")
    sizes.add_argument("--max-prefix-len", type=int, default=0, help="longest prefix a session may open with; 0: --max-len")
    sizes.add_argument("--max-message-mib", type=int, default=16)
    service = parser.add_argument_group("service")
    service.add_argument("--listen", action="append", default=[], help="host:port (0: any) or unix:/path; needed; may be repeated")
    service.add_argument("--no-lanes", action="store_true", help="send every frame over gRPC, to verifiers on this machine too")
    service.add_argument("--drain-grace-s", type=float, default=5.0, help="how long a shutdown may take")
    add_membership_options(service)
    add_metrics_options(service)
    service.add_argument("--source", default="model", help="registered draft source: model, replay")
    replay = parser.add_argument_group("replayed drafts (--source replay)")
    replay.add_argument("--replay-texts", default="", help='JSON file {"texts": [[token, ...], ...]}: prompt and answer of each request')
    replay.add_argument("--replay-acceptance", type=float, default=1.0, help="probability that a guess is right")
    replay.add_argument(
        "--replay-hedge-acceptance", type=float, default=0.0, help="probability that the second choice is right where the first is wrong"
    )
    replay.add_argument("--replay-seed", type=int, default=0)
    replay.add_argument("--replay-step-us", type=int, default=0, help="what a guess takes, of all sessions that ask at once")
    return parser
