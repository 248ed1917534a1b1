"""The verifier's command line as checked values, and what every request is bounded by.

Knows defaults and ranges. Must not import engines, torch or grpc: arguments are refused before anything is loaded.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from outrider.engine.config import NO_CARD_GRAPHS_HELP, WEIGHTS_HELP, DType, EngineConfig, EngineKind, WeightFormat
from outrider.errors import InvalidRequest
from outrider.exposition.options import NOWHERE, MetricsAddress, add_metrics_options, metrics_address_from
from outrider.launch import numbers
from outrider.rpc.address import check_address
from outrider.rpc.membership import NO_FLEET, Membership, add_membership_options, membership_from
from outrider.session.pacing.default import DEFAULT_PACING
from outrider.session.pacing.draft_length import MAX_DRAFT_LEN
from outrider.session.pacing.prefill_bound import DEFAULT_PREFILL_STRETCH, MAX_PREFILL_STRETCH
from outrider.session.pacing.registry import PACINGS
from outrider.types.frames import MAX_SVIP_THRESHOLD
from outrider.types.identity import Numerics
from verifier_service.sharing_settings import NO_SHARING, SharingSettings, add_sharing_options, sharing_from

AUTO = "auto"
DEFAULT_GRACE_S = 10.0
MAX_SECONDS = 3600.0
# As a drafter's: more sessions than steps have rows for, and more threads than machines have cores.
MAX_SESSIONS = 4096
MAX_CONFIGURED = 8  # drafters, each with a stream of its own; a request that names none is drafted for by all of them
# Of waiting before the first step; few clients wait longer, and another verifier may be free by then.
DEFAULT_MAX_QUEUE_MS = 10_000.0
# Tokens that come faster travel together: a message costs three processes about half a millisecond, as much as a quick model's step.
DEFAULT_STREAM_INTERVAL_MS = 16.0  # a frame of a screen: nobody sees a token sooner
MAX_STREAM_INTERVAL_MS = 1000.0


@dataclass(frozen=True, slots=True)
class DraftDefaults:
    """What a request gets when it does not say. max_len: also the most it may have. draft_len: None = from measured times.

    lookup: guesses may be taken from a request's own text, by the policies that do so.
    """

    pacing: str = DEFAULT_PACING
    draft_len: int | None = None
    max_len: int = 24
    max_nodes: int = 64
    tree_width: int = 1
    stop_below: float = 0.4
    svip_threshold: float = 0.0
    lookup: bool = True

    def check(self) -> None:
        """Raise InvalidRequest naming the first argument that is wrong."""
        if self.pacing not in PACINGS:
            raise InvalidRequest("--pacing", f"{self.pacing!r} is unknown; known: {', '.join(sorted(PACINGS))}")
        if self.draft_len is not None and not 1 <= self.draft_len <= MAX_DRAFT_LEN:
            raise InvalidRequest("--draft-len", f"must be {AUTO!r} or in [1, {MAX_DRAFT_LEN}], got {self.draft_len}")
        if not 1 <= self.max_len <= MAX_DRAFT_LEN:
            raise InvalidRequest("--max-draft-len", f"must be in [1, {MAX_DRAFT_LEN}], got {self.max_len}")
        if not 1 <= self.max_nodes <= 512:
            raise InvalidRequest("--max-nodes", f"must be in [1, 512], got {self.max_nodes}")
        if not 1 <= self.tree_width <= 8:
            raise InvalidRequest("--tree-width", f"must be in [1, 8], got {self.tree_width}")
        if not 0.0 <= self.stop_below < 1.0:
            raise InvalidRequest("--stop-below", f"must be in [0, 1), got {self.stop_below}")
        if not 0.0 <= self.svip_threshold <= MAX_SVIP_THRESHOLD:
            raise InvalidRequest("--svip-threshold", f"must be in [0, {MAX_SVIP_THRESHOLD:g}], got {self.svip_threshold}")


@dataclass(frozen=True, slots=True)
class VerifierSettings:
    """listen: address. drafters: endpoints used by requests that name none. max_prompt_len 0: as long as the context.
    max_queue_ms: a request that would wait longer for its first step is refused; 0: none is. max_prefill_stretch: steps that read beside
    sessions that decode take at most so many times as long for it; 0: as long as --max-rows lets them. stream_interval_ms: of a sample's
    messages at least, but for the first and the last; 0: a message each round. explain_plans: the file that every plan of a step is
    explained in; None: none is."""

    engine: EngineConfig
    listen: str
    drafters: tuple[str, ...]
    draft: DraftDefaults
    max_sessions: int = 32
    max_prompt_len: int = 0
    max_queue_ms: float = DEFAULT_MAX_QUEUE_MS
    max_prefill_stretch: float = DEFAULT_PREFILL_STRETCH
    stream_interval_ms: float = DEFAULT_STREAM_INTERVAL_MS
    grace_s: float = DEFAULT_GRACE_S
    verifier_id: str = "verifier"
    wait_drafters_s: float = 15.0
    membership: Membership = NO_FLEET
    metrics: MetricsAddress = NOWHERE
    sharing: SharingSettings = NO_SHARING
    explain_plans: Path | None = None

    def check(self) -> None:
        """Raise InvalidRequest naming the first argument that is wrong."""
        self._check_sizes()
        self.engine.check()
        check_address("--listen", self.listen)
        self.membership.check_listening((self.listen,))
        for address in self.drafters:
            check_address("--drafter", address)
        if len(set(self.drafters)) > MAX_CONFIGURED:
            raise InvalidRequest("--drafter", f"names {len(set(self.drafters))} drafters, at most {MAX_CONFIGURED}")
        self.draft.check()
        self.sharing.check(lookup=self.draft.lookup)
        if self.max_prompt_len < 0:
            raise InvalidRequest("--max-prompt-len", f"must be 0 or positive, got {self.max_prompt_len}")
        if not 0.0 <= self.max_queue_ms <= 1000 * MAX_SECONDS:
            raise InvalidRequest("--max-queue-ms", f"must be in [0, {1000 * MAX_SECONDS:g}], got {self.max_queue_ms}")
        stretch = self.max_prefill_stretch
        if stretch and not 1.0 < stretch <= MAX_PREFILL_STRETCH:
            raise InvalidRequest("--max-prefill-stretch", f"must be 0 or in (1, {MAX_PREFILL_STRETCH:g}], got {stretch}")
        if not 0.0 <= self.stream_interval_ms <= MAX_STREAM_INTERVAL_MS:
            raise InvalidRequest("--stream-interval-ms", f"must be in [0, {MAX_STREAM_INTERVAL_MS:g}], got {self.stream_interval_ms}")
        for flag, seconds in (("--grace-s", self.grace_s), ("--wait-drafters-s", self.wait_drafters_s)):
            if not 0.0 <= seconds <= MAX_SECONDS:
                raise InvalidRequest(flag, f"must be in [0, {MAX_SECONDS:g}], got {seconds}")

    def _check_sizes(self) -> None:
        engine = self.engine
        for flag, value, least, most in (
            ("--max-sessions", self.max_sessions, 1, MAX_SESSIONS),
            ("--threads", engine.num_threads, 0, numbers.MAX_THREADS),
            ("--lent-threads", engine.lent_threads, 0, numbers.MAX_THREADS),
        ):
            if not least <= value <= most:
                raise InvalidRequest(flag, f"must be in [{least}, {most}], got {value}")


def parse_settings(arguments: list[str]) -> VerifierSettings:
    """Settings of a command line; argparse exits on an unknown argument, InvalidRequest names a wrong value."""
    given = _parser().parse_args(arguments)
    engine = EngineConfig(
        model=given.model,
        kind=EngineKind(given.engine),
        dtype=DType(given.dtype),
        weights=WeightFormat(given.weights),
        numerics=Numerics(given.numerics),
        num_threads=given.threads,
        lent_threads=given.lent_threads,
        num_blocks=given.kv_blocks,
        kv_budget_mib=given.kv_mib,
        max_rows=given.max_rows,
        max_context=given.max_context,
        spare_len=given.max_nodes,
        device=given.device,
        card_graphs=not given.no_card_graphs,
        trust_remote_code=given.trust_remote_code,
        revision=given.revision,
        prefix_cache=not given.no_prefix_cache,
    )
    draft = DraftDefaults(
        pacing=given.pacing,
        draft_len=_draft_len(given.draft_len),
        max_len=given.max_draft_len,
        max_nodes=given.max_nodes,
        tree_width=given.tree_width,
        stop_below=given.stop_below,
        svip_threshold=given.svip_threshold,
        lookup=not given.no_lookup,
    )
    settings = VerifierSettings(
        engine=engine,
        listen=given.listen,
        drafters=tuple(given.drafter),
        draft=draft,
        max_sessions=given.max_sessions,
        max_prompt_len=given.max_prompt_len,
        max_queue_ms=given.max_queue_ms,
        max_prefill_stretch=given.max_prefill_stretch,
        stream_interval_ms=given.stream_interval_ms,
        grace_s=given.grace_s,
        verifier_id=given.verifier_id,
        wait_drafters_s=given.wait_drafters_s,
        membership=membership_from(given),
        metrics=metrics_address_from(given),
        sharing=sharing_from(given),
        explain_plans=given.explain_plans,
    )
    settings.check()
    return settings


def _draft_len(text: str) -> int | None:
    if text == AUTO:
        return None
    if not text.isdecimal():
        raise InvalidRequest("--draft-len", f"must be {AUTO!r} or a number, got {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="verifier_service", description="Serve a target model that verifies drafts.")
    add = parser.add_argument
    add("--model", required=True, help="path or hub name of the target model")
    add("--listen", default="127.0.0.1:0", help="host:port (0: any free port) or unix:/path")
    add("--drafter", action="append", default=[], help="address of a drafter; may be repeated")
    add("--pacing", default=DEFAULT_PACING, help=f"policy of requests that name none: {', '.join(sorted(PACINGS))} (%(default)s)")
    add("--draft-len", default=AUTO, help="tokens drafted per round, or 'auto': from measured times")
    add("--max-draft-len", type=int, default=24, help="levels of a verified tree at most")
    add("--max-nodes", type=int, default=64, help="nodes of a verified tree at most")
    add("--tree-width", type=int, default=1, help="children tried per node; 1 is a chain")
    add("--stop-below", type=float, default=0.4, help="drafting pauses when its best next token is less probable than this; 0: never")
    svip = "drafting pauses behind a guess where sqrt(0.15 * the draft's entropy in nats) exceeds this (SVIP; the paper has 0.3); 0: never"
    add("--svip-threshold", type=float, default=0.0, metavar="T", help=svip)
    add("--no-lookup", action="store_true", help="take no guesses from a request's own text; the policy 'lookup' is plain decoding then")
    add("--engine", choices=[kind.value for kind in EngineKind], default=EngineKind.AUTO.value)
    add("--dtype", choices=[dtype.value for dtype in DType], default=DType.FLOAT32.value)
    kept = WeightFormat.FULL.value, WeightFormat.INT8.value
    add("--weights", choices=kept, default=kept[0], help=WEIGHTS_HELP)
    add("--numerics", choices=[mode.value for mode in Numerics], default=Numerics.FAST.value)
    add("--threads", type=int, default=0, help="compute threads; 0: torch's choice, and no more than a container's quota")
    lent = "further threads for steps during which the drafters of this machine are idle, where that proves quicker"
    add("--lent-threads", type=int, default=0, metavar="M", help=lent)
    add("--device", default="cpu")
    add("--no-card-graphs", action="store_true", help=NO_CARD_GRAPHS_HELP)
    add("--revision", default="")
    add("--trust-remote-code", action="store_true")
    add("--kv-blocks", type=int, default=0, help="KV blocks; 0 derives them from --kv-mib")
    add("--kv-mib", type=int, default=256, help="MiB of KV cache: answers take it as they grow; where it is full, the newest wait")
    add("--no-prefix-cache", action="store_true", help="read every prompt anew, though its beginning was read for another request")
    add("--max-rows", type=int, default=512, help="rows of one step at most")
    add("--max-context", type=int, default=0, help="positions per sequence; 0: the model's own")
    add("--max-sessions", type=int, default=32)
    add("--max-prompt-len", type=int, default=0, help="tokens of a prefix at most; 0: as many as fit the context")
    queue = "a request that would wait longer for its first step is refused, and told when to come again; 0: none is"
    add("--max-queue-ms", type=float, default=DEFAULT_MAX_QUEUE_MS, metavar="MS", help=f"{queue} (%(default)s)")
    stretch = "a step that reads prompts while others decode takes at most so many times as long as without them, or 16 rows; 0: no bound"
    add("--max-prefill-stretch", type=float, default=DEFAULT_PREFILL_STRETCH, metavar="X", help=f"{stretch} (%(default)s)")
    interval = "tokens that a sample commits within so long of its last message travel together in the next; 0: a message each round"
    add("--stream-interval-ms", type=float, default=DEFAULT_STREAM_INTERVAL_MS, metavar="MS", help=f"{interval} (%(default)s)")
    add("--grace-s", type=float, default=DEFAULT_GRACE_S, help="seconds that live requests get to finish on SIGTERM")
    add("--verifier-id", default="verifier", help="name in drafters' logs")
    add("--wait-drafters-s", type=float, default=15.0, help="at start, wait so long for configured drafters before serving")
    explained = "add a line of JSON to FILE for every plan of a step: what was chosen, what else was weighed, and why; 128 MiB at most"
    add("--explain-plans", type=Path, metavar="FILE", help=explained)
    add_membership_options(parser)
    add_metrics_options(parser)
    add_sharing_options(parser)
    return parser
