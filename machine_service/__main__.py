"""`python -m machine_service VERIFIER_OPTIONS -- DRAFTER_OPTIONS -- GATEWAY_OPTIONS`: a whole deployment as one process.

The gateway's streams reach the verifier past gRPC (outrider.rpc.in_process_channel); drafter and verifier take turns on one thread, as in
pair_service; clients, and other gateways, are served over gRPC as ever. Must not decide anything: it splits the command line, hands the
parts on, and says in which order they stop.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from drafter_service.loading import load_drafter
from drafter_service.settings import DrafterSettings
from drafter_service.settings import parse_settings as drafter_settings
from outrider.errors import InvalidRequest
from outrider.gateway.__main__ import parse_config
from outrider.gateway.gateway import GatewayConfig, start_gateway
from outrider.rpc.listening import check_free
from outrider.rpc.process_exit import exit_at_once
from pair_service.next_door import DrafterNextDoor, in_turns
from verifier_service.process import run_verifier
from verifier_service.service import VerifierServer
from verifier_service.settings import VerifierSettings
from verifier_service.settings import parse_settings as verifier_settings

SEPARATOR = "--"
_HELP = """usage: python -m machine_service VERIFIER_OPTIONS -- [DRAFTER_OPTIONS] -- GATEWAY_OPTIONS

Verifier, drafter and gateway in one process, for a machine with few cores. The options are those of `python -m verifier_service --help`,
`python -m drafter_service --help` and `python -m outrider.gateway --help`; the drafter listens nowhere and the gateway has this verifier,
so they take no --listen and no --verifier. Without options of a drafter there is none. Requests that choose their drafters name the one
of this process `resident`. A draft that reads 8 MB or more for a guess uses the other threads of the verifier too when it is its turn.

example: python -m machine_service --model TARGET --threads 2 -- --model DRAFT --threads 1 -- --listen 127.0.0.1:7070"""


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """drafter: None for none."""

    verifier: VerifierSettings
    drafter: DrafterSettings | None
    gateway: GatewayConfig


def parse(argv: Sequence[str]) -> MachineSettings:
    """The three parts of a command line. Raises InvalidRequest for another number of them, or for what one process cannot have."""
    parts = _parts(argv)
    verifier = verifier_settings(parts[0])
    if verifier.membership.coordinators:
        raise InvalidRequest("--coordinator", "replicas of a fleet end apart: start verifier_service and outrider.gateway as processes")
    drafter = in_turns(drafter_settings(parts[1], serves=False), verifier.engine.num_threads) if parts[1] else None
    gateway, _ = parse_config([*parts[2], "--verifier", verifier.listen])
    if gateway.verifiers != (verifier.listen,) or gateway.coordinators:
        raise InvalidRequest("--verifier", "the gateway has the verifier of its process; leave out --verifier and --coordinator")
    return MachineSettings(verifier, drafter, gateway)


def main(argv: Sequence[str]) -> int:
    """Exit codes as the verifier's: 0 after a drain, 1 when the engine died, 2 when it could not start."""
    if list(argv) in (["--help"], ["-h"]):
        print(_HELP)
        return 0
    try:
        settings = parse(argv)
        check_free(_wanted(settings.verifier, settings.gateway))
    except InvalidRequest as error:
        print(f"machine_service: {error}", file=sys.stderr)
        return 2
    drafter = settings.drafter
    load_resident = None if drafter is None else lambda: DrafterNextDoor(load_drafter(drafter), drafter.limits)

    async def serve(server: VerifierServer, metrics_url: str) -> None:
        await serve_clients(server, settings.gateway, metrics_url)

    return run_verifier(settings.verifier, load_resident, serve)


async def serve_clients(server: VerifierServer, config: GatewayConfig, metrics_url: str) -> None:
    """A gateway before a started verifier, until a signal. The gateway drains first, for its requests need the verifier. metrics_url: where
    the verifier is scraped, empty for nowhere; the ready line, which is the gateway's, says it as `verifier_metrics`."""
    address = server.rpc.address
    gateway = await start_gateway(replace(config, verifiers=(address,)), {address: server.rpc.in_process_channel()})

    async def drain_verifier(grace_s: float) -> None:
        await server.rpc.stop(server.drain, grace_s)

    await gateway.run_until_signal({"verifier_metrics": metrics_url} if metrics_url else {}, then=drain_verifier)


def _wanted(verifier: VerifierSettings, gateway: GatewayConfig) -> dict[str, tuple[str, ...]]:
    """Where the process is to listen, by option."""
    metrics = (*verifier.metrics.listen, *gateway.metrics.listen)
    return {"--listen": (verifier.listen, *gateway.listen), "--metrics-port": metrics}


def _parts(argv: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for argument in argv:
        if argument == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(argument)
    if len(parts) != 3:
        raise InvalidRequest(SEPARATOR, "there are three parts: VERIFIER_OPTIONS -- DRAFTER_OPTIONS -- GATEWAY_OPTIONS (--help says more)")
    return parts


if __name__ == "__main__":
    exit_at_once(main(sys.argv[1:]))
