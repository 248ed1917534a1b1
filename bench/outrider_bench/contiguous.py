"""The yardstick of the paged cache: the same lean forward over one contiguous key and value tensor a layer.

Attention is torch's own `scaled_dot_product_attention` with grouped heads, as transformers runs it on a static cache. One sequence, no
trees but a chain, no sampling but argmax: nothing that a step of ours does beyond the model. Must not know services.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from outrider.engine.attention import Scoring
from outrider.engine.config import EngineConfig
from outrider.engine.lean_config import LeanRefusal, read_lean_config
from outrider.engine.lean_forward import LeanForward
from outrider.engine.lean_weights import read_lean_weights
from outrider.engine.model_files import find_model
from outrider.engine.torch_settings import TORCH_DTYPES, use_threads
from outrider.errors import ModelRefused
from outrider.types.tree import IntArray


class ContiguousEngine:
    """One sequence; `step` feeds rows behind the prompt and forgets them again."""

    def __init__(self, config: EngineConfig, capacity: int) -> None:
        use_threads(config)
        files = find_model(config.model)
        dtype = TORCH_DTYPES[config.dtype]
        model_config = read_lean_config(files)
        if isinstance(model_config, LeanRefusal):
            raise ModelRefused(model_config.reason)
        self._forward = LeanForward(read_lean_weights(files, model_config, dtype, config.device, config.numerics))
        self._caches = [torch.zeros(2, layer.num_kv_heads, capacity, layer.head_dim, dtype=dtype) for layer in self._forward.shape.layers]
        self._prompt_len = 0

    def prefill(self, prompt: IntArray) -> None:
        """Fill the cache, all but the last token, which `step` feeds."""
        self._prompt_len = len(prompt) - 1
        with torch.inference_mode():
            self._run(torch.from_numpy(prompt[:-1]).long(), 0)

    def step(self, num_rows: int) -> None:
        """A forward of num_rows rows in a chain, logits and argmax of each."""
        with torch.inference_mode():
            self._forward.logits(self._run(torch.arange(7, 7 + num_rows), self._prompt_len)).argmax(dim=1).tolist()

    def _run(self, tokens: Tensor, begin: int) -> Tensor:
        positions = torch.arange(begin, begin + len(tokens))
        return self._forward.hidden(tokens, positions, _ContiguousAttention(self._caches, begin, len(tokens)))


class _ContiguousAttention:
    """StepAttention of rows [begin, begin + num_rows) in a chain."""

    def __init__(self, caches: list[Tensor], begin: int, num_rows: int) -> None:
        self._caches, self._begin, self._end = caches, begin, begin + num_rows
        self._mask: Tensor | None = None
        if num_rows > 1:
            self._mask = torch.ones(num_rows, self._end, dtype=torch.bool).tril_(begin)

    def attend(self, layer: int, query: Tensor, keys_values: Tensor, scoring: Scoring) -> Tensor:
        """See StepAttention."""
        assert scoring.window is None
        assert scoring.softcap is None
        assert scoring.sinks is None
        cache = self._caches[layer]
        cache[:, :, self._begin : self._end] = keys_values
        keys, values = cache[:, None, :, : self._end]
        out = scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=self._mask,
            scale=scoring.scaling,
            enable_gqa=keys.shape[1] != query.shape[1],
        )
        return out[0].transpose(0, 1)
