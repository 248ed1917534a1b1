"""Small random-weight models of several architectures, written to a directory as a hub model would be; deterministic, no download.

Odd sizes on purpose: grouped heads, head sizes that differ from hidden / heads, windows shorter than the texts, soft caps.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

VOCAB = 96
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_WINDOW = 12
# For configurations that a test writes itself.
TINY_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": False}),
    "llama_tied_one_kv_head": ("LlamaConfig", {"tie_word_embeddings": True, "num_key_value_heads": 1, "attention_bias": True}),
    "llama_scaled_rope": (
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 24}),
    "mistral": ("MistralConfig", {"sliding_window": _WINDOW, "head_dim": 16}),
    "gemma2": (
        "Gemma2Config",
        {
            "head_dim": 16,
            "sliding_window": _WINDOW,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 4.0,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 16, "sliding_window": _WINDOW, "query_pre_attn_scalar": 16, "num_hidden_layers": 3, "sliding_window_pattern": 3},
    ),
    "phi3": ("Phi3Config", {"sliding_window": _WINDOW}),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "gpt2": ("GPT2Config", {}),
    "opt": ("OPTConfig", {"ffn_dim": 80, "word_embed_proj_dim": 48}),
}
LEAN_ARCHITECTURES = ("llama", "llama_tied_one_kv_head", "llama_scaled_rope", "qwen2", "qwen3", "mistral")


def make_model(name: str, directory: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    """Write a random model of ARCHITECTURES[name] to directory; returns it too, in evaluation mode with eager attention."""
    class_name, own = ARCHITECTURES[name]
    return write_model(getattr(transformers, class_name)(**{**_COMMON, **own, **changes}), directory, dtype)


def write_model(config: Any, directory: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Write a random model of a configuration; weights are wide enough that attention and picks vary."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with torch.random.fork_rng():
        torch.manual_seed(1234)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith("sinks"):
                    weight.normal_(1.0, 1.0)
                elif weight.dim() >= 2:
                    weight.normal_(0.0, 1.2 / weight.shape[-1] ** 0.5 if "embed" not in name else 0.03)
                elif "bias" in name:
                    weight.normal_(0.0, 0.05)
    model.to(dtype).save_pretrained(directory, safe_serialization=True)
    return model


def draw_norms(directory: Path) -> None:
    """Give the model there norms of its own: a fresh one's are all 1, so that nobody would notice one taken for another."""
    generator = torch.Generator().manual_seed(6)
    weights = load_file(str(directory / "model.safetensors"))
    for name, weight in weights.items():
        if "norm" in name:
            weights[name] = (0.5 + torch.rand(weight.shape, generator=generator)).to(weight.dtype)
    save_file(weights, str(directory / "model.safetensors"), metadata={"format": "pt"})


def worn(model: Path, directory: Path, share: float) -> Path:
    """A copy of a trained model whose matrices have noise of this share of their own spread: right often, and wrong often."""
    shutil.copytree(model, directory, dirs_exist_ok=True)
    generator = torch.Generator().manual_seed(5)
    weights = load_file(str(model / "model.safetensors"))
    for name, weight in weights.items():
        if weight.dim() == 2:
            noise = torch.randn(weight.shape, generator=generator) * share * weight.float().std()
            weights[name] = (weight.float() + noise).to(weight.dtype)
    save_file(weights, str(directory / "model.safetensors"), metadata={"format": "pt"})
    return directory
