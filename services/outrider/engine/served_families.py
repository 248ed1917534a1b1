"""Which architectures are served, and the sentence that refuses another one.

Any decoder that passes the load-time probe is served (docs/architecture.md section 6); the families named here are those that the tests
serve, so that a refusal can say what to use instead. Must not know torch, or how a model is loaded.
"""

from __future__ import annotations

from outrider.errors import ModelRefused

SERVED_FAMILIES = ("gemma2", "gemma3_text", "gpt2", "gpt_neox", "llama", "mistral", "opt", "phi3", "qwen2", "qwen3")
LEAN_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})  # of which there is a forward of our own (lean_forward.py)
UNWINDOWED_FAMILIES = frozenset({"llama"})  # whose attention looks at no window, whatever a configuration still names
# What a model's head may ask of its base model beside hidden states, and what that means.
_BESIDE_HIDDEN = {
    "cache_params": "a recurrent state",
}


def architecture_refused(family: str, problem: str) -> ModelRefused:
    """family: the configuration's model type. problem: what is missing, as a clause."""
    served = ", ".join(SERVED_FAMILIES)
    return ModelRefused(f"the architecture {family!r} cannot be served: {problem}; served are decoder-only models like {served}")


def missing_output(error: AttributeError) -> str | None:
    """The clause for a head that asks its base model for what a step does not have; None for any other error."""
    meaning = _BESIDE_HIDDEN.get(error.name or "")
    return None if meaning is None else f"its head asks its base model for {error.name!r}, {meaning}, where a step has hidden states only"
