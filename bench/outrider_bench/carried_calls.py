"""What a message of a Decode call costs between two processes: a stream for each call, or all of them over one trunk.

The service here commits one token to every call in each turn of its event loop, as a step of a target with many sessions does; nothing is
computed. Both ways in turns, median of the repetitions. Run as `python -m outrider_bench.carried_calls [--calls N ...]`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from outrider.launch.threads import thread_environment
from outrider.rpc.channel import open_channel, wait_ready
from outrider.rpc.context import Context
from outrider.rpc.server import RpcServer
from outrider.rpc.trunk_channel import TrunkChannel
from outrider.v1 import sampling_pb2
from outrider.v1 import verifier_pb2 as pb
from outrider.v1.verifier_pb2_grpc import VerifierServiceServicer, VerifierServiceStub, add_VerifierServiceServicer_to_server

SERVICE = pb.DESCRIPTOR.services_by_name["VerifierService"].full_name
CORRECTED = sampling_pb2.TOKEN_ORIGIN_CORRECTED
WAYS = ("stream each", "trunk")


class Committing(VerifierServiceServicer):
    """max_tokens of a start: how many messages its call is to have."""

    async def Decode(self, requests: AsyncIterator[pb.DecodeRequest], context: Context) -> None:
        """One token in each turn of the loop."""
        first = await anext(aiter(requests))
        for begin in range(first.start.max_tokens):
            await context.write(pb.DecodeResponse(committed=pb.DecodeCommitted(begin=begin, token_ids=[begin % 2000], origins=[CORRECTED])))
            await asyncio.sleep(0)


async def serve() -> None:
    """Until standard input ends."""
    server = RpcServer(("127.0.0.1:0",))
    server.add(SERVICE, add_VerifierServiceServicer_to_server, Committing())
    server.add_trunks()
    await server.start()
    print(server.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(grace_s=0.0)


async def measure(address: str, nums_calls: Sequence[int], num_messages: int, repeats: int) -> dict[tuple[int, str], list[float]]:
    """Microseconds a message, by calls at a time and way."""
    channel = open_channel(address)
    await wait_ready(channel, address)
    trunks = TrunkChannel(channel)
    stubs = dict(zip(WAYS, (VerifierServiceStub(channel), VerifierServiceStub(trunks)), strict=True))  # type: ignore[no-untyped-call]
    found: dict[tuple[int, str], list[float]] = {(num, way): [] for num in nums_calls for way in WAYS}
    try:
        for repetition in track(range(-1, repeats), "bursts", console=Console(stderr=True), transient=True):
            for num in nums_calls:
                for way in WAYS if repetition % 2 else reversed(WAYS):
                    begin_s = time.perf_counter()
                    await asyncio.gather(*(_read(stubs[way], num_messages) for _ in range(num)))
                    if repetition >= 0:  # the first of all opens connections
                        found[num, way].append((time.perf_counter() - begin_s) * 1e6 / (num * num_messages))
    finally:
        await trunks.close()
        await channel.close(None)
    return found


async def _read(stub: Any, num_messages: int) -> None:
    call = stub.Decode()
    await call.write(pb.DecodeRequest(start=pb.DecodeStart(max_tokens=num_messages)))
    begins = [response.committed.begin async for response in call]
    assert begins == list(range(num_messages)), "every message, in order"


def main() -> None:
    """Serve in a process of its own, and ask from this one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="+", default=[1, 4, 16, 64], metavar="N", help="calls at a time")
    parser.add_argument("--messages", type=int, default=100, metavar="N", help="of each call (default 100)")
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="bursts of each number of calls, each way (default 9)")
    parser.add_argument("--serve", action="store_true", help="be the process that is asked")
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve())
        return
    command = [sys.executable, "-m", __spec__.name, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=thread_environment(1)) as service:
        assert service.stdout is not None
        found = asyncio.run(measure(service.stdout.readline().strip(), args.calls, args.messages, args.repeats))
        service.communicate()
    table = Table("calls at a time", *(f"{way}, us a message" for way in WAYS), "ratio")
    for num in args.calls:
        each, carried = (statistics.median(found[num, way]) for way in WAYS)
        table.add_row(str(num), f"{each:.0f}", f"{carried:.0f}", f"{each / carried:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
