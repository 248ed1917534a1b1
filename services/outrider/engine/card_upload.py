"""One buffer on the host and its copy on the card: what is written into the first is in the second after one copy.

On a card the host's memory is pinned, so that the copy runs beside the host, and nobody writes before an earlier copy has read. Must not
know what the words mean.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outrider.engine.card_inputs import HostArray


class CardUpload:
    """words: the host's, int32 [num_words]; device_words: the card's, which never move."""

    def __init__(self, num_words: int, device: torch.device) -> None:
        is_card = device.type == "cuda"
        self._host = torch.zeros(num_words, dtype=torch.int32, pin_memory=is_card)
        self.words: HostArray = self._host.numpy()
        self.device_words: Tensor = torch.zeros(num_words, dtype=torch.int32, device=device)
        event: Any = torch.cuda.Event  # torch leaves its constructor without types
        self._copied = event() if is_card else None

    @property
    def num_words(self) -> int:
        """Room."""
        return len(self.words)

    def wait(self) -> HostArray:
        """The host's words, once the last copy has read them."""
        if self._copied is not None:
            self._copied.synchronize()  # one that was never recorded is over
        return self.words

    def send(self, num_words: int) -> None:
        """Bring the first words to the card, in the order of the current stream."""
        self.device_words[:num_words].copy_(self._host[:num_words], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
