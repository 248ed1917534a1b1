"""Where a request goes: a pure function of the fleet as it is known and of the request's wish.

What is made small is the expected time of a token: of a round of the pair divided by the tokens it brings (round_times.py), and the time
until the first one (waiting behind others, reading what of the prefix is not warm) spread over the first SPREAD_TOKENS. Verifiers
are ordered by a bound that no drafter could beat (the nearest and likeliest pair, the quickest drafter), and the MAX_LOOKED_AT best are
looked at with real drafters: so the choice is the best of all unless more than MAX_LOOKED_AT bounds are better than it. They are looked at
all at once: sixteen at a time until no bound was better took twice as long, for in a fleet under load nearly all had to be seen.
Equally quick verifiers are taken by load, then by endpoint. One of TRIAL_EVERY requests, told by its id, also
tries a drafter that its verifier has never met: a pair that UNKNOWN_ROUND_TRIP_US makes look useless would never be measured otherwise.
Must not know leases, tenants or what was placed before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.coordinator.drafter_choice import NOT_WARM, Candidates, DrafterChoice, Openings
from outrider.coordinator.endpoint_order import order_of
from outrider.coordinator.fleet_table import FleetTable
from outrider.coordinator.interned import NOBODY
from outrider.coordinator.round_times import drafted_us, plain_us, rows_of_steps
from outrider.coordinator.step_times import FloatColumns, IntColumns, Mask, step_us
from outrider.coordinator.verifier_table import BLOCKS, QUEUE_US, SESSIONS, VerifierTable
from outrider.errors import Overloaded, Unavailable
from outrider.types.fleet import Placement, PlacementWish, Role
from outrider.types.text_room import first_len

MAX_DRAFTERS = 2
MAX_ALTERNATIVES = 3
# `outrider bench fleet` with 256 verifiers: looking at 32 or at 128 made no difference to any user.
MAX_LOOKED_AT = 64
# The time until the first token is spread over so many at most: fewer than most answers have, because a prompt that is read holds up
# everybody else at that verifier too. `outrider bench fleet --quick`, answers of 180 tokens on average: 64 / 128 / 256 gave 54 / 60 / 116
# ms a token at p99, 104 / 133 / 227 ms to the median first token, 40,400 / 40,000 / 39,000 tokens/s.
SPREAD_TOKENS = 64
# The time that a drafter reads longer than its verifier is spread over more: it holds up nobody, and a request that is given no drafter
# because its first tokens would be over before one has read has none for all the others either.
DRAFTED_TOKENS = 256
PAYS_BELOW = 0.97  # of plain decoding's time: a gain smaller than the model's error is none
TRIAL_EVERY = 32  # requests: what they all pay together for a pair that is no good is lost in the noise
SPARE_SHARE = 0.5  # a drafter fuller than this is left to requests that have none
_DIGITS = 3  # of a microsecond; verifiers that differ by less are equally quick


@dataclass(frozen=True, slots=True)
class Room:
    """Verifiers by row. fitting: could ever take the wish. roomy: of these, with room now. used_share: of the fitting ones' sessions or KV
    blocks, whichever is fuller."""

    fitting: Mask
    roomy: Mask
    used_share: float


@dataclass(frozen=True, slots=True)
class _Looked:
    """Verifiers looked at: their rows, expected microseconds a token, and drafters (None: not wanted). decode_us: as of Placement."""

    rows: IntColumns
    token_us: FloatColumns
    candidates: Candidates | None
    plain_us: FloatColumns
    decode_us: FloatColumns


def room_for(table: FleetTable, wish: PlacementWish) -> Room:
    """Who could take the wish."""
    verifiers, size = table.verifiers, table.verifiers.num_rows
    fitting = _fitting(table, wish)
    sessions, blocks = verifiers.load.load[SESSIONS, :size], verifiers.load.load[BLOCKS, :size]
    max_sessions, num_blocks = verifiers.max_sessions[:size], verifiers.num_blocks[:size]
    roomy = fitting & (sessions + wish.num_samples <= max_sessions) & (blocks + _first_blocks_of(verifiers, wish) <= num_blocks)
    paged = fitting & np.isfinite(num_blocks)
    shares = [_share(sessions[fitting], max_sessions[fitting]), _share(blocks[paged], num_blocks[paged])]
    return Room(fitting, roomy, max(shares))


def place(
    table: FleetTable, wish: PlacementWish, warm: Mapping[int, float] = NOT_WARM, warm_drafters: Mapping[int, float] = NOT_WARM
) -> Placement:
    """The best verifier and its drafters. warm, warm_drafters: the share of the prefix that is warm, by row of the verifier or drafter.

    Raises Unavailable when nobody fits, Overloaded when all who do are full.
    """
    room = room_for(table, wish)
    if not room.fitting.any():
        raise Unavailable(_nobody(table, wish))
    if not room.roomy.any():
        raise Overloaded(f"all {int(room.fitting.sum())} verifiers that fit are full: no {wish.num_samples} sessions or no KV blocks free")
    return _Search(table, wish, np.flatnonzero(room.roomy), warm, warm_drafters).placement()


def amounts_of(table: FleetTable, wish: PlacementWish, warm: Mapping[int, float], row: int) -> tuple[float, float, float]:
    """What the wish adds to the load of the verifier in this row: sessions, KV blocks, microseconds that the next one waits longer."""
    reading_us = _reading_us(table.verifiers, np.array([row]), wish, warm)
    return float(wish.num_samples), float(_first_blocks_of(table.verifiers, wish)[row]), float(reading_us[0])


class _Search:
    """One placement's search among verifiers with room, [S]."""

    def __init__(
        self,
        table: FleetTable,
        wish: PlacementWish,
        rows: IntColumns,
        warm: Mapping[int, float],
        warm_drafters: Mapping[int, float] = NOT_WARM,
    ) -> None:
        self._table, self._wish = table, wish
        verifiers = table.verifiers
        self._drafters = DrafterChoice(table, wish, warm_drafters) if wish.wants_drafts else None
        num_sessions = np.maximum(1, np.rint(verifiers.load.load[SESSIONS, rows] + wish.num_samples)).astype(np.int64)
        steps_us = step_us(verifiers.steps_us[rows], rows_of_steps(num_sessions))
        steps_us += (verifiers.sequence_us[rows] * (num_sessions - 1))[:, None]
        plain = plain_us(steps_us)
        opening_us = verifiers.load.load[QUEUE_US, rows] + _reading_us(verifiers, rows, wish, warm)
        opening = opening_us / min(wish.max_tokens, SPREAD_TOKENS)
        pace = verifiers.pace[rows]
        bounds = np.round(opening + pace * np.minimum(plain, self._least_us(rows, steps_us, num_sessions)), _DIGITS)
        self._all_rows, self._all_bounds = rows, bounds
        at = self._most_promising(MAX_LOOKED_AT)
        self._rows, self._bounds, self._num_sessions, self._steps_us = rows[at], bounds[at], num_sessions[at], steps_us[at]
        self._plain, self._opening, self._pace = plain[at], opening[at], pace[at]
        self._openings = Openings(opening_us[at], self._plain, self._pace, min(wish.max_tokens, DRAFTED_TOKENS))

    def placement(self) -> Placement:
        """The best of those looked at."""
        looked = self._look()
        chosen = self._best_first(looked.rows, looked.token_us)[0]
        drafters = self._drafters_of(looked, chosen)
        tried = self._tried(looked, chosen)
        if tried != NOBODY and tried not in drafters:
            drafters, decode_us = [*drafters[: MAX_DRAFTERS - 1], tried], 0.0
        else:
            decode_us = float(looked.decode_us[chosen])
        verifiers = self._table.verifiers
        return Placement(
            verifier=verifiers.endpoints[looked.rows[chosen]],
            drafters=tuple(self._table.drafters.endpoints[row] for row in drafters),
            alternatives=self._alternatives(looked, chosen),
            token_us=float(looked.token_us[chosen]),
            reason=self._reason(looked, chosen, len(drafters)),
            drafts_off=not drafters and self._has_candidates(looked, chosen),
            decode_us=decode_us,
        )

    def _most_promising(self, num: int) -> IntColumns:
        """Places of the `num` best bounds, best first. Only those that may be among them are put in order: a third of the time of all."""
        bounds = self._all_bounds
        worst = np.partition(bounds, num - 1)[num - 1] if len(bounds) > num else np.inf
        near = np.flatnonzero(bounds <= worst)
        return near[np.lexsort((*self._ties(self._all_rows[near]), bounds[near]))][:num]

    def _ties(self, rows: IntColumns) -> tuple[npt.NDArray[np.uint64], FloatColumns]:
        """What decides between those that are equally quick, the last first."""
        verifiers = self._table.verifiers
        return verifiers.order[rows], verifiers.load.load[SESSIONS, rows] / verifiers.max_sessions[rows]

    def _least_us(self, rows: IntColumns, steps_us: FloatColumns, num_sessions: IntColumns) -> FloatColumns:
        """[S] microseconds a token that no drafter of the fleet could beat."""
        if self._drafters is None:
            return np.full(len(rows), np.inf)
        verifiers = self._table.verifiers
        draft_us = self._drafters.least_token_us(rows)
        some = np.flatnonzero(np.isfinite(draft_us))
        least = np.full(len(rows), np.inf)
        pair = (draft_us[some, None], verifiers.nearest_us[rows[some], None], verifiers.likeliest[rows[some], None])
        least[some] = drafted_us(steps_us[some], num_sessions[some], *pair)[:, 0]
        return least

    def _look(self) -> _Looked:
        """At those with the best bounds."""
        best, candidates = self._plain, None
        if self._drafters is not None:
            candidates = self._drafters.candidates(self._rows, self._steps_us, self._num_sessions, self._openings)
            drafted = candidates.token_us.min(axis=1)
            best = np.where(drafted < PAYS_BELOW * best, drafted, best)
        token_us = np.round(self._opening + self._pace * best, _DIGITS)
        return _Looked(self._rows, token_us, candidates, self._plain, best)

    def _best_first(self, rows: IntColumns, token_us: FloatColumns) -> list[int]:
        return [int(at) for at in np.lexsort((*self._ties(rows), token_us))]

    def _drafters_of(self, looked: _Looked, chosen: int) -> list[int]:
        """Rows of the drafters that pay, best first: the best one, and spare ones beside it."""
        if looked.candidates is None:
            return []
        rows, token_us = looked.candidates.rows[chosen], looked.candidates.token_us[chosen]
        table = self._table.drafters
        paying = np.flatnonzero(token_us < PAYS_BELOW * looked.plain_us[chosen])
        # Guesses that are there in time are worth the same from any drafter: the one with the most time to spare is taken.
        crowded_us = table.crowded_us(self._wish.num_samples)[rows[paying]]
        best_first = paying[np.lexsort((table.order[rows[paying]], crowded_us, np.round(token_us[paying], _DIGITS)))]
        ordered = [int(rows[one]) for one in best_first]
        spare = [row for row in ordered[1:] if table.num_sessions[row] + self._wish.num_samples <= SPARE_SHARE * table.max_sessions[row]]
        return [*ordered[:1], *spare[: MAX_DRAFTERS - 1]]

    def _tried(self, looked: _Looked, chosen: int) -> int:
        """A drafter to measure; NOBODY for most requests."""
        luck, turn = divmod(order_of(self._wish.request_id), TRIAL_EVERY)
        if self._drafters is None or turn:
            return NOBODY
        below_us = PAYS_BELOW * float(looked.plain_us[chosen])
        num_sessions = int(self._num_sessions[chosen])  # they were looked at in this order
        return self._drafters.trial(int(looked.rows[chosen]), self._steps_us[chosen], num_sessions, below_us, luck)

    def _has_candidates(self, looked: _Looked, chosen: int) -> bool:
        """Whether the chosen verifier could have any drafter."""
        return looked.candidates is not None and bool((looked.candidates.rows[chosen] != NOBODY).any())

    def _alternatives(self, looked: _Looked, chosen: int) -> tuple[str, ...]:
        """Of the same fingerprint, whose picks are the same bits: those looked at, then those with the next best bounds."""
        verifiers = self._table.verifiers
        fingerprint = verifiers.fingerprint[looked.rows[chosen]]
        seen = [int(looked.rows[at]) for at in self._best_first(looked.rows, looked.token_us)]
        alike = [row for row in seen if verifiers.fingerprint[row] == fingerprint and row != looked.rows[chosen]]
        if len(alike) < MAX_ALTERNATIVES:
            alike += [row for row in self._in_order_of(int(fingerprint)) if row not in seen]
        return tuple(verifiers.endpoints[row] for row in alike[:MAX_ALTERNATIVES])

    def _in_order_of(self, fingerprint: int) -> list[int]:
        """Rows of everybody with room and this fingerprint, best bound first."""
        same = self._table.verifiers.fingerprint[self._all_rows] == fingerprint
        rows, bounds = self._all_rows[same], self._all_bounds[same]
        return [int(rows[at]) for at in self._best_first(rows, bounds)]

    def _reason(self, looked: _Looked, chosen: int, num_drafters: int) -> str:
        how = f"with {num_drafters} drafters" if num_drafters else "plainly"
        if not num_drafters and self._drafters is not None:
            how += ": drafting would not pay" if self._has_candidates(looked, chosen) else ": no drafter fits and has room"
        quickest = f"{looked.token_us[chosen]:.0f} us a token {how}"
        return f"{quickest}; best of {len(looked.rows)} looked at, {len(self._all_rows)} with room"


