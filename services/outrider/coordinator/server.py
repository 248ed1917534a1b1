"""A running coordinator: a state behind FleetService on a socket. What __main__, the Ray actor and tests start.

Knows how the parts are put together. Must not know the command line or Ray.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.coordinator.servicer import SERVICE_NAME, FleetServicer
from outrider.coordinator.state import Coordination
from outrider.rpc.server import RpcServer
from outrider.v1.fleet_pb2_grpc import add_FleetServiceServicer_to_server

READY_NAME = "coordinator"
# Replicas and gateways; a heartbeat and a placement are answered at once, so that few calls are ever under way.
STOP_GRACE_S = 1.0


async def start_coordinator(listen: Sequence[str], coordination: Coordination, servicer: FleetServicer | None = None) -> RpcServer:
    """Bind and serve; the caller stops it. servicer: of this coordination, for a caller that reads its metrics. Raises InvalidRequest
    naming an address."""
    server = RpcServer(listen)
    server.add(SERVICE_NAME, add_FleetServiceServicer_to_server, servicer or FleetServicer(coordination))
    await server.start()
    await server.set_serving()
    return server
