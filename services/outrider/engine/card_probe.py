"""The load-time check of the card's own way: kernels that fail it, or do not even compile, leave the engine on plain torch operations.

Must not know steps.
"""

from __future__ import annotations

import logging

import torch

from outrider.engine.admission import refusing
from outrider.engine.card_way import CardWay
from outrider.engine.decoder_forward import DecoderForward
from outrider.engine.probe import OwnLogits, probe_card
from outrider.errors import ModelRefused

_LOG = logging.getLogger(__name__)


def probed_way(
    way: CardWay | None, forward: DecoderForward, own_logits: OwnLogits, dtype: torch.dtype, device: str, num_ids: int
) -> CardWay | None:
    """The way itself; None, with a line of the log that says why, where its steps are not the model's."""
    if way is None:
        return None
    try:
        with refusing("the card's kernels cannot run"):
            probe_card(forward, own_logits, dtype, device, num_ids)
    except ModelRefused as error:
        _LOG.warning("steps on %s run on plain torch operations, which is slower: %s", device, error)
        return None
    return way