def _fitting(table: FleetTable, wish: PlacementWish) -> Mask:
    verifiers, size = table.verifiers, table.verifiers.num_rows
    fitting = verifiers.takes[:size] & (verifiers.max_sessions[:size] >= wish.num_samples)
    fitting &= verifiers.max_context[:size] >= wish.prefix_len + wish.max_tokens
    fitting &= verifiers.num_blocks[:size] >= np.maximum(_most_blocks_of(verifiers, wish), _first_blocks_of(verifiers, wish))
    if wish.fingerprint:
        fitting &= verifiers.fingerprint[:size] == verifiers.fingerprints.number_of(wish.fingerprint)
    fitting[table.rows_of(Role.VERIFIER, wish.exclude)] = False
    return np.asarray(fitting, np.bool_)


def _reading_us(verifiers: VerifierTable, rows: IntColumns, wish: PlacementWish, warm: Mapping[int, float]) -> FloatColumns:
    """[S] microseconds of reading what of the prefix is not warm."""
    cold = np.ones(len(rows))
    for row, share in warm.items():
        cold[rows == row] = 1.0 - share
    return np.asarray(cold * wish.prefix_len * verifiers.read_us[rows], np.float64)


def _most_blocks_of(verifiers: VerifierTable, wish: PlacementWish) -> FloatColumns:
    """[num_rows] KV blocks that one of its samples needs at each, when it is as long as it may be."""
    return np.asarray(np.ceil((wish.prefix_len + wish.max_tokens) / verifiers.block_len[: verifiers.num_rows]), np.float64)


def _first_blocks_of(verifiers: VerifierTable, wish: PlacementWish) -> FloatColumns:
    """[num_rows] KV blocks that it takes at each, all its samples, until one of them grows beyond its first room."""
    held_len = first_len(wish.prefix_len, wish.prefix_len + wish.max_tokens)
    return np.asarray(np.ceil(held_len / verifiers.block_len[: verifiers.num_rows]) * wish.num_samples, np.float64)


def _share(used: FloatColumns, total: FloatColumns) -> float:
    return float(used.sum() / total.sum()) if len(total) else 0.0


def _nobody(table: FleetTable, wish: PlacementWish) -> str:
    asked = f" of fingerprint {wish.fingerprint[:12]!r}" if wish.fingerprint else ""
    size = f"{wish.num_samples} samples of {wish.prefix_len} + {wish.max_tokens} tokens"
    taking = int(table.verifiers.takes[: table.verifiers.num_rows].sum())
    return f"no verifier{asked} fits {size}: {taking} verifiers take requests, {len(wish.exclude)} endpoints are excluded"
