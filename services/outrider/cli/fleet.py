"""`outrider fleet`: who is in a fleet, as a coordinator knows it, and the order to drain one of its replicas.

Knows FleetService and what is printed. Must not know how replicas are started, or where requests go.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import grpc
from rich.table import Table
from rich.text import Text

from outrider.cli.connection import Connection
from outrider.cli.console import make_console
from outrider.errors import InvalidRequest
from outrider.rpc.address import check_address
from outrider.rpc.channel import MAX_MESSAGE_BYTES
from outrider.rpc.status import RemoteFailure, error_from_rpc
from outrider.v1 import fleet_pb2 as pb
from outrider.v1.fleet_pb2_grpc import FleetServiceStub

DEFAULT_COORDINATOR = "127.0.0.1:7069"
CALL_TIMEOUT_S = 10.0
_SHOWN_DIGITS = 12  # of a fingerprint: enough to see which are equal
_ROLES = {int(pb.REPLICA_ROLE_VERIFIER): "verifier", int(pb.REPLICA_ROLE_DRAFTER): "drafter"}
_EXAMPLES = """examples:
  outrider fleet --coordinator 10.0.0.1:7069
  outrider fleet --coordinator 10.0.0.1:7069 --drain verifier-0"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `outrider fleet`."""
    parser = subparsers.add_parser(
        "fleet",
        help="who is in a fleet, and the order to drain a replica",
        description="Show every replica that a coordinator has heard of within its lease. One that drains takes nothing new, hands its "
        "answers over to others of its fingerprint, and ends with exit code 0.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--coordinator", default=DEFAULT_COORDINATOR, metavar="ADDRESS", help="whom to ask (%(default)s)")
    drain = (
        "order this replica to drain, then show the fleet; of several coordinators ask the one with the largest epoch, which was started "
    )
    drain += "last: a replica that knows it takes orders from no other"
    parser.add_argument("--drain", default="", metavar="NAME", help=drain)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask and print. Raises what the coordinator says, and InvalidRequest naming an option."""
    check_address("--coordinator", args.coordinator)
    with _fleet(args.coordinator) as stub:
        if args.drain:
            stub.Drain(pb.DrainRequest(replica_id=args.drain), timeout=CALL_TIMEOUT_S)
        topology: pb.GetTopologyResponse = stub.GetTopology(pb.GetTopologyRequest(), timeout=CALL_TIMEOUT_S)
    make_console().print(replica_table(topology))
    return 0


def replica_table(topology: pb.GetTopologyResponse) -> Table:
    """Everybody whom the coordinator knows, as of the newest heartbeats."""
    table = Table("replica", "role", "address", "model", "fingerprint", "sessions", "KV", "time", "drafters", title=_title(topology))
    for replica in topology.replicas:
        name = f"{replica.replica_id} (drains)" if replica.draining else replica.replica_id
        identity = replica.identity
        described = (replica.endpoint, identity.model.rpartition("/")[2], identity.fingerprint[:_SHOWN_DIGITS])
        load = (f"{replica.live.sessions} of {replica.max_sessions}", _kv(replica), _time(replica), _drafters(replica))
        table.add_row(*map(Text, (name, _ROLES.get(int(replica.role), "?"), *described, *load)))
    return table


def _title(topology: pb.GetTopologyResponse) -> str:
    roles = [int(replica.role) for replica in topology.replicas]
    counts = (f"{name}s: {roles.count(role)}" for role, name in _ROLES.items())
    return f"{', '.join(counts)}; coordinator epoch {topology.epoch}"


def _kv(replica: pb.Replica) -> str:
    live = replica.live
    return f"{live.kv_blocks_used / live.kv_blocks_total:.0%}" if live.kv_blocks_total else ""


def _time(replica: pb.Replica) -> str:
    """What a plain step or a guess takes."""
    if replica.cost_us:
        return f"{replica.cost_us[0] / 1e3:.3g} ms a step of {replica.cost_rows[0]}"
    return f"{replica.draft_us / 1e3:.3g} ms a guess" if replica.draft_us else ""


def _drafters(replica: pb.Replica) -> str:
    """Of a verifier: those it is connected to, with how often their guesses are right."""
    connected = sorted((pair for pair in replica.pairs if pair.connected), key=lambda pair: pair.drafter)
    return "\n".join(pair.drafter if pair.acceptance_rate < 0 else f"{pair.drafter} {pair.acceptance_rate:.0%}" for pair in connected)


@contextmanager
def _fleet(address: str) -> Iterator[FleetServiceStub]:
    """For the block's time; raises what a call's status says."""
    options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
    with grpc.insecure_channel(address, options=options) as channel:
        try:
            yield FleetServiceStub(channel)  # type: ignore[no-untyped-call]
        except grpc.RpcError as failure:
            if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise InvalidRequest("--coordinator", f"{address} is {seems_to_be(address)}, and no coordinator") from None
            raise error_from_rpc(cast(grpc.aio.AioRpcError, failure)) from None


def seems_to_be(address: str) -> str:
    """Who answers there, by what it can be asked."""
    with Connection(address) as peer:
        for kind, ask in (("a gateway", peer.model_info), ("a verifier", peer.verifier_info), ("a drafter", peer.drafter_info)):
            try:
                ask()
            except RemoteFailure:  # not this kind
                continue
            return kind
    return "another service"
