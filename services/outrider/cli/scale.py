"""`outrider scale`: more or fewer replicas on a machine whose `outrider up --ray` is running.

Knows ScalingService and what is printed. Must not know how replicas are started.
"""

from __future__ import annotations

import argparse
from typing import cast

import grpc
from rich.table import Table

from outrider.cli.console import make_console
from outrider.cli.fleet import seems_to_be
from outrider.errors import InvalidRequest
from outrider.rpc.address import check_address
from outrider.rpc.status import error_from_rpc
from outrider.v1 import scaling_pb2 as pb
from outrider.v1.scaling_pb2_grpc import ScalingServiceStub

# Models are loaded, and what goes drains before; longer than either bound of who does it.
SCALE_TIMEOUT_S = 400.0
_EXAMPLES = """examples, with the address that `outrider up --ray` printed:
  outrider scale --at unix:/tmp/outrider-ray-x/scaling.sock --verifiers 3
  outrider scale --at unix:/tmp/outrider-ray-x/scaling.sock --drafters 0"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `outrider scale`."""
    parser = subparsers.add_parser(
        "scale",
        help="more or fewer replicas under a running `outrider up --ray`",
        description="Change how many replicas a machine gives its fleet. Those that do not serve go first, then the newest, which drain; "
        "new ones are waited for. One that has ended for good does not count, so the present number brings another in its place.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--at", required=True, metavar="ADDRESS", help="where that `outrider up --ray` is told")
    parser.add_argument("--verifiers", type=int, metavar="N", help="there are to be (as it is)")
    parser.add_argument("--drafters", type=int, metavar="N", help="there are to be (as it is)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask, wait, print who there is. Raises what the deployment says, and InvalidRequest naming an option."""
    if args.verifiers is None and args.drafters is None:
        raise InvalidRequest("--verifiers", "or --drafters says how many there are to be")
    for flag, number in (("--verifiers", args.verifiers), ("--drafters", args.drafters)):
        if number is not None and not 0 <= number < 2**32:
            raise InvalidRequest(flag, f"must be a number of replicas, got {number}")
    check_address("--at", args.at)
    console, progress = make_console(), make_console(stderr=True)
    with progress.status("replicas drain, or load their models ..."):
        response = ask(args.at, pb.ScaleRequest(num_verifiers=args.verifiers, num_drafters=args.drafters))
    table = Table("replica", "address")
    for replica in response.replicas:
        table.add_row(replica.replica_id, replica.address)
    console.print(table)
    return 0


def ask(address: str, request: pb.ScaleRequest) -> pb.ScaleResponse:
    """One order, carried out. Raises what its status says."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = ScalingServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            response: pb.ScaleResponse = stub.Scale(request, timeout=SCALE_TIMEOUT_S)
        except grpc.RpcError as failure:
            if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                told = f"{address} is {seems_to_be(address)}, and takes no such orders; `outrider up --ray` printed the address that does"
                raise InvalidRequest("--at", told) from None
            raise error_from_rpc(cast(grpc.aio.AioRpcError, failure)) from None
    return response
