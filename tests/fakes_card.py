"""A card's graphs on the CPU, and steps in the card's own way beside today's, for a process in which Triton is interpreted.

RecordedWork keeps what a CUDA graph keeps: operations and launches with their tensors, and every number from the host as it was. Played
again, no line of the engine's Python runs, and all that the recording left behind is poisoned first: only what static buffers hold counts.
Must not be imported where Triton is not interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction

POISON_INT = -(1 << 24)
SHAPE_OPERATIONS = ("aten::unsqueeze_", "aten::squeeze_", "aten::transpose_")  # they change no number
HOST_OPERATIONS = ("_local_scalar_dense", "item", "lift_fresh", "nonzero", "is_nonzero")


class HostInRecording(AssertionError):
    """The work asked the card for a number, or brought one from the host: a CUDA graph would fail, or go on with the old one."""


@dataclass
class RecordedWork:
    """One recording. calls: each runs one operation again, into the tensors it wrote when it was recorded."""

    calls: list[Callable[[], None]] = field(default_factory=list)
    made: list[Tensor] = field(default_factory=list)

    def play(self) -> None:
        """Poison what the work itself made, then run every operation again."""
        with torch.inference_mode():
            for tensor in self.made:
                poison(tensor)
            for call in self.calls:
                call()


class RecordingGraphs:
    """GraphCapture on the CPU."""

    num_bytes = 0

    def __init__(self) -> None:
        self.recorded: list[RecordedWork] = []

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """See GraphCapture."""
        recorded = RecordedWork()
        with _Recorder(recorded), _recorded_launches(recorded):
            work()
        self.recorded.append(recorded)
        return recorded.play


def poison(tensor: Tensor) -> None:
    """Fill with what cannot go unnoticed."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(torch.nan)
    elif tensor.dtype != torch.bool:
        tensor.fill_(POISON_INT)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every torch operation."""

    def __init__(self, recorded: RecordedWork) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorded = recorded

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if function._schema.name.split("::")[1] in HOST_OPERATIONS:
            raise HostInRecording(str(function))
        out = function(*args, **named)
        outputs = [one for one in (out if isinstance(out, tuple | list) else (out,)) if isinstance(one, Tensor)]
        inputs = {one.untyped_storage().data_ptr() for one in (*args, *named.values()) if isinstance(one, Tensor) and not one.is_mkldnn}
        if function._schema.name in SHAPE_OPERATIONS:
            return out
        if function._schema.is_mutable:
            self._recorded.calls.append(lambda: function(*args, **named))
            return out
        fresh = [one for one in outputs if one.untyped_storage().data_ptr() not in inputs]
        if not fresh:
            return out  # a view
        assert len(fresh) == len(outputs)
        kept_outputs = [one.view_as(one) for one in fresh]  # shaped as they are now, whatever is done to them later
        self._recorded.made += kept_outputs

        def again() -> None:
            found = function(*args, **named)
            for kept, new in zip(kept_outputs, found if isinstance(found, tuple | list) else (found,), strict=False):
                kept.copy_(new)

        if not function._schema.name.startswith("aten::empty") and not function._schema.name.startswith("aten::new_empty"):
            self._recorded.calls.append(again)
        return out


@contextmanager
def _recorded_launches(recorded: RecordedWork) -> Any:
    """Notes every launch of a kernel, and runs none: a card runs nothing either while it records."""
    original = InterpretedFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        recorded.calls.append(lambda: original(self, *args, **kwargs))

    InterpretedFunction.run = run
    try:
        yield
    finally:
        InterpretedFunction.run = original
