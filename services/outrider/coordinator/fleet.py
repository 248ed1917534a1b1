"""The fleet's state: who is in lease, what was placed, where prefixes are warm. Sans I/O; the caller brings the time.

Everything in it comes back with the next heartbeats, except placements and affinity, which only make it better: a coordinator that
starts anew knows enough after one heartbeat of everybody. Must not know transport, clocks, processes, or how a placement is chosen.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from outrider.coordinator.drafter_choice import NOT_WARM
from outrider.coordinator.fleet_table import FleetTable, Seat
from outrider.coordinator.leases import Leases
from outrider.coordinator.live_placements import LivePlacement, LivePlacements
from outrider.coordinator.placement import amounts_of, place, room_for
from outrider.coordinator.prefix_affinity import PrefixAffinity
from outrider.coordinator.tenant_shares import TenantShares
from outrider.errors import Overloaded, Superseded, UnknownSession
from outrider.types.fleet import Placement, PlacementWish, Replica, Role

MIN_JUDGED_TOKENS = 16  # of a sample: fewer say more of one round than of a verifier


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """Bounds. announce_every_s: between heartbeats of a replica, while they are no more than max_heartbeats_per_s in all; a larger fleet is
    asked for them less often. lease_s: silence after which a replica is taken out, longer by as much as it was asked less often.
    placement_lease_s: after which a
    placement that was never finished is forgotten. affinity_s: for which a prefix is believed to be warm. max_replicas: in lease.
    max_affinity_entries: of each role.
    max_incarnations: replicas that are gone and of which is still known which incarnation was the newest, and whether it was to drain;
    gone_memory_s: for how long. Incarnations are start times, so one whose machine's clock went back is taken again after that."""

    announce_every_s: float = 0.5
    # Each takes a third of a millisecond of the one core that placements wait for: a thousand took a third of it. A fleet of 3,000 places
    # 0.7 % worse by half as many (docs/architecture.md section 2a).
    max_heartbeats_per_s: float = 500.0
    lease_s: float = 2.0
    placement_lease_s: float = 3600.0
    affinity_s: float = 600.0
    max_replicas: int = 16_384
    max_incarnations: int = 65_536
    gone_memory_s: float = 3600.0
    max_placements: int = 262_144
    max_affinity_entries: int = 262_144


@dataclass(slots=True)
class _Member:
    """A replica in lease. number: of its stay, never used again. ordered_to_drain: by an operator; its own wish is in the replica."""

    replica: Replica
    seat: Seat
    number: int
    ordered_to_drain: bool = False


@dataclass(frozen=True, slots=True)
class _Gone:
    """What is still known of a replica that left. incarnation: its newest."""

    incarnation: int
    ordered_to_drain: bool
    left_s: float


