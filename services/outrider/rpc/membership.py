"""A service's place in a fleet: which coordinators it announces itself to, under which name and address.

Knows the three command-line options and their rules. Must not import grpc: a wrong command line is refused before anything is loaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.errors import InvalidRequest
from outrider.rpc.address import check_address, is_of_this_machine, reachable_address

MAX_COORDINATORS = 8
MAX_REPLICA_ID_LEN = 128


@dataclass(frozen=True, slots=True)
class Membership:
    """coordinators: addresses; none: the service belongs to no fleet. replica_id: unique in the fleet and the same after a restart.
    advertise: where peers connect; empty: where it listens, and port 0 stands for the port it listens on."""

    coordinators: tuple[str, ...] = ()
    replica_id: str = ""
    advertise: str = ""

    def check(self) -> None:
        """Raise InvalidRequest naming the first argument that is wrong."""
        for address in self.coordinators:
            check_address("--coordinator", address)
        if len(set(self.coordinators)) > MAX_COORDINATORS:
            raise InvalidRequest("--coordinator", f"is given {len(self.coordinators)} times, at most {MAX_COORDINATORS}")
        if self.coordinators and not self.replica_id:
            raise InvalidRequest("--replica-id", "is needed with --coordinator: a name that stays the same after a restart")
        if len(self.replica_id) > MAX_REPLICA_ID_LEN:
            raise InvalidRequest("--replica-id", f"has {len(self.replica_id)} characters, at most {MAX_REPLICA_ID_LEN}")
        if self.advertise:
            check_address("--advertise", self.advertise)
        if not self.coordinators and (self.replica_id or self.advertise):
            raise InvalidRequest("--coordinator", "is missing: --replica-id and --advertise say nothing without one")

    def check_listening(self, addresses: Sequence[str]) -> None:
        """Raise InvalidRequest where no peer could be told to connect to the first of these: before a model is loaded, not after.

        One that only this machine can reach is announced to coordinators of this machine alone: to a fleet of several it would mean
        another process on each, and two replicas of two machines at one address are taken for one, of which the older must end.
        """
        for address in addresses[:1] if self.coordinators else ():
            check_address("--listen", address)
            endpoint = self.endpoint(address)
            if is_of_this_machine(endpoint) and not any(map(is_of_this_machine, self.coordinators)):
                problem = f"{endpoint} is reached from this machine only, and no --coordinator is at such an address"
                raise InvalidRequest("--advertise", f"{problem}; say with --listen or --advertise where peers connect")

    def endpoint(self, bound: str) -> str:
        """Where peers connect to a service that is bound at this address. Raises InvalidRequest when that is every host."""
        return reachable_address("--advertise", self.advertise, bound)


NO_FLEET = Membership()


def add_membership_options(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare --coordinator, --replica-id and --advertise."""
    group.add_argument("--coordinator", action="append", default=[], metavar="ADDR", help="announce this process there; may be repeated")
    group.add_argument("--replica-id", default="", metavar="NAME", help="its name in the fleet, the same after a restart")
    group.add_argument(
        "--advertise", default="", metavar="ADDR", help="where peers connect, with port 0 for the bound one (default: where it listens)"
    )


def membership_from(given: argparse.Namespace) -> Membership:
    """The options' values; raises InvalidRequest naming a wrong one."""
    membership = Membership(tuple(dict.fromkeys(given.coordinator)), given.replica_id, given.advertise)
    membership.check()
    return membership
