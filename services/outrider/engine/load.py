"""One door to every engine that runs a model: configuration in, Engine out.

Imports an implementation only when it is chosen, so that a process pays for what it uses. The replay engine runs no model and is built
directly (engine/replay_engine.py). Must not know sequences or services.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from outrider.engine.config import INT8_REMEDY, SHORTLIST_REFUSAL, EngineConfig, EngineKind, WeightFormat
from outrider.engine.contract import Engine
from outrider.errors import InvalidRequest, ModelRefused

_LOG = logging.getLogger(__name__)


def load_engine(config: EngineConfig) -> Engine:
    """Load, probe and warm an engine in the calling thread, which owns it from here on.

    AUTO takes the lean forward where the model's family has one and its files are what that forward knows, else transformers, but for int8
    weights, which only the lean one has. Raises ModelRefused, with both reasons where both were tried, or InvalidRequest.
    """
    config.check()
    if config.kind is EngineKind.TRANSFORMERS:
        return _load_transformers(config)
    from outrider.engine.lean_engine import is_lean, load_lean_engine

    if config.kind is EngineKind.LEAN:
        return load_lean_engine(config)
    if not is_lean(config):
        if config.weights is WeightFormat.INT8:
            raise InvalidRequest("engine.weights", f"int8 is for the lean engine, which cannot run {config.model!r}; {INT8_REMEDY}")
        if config.shortlist > 0:
            raise InvalidRequest("engine.shortlist", SHORTLIST_REFUSAL)
        return _load_transformers(config)
    try:
        return load_lean_engine(config)
    except ModelRefused as error:
        if config.weights is WeightFormat.INT8 or config.shortlist > 0:
            raise
        lean_refusal = str(error)
    _LOG.warning("falling back to the transformers engine, which is slower: %s", lean_refusal)
    try:
        return _load_transformers(config)
    except ModelRefused as error:
        if str(error) == lean_refusal:
            raise
        raise ModelRefused(f"no engine can run {config.model!r}. The lean one: {lean_refusal}. The transformers one: {error}") from error


def _load_transformers(config: EngineConfig) -> Engine:
    from outrider.engine.transformers_engine import load_transformers_engine

    return load_transformers_engine(replace(config, weights=WeightFormat.FULL, shortlist=0))
