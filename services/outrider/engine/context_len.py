"""How many positions a checkpoint's configuration says that its model can tell apart.

Knows transformers' names for it. Must not know what of them is served.
"""

from __future__ import annotations

from typing import Any


def context_len(config: Any) -> int:
    """Positions. config: of a text model. A checkpoint whose rotations YaRN stretches mostly names what its model was trained on before
    (max_position_embeddings 32,768 of Qwen2.5 with a factor of 4): then it is what the factor makes of that."""
    longest = int(config.max_position_embeddings)
    if (getattr(config, "rope_parameters", None) or {}).get("rope_type") != "yarn":
        return longest
    config.standardize_rope_params()  # as every model does: a length that is named outside rope_parameters is read then, not at loading
    rope = config.rope_parameters
    if rope["factor"] is None:  # DeepSeek's way: the longest text is named, and the factor follows from it
        return longest
    return max(longest, int(rope["factor"] * rope["original_max_position_embeddings"]))