class Fleet:
    """One coordinator's view. epoch: the later one started has the larger. Times in seconds, on one clock that never goes back."""

    def __init__(self, epoch: int, limits: FleetLimits | None = None) -> None:
        self.epoch = epoch
        self.limits = limits or FleetLimits()
        self._table = FleetTable(self.limits.max_replicas)
        self._members: dict[str, _Member] = {}  # by replica_id
        self._at_endpoint: dict[tuple[Role, str], str] = {}
        self._gone: OrderedDict[str, _Gone] = OrderedDict()  # who left last is last
        self._numbers = 0
        self._leases = Leases()
        self._by_number: dict[int, _Member] = {}
        self._placements = LivePlacements(self.limits.max_placements, self.limits.placement_lease_s)
        self._tenants = TenantShares()
        self._affinity, self._drafter_affinity = (
            PrefixAffinity(self.limits.max_affinity_entries, self.limits.affinity_s) for _ in range(2)
        )

    @property
    def announce_every_s(self) -> float:
        """Between heartbeats of a replica that is told so now."""
        return max(self.limits.announce_every_s, len(self._members) / self.limits.max_heartbeats_per_s)

    def announce(self, replica: Replica, now_s: float) -> bool:
        """A heartbeat. True: it is asked to drain.

        Raises Superseded for an older incarnation of the same replica or of another one at the same endpoint, and Overloaded when there
        are max_replicas.
        """
        self._forget_silent(now_s)
        self._check_incarnation(replica, now_s)
        member = self._members.get(replica.replica_id)
        if member is not None and not _same_process(member.replica, replica):
            self._leave(member, now_s)
            member = None
        if member is None:
            member = self._join(replica)
        else:
            member.replica = replica
            self._table.update(member.seat, replica)
        self._leases.renew(member.number, now_s + self.limits.lease_s * self.announce_every_s / self.limits.announce_every_s)
        if member.ordered_to_drain:
            self._table.refuse(member.seat)
        return member.ordered_to_drain

    def place(self, wish: PlacementWish, now_s: float) -> tuple[int, Placement]:
        """A placement and its id, counted as load at once. Raises Unavailable or Overloaded (the tenant's share is in tenant_shares.py)."""
        self._forget_silent(now_s)
        self._placements.check_room()
        self._tenants.check(wish.tenant, room_for(self._table, wish).used_share)
        warm = self._warm_rows(self._affinity, wish, now_s)
        warm_drafters = self._warm_rows(self._drafter_affinity, wish, now_s) if wish.wants_drafts else NOT_WARM
        placement = place(self._table, wish, warm, warm_drafters)
        return self._count(wish, placement, warm, now_s), placement

    def finish(self, placement_id: int, num_tokens: int, token_us: float, failure: str, now_s: float) -> None:
        """It has ended. An id that is unknown is no error. failure: of its verifier, which takes no requests until its next heartbeat.

        num_tokens, token_us: what came of it, which corrects what is expected of that verifier, where there is enough to judge by.
        """
        self._forget_silent(now_s)
        placement = self._placements.pop(placement_id)
        if placement is None:
            return
        loads = self._table.verifiers.load
        if loads.holds(placement.verifier):
            if failure:
                self._table.verifiers.takes[placement.verifier.row] = False
            elif num_tokens >= MIN_JUDGED_TOKENS * placement.num_samples and token_us and placement.decode_us:
                self._table.verifiers.observe_pace(placement.verifier.row, token_us / placement.decode_us)
        self._release(placement)

    def give_up(self, request_id: str, now_s: float) -> None:
        """Whoever asked for this request's place has not waited for the answer. One that is unknown is no error."""
        self.finish(self._placements.id_of(request_id), 0, 0.0, "", now_s)

    def drain(self, replica_id: str) -> None:
        """Take it out of placement, and tell it with its next heartbeat. Raises UnknownSession. Its next incarnation is not meant."""
        member = self._members.get(replica_id)
        if member is None:
            raise UnknownSession(f"no replica {replica_id!r} is in the fleet")
        member.ordered_to_drain = True
        self._table.refuse(member.seat)

    def replicas(self, now_s: float) -> list[Replica]:
        """In lease, by replica_id; those that an operator drains are marked as draining."""
        self._forget_silent(now_s)
        members = sorted(self._members.values(), key=lambda member: member.replica.replica_id)
        return [replace(one.replica, draining=True) if one.ordered_to_drain else one.replica for one in members]

    def _check_incarnation(self, replica: Replica, now_s: float) -> None:
        known = self._members.get(replica.replica_id)
        newest = known.replica if known else self._gone.get(replica.replica_id, replica)
        if replica.incarnation < newest.incarnation:
            raise Superseded(
                f"replica {replica.replica_id!r} has announced itself as incarnation {newest.incarnation}: {replica.incarnation} must end"
            )
        holder = self._members.get(self._at_endpoint.get((replica.role, replica.endpoint), replica.replica_id))
        if holder is None or holder.replica.replica_id == replica.replica_id:
            return
        if replica.incarnation <= holder.replica.incarnation:
            raise Superseded(f"{replica.endpoint} belongs to replica {holder.replica.replica_id!r}, which was started later")
        self._leave(holder, now_s)  # one address has one process: the older one is gone and cannot say so

    def _join(self, replica: Replica) -> _Member:
        if len(self._members) >= self.limits.max_replicas:
            raise Overloaded(f"the fleet has {len(self._members)} replicas, the most that it may have")
        self._numbers += 1
        gone = self._gone.pop(replica.replica_id, None)
        was_ordered = gone is not None and gone.ordered_to_drain and gone.incarnation == replica.incarnation  # silent for a while, no more
        member = _Member(replica, self._table.join(replica), self._numbers, was_ordered)
        self._members[replica.replica_id] = self._by_number[member.number] = member
        self._at_endpoint[replica.role, replica.endpoint] = replica.replica_id
        return member

    def _leave(self, member: _Member, now_s: float) -> None:
        replica = member.replica
        self._table.leave(member.seat)
        self._leases.end(member.number)
        del self._members[replica.replica_id], self._by_number[member.number]
        del self._at_endpoint[replica.role, replica.endpoint]
        self._gone[replica.replica_id] = _Gone(replica.incarnation, member.ordered_to_drain, now_s)
        self._gone.move_to_end(replica.replica_id)
        if len(self._gone) > self.limits.max_incarnations:
            self._gone.popitem(last=False)

    def _forget_silent(self, now_s: float) -> None:
        """Whoever and whatever is past its lease."""
        for number in self._leases.expired(now_s):
            self._leave(self._by_number[number], now_s)
        while self._gone and now_s - next(iter(self._gone.values())).left_s > self.limits.gone_memory_s:
            self._gone.popitem(last=False)
        for placement in self._placements.expired(now_s):
            self._release(placement)

    def _warm_rows(self, affinity: PrefixAffinity, wish: PlacementWish, now_s: float) -> dict[int, float]:
        warm = affinity.warm(wish.prefix_digests, wish.digest_shares, now_s)
        return {self._by_number[number].seat.row: share for number, share in warm.items() if number in self._by_number}

    def _count(self, wish: PlacementWish, placement: Placement, warm: dict[int, float], now_s: float) -> int:
        """Its load, so that the next wish is placed beside it."""
        verifiers, drafters = self._table.verifiers, self._table.drafters
        member = self._members[self._at_endpoint[Role.VERIFIER, placement.verifier]]
        row = member.seat.row
        held = verifiers.load.add(row, amounts_of(self._table, wish, warm, row))
        rows = self._table.rows_of(Role.DRAFTER, placement.drafters)
        drafting = tuple(drafters.load.add(drafter_row, (wish.num_samples,)) for drafter_row in rows)
        self._affinity.remember(wish.prefix_digests, member.number, now_s)
        for endpoint in placement.drafters:
            number = self._members[self._at_endpoint[Role.DRAFTER, endpoint]].number
            self._drafter_affinity.remember(wish.prefix_digests, number, now_s)
        self._tenants.add(wish.tenant, wish.num_samples)
        live = LivePlacement(wish.request_id, wish.tenant, wish.num_samples, held, drafting, now_s, placement.decode_us)
        return self._placements.add(live)

    def _release(self, placement: LivePlacement) -> None:
        self._table.verifiers.load.remove(placement.verifier)
        for entry in placement.drafters:
            self._table.drafters.load.remove(entry)
        self._tenants.remove(placement.tenant, placement.num_samples)


def _same_process(known: Replica, heard: Replica) -> bool:
    """Whether a heartbeat can be of the process that has the seat."""
    return (known.incarnation, known.role, known.endpoint, known.identity) == (
        heard.incarnation,
        heard.role,
        heard.endpoint,
        heard.identity,
    )
