"""Which fault comes when: a pure function of a seed. Must not know processes or links."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

LEAST_GAP_S, MOST_GAP_S = 0.6, 1.4  # between two faults


class Kind(StrEnum):
    """What is done. A stopped process is a zombie: it is continued after a while, long after others took over."""

    KILL_VERIFIER = "kill verifier"
    STOP_VERIFIER = "stop verifier"
    CUT_VERIFIER = "cut gateway from verifier"
    KILL_DRAFTER = "kill drafter"
    STOP_DRAFTER = "stop drafter"
    CUT_DRAFTER = "cut verifier from drafter"
    SLOW_DRAFTER = "slow link to drafter"


# Of a hundred faults.
SHARES = {
    Kind.KILL_VERIFIER: 32,
    Kind.STOP_VERIFIER: 8,
    Kind.CUT_VERIFIER: 8,
    Kind.KILL_DRAFTER: 24,
    Kind.STOP_DRAFTER: 8,
    Kind.CUT_DRAFTER: 10,
    Kind.SLOW_DRAFTER: 10,
}
OF_VERIFIERS = frozenset({Kind.KILL_VERIFIER, Kind.STOP_VERIFIER, Kind.CUT_VERIFIER})
LASTS_S = (2.0, 4.0)  # how long a stop, a cut or slowness lasts


@dataclass(frozen=True, slots=True)
class Fault:
    """gap_s: after the fault before. target: a number that picks among those it can befall. lasts_s: 0 for a kill."""

    kind: Kind
    gap_s: float
    target: int
    lasts_s: float


def make_schedule(num_faults: int, seed: int) -> list[Fault]:
    """num_faults in random order, in SHARES' proportions (each kind rounded up, so that none is missing)."""
    luck = Random(seed)
    total = sum(SHARES.values())
    kinds = [kind for kind, share in SHARES.items() for _ in range(-(-num_faults * share // total))]
    luck.shuffle(kinds)
    return [
        Fault(
            kind,
            luck.uniform(LEAST_GAP_S, MOST_GAP_S),
            luck.randrange(1 << 16),
            0.0 if kind in (Kind.KILL_VERIFIER, Kind.KILL_DRAFTER) else luck.uniform(*LASTS_S),
        )
        for kind in kinds[:num_faults]
    ]
