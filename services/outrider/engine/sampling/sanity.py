"""Logits that are no numbers have no pick: a row of them must stop the step, not yield some token or its neighbour's.

The largest logit tells: NaN and infinity rise to it, and minus infinity is left where every token is masked. Must not know how picks
are made.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider.errors import ModelRefused


def check_best_logits(best: npt.NDArray[np.floating]) -> None:
    """best: [num_rows], the largest logit of each row. Raises ModelRefused when one is not finite."""
    finite = np.isfinite(best)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ModelRefused(f"the model's largest logit in row {row} is {best[row]}; its numbers overflow: use a wider dtype")
