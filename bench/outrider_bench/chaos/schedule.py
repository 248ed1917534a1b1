"""Which fault comes when: a pure function of a seed. Must not know processes or links."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

LEAST_GAP_S, MOST_GAP_S = 0.6, 1.4  # between two faults


class Kind(StrEnum):
    """What is done. A stopped process is a zombie: it is continued after a while, long after others took over. A drained one is told to end
    by SIGTERM, as in a rolling upgrade, and replaced after a while. A replaced one is stopped, too, but another takes its name at once, as
    when a supervisor gave it up: when it is continued it must find that out and end. Whatever runs on a machine that is unplugged is out of
    reach. A killed gateway is started anew after a while; its clients ask another one for the rest."""

    KILL_GATEWAY = "kill gateway"
    UNPLUG_MACHINE = "unplug machine"
    KILL_VERIFIER = "kill verifier"
    STOP_VERIFIER = "stop verifier"
    REPLACE_VERIFIER = "replace stopped verifier"
    CUT_VERIFIER = "cut gateway from verifier"
    DRAIN_VERIFIER = "drain verifier"
    KILL_DRAFTER = "kill drafter"
    STOP_DRAFTER = "stop drafter"
    CUT_DRAFTER = "cut verifier from drafter"
    SLOW_DRAFTER = "slow link to drafter"
    DRAIN_DRAFTER = "drain drafter"
    KILL_COORDINATOR = "kill coordinator"
    CUT_COORDINATOR = "cut gateway from coordinator"
    KILL_REDIS = "kill Redis"
    STOP_REDIS = "stop Redis"


# Of a hundred faults.
SHARES = {
    Kind.KILL_GATEWAY: 4,
    Kind.UNPLUG_MACHINE: 5,
    Kind.KILL_VERIFIER: 30,
    Kind.STOP_VERIFIER: 5,
    Kind.REPLACE_VERIFIER: 4,
    Kind.CUT_VERIFIER: 5,
    Kind.DRAIN_VERIFIER: 7,
    Kind.KILL_DRAFTER: 9,
    Kind.STOP_DRAFTER: 5,
    Kind.CUT_DRAFTER: 4,
    Kind.SLOW_DRAFTER: 5,
    Kind.DRAIN_DRAFTER: 4,
    Kind.KILL_COORDINATOR: 5,
    Kind.CUT_COORDINATOR: 4,
    Kind.KILL_REDIS: 2,
    Kind.STOP_REDIS: 2,
}
OF_VERIFIERS = frozenset({Kind.KILL_VERIFIER, Kind.STOP_VERIFIER, Kind.REPLACE_VERIFIER, Kind.CUT_VERIFIER, Kind.DRAIN_VERIFIER})
GRAVE = OF_VERIFIERS | {Kind.UNPLUG_MACHINE, Kind.KILL_GATEWAY}  # answers stand still until somebody else goes on with them
MOMENTARY = frozenset({Kind.KILL_VERIFIER, Kind.KILL_DRAFTER})  # another takes its place at once
LASTS_S = (
    2.0,
    4.0,
)  # how long a stop, a cut or slowness lasts, and until a drained replica, a killed gateway, coordinator or Redis is replaced


@dataclass(frozen=True, slots=True)
class Fault:
    """gap_s: after the fault before. target: a number that picks among those it can befall. lasts_s: 0 for what is momentary."""

    kind: Kind
    gap_s: float
    target: int
    lasts_s: float


LONE_KINDS = (Kind.KILL_DRAFTER, Kind.STOP_DRAFTER)
LONE_GAP_S = 1.5  # until after a loss the next request has drafters again


def make_lone_schedule(num_faults: int, seed: int) -> list[Fault]:
    """num_faults of LONE_KINDS in turns, each over before the next one."""
    luck = Random(seed)
    kinds = [LONE_KINDS[number % len(LONE_KINDS)] for number in range(num_faults)]
    lasts_s = [0.0 if kind in MOMENTARY else luck.uniform(*LASTS_S) for kind in kinds]
    return [
        Fault(kind, LONE_GAP_S + before_s, luck.randrange(1 << 16), last_s)
        for kind, before_s, last_s in zip(kinds, [0.0, *lasts_s], lasts_s, strict=False)
    ]


def make_schedule(num_faults: int, seed: int) -> list[Fault]:
    """num_faults in random order, in SHARES' proportions; of few, one of each kind first."""
    luck = Random(seed)
    total = sum(SHARES.values())
    further = [kind for kind, share in SHARES.items() for _ in range(-(-num_faults * share // total) - 1)]
    luck.shuffle(further)
    kinds = [*SHARES, *further][:num_faults]
    luck.shuffle(kinds)
    return [
        Fault(
            kind,
            luck.uniform(LEAST_GAP_S, MOST_GAP_S),
            luck.randrange(1 << 16),
            0.0 if kind in MOMENTARY else luck.uniform(*LASTS_S),
        )
        for kind in kinds
    ]
