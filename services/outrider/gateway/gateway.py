"""A running gateway: verifiers connected, tokenizer loaded, server up. What __main__ runs and tests embed.

Knows how the parts are put together. Must not know the command line.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from outrider.errors import Unavailable
from outrider.exposition.endpoint import serving_metrics
from outrider.exposition.options import NOWHERE, MetricsAddress
from outrider.gateway.auditor import AuditLimits
from outrider.gateway.coordinators import CoordinatorLimits, Coordinators
from outrider.gateway.limits import DRAIN_GRACE_S, FailoverLimits, GatewayLimits, LivenessLimits
from outrider.gateway.model_folder import check_vocabulary, model_folder
from outrider.gateway.placing import Placing
from outrider.gateway.servicer import SERVICE_NAME, GenerationServicer
from outrider.gateway.tokenizer import ModelTokenizer, load_tokenizer
from outrider.gateway.topology import Topology
from outrider.gateway.verifiers import REFRESH_S, VerifierPool
from outrider.rpc.listening import check_free
from outrider.rpc.server import NOTHING_ELSE, Drain, RpcServer, ServerLimits, run_until_signal
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.types.identity import ModelIdentity, Numerics
from outrider.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server

_LOG = logging.getLogger(__name__)
READY_NAME = "gateway"
VERIFIER_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """listen, verifiers: addresses (`host:port`, `host:0`, `unix:/path`). model_dir: where the tokenizer is; None asks the verifier
    for the folder or hub name it loaded. model_name: what clients call the model; empty means the last part of the verifier's name for it.
    verifier_timeout_s: for the first verifier to answer at start. verifier_refresh_s: how often they are asked again; health is NOT_SERVING
    while none answers. failover: how answers find another verifier; liveness: when the one they have counts as lost.
    coordinators: addresses, asked where requests go; verifiers may be empty then, for coordinators know them too. metrics: where it is
    scraped while it runs until a signal. audit: which finished answers are decoded once more, and when."""

    listen: tuple[str, ...]
    verifiers: tuple[str, ...]
    model_dir: Path | None = None
    model_name: str = ""
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    failover: FailoverLimits = field(default_factory=FailoverLimits)
    liveness: LivenessLimits = field(default_factory=LivenessLimits)
    server: ServerLimits = field(default_factory=ServerLimits)
    verifier_timeout_s: float = VERIFIER_TIMEOUT_S
    verifier_refresh_s: float = REFRESH_S
    drain_grace_s: float = DRAIN_GRACE_S
    coordinators: tuple[str, ...] = ()
    coordination: CoordinatorLimits = field(default_factory=CoordinatorLimits)
    metrics: MetricsAddress = NOWHERE
    audit: AuditLimits = field(default_factory=AuditLimits)


class Gateway:
    """Use: `gateway = await start_gateway(config)`, then `run_until_signal` or, in tests, `stop`."""

    def __init__(
        self, config: GatewayConfig, pool: VerifierPool, coordinators: Coordinators | None, server: RpcServer, servicer: GenerationServicer
    ) -> None:
        self._config = config
        self._pool = pool
        self._coordinators = coordinators
        self._server = server
        self.servicer = servicer

    @property
    def address(self) -> str:
        """The first bound address."""
        return self._server.address

    @property
    def addresses(self) -> tuple[str, ...]:
        """All bound addresses."""
        return self._server.addresses

    async def run_until_signal(self, also: Mapping[str, str] = NOTHING_ELSE, then: Drain | None = None) -> None:
        """Print the ready line, serve until SIGTERM or SIGINT, drain, close. also: what else is to stand in that line. then: drained once
        no request needs it any more, in what is left of the grace."""

        async def drain(grace_s: float) -> None:
            begun_s = time.monotonic()
            await self.servicer.drain(grace_s)
            if then is not None:
                await then(max(0.0, grace_s - (time.monotonic() - begun_s)))

        try:
            with serving_metrics(self._config.metrics, self.servicer.metrics, self.servicer.refresh_metrics) as metrics_url:
                await run_until_signal(self._server, READY_NAME, drain, self._config.drain_grace_s, metrics_url, also)
        finally:
            await _close(self._pool, self._coordinators)

    async def stop(self, grace_s: float | None = None) -> None:
        """Drain and close."""
        await self._server.stop(self.servicer.drain, self._config.drain_grace_s if grace_s is None else grace_s)
        await _close(self._pool, self._coordinators)


async def start_gateway(config: GatewayConfig, channels: Mapping[str, grpc.aio.Channel] | None = None) -> Gateway:
    """Connect, load, bind, serve. channels: to verifiers of this process, by address.

    Raises Unavailable (no verifier in time), ModelRefused (no tokenizer, or not the target's), InvalidRequest (an address)."""
    check_free({"--listen": config.listen, "--metrics-port": config.metrics.listen})
    pool = VerifierPool(config.verifiers, config.liveness, channels)
    coordinators = Coordinators(config.coordinators, config.coordination) if config.coordinators else None
    metrics = LocalMetrics()
    placing = Placing(coordinators, pool, metrics)

    async def follow(topology: Topology) -> None:
        placing.observe(topology)
        await pool.follow(topology)

    try:
        if coordinators is not None:
            coordinators.watch(follow, lambda: pool.knows_nobody)
        await _meet_verifiers(pool, coordinators, config.verifier_timeout_s)
        tokenizer = _tokenizer(config, pool.identity)
        name = config.model_name or Path(pool.identity.model).name
        max_bytes = config.server.max_message_bytes
        servicer = GenerationServicer(pool, placing, tokenizer, config.limits, name, max_bytes, config.failover, metrics, config.audit)
        if config.audit.share and pool.identity.numerics is not Numerics.INVARIANT:
            _LOG.warning("no answer will be audited: tokens are promised in `invariant` numerics only, the verifier serves in `fast`")
        server = RpcServer(config.listen, config.server)
        server.add(SERVICE_NAME, add_GenerationServiceServicer_to_server, servicer)
        server.add_trunks()
        await server.start()
        await server.set_serving()
        pool.watch(server.set_serving, config.verifier_refresh_s)
    except BaseException:
        await _close(pool, coordinators)
        raise
    _LOG.info("serving %s on %s", name, ", ".join(server.addresses))
    return Gateway(config, pool, coordinators, server, servicer)


async def _meet_verifiers(pool: VerifierPool, coordinators: Coordinators | None, timeout_s: float) -> None:
    """Until one is admitted, of those that are known or come to be. Raises as VerifierPool.connect, and says why nobody could be asked."""
    try:
        await pool.connect(timeout_s, None if coordinators is None else coordinators.told)
    except Unavailable:
        if coordinators is None or not pool.knows_nobody:
            raise
        raise Unavailable(coordinators.why_nobody(timeout_s)) from None


async def _close(pool: VerifierPool, coordinators: Coordinators | None) -> None:
    if coordinators is not None:
        await coordinators.close()
    await pool.close()


def _tokenizer(config: GatewayConfig, identity: ModelIdentity) -> ModelTokenizer:
    folder = config.model_dir or model_folder(identity)
    tokenizer = load_tokenizer(folder)
    check_vocabulary(folder, identity)
    return tokenizer
