"""Log-probabilities reported to clients: raw, that is log-softmax of the model's own logits in float32.

Raw is the default of OpenAI and vLLM: penalties, bias, temperature and filters do not enter, so values compare across requests.
Must not know how a token was picked.
"""

from __future__ import annotations

import torch
from torch import Tensor


def logprobs(logits: Tensor, ids: Tensor, top_n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Chosen float32 [rows], top ids int64 [rows, top_n], top float32 [rows, top_n], descending.

    logits: [rows, vocab] float32, unprocessed. ids: int64 [rows], the chosen tokens. top_n: 0 gives empty tops.
    """
    normaliser = torch.logsumexp(logits, dim=1, keepdim=True)
    chosen = logits.gather(1, ids.to(logits.device)[:, None]) - normaliser
    top = torch.topk(logits, min(top_n, logits.shape[1]), dim=1)
    return chosen[:, 0], top.indices, top.values - normaliser
