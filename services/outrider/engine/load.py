"""One door to every engine that runs a model: configuration in, Engine out.

Imports an implementation only when it is chosen, so that a process pays for what it uses. The replay engine runs no model and is built
directly (engine/replay_engine.py). Must not know sequences or services.
"""

from __future__ import annotations

from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.contract import Engine


def load_engine(config: EngineConfig) -> Engine:
    """Load, probe and warm an engine in the calling thread, which owns it from here on.

    AUTO takes the lean forward where the model's family has one. Raises ModelRefused or InvalidRequest.
    """
    config.check()
    if config.kind is EngineKind.TRANSFORMERS:
        from outrider.engine.transformers_engine import load_transformers_engine

        return load_transformers_engine(config)
    from outrider.engine.lean_engine import is_lean, load_lean_engine

    if config.kind is EngineKind.LEAN or is_lean(config):
        return load_lean_engine(config)
    from outrider.engine.transformers_engine import load_transformers_engine

    return load_transformers_engine(config)
