"""Whether rows that the load-time probe computed are the model's own, as far as numbers of its dtype can tell.

They are compared with the model's own forward in its own dtype. That forward rounds too, and some models make much of a rounding: with
attention biases of some tens, as in the Qwen2 family, transformers' bfloat16 scores are off by whole units, and rows that are nearer to
the truth than its own would be refused for it. So where a row is too far off, float32 decides by the same weights: rows may be as far from
it as numbers of the dtype may, or twice as far as the model's own are. Must not know how rows come to be. Source of the factor:
FlashAttention's tests.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from outrider.engine.own_rows import OwnRows
from outrider.errors import ModelRefused

_LOG = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 2e-3, torch.float16: 5e-2, torch.bfloat16: 1.5e-1}
NOISE_FACTOR = 2.0
ProbedRows = list[tuple[str, list[int], Tensor]]  # name, tokens of the path, float32 logits after its last token


class ProbeJudge:
    """Judges the same rows, computed in several ways; what the model says of them is computed once."""

    def __init__(self, own_rows: OwnRows, dtype: torch.dtype) -> None:
        self._own_rows, self._dtype = own_rows, dtype
        self._own: list[Tensor] = []

    @property
    def tolerance(self) -> float:
        """The error that numbers of the dtype may have, relative to the largest logit."""
        return _TOLERANCE[self._dtype]

    def check(self, rows: ProbedRows) -> None:
        """Raise ModelRefused, naming the first row that is not the model's own."""
        logits = [row for _, _, row in rows]
        self._own = self._own or self._rows_after(rows, in_float32=False)
        errors = _errors(logits, self._own)
        far = [index for index, error in enumerate(errors) if not error <= self.tolerance]
        if far and not (self._dtype != torch.float32 and self._is_near_float32(rows)):
            name, error = rows[far[0]][0], errors[far[0]]
            raise ModelRefused(f"the {name} is off by {error:.2g} from decoding one by one; the model cannot be served exactly")

    def _rows_after(self, rows: ProbedRows, *, in_float32: bool) -> list[Tensor]:
        return list(self._own_rows([tokens for _, tokens, _ in rows], in_float32=in_float32))

    def _is_near_float32(self, rows: ProbedRows) -> bool:
        exact = self._rows_after(rows, in_float32=True)
        ours, own = (max(_errors(logits, exact)) for logits in ([row for _, _, row in rows], self._own))
        is_near = ours <= max(self.tolerance, NOISE_FACTOR * own) and all(bool(torch.isfinite(row).all()) for _, _, row in rows)
        if is_near:
            _LOG.warning(
                "%s is coarse for this model: transformers' own logits are off by %.2g of the largest in it, those served here by %.2g",
                self._dtype, own, ours
            )  # fmt: skip
        return is_near


def _errors(rows: list[Tensor], wanted: list[Tensor]) -> list[float]:
    return [float((row - right).abs().max() / right.abs().max().clamp_min(1.0)) for row, right in zip(rows, wanted, strict=True)]
