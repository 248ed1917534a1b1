"""Which rows of a logits matrix want which sampling: one entry a sequence, then one table a step.

Rows of a sequence lie side by side, in the order of the entries. The table is the entries spread over rows as arrays, so that the
pick never loops over rows. Must not know logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.engine.sampling.penalty_state import PenaltyState
from outrider.noise.field import BitsArray, position_subkeys
from outrider.noise.reference_pick import min_p_gap
from outrider.types.sampling import SamplingParams

PositionArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RowSampling:
    """The rows of one sequence in a step.

    key: unsigned 64 bits, of the purpose PICK (or DRAFT). positions: int64 [num_rows], of the tokens to be picked.
    penalties: counts over the committed tokens by the same params, needed where those penalise (an empty history otherwise).
    paths: per row, the tokens after those that `penalties` counts, up to the row itself (a node's ancestors and the node);
    empty when no row has any.
    """

    params: SamplingParams
    key: int
    positions: PositionArray
    penalties: PenaltyState | None = None
    paths: tuple[Sequence[int], ...] = ()

    def __post_init__(self) -> None:
        assert self.penalties is None or self.penalties.params == self.params, "counted for other penalties or biases"
        assert not self.paths or len(self.paths) == len(self.positions), "one path a row, or none at all"

    @property
    def num_rows(self) -> int:
        """Rows of the logits matrix that this entry describes."""
        return len(self.positions)


@dataclass(frozen=True, slots=True, eq=False)
class RowTable:
    """RowSampling spread over rows.

    params: the entry's, one reference a row. keys uint64, positions int64, subkeys uint64, temperatures float64, top_ks int64
    (0 off), top_ps float64 (1 off), min_p_gaps float64 (inf off): all [num_rows].
    """

    params: tuple[SamplingParams, ...]
    keys: BitsArray
    positions: PositionArray
    subkeys: BitsArray
    temperatures: npt.NDArray[np.float64]
    top_ks: npt.NDArray[np.int64]
    top_ps: npt.NDArray[np.float64]
    min_p_gaps: npt.NDArray[np.float64]

    @staticmethod
    def of(rows: Sequence[RowSampling]) -> RowTable:
        """The table of all rows of the entries, in order."""
        counts = [entry.num_rows for entry in rows]
        keys = np.repeat(np.array([entry.key for entry in rows], np.uint64), counts)
        positions = np.concatenate([entry.positions for entry in rows]) if rows else np.empty(0, np.int64)
        return RowTable(
            params=tuple(entry.params for entry in rows for _ in range(entry.num_rows)),
            keys=keys,
            positions=positions,
            subkeys=position_subkeys(keys, positions),
            temperatures=np.repeat(np.array([entry.params.temperature for entry in rows], np.float64), counts),
            top_ks=np.repeat(np.array([entry.params.top_k for entry in rows], np.int64), counts),
            top_ps=np.repeat(np.array([entry.params.top_p for entry in rows], np.float64), counts),
            min_p_gaps=np.repeat(np.array([min_p_gap(entry.params) for entry in rows], np.float64), counts),
        )
