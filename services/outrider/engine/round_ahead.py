"""Two engines of one thread, a draft's and its target's, that compute the next round while this one is digested.

Knows which engines can (outrider_kernels/thin_ahead.py). Must not know sessions or drafts. Whether they do changes no result.
"""

from __future__ import annotations

from outrider.engine.contract import Engine
from outrider.engine.paged_engine import PagedEngine
from outrider_kernels.thin_ahead import ThinAhead
from outrider_kernels.thin_chain import ThinChain


def compute_ahead(draft: Engine, target: Engine) -> ThinAhead | None:
    """From now on, as long as both live; None where either has no compiled chain, or the target no second thread. Both are stepped by one
    thread."""
    if not isinstance(draft, PagedEngine) or not isinstance(target, PagedEngine):
        return None
    ours, theirs = draft.chain, target.chain
    if not isinstance(ours, ThinChain) or not isinstance(theirs, ThinChain) or theirs.team.num_threads < 2:
        return None
    return ThinAhead(ours, draft.limits.max_context, theirs, target.limits.max_context)
