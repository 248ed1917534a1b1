"""What a model's own forward says after given tokens: computed by transformers, or kept from an earlier start that computed it.

The load-time probe compares every engine with it. It follows from files, libraries and dtype alone, while reading the model a second
time and importing what runs it take longer than all else of a start. So it is kept, and every start is compared with it all the same.
Must not know how rows are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from safetensors.torch import load, save
from torch import Tensor

from outrider.engine.kept_files import KeptFiles, name_of

_KIND = "own-rows"
_TENSOR = "rows"


class OwnLogits(Protocol):
    """A model's own forward over one path, alone."""

    def __call__(self, tokens: list[int], *, in_float32: bool = False) -> Tensor:
        """float [tokens, num_logits], after each of them; in_float32: computed in it, from the weights as they are."""
        ...


class OwnRows(Protocol):
    """A model's own forward over several paths, each alone."""

    def __call__(self, paths: list[list[int]], *, in_float32: bool) -> Tensor:
        """float32 [paths, num_logits], after the last token of each; in_float32: computed in it, from the weights as they are."""
        ...


class ComputedRows:
    """By a model that is loaded."""

    def __init__(self, own_logits: OwnLogits) -> None:
        self._own_logits = own_logits

    def __call__(self, paths: list[list[int]], *, in_float32: bool) -> Tensor:
        """See OwnRows. A path that another begins with is read off that one, so that few are computed."""
        computed: list[tuple[list[int], Tensor]] = []
        for path in sorted(paths, key=len, reverse=True):
            if all(longer[: len(path)] != path for longer, _ in computed):
                computed.append((path, self._own_logits(path, in_float32=in_float32)))
        rows = [next(logits[len(path) - 1] for longer, logits in computed if longer[: len(path)] == path) for path in paths]
        return torch.stack(rows).float()


class KeptRows:
    """As an earlier start kept them, else computed and kept. load_own: reads the model, which happens once and only if it must.
    facts: which model, and in which numbers (see name_of). device: of the rows. files: where rows of earlier starts lie."""

    def __init__(self, load_own: Callable[[], OwnLogits], facts: Mapping[str, str], device: str, files: KeptFiles | None = None) -> None:
        self._load_own, self._device, self._facts = load_own, device, facts
        self._files = files or KeptFiles(_KIND)
        self._computed: ComputedRows | None = None

    def __call__(self, paths: list[list[int]], *, in_float32: bool) -> Tensor:
        """See OwnRows."""
        name = name_of(paths=paths, in_float32=in_float32, **self._facts)
        kept = self._files.find(name)
        if kept is not None:
            found: Tensor = load(kept)[_TENSOR]
            return found.to(self._device)
        self._computed = self._computed or ComputedRows(self._load_own())
        rows = self._computed(paths, in_float32=in_float32)
        self._files.keep(name, save({_TENSOR: rows.cpu()}))
        return rows
