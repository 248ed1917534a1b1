"""From recorded answers to rows: medians of every contestant in every cell, and for our own the share of the bound.

The bound is what the target's forward alone would allow: tokens per round over a verify step of that many rows, as the verifier measured it
before its first request. Must not know how answers were made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.v1 import verifier_pb2
from outrider_bench.contestants import Contestant, verify_ms
from outrider_bench.results import Cell, Recorder, Row

InfoOf = Callable[[Contestant], verifier_pb2.VerifierServiceGetInfoResponse | None]


def rows_of(cells: Sequence[Cell], contestants: Sequence[Contestant], recorder: Recorder, info_of: InfoOf) -> list[Row]:
    """info_of: the verifier's step costs behind a contestant, None when it is not ours."""
    rows = []
    for cell in cells:
        for contestant in contestants:
            summary, spread, speeds = recorder.summary(cell, contestant.name)
            info, bound_share = info_of(contestant), None
            if info is not None:
                forward_ms = verify_ms(info, 1 + summary.drafted_per_round)
                bound_share = summary.tokens_per_s * forward_ms / (1000.0 * summary.mean_emitted_per_round)
            rows.append(Row(cell, contestant.name, summary, spread, bound_share, speeds))
    return rows
