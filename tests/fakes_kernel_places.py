"""Where tests run the Triton kernels: interpreted on the CPU always, and on a card besides where there is one, by the very same tests.

PLACES is what fixtures are parametrised with, so a machine without a card collects no tests for one. Broken twins of kernels belong on the
interpreter alone: one that reads where it must not would end the card's context, and with it every test that comes later.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from outrider_kernels.interpreted_process import InterpretedProcess, _module, shared_process

INTERPRETED, CARD = "interpreted", "card"


def places(has_card: bool) -> tuple[str, ...]:
    """Names for `kernel_place`."""
    return (INTERPRETED, CARD) if has_card else (INTERPRETED,)


PLACES = places(torch.cuda.is_available())


class KernelPlace(Protocol):
    """Calls functions that launch kernels. Tensors come from the CPU and go back to it, also those inside lists, tuples and values."""

    def call(self, module: str, function: str, *arguments: object, **named: object) -> Any:
        """What module.function(*arguments, **named) returns there. module: a name, or the path of a .py file."""
        ...

    def arguments_after(self, module: str, function: str, *arguments: object, **named: object) -> tuple[Any, ...]:
        """The positional arguments as the call left them, for functions that write in place."""
        ...


class CardPlace:
    """This process, with every tensor on a device."""

    def __init__(self, device: str = "cuda") -> None:
        self._device = device

    def call(self, module: str, function: str, *arguments: object, **named: object) -> Any:
        """See KernelPlace."""
        return self._exchange(module, function, arguments, named)[0]

    def arguments_after(self, module: str, function: str, *arguments: object, **named: object) -> tuple[Any, ...]:
        """See KernelPlace."""
        return self._exchange(module, function, arguments, named)[1]

    def _exchange(self, module: str, function: str, arguments: tuple[object, ...], named: dict[str, object]) -> tuple[Any, tuple[Any, ...]]:
        there = tuple(moved(argument, self._device) for argument in arguments)
        result = getattr(_module(module), function)(*there, **{name: moved(value, self._device) for name, value in named.items()})
        return moved(result, "cpu"), tuple(moved(argument, "cpu") for argument in there)


def moved(value: Any, device: str) -> Any:
    """The value with all its tensors copied to a device; what holds none is itself, dataclasses may hold some."""
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    if isinstance(value, list | tuple):
        return type(value)(moved(item, device) for item in value)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{field.name: moved(getattr(value, field.name), device) for field in fields(value)})
    return value


@cache
def interpreted_process() -> InterpretedProcess:
    """The one of all tests, with the interpreter's search made short."""
    process = shared_process()
    process.call("quick_interpreter", "quicken")
    return process


@cache
def kernel_place(name: str) -> KernelPlace:
    """One of PLACES. The interpreter cannot be switched on in pytest's own process, where other libraries have imported triton already."""
    return interpreted_process() if name == INTERPRETED else CardPlace()
