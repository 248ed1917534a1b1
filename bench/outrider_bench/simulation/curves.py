"""Shapes of cost curves: what more rows do to the price of a step.

`flat` is the papers' assumption (rows are free), `knee` an accelerator (free until it is saturated, then linear), `measured` this
project's reference pair on two cores. A file of one's own micro-benchmarks gives any other. Must not know what is simulated with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from outrider.errors import InvalidRequest
from outrider.session.pacing.contract import CostCurve

KNEE_ROWS = 32
MAX_CURVE_ROWS = 4096


@dataclass(frozen=True, slots=True)
class CurveShape:
    """Prices relative to one row, as (rows, factor) points ascending: of a step of the target, and of a draft step by sessions."""

    verify: tuple[tuple[int, float], ...]
    draft: tuple[tuple[int, float], ...]

    def verify_curve(self, target_us: float) -> CostCurve:
        """Steps of a target whose step of one row takes target_us."""
        return _scaled(self.verify, target_us)

    def draft_curve(self, draft_us: float) -> CostCurve:
        """Draft steps of a drafter that needs draft_us for a token of one session."""
        return _scaled(self.draft, draft_us)


_FLAT = ((1, 1.0),)
_KNEE = ((1, 1.0), (KNEE_ROWS, 1.0), (MAX_CURVE_ROWS, MAX_CURVE_ROWS / KNEE_ROWS))
# bench/LOG.md, 2026-11-21: ref-large on numpy, two threads, context 200: 2.1 / 4.0 / 4.0 / 5.2 / 7.9 ms at 1 / 4 / 8 / 16 / 32 rows.
# The drafter's step by sessions has not been measured: it is taken to have the target's shape.
_MEASURED = ((1, 1.0), (4, 1.9), (8, 1.9), (16, 2.48), (32, 3.76))

CURVE_SHAPES: Mapping[str, CurveShape] = MappingProxyType(
    {
        "flat": CurveShape(_FLAT, _FLAT),
        "knee": CurveShape(_KNEE, _KNEE),
        "measured": CurveShape(_MEASURED, _MEASURED),
    }
)


def read_shape(path: Path) -> CurveShape:
    """A shape from {"verify_us": {"1": ..., "8": ...}, "draft_us": {...}}: times by rows from micro-benchmarks. Raises InvalidRequest."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return CurveShape(_relative(content["verify_us"]), _relative(content["draft_us"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest("curve", f"{path} holds no curves: {error!r}") from error


def _relative(times: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    points = sorted((int(rows), float(us)) for rows, us in times.items())
    if not points or points[0][0] != 1 or points[0][1] <= 0.0:
        raise ValueError("a curve begins with the time of 1 row")
    return tuple((rows, us / points[0][1]) for rows, us in points)


def _scaled(points: tuple[tuple[int, float], ...], one_row_us: float) -> CostCurve:
    return CostCurve(tuple((rows, factor * one_row_us) for rows, factor in points))
