"""`python -m outrider.coordinator --listen ADDRESS`: the coordinator as one process, without Ray.

Knows the command line. Prints one JSON line when it is ready, ends on SIGTERM, exits with 2 and a sentence when it cannot start. Whatever
it knew, replicas tell the next one within a heartbeat: nothing is kept on disk.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from outrider.coordinator.server import READY_NAME, STOP_GRACE_S, metrics_refresher, serve_fleet
from outrider.coordinator.servicer import FleetServicer
from outrider.coordinator.state import FleetState, new_epoch, new_fleet
from outrider.coordinator.waking_clock import WakingClock
from outrider.errors import OutriderError
from outrider.exposition.endpoint import serving_metrics
from outrider.exposition.options import NOWHERE, MetricsAddress, add_metrics_options, metrics_address_from
from outrider.rpc.process_exit import exit_at_once
from outrider.rpc.process_log import level_from_environment, start_log
from outrider.rpc.server import run_service, run_until_signal

DEFAULT_LISTEN = "127.0.0.1:7069"
_EPILOG = """example:

  python -m outrider.coordinator --listen 127.0.0.1:7069
  python -m drafter_service --model DRAFT --listen 127.0.0.1:7072 --coordinator 127.0.0.1:7069 --replica-id drafter-0
  python -m verifier_service --model TARGET --listen 127.0.0.1:7071 --coordinator 127.0.0.1:7069 --replica-id verifier-0
  python -m outrider.gateway --coordinator 127.0.0.1:7069 --listen 127.0.0.1:7070"""


async def serve(listen: Sequence[str], state: FleetState, metrics: MetricsAddress = NOWHERE) -> None:
    """Until a signal."""
    clock = WakingClock(time.monotonic)
    servicer = FleetServicer(state, clock)
    with serving_metrics(metrics, servicer.metrics, metrics_refresher(servicer)) as metrics_url:
        server = await serve_fleet(listen, servicer, clock)
        await run_until_signal(server, READY_NAME, None, STOP_GRACE_S, metrics_url)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 after a signal, 2 when it could not start."""
    options = _parser().parse_args(arguments)
    try:
        metrics = metrics_address_from(options)
        start_log(level_from_environment())
    except OutriderError as error:
        return _refused(error)
    try:
        run_service(serve(tuple(options.listen or [DEFAULT_LISTEN]), new_fleet(new_epoch()), metrics))
    except OutriderError as error:
        return _refused(error)
    return 0


def _refused(error: OutriderError) -> int:
    print(f"coordinator: {error}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m outrider.coordinator",
        description="Keeps the list of verifiers and drafters, and says where each request goes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--listen", action="append", metavar="ADDR", help=f"host:port or unix:/path; repeatable (default {DEFAULT_LISTEN})")
    add_metrics_options(parser)
    return parser


if __name__ == "__main__":
    exit_at_once(main())
