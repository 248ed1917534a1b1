"""A model of narrow numbers computing in float32: the same weights, without the rounding of what they are multiplied with.

One module at a time holds its weights twice, so that a large model needs no second copy. Must not know why somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def widened(model: nn.Module) -> Iterator[None]:
    """Within it the model's forward computes in float32, and its weights have the numbers they had before and will have after."""
    narrow: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

    def widen(module: nn.Module, *_: Any) -> None:
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        narrow[module] = [(tensor, tensor.data) for tensor in own if tensor.is_floating_point() and tensor.dtype != torch.float32]
        for tensor, data in narrow[module]:
            tensor.data = data.float()

    def restore(module: nn.Module, *_: Any) -> None:
        for tensor, data in narrow.pop(module, []):
            tensor.data = data

    hooks = []
    try:
        for module in model.modules():
            hooks += [module.register_forward_pre_hook(widen), module.register_forward_hook(restore, always_call=True)]
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        for hook in hooks:
            hook.remove()
