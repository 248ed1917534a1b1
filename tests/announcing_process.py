"""A replica that does nothing but announce itself, as a process of its own: `announcing_process.py --coordinator ADDR --replica-id NAME
[--listen ADDR]`, and whatever else a service is told, which it passes over. Its name says its role.

Prints a ready line and ends as a service does: 0 after SIGTERM, 3 when superseded.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time

from fakes_coordinator import fake_replica
from outrider.rpc.announcer import SUPERSEDED_EXIT_CODE, Announcer, drain_this_process, end_this_process
from outrider.rpc.membership import Membership, add_membership_options, membership_from
from outrider.rpc.server import RpcServer, run_service, run_until_signal
from outrider.types.fleet import Replica, Role


async def serve(membership: Membership, listen: str, ended: list[int]) -> None:
    """Until a signal, or until superseded."""
    incarnation = time.time_ns()
    role = Role.DRAFTER if membership.replica_id.startswith("drafter") else Role.VERIFIER
    server = RpcServer([listen])
    await server.start()
    endpoint = membership.endpoint(server.address)

    def snapshot() -> Replica:
        return dataclasses.replace(fake_replica(membership.replica_id, endpoint, role, incarnation), draining=server.draining)

    def on_superseded() -> None:
        ended.append(SUPERSEDED_EXIT_CODE)
        end_this_process()

    announcer = Announcer(membership.coordinators, snapshot, drain_this_process, on_superseded)
    announcer.start()
    try:
        await run_until_signal(server, membership.replica_id)
    finally:
        await announcer.stop()


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser()
    add_membership_options(parser)
    parser.add_argument("--listen", default="127.0.0.1:0")
    options, _ = parser.parse_known_args()
    ended: list[int] = []
    run_service(serve(membership_from(options), options.listen, ended))
    return max(ended, default=0)


if __name__ == "__main__":
    sys.exit(main())
