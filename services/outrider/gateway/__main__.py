"""`python -m outrider.gateway`: the client-facing process.

Knows the command line. Prints one JSON line when it is ready, drains on SIGTERM, exits with 1 and a sentence when it cannot start.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from outrider.errors import OutriderError
from outrider.exposition.options import add_metrics_options, metrics_address_from
from outrider.gateway.auditor import AuditLimits
from outrider.gateway.gateway import VERIFIER_TIMEOUT_S, GatewayConfig, start_gateway
from outrider.gateway.limits import (
    DRAIN_GRACE_S,
    MAX_LIVE_REQUESTS,
    MAX_LIVE_SAMPLES,
    MAX_PROMPT_BYTES,
    MAX_UNREAD_S,
    PLACE_TIMEOUT_S,
    FailoverLimits,
    GatewayLimits,
)
from outrider.launch.numbers import MAX_INT32, seconds, whole_number
from outrider.rpc.address import check_address
from outrider.rpc.channel import MAX_MESSAGE_BYTES
from outrider.rpc.process_exit import exit_at_once
from outrider.rpc.process_log import LEVELS, start_log
from outrider.rpc.server import MAX_CONCURRENT_RPCS, ServerLimits, run_service

DEFAULT_LISTEN = "127.0.0.1:7070"
_MIB = 2**20
# gRPC counts both in 32 bits.
MOST_MESSAGE_MIB = 1024
MOST_CONCURRENT_RPCS = 1_000_000
MOST_UNREAD_S = 86_400
_T = TypeVar("_T")

_DESCRIPTION = """\
The gateway speaks outrider.v1.GenerationService to clients (proto/outrider/v1/generation.proto): it checks requests, turns text into
tokens and back, streams answers, and opens one Decode stream per sample at a verifier. It holds no model and needs no GPU.
"""
_EPILOG = """\
example, after a verifier was started on 127.0.0.1:7071, or behind a coordinator that knows several:

  python -m outrider.gateway --verifier 127.0.0.1:7071 --listen 127.0.0.1:7070
  python -m outrider.gateway --coordinator 127.0.0.1:7069 --listen 127.0.0.1:7070

When it serves, it prints one line: {"ready": true, "address": "127.0.0.1:7070", "service": "gateway", ...}.
SIGTERM or SIGINT: health turns NOT_SERVING, new requests are refused with UNAVAILABLE, live answers may finish within the grace.
A second signal ends it at once. Health (grpc.health.v1) and server reflection are on every address.
"""


def parse_config(arguments: Sequence[str] | None = None) -> tuple[GatewayConfig, str]:
    """The configuration and the log level; exits with the usage on a wrong command line."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.verifier and not options.coordinator:
        parser.error("a gateway needs a --verifier or a --coordinator")
    limits = GatewayLimits(
        max_live_requests=options.max_live_requests,
        max_live_samples=options.max_live_samples,
        max_prompt_tokens=options.max_prompt_tokens,
        max_completion_tokens=options.max_completion_tokens,
        max_prompt_bytes=options.max_prompt_bytes,
        max_unread_s=options.max_unread_s,
    )
    config = GatewayConfig(
        listen=_or_usage(parser, lambda: _addresses("--listen", options.listen or [DEFAULT_LISTEN])),
        verifiers=_or_usage(parser, lambda: _addresses("--verifier", options.verifier)),
        model_dir=options.model_dir,
        model_name=options.model_name,
        limits=limits,
        failover=FailoverLimits(place_timeout_s=options.failover_timeout_s),
        server=ServerLimits(max_message_bytes=options.max_message_mib * _MIB, max_concurrent_rpcs=options.max_concurrent_rpcs),
        verifier_timeout_s=options.verifier_timeout_s,
        drain_grace_s=options.drain_grace_s,
        coordinators=_or_usage(parser, lambda: _addresses("--coordinator", options.coordinator)),
        metrics=_or_usage(parser, lambda: metrics_address_from(options)),
        audit=_or_usage(parser, lambda: _audit_limits(options)),
    )
    return config, options.log_level


def _addresses(option: str, given: Sequence[str]) -> tuple[str, ...]:
    for address in given:
        check_address(option, address)
    return tuple(given)


def _audit_limits(options: argparse.Namespace) -> AuditLimits:
    limits = AuditLimits(share=options.audit_share, max_live=options.audit_max_live)
    limits.check()
    return limits


def _or_usage(parser: argparse.ArgumentParser, value: Callable[[], _T]) -> _T:
    """An option's value, or the usage when it is a wrong one."""
    try:
        return value()
    except OutriderError as error:
        parser.error(str(error))


