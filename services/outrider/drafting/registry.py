"""The draft sources there are, by name. A new source is one file and one line here.

Knows how each source is made from the options of a drafter. Must not know how any of them guesses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.drafting.contract import DraftSource
from outrider.drafting.model_source import ModelSource
from outrider.drafting.replay_source import ReplayOptions, ReplaySource
from outrider.engine.contract import Engine
from outrider.errors import InvalidRequest
from outrider.types.tree import MAX_TREE_NODES


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What sources may be made of. engine: the loaded draft model. max_depth: levels a tree of that engine may have. replay: known texts,
    None when there are none."""

    engine: Engine
    max_depth: int = MAX_TREE_NODES
    replay: ReplayOptions | None = None


SourceFactory = Callable[[SourceOptions], DraftSource]


def _model(options: SourceOptions) -> DraftSource:
    return ModelSource(options.engine, options.max_depth)


def _replay(options: SourceOptions) -> DraftSource:
    if options.replay is None:
        raise InvalidRequest("source", "replay needs texts: name a file of token sequences")
    return ReplaySource(options.replay)


SOURCES: dict[str, SourceFactory] = {"model": _model, "replay": _replay}


def source_factory(name: str) -> SourceFactory:
    """How the named source is made; raises InvalidRequest with the names there are. Call it before a model is loaded for nothing."""
    factory = SOURCES.get(name)
    if factory is None:
        raise InvalidRequest("source", f"{name!r} is unknown; there are {', '.join(sorted(SOURCES))}")
    return factory


def make_source(name: str, options: SourceOptions) -> DraftSource:
    """A fresh source; raises InvalidRequest when the name is unknown or the options do not suffice."""
    return source_factory(name)(options)
