"""From settings to a loaded drafter; runs in the drafting thread, which owns everything it makes.

Knows the engine's door and the sources' registry. Must not know streams. Imports torch only through the engine, on first use.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drafter_service.draft_time import measure_read_us, measure_token_us
from drafter_service.drafting_thread import LoadedDrafter
from drafter_service.settings import DrafterSettings, ReplaySettings
from outrider.drafting.registry import SourceOptions, source_factory
from outrider.drafting.replay_source import ReplayOptions
from outrider.errors import InvalidRequest
from outrider.session.drafter_admission import DrafterBounds
from outrider.types.identity import Numerics
from outrider.types.tree import MAX_TREE_NODES


def load_drafter(settings: DrafterSettings) -> LoadedDrafter:
    """Load, probe and warm. Raises ModelRefused or InvalidRequest with a sentence for the operator."""
    make = source_factory(settings.source)
    from outrider.engine.load import load_engine

    engine = load_engine(settings.engine)
    identity = engine.identity
    # `invariant` engines bound the depth of a tree; the others take any.
    max_depth = settings.engine.invariant.max_tree_depth if identity.numerics is Numerics.INVARIANT else MAX_TREE_NODES
    options = SourceOptions(engine, max_depth, _replay_options(settings.replay, identity.vocab_size))
    source = make(options)
    max_len = min(settings.max_len or identity.max_context, identity.max_context)
    bounds = DrafterBounds(
        source=source.name,
        vocab_size=identity.vocab_size,
        eos_token_ids=frozenset(identity.eos_token_ids),
        max_len=max_len,
        max_prefix_len=min(settings.max_prefix_len or max_len, max_len),
    )
    if not settings.membership.coordinators:
        return LoadedDrafter(engine, source, bounds)
    return LoadedDrafter(
        engine, source, bounds, measure_token_us(engine), measure_read_us(engine, compiles=settings.engine.device != "cpu")
    )


def _replay_options(settings: ReplaySettings, vocab_size: int) -> ReplayOptions | None:
    if not settings.path:
        return None
    try:
        content: Any = json.loads(Path(settings.path).read_text())
    except (OSError, ValueError) as error:
        raise InvalidRequest("--replay-texts", f"{settings.path} cannot be read: {error}") from error
    texts = content.get("texts") if isinstance(content, dict) else None
    if not isinstance(texts, list) or not all(isinstance(text, list) and all(type(token) is int for token in text) for text in texts):
        raise InvalidRequest("--replay-texts", f'{settings.path} is not {{"texts": [[token, ...], ...]}}')
    known = tuple(tuple(text) for text in texts)
    return ReplayOptions(known, settings.acceptance, vocab_size, settings.seed, settings.step_us, settings.hedge_acceptance)