async def serve(config: GatewayConfig) -> None:
    """Start and run until a signal."""
    gateway = await start_gateway(config)
    await gateway.run_until_signal()


def main(arguments: Sequence[str] | None = None) -> int:
    """The process's exit status."""
    config, log_level = parse_config(arguments)
    start_log(LEVELS[log_level])
    try:
        run_service(serve(config))
    except OutriderError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m outrider.gateway", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ends = parser.add_argument_group("addresses (host:port, host:0 for any free port, or unix:/path)")
    ends.add_argument("--verifier", action="append", default=[], metavar="ADDR", help="a verifier; repeat for replicas of one model")
    ends.add_argument(
        "--coordinator",
        action="append",
        default=[],
        metavar="ADDR",
        help="asked where each request goes, beside or instead of --verifier; repeatable, the one started last is asked",
    )
    ends.add_argument("--listen", action="append", metavar="ADDR", help=f"where clients connect; repeatable (default {DEFAULT_LISTEN})")
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model-dir", type=Path, metavar="DIR", help="folder with the tokenizer (default: the folder or hub name the verifier loaded)"
    )
    model.add_argument("--model-name", default="", metavar="NAME", help="what clients call it (default: last part of the verifier's name)")
    _add_limits(parser)
    _add_audit(parser)
    _add_life_cycle(parser)
    return parser


def _add_limits(parser: argparse.ArgumentParser) -> None:
    positive = whole_number(1, MAX_INT32)
    limits = parser.add_argument_group("limits (what exceeds them is refused before any work)")
    limits.add_argument("--max-live-requests", type=positive, default=MAX_LIVE_REQUESTS, metavar="N", help="default %(default)s")
    limits.add_argument("--max-live-samples", type=positive, default=MAX_LIVE_SAMPLES, metavar="N", help="default %(default)s")
    limits.add_argument("--max-prompt-tokens", type=positive, metavar="N", help="default: the context less one")
    limits.add_argument("--max-completion-tokens", type=positive, metavar="N", help="default: the context less one")
    limits.add_argument("--max-prompt-bytes", type=positive, default=MAX_PROMPT_BYTES, metavar="N", help="default %(default)s")
    mib, rpcs = whole_number(1, MOST_MESSAGE_MIB), whole_number(1, MOST_CONCURRENT_RPCS)
    limits.add_argument("--max-message-mib", type=mib, default=MAX_MESSAGE_BYTES // _MIB, metavar="N", help="default %(default)s")
    limits.add_argument("--max-concurrent-rpcs", type=rpcs, default=MAX_CONCURRENT_RPCS, metavar="N", help="default %(default)s")


def _add_audit(parser: argparse.ArgumentParser) -> None:
    audit = parser.add_argument_group(
        "audit (finished answers decoded once more, plainly, while nobody waits; `outrider_identity_mismatch_total` must stay at zero)"
    )
    audit.add_argument(
        "--audit-share",
        type=float,
        default=0.0,
        metavar="X",
        help="of the requests whose tokens are promised (`invariant` numerics), chosen by request id; 0 to 1 (default: none)",
    )
    audit.add_argument(
        "--audit-max-live",
        type=int,
        default=0,
        metavar="N",
        help="replay while at most N requests are live here, and N sessions at the verifier (default %(default)s)",
    )


def _add_life_cycle(parser: argparse.ArgumentParser) -> None:
    life = parser.add_argument_group("life cycle")
    life.add_argument(
        "--verifier-timeout-s", type=seconds, default=VERIFIER_TIMEOUT_S, metavar="S", help="wait this long at start (default %(default)s)"
    )
    life.add_argument(
        "--failover-timeout-s",
        type=seconds,
        default=PLACE_TIMEOUT_S,
        metavar="S",
        help="an answer that lost its verifier waits this long for another, or for the same one started anew (default %(default)s)",
    )
    life.add_argument(
        "--max-unread-s",
        type=whole_number(1, MOST_UNREAD_S),
        default=MAX_UNREAD_S,
        metavar="S",
        help="an answer of which its client takes nothing for this long is ended (default %(default)s)",
    )
    life.add_argument("--drain-grace-s", type=seconds, default=DRAIN_GRACE_S, metavar="S", help="for live answers (default %(default)s)")
    add_metrics_options(life)
    life.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info", help="to stderr (default %(default)s)")


if __name__ == "__main__":
    exit_at_once(main())
