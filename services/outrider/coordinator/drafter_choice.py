"""The drafters that a few verifiers could have, and what a token takes with each of them.

A verifier is looked at with every drafter it has measured, with those that have read some of the prefix before, and with the
MAX_UNMEASURED quickest of the others: these differ in nothing but the time of a token and of reading, and who drafts quickest mostly reads
quickest. Until a drafter has read the prefix there are no guesses: it reads while the verifier waits and reads, and what it reads longer
is decoded plainly. So a warm drafter is worth most where the verifier is warm too, and nothing where a cold one is ready before a cold
verifier. Must not know which verifiers are worth looking at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from outrider.coordinator.fleet_table import FleetTable
from outrider.coordinator.interned import NOBODY
from outrider.coordinator.round_times import drafted_us
from outrider.coordinator.step_times import FloatColumns, IntColumns, Mask
from outrider.coordinator.verifier_table import PRIOR_ACCEPTANCE, UNKNOWN_ROUND_TRIP_US
from outrider.types.fleet import PlacementWish, Role

MAX_UNMEASURED = 8
MIN_IN_TIME = 0.05  # of its rounds; a drafter that is later still is of no use anyway
TRIAL_ROUND_TRIP_US = 200.0  # of a pair that is tried: in one zone; what is not worth it at this is worth it nowhere


NOT_WARM: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Openings:
    """Of verifiers, [S]: what passes until they decode, microseconds; what a token takes them without guesses, by what they say and so many
    times that by what came of it (VerifierTable.pace). num_tokens: of an answer, over which whatever delays its beginning is spread."""

    opening_us: FloatColumns
    plain_us: FloatColumns
    pace: FloatColumns
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """Drafters of verifiers, [S, C]: rows of the table, and microseconds a token with them; where none, NOBODY and infinite."""

    rows: IntColumns
    token_us: FloatColumns


class UsableDrafters:
    """Those with room for a wish: the time of a token when they have it too, and of reading what of its prefix is not warm (the share that
    is, by row)."""

    def __init__(self, table: FleetTable, wish: PlacementWish, warm: Mapping[int, float]) -> None:
        drafters, size = table.drafters, table.drafters.num_rows
        self._table = drafters
        room = drafters.max_sessions[:size] - drafters.num_sessions
        self.mask: Mask = drafters.takes[:size] & (room >= wish.num_samples)
        self.mask[table.rows_of(Role.DRAFTER, wish.exclude)] = False
        self.token_us = drafters.crowded_us(wish.num_samples)
        self.reading_us = wish.prefix_len * drafters.read_us[:size]
        for row, share in warm.items():
            self.reading_us[row] *= 1.0 - share
        self.order = drafters.order

    def quickest_of(self, group: int) -> IntColumns:
        """At most MAX_UNMEASURED rows of a group, quickest first."""
        rows = np.flatnonzero(self.mask & (self._table.group[: len(self.mask)] == group))
        if len(rows) > MAX_UNMEASURED:
            times = self.token_us[rows]
            rows = rows[times <= np.partition(times, MAX_UNMEASURED - 1)[MAX_UNMEASURED - 1]]
        return rows[np.lexsort((self._table.order[rows], self.token_us[rows]))][:MAX_UNMEASURED]


class DrafterChoice:
    """Drafters for verifiers of one table and one wish. warm: the share of the prefix that is warm, by row of the drafter."""

    def __init__(self, table: FleetTable, wish: PlacementWish, warm: Mapping[int, float] = NOT_WARM) -> None:
        self._verifiers = table.verifiers
        self._usable = UsableDrafters(table, wish, warm)
        self._warm = np.array([row for row in warm if self._usable.mask[row]], np.int64)
        self._group = table.drafters.group
        self._quickest: dict[int, IntColumns] = {}

    def least_token_us(self, verifier_rows: IntColumns) -> FloatColumns:
        """[S] a drafted token of the quickest drafter that each could have; infinite where there is none."""
        found = np.full(len(verifier_rows), np.inf)
        groups = self._verifiers.group[verifier_rows]
        for group in np.unique(groups):
            quickest = self._quickest_of(int(group))
            if len(quickest):
                found[groups == group] = self._usable.token_us[quickest[0]]
        return found

    def candidates(self, verifier_rows: IntColumns, steps_us: FloatColumns, num_sessions: IntColumns, openings: Openings) -> Candidates:
        """Of verifiers [S], whose steps_us and num_sessions are those of round_times."""
        measured = self._usable_pairs(verifier_rows)
        unmeasured = self._unmeasured(verifier_rows, self._verifiers.pair_rows[verifier_rows])
        rows = np.concatenate((measured, unmeasured), axis=1)
        trip_us = np.full(rows.shape, UNKNOWN_ROUND_TRIP_US)
        acceptance = np.full(rows.shape, PRIOR_ACCEPTANCE)
        trip_us[:, : measured.shape[1]] = self._verifiers.pair_trip_us[verifier_rows]
        acceptance[:, : measured.shape[1]] = self._verifiers.pair_acceptance[verifier_rows]
        if not len(self._usable.token_us):
            return Candidates(rows, np.full(rows.shape, np.inf))
        draft_us = self._usable.token_us[np.maximum(rows, 0)]
        draft_us[:, : measured.shape[1]] /= np.maximum(MIN_IN_TIME, 1.0 - self._verifiers.pair_late[verifier_rows])
        token_us = self._with_reading(rows, drafted_us(steps_us, num_sessions, draft_us, trip_us, acceptance), openings)
        token_us[rows == NOBODY] = np.inf
        return Candidates(rows, token_us)

    def _with_reading(self, rows: IntColumns, token_us: FloatColumns, openings: Openings) -> FloatColumns:
        """[S, C] microseconds a token, where those that come before the drafter has read the prefix are decoded plainly."""
        plain_us = openings.plain_us[:, None]
        unread_us = self._usable.reading_us[np.maximum(rows, 0)] - openings.opening_us[:, None]
        answer_us = openings.num_tokens * openings.pace[:, None] * plain_us
        plain_share = np.minimum(1.0, np.maximum(0.0, unread_us) / answer_us)
        return np.asarray(token_us + plain_share * np.maximum(0.0, plain_us - token_us), np.float64)

    def trial(self, verifier_row: int, steps_us: FloatColumns, num_sessions: int, below_us: float, luck: int) -> int:
        """A drafter that this verifier has not measured, and that might do better than below_us; NOBODY when there is none. luck: which."""
        usable = self._usable.mask & (self._group[: len(self._usable.mask)] == self._verifiers.group[verifier_row])
        met = self._verifiers.pair_rows[verifier_row]
        usable[met[met != NOBODY]] = False
        rows = np.flatnonzero(usable)
        if not len(rows):
            return NOBODY
        shape = (1, len(rows))
        pairs = self._usable.token_us[rows][None], np.full(shape, TRIAL_ROUND_TRIP_US), np.full(shape, PRIOR_ACCEPTANCE)
        rows = rows[drafted_us(steps_us[None], np.array([num_sessions]), *pairs)[0] < below_us]
        in_order = rows[np.argsort(self._usable.order[rows])]
        return int(in_order[luck % len(rows)]) if len(rows) else NOBODY

    def _quickest_of(self, group: int) -> IntColumns:
        if group not in self._quickest:
            self._quickest[group] = self._usable.quickest_of(group)
        return self._quickest[group]

    def _usable_pairs(self, verifier_rows: IntColumns) -> IntColumns:
        """[S, MAX_KEPT_PAIRS] rows of measured drafters; NOBODY for those that cannot be had."""
        rows = self._verifiers.pair_rows[verifier_rows]
        if not len(self._usable.mask):
            return np.full_like(rows, NOBODY)
        at = np.maximum(rows, 0)
        usable = (rows != NOBODY) & self._usable.mask[at] & (self._group[at] == self._verifiers.group[verifier_rows][:, None])
        return np.where(usable, rows, NOBODY)

    def _unmeasured(self, verifier_rows: IntColumns, pair_rows: IntColumns) -> IntColumns:
        """[S, MAX_UNMEASURED + warm ones] rows of the quickest drafters and the warm ones, NOBODY for those the verifier has measured."""
        found = np.full((len(verifier_rows), MAX_UNMEASURED + len(self._warm)), NOBODY, np.int64)
        groups = self._verifiers.group[verifier_rows]
        for group in np.unique(groups):
            quickest = self._quickest_of(int(group))
            of_group = groups == group
            found[of_group, : len(quickest)] = quickest
            if len(self._warm):
                warm = self._warm[(self._group[self._warm] == group) & ~np.isin(self._warm, quickest)]
                found[of_group, len(quickest) : len(quickest) + len(warm)] = warm
        met = (found[:, :, None] == pair_rows[:, None, :]).any(axis=2)
        return np.where(met, NOBODY, found)
