"""Every verifier of the fleet as columns, one row a verifier, kept up to date by heartbeats rather than built for each placement.

Knows what a heartbeat says of a verifier and what was placed since. Must not know wishes, nor who is in lease.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from outrider.coordinator.interned import NOBODY, Interned
from outrider.coordinator.replica_rows import ReplicaRows
from outrider.coordinator.step_times import GRID_ROWS, sampled
from outrider.types.fleet import PairMeasurement, Replica

MAX_KEPT_PAIRS = 16  # of a verifier; those that promise most
UNKNOWN_ROUND_TRIP_US = 2_000.0
PRIOR_ACCEPTANCE = 0.6  # of a pair that has not drafted yet: an ordinary text and a drafter that suits it
PREFILL_ROWS = 256  # of a step that reads a prompt: what a prompt token costs is a share of such a step
# A verifier that is slower than its cost curve says (its machine is shared) is found out by what came of placements: a sixteenth of each.
# Beyond twice or half it is its clients that differ. Within a quarter it is the load that came and went meanwhile: `outrider bench fleet
# --quick --sessions 6000`, where every verifier is as quick as it says, lost 0.5 to 1.5 % of its tokens to believing less.
PACE_RATE, USUAL_PACE_RATE, MAX_PACE, LEAST_PACE_ERROR = 1 / 16, 1 / 64, 2.0, 0.25
_LEAST_ACCEPTANCE = 0.01
_LEAST_RATIO = 1e-6  # what a gateway says may be any number
SESSIONS, BLOCKS, QUEUE_US = range(3)  # rows of load.load
_PREFILL_AT = int(np.searchsorted(GRID_ROWS, PREFILL_ROWS))


class VerifierTable(ReplicaRows):
    """steps_us: [rows, GRID_ROWS], of one session; sequence_us: what each further one adds. read_us: a prompt token. observed_pace: what a
    token took of late, of what was expected, beside other verifiers. pace: the same where it is far enough from 1 to be believed, else 1.

    pair_rows: of drafters it has measured, NOBODY where none; pair_trip_us, pair_acceptance and pair_late (the share of rounds that went on
    without its guesses) belong to these. nearest_us, likeliest: bounds over all drafters, measured or not.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, (True, True, False))
        self.fingerprint = np.full(capacity, NOBODY, np.int64)
        self.max_context, self.num_blocks, self.block_len = (np.zeros(capacity) for _ in range(3))
        self.steps_us = np.zeros((capacity, len(GRID_ROWS)))
        self.read_us, self.sequence_us, self.nearest_us, self.likeliest = (np.zeros(capacity) for _ in range(4))
        self.observed_pace, self.pace = np.ones(capacity), np.ones(capacity)
        self.pair_rows = np.full((capacity, MAX_KEPT_PAIRS), NOBODY, np.int64)
        self.pair_trip_us, self.pair_acceptance, self.pair_late = (np.zeros((capacity, MAX_KEPT_PAIRS)) for _ in range(3))
        self.fingerprints = Interned()
        self._usual_pace = 1.0

    def join(self, endpoint: str) -> int:
        """A row for a verifier that was not here."""
        row = super().join(endpoint)
        self.observed_pace[row] = self.pace[row] = 1.0
        return row

    def leave(self, row: int) -> None:
        """It is gone."""
        super().leave(row)
        self.fingerprints.release(int(self.fingerprint[row]))
        self.fingerprint[row] = NOBODY
        self.pair_rows[row] = NOBODY

    def update(self, row: int, replica: Replica, group: int, drafter_row: Callable[[str], int]) -> None:
        """A heartbeat. drafter_row: of an endpoint, NOBODY when it is in no row."""
        held = int(self.fingerprint[row])
        self.fingerprint[row] = self.fingerprints.hold(replica.identity.fingerprint)
        if held != NOBODY:
            self.fingerprints.release(held)
        self.group[row] = group
        self.max_context[row] = replica.identity.max_context or np.inf
        self.max_sessions[row] = replica.max_sessions
        pages = replica.block_len and replica.kv_blocks_total
        self.num_blocks[row], self.block_len[row] = (replica.kv_blocks_total, replica.block_len) if pages else (np.inf, 1.0)
        self.steps_us[row], self.sequence_us[row] = sampled(replica.cost), replica.sequence_us
        self.read_us[row] = self.steps_us[row, _PREFILL_AT] / PREFILL_ROWS
        self.load.report(row, (replica.num_sessions, replica.kv_blocks_used, replica.queue_us))
        self._update_pairs(row, replica.pairs, drafter_row)

    def observe_pace(self, row: int, ratio: float) -> None:
        """A placement there took so many times of what was expected. What the whole fleet takes longer is no verifier's fault."""
        most = math.log(MAX_PACE)
        slower = min(most, max(-most, math.log(max(_LEAST_RATIO, ratio) / self._usual_pace)))
        self._usual_pace *= math.exp(USUAL_PACE_RATE * slower)
        self.observed_pace[row] *= math.exp(PACE_RATE * (slower - math.log(self.observed_pace[row])))
        self.pace[row] = self.observed_pace[row] if abs(self.observed_pace[row] - 1.0) > LEAST_PACE_ERROR else 1.0

    def forget_drafter(self, drafter_row: int) -> None:
        """Another drafter may get its row: no measurement of it may stay."""
        self.pair_rows[: self.num_rows][self.pair_rows[: self.num_rows] == drafter_row] = NOBODY

    def _update_pairs(self, row: int, pairs: Mapping[str, PairMeasurement], drafter_row: Callable[[str], int]) -> None:
        known = [(_promise_us(pair), endpoint, pair) for endpoint, pair in pairs.items() if drafter_row(endpoint) != NOBODY]
        kept = sorted(known, key=lambda one: one[:2])[:MAX_KEPT_PAIRS]
        self.pair_rows[row] = NOBODY
        if not kept:
            self.nearest_us[row], self.likeliest[row] = UNKNOWN_ROUND_TRIP_US, PRIOR_ACCEPTANCE
            return
        trips_us = [_round_trip_us(pair) for _, _, pair in kept]
        acceptances = [_acceptance(pair) for _, _, pair in kept]
        self.pair_rows[row, : len(kept)] = [drafter_row(endpoint) for _, endpoint, _ in kept]
        self.pair_trip_us[row, : len(kept)] = trips_us
        self.pair_acceptance[row, : len(kept)] = acceptances
        self.pair_late[row, : len(kept)] = [pair.late_share for _, _, pair in kept]
        self.nearest_us[row] = min(UNKNOWN_ROUND_TRIP_US, *trips_us)
        self.likeliest[row] = max(PRIOR_ACCEPTANCE, *acceptances)


def _round_trip_us(pair: PairMeasurement) -> float:
    return float(pair.round_trip_us or UNKNOWN_ROUND_TRIP_US)


def _acceptance(pair: PairMeasurement) -> float:
    return PRIOR_ACCEPTANCE if pair.acceptance_rate is None else pair.acceptance_rate


def _promise_us(pair: PairMeasurement) -> float:
    """The smaller, the more it promises: far ones and those that are rarely right promise little."""
    return _round_trip_us(pair) / max(_LEAST_ACCEPTANCE, _acceptance(pair))
