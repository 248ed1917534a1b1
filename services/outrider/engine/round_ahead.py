"""Two engines of one thread, a draft's and its target's, and what the cores do that one of them leaves: compute its steps with it, or the
next round while this one is digested; and an engine that is alone, and its next plain step.

Knows which engines can (outrider_kernels/thin_ahead.py). Must not know sessions or drafts. Whether they do changes no result.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from outrider.engine.contract import Engine
from outrider_kernels.thin_ahead import ThinAhead
from outrider_kernels.thin_chain import ThinChain

if TYPE_CHECKING:
    from outrider.engine.paged_engine import PagedEngine

# Of matrices that a guess reads, from which on a draft has all threads in its turn. Measured on Zen 3, millions of bytes and us a guess on
# one thread and two: 0.6 62 -> 80, 2.2 109 -> 122, 3.5 216 -> 193, 6.4 384 -> 289, 10.2 669 -> 404, 145 12,100 -> 7,800; what is computed
# ahead saves a round up to half a millisecond.
SHARED_BYTES = 8 << 20


def share_cores(draft: Engine, target: Engine) -> ThinAhead | None:
    """From now on a draft that reads much for a guess has all cores in its turn; of another, the next round is computed ahead, where that
    can be. draft: with what it may be lent of the target's threads."""
    if _is_paged(draft) and isinstance(draft.chain, ThinChain) and draft.chain.row_bytes >= SHARED_BYTES:
        draft.own_loan()
        return None
    return compute_ahead(draft, target)


def compute_ahead(draft: Engine, target: Engine) -> ThinAhead | None:
    """From now on, as long as both live; None where either has no compiled chain, or the target no second thread. Both are stepped by one
    thread."""
    if not _is_paged(draft) or not _is_paged(target):
        return None
    ours, theirs = draft.chain, target.chain
    if not isinstance(ours, ThinChain) or not isinstance(theirs, ThinChain) or theirs.team.num_threads < 2:
        return None
    return ThinAhead(ours, draft.limits.max_context, theirs, target.limits.max_context)


def compute_plain_ahead(target: Engine) -> ThinAhead | None:
    """From now on, as long as it lives, its plain steps of a sequence that is alone; None where it has no compiled chain or no second
    thread, or does so already, for another verifier before this one. The thread may be a lent one, while it is: who takes it back has it
    at once (Engine.end_loan)."""
    if not _is_paged(target) or not isinstance(target.chain, ThinChain):
        return None
    if target.chain.team.num_threads < 2 or target.chain.team.computes_ahead:
        return None
    return ThinAhead(None, 0, target.chain, target.limits.max_context)


def _is_paged(engine: Engine) -> TypeGuard[PagedEngine]:
    """Asked without importing torch, as who has such an engine has done: a service whose arguments are wrong says so without waiting for
    it, and one that runs no model never pays for it."""
    module = sys.modules.get("outrider.engine.paged_engine")
    return module is not None and isinstance(engine, module.PagedEngine)
