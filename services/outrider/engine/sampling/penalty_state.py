"""What of a sequence biases and penalties look at: which tokens it has committed, how often its output holds each, and what is biased.

Counts over committed tokens are kept once and grow with each commit. Must not know logits, trees, or how penalties are computed.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from outrider.types.sampling import SamplingParams
from outrider.types.tree import IntArray
from outrider_kernels.thin_touched import UNSEEN, ThinTouched

_ROOM = 64  # for the first new tokens


class PenaltyState:
    """Of one sequence; prompt and output apart. Where nothing is penalised, what was seen does not matter, and is not counted.

    touched: the same for compiled picks, up to date after every append.
    """

    def __init__(self, params: SamplingParams, prompt: Iterable[int] = (), output: Iterable[int] = ()) -> None:
        self.params = params
        self.touched = ThinTouched(params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        biases = dict(params.logit_bias)
        seen = dict.fromkeys(prompt) if params.has_penalties else {}
        self._slots = {token: slot for slot, token in enumerate(seen | biases)}
        self._ids, self._counts = np.array(list(self._slots), np.int32), np.zeros(len(self._slots), np.int32)
        self._counts[len(seen) :] = UNSEEN
        self._biases = np.array([biases.get(token, 0.0) for token in self._slots], np.float64)
        self._grow(_ROOM)
        self.append(output)

    def append(self, output: Iterable[int]) -> None:
        """Count newly committed output tokens."""
        if self.params.has_penalties:
            for token in output:
                slot = self._slot(token)
                self._counts[slot] = max(self._counts[slot], 0) + 1
        self.touched.hold(len(self._slots))

    @property
    def ids(self) -> IntArray:
        """Distinct ids that are biased or were seen, int32 [num_ids] (a view: valid until the next append)."""
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> IntArray:
        """How often the output holds each of ids, int32 [num_ids]; 0 for the prompt's others, UNSEEN where one is biased only (a view)."""
        return self._counts[: len(self._slots)]

    @property
    def biases(self) -> npt.NDArray[np.float64]:
        """What is added to the logit of each of ids, float64 [num_ids] (a view)."""
        return self._biases[: len(self._slots)]

    def output_count(self, token: int) -> int:
        """How often the committed output holds this token."""
        slot = self._slots.get(token)
        return 0 if slot is None else max(int(self._counts[slot]), 0)

    def bias(self, token: int) -> float:
        """What is added to this token's logit."""
        slot = self._slots.get(token)
        return 0.0 if slot is None else float(self._biases[slot])

    def _slot(self, token: int) -> int:
        slot = self._slots.get(token)
        if slot is None:
            slot = len(self._slots)
            if slot == len(self._ids):
                self._grow(slot)
            self._slots[token] = slot
            self._ids[slot], self._counts[slot], self._biases[slot] = token, UNSEEN, 0.0
        return slot

    def _grow(self, num_more: int) -> None:
        self._ids = np.concatenate([self._ids, np.empty(num_more, np.int32)])
        self._counts = np.concatenate([self._counts, np.empty(num_more, np.int32)])
        self._biases = np.concatenate([self._biases, np.empty(num_more, np.float64)])
        self.touched.lie_in(self._ids, self._counts, self._biases)
