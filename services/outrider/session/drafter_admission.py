"""What a drafter admits: the bounds of its sessions, and why an Open frame is refused.

Knows every field of Open and its legal range. Must not know how a session proceeds afterwards. An Open is untrusted: whatever it holds,
the answer is a sentence or None, never an exception.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from outrider.errors import InvalidRequest
from outrider.types.frames import DraftLimits, Open
from outrider.types.tree import MAX_TREE_NODES

MAX_TREE_WIDTH = 32
MAX_NAME_LEN = 256
_MAX_U64 = (1 << 64) - 1
_MAX_U32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class DrafterBounds:
    """What this drafter offers every session.

    source: name stamped on tails. vocab_size: emittable ids. eos_token_ids: ids below which nothing is drafted. max_len: longest
    committed text; a session that asks for more is drafted for until its text is as long. max_prefix_len: longest prefix a session may
    open with. max_nodes: live guessed nodes a session may ask for, those of side branches included.
    """

    source: str
    vocab_size: int
    eos_token_ids: frozenset[int]
    max_len: int
    max_prefix_len: int
    max_nodes: int = MAX_TREE_NODES // 2

    def cut(self, frame: Open) -> Open:
        """The Open as it is in force here: most answers end long before the length that they may have (by default a target's context)."""
        if frame.limits.max_len <= self.max_len:
            return frame
        return replace(frame, limits=replace(frame.limits, max_len=self.max_len))


def refusal(frame: Open, bounds: DrafterBounds) -> str | None:
    """None when the session may open, else one sentence naming the first field that is wrong."""
    return _size_refusal(frame, bounds) or _limits_refusal(frame.limits, bounds) or _meaning_refusal(frame, bounds)


def _size_refusal(frame: Open, bounds: DrafterBounds) -> str | None:
    if frame.tokens.ndim != 1:
        return "tokens: must be one sequence"
    if frame.limits.max_len < 1:
        return f"limits.max_len: must be positive, got {frame.limits.max_len}"
    most = min(frame.limits.max_len, bounds.max_len, bounds.max_prefix_len)
    if not 1 <= frame.prefix_len <= most:
        return f"prefix_len: must be in [1, {most}] here, got {frame.prefix_len}"
    if len(frame.tokens) > frame.prefix_len:
        return f"tokens: first chunk of {len(frame.tokens)} is longer than the prefix of {frame.prefix_len}"
    if not 0 <= frame.num_prompt <= frame.prefix_len:
        return f"num_prompt: must be in [0, {frame.prefix_len}], got {frame.num_prompt}"
    if len(frame.tokens) and not 0 <= int(frame.tokens.min()) <= int(frame.tokens.max()) < bounds.vocab_size:
        return f"tokens: an id is outside the vocabulary of {bounds.vocab_size}"
    return None


def _limits_refusal(limits: DraftLimits, bounds: DrafterBounds) -> str | None:
    if not 1 <= limits.max_nodes <= bounds.max_nodes:
        return f"limits.max_nodes: must be in [1, {bounds.max_nodes}] here, got {limits.max_nodes}"
    if not 1 <= limits.tree_width <= MAX_TREE_WIDTH:
        return f"limits.tree_width: must be in [1, {MAX_TREE_WIDTH}], got {limits.tree_width}"
    if not 0.0 <= limits.stop_below <= 1.0:
        return f"limits.stop_below: must be in [0, 1], got {limits.stop_below}"
    if not (limits.svip_threshold >= 0.0 and math.isfinite(limits.svip_threshold)):
        return f"limits.svip_threshold: must be 0 or positive, got {limits.svip_threshold}"
    if not 0 <= limits.flush_nodes <= MAX_TREE_NODES:
        return f"limits.flush_nodes: must be in [0, {MAX_TREE_NODES}], got {limits.flush_nodes}"
    if not 0 <= limits.hedge_nodes <= bounds.max_nodes - limits.max_nodes:
        return f"limits.hedge_nodes: must be in [0, {bounds.max_nodes - limits.max_nodes}] here, got {limits.hedge_nodes}"
    return None


def _meaning_refusal(frame: Open, bounds: DrafterBounds) -> str | None:
    try:
        frame.sampling.check(bounds.vocab_size)
    except InvalidRequest as error:
        return str(error)
    noise = frame.noise
    if not (0 <= noise.seed <= _MAX_U64 and 0 <= noise.sample_index <= _MAX_U32 and 0 <= noise.branch <= _MAX_U32):
        return "noise: seed must fit 64 bits, sample_index and branch 32"
    if max(len(frame.tenant), len(frame.adapter), len(frame.request_id)) > MAX_NAME_LEN:
        return f"request_id, tenant and adapter: at most {MAX_NAME_LEN} characters"
    if frame.adapter:
        return f"adapter: {frame.adapter!r} is not loaded here"
    return None
