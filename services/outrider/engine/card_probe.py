"""The load-time check of the card's own way: recordings that fail it are not made, and kernels that fail it, or do not even compile, leave
the engine on plain torch operations.

Must not know steps.
"""

from __future__ import annotations

import logging

import torch

from outrider.engine.admission import refusing
from outrider.engine.card_way import CardWay
from outrider.engine.decoder_forward import DecoderForward
from outrider.engine.own_rows import OwnRows
from outrider.engine.probe import probe_card
from outrider.errors import ModelRefused

_LOG = logging.getLogger(__name__)


def probed_way(way: CardWay | None, forward: DecoderForward, own_rows: OwnRows, dtype: torch.dtype, device: str) -> CardWay | None:
    """The way itself, or as much of it as gives the model's own steps; a line of the log says why not all."""
    if way is None:
        return None
    launched = CardWay(None)
    problem = _problem(launched, forward, own_rows, dtype, device)
    if problem is not None:
        _LOG.warning("steps on %s run on plain torch operations, which is slower: %s", device, problem)
        return None
    problem = None if way.new_graphs is None else _problem(way, forward, own_rows, dtype, device)
    if problem is not None:
        _LOG.warning("every step on %s is launched operation by operation, which is slower: %s", device, problem)
        return launched
    return way


def _problem(way: CardWay, forward: DecoderForward, own_rows: OwnRows, dtype: torch.dtype, device: str) -> str | None:
    """What is wrong with the steps of a way; None when nothing is."""
    try:
        with refusing("the card's kernels or recordings cannot run"):
            probe_card(way, forward, own_rows, dtype, device)
    except ModelRefused as error:
        return str(error)
    return None
