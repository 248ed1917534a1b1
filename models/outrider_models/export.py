"""Writes a finished or intermediate model as a transformers folder: bf16 safetensors and its configuration.

Knows files; must not know training. Every file is replaced by an atomic rename, so a reader sees whole files only.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import GenerationConfig

from outrider_models.network import Weights
from outrider_models.shapes import BOS_ID, END_ID, PAD_ID, Shape
from outrider_models.tokenizer import save_tokenizer

WEIGHTS_FILE = "model.safetensors"


def export_model(weights: Weights, shape: Shape, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights (bf16), config.json, generation_config.json and the tokenizer into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokenizer_config.json").exists():
        save_tokenizer(tokenizer, folder)
    config = shape.llama_config()
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = torch.bfloat16
    config.save_pretrained(str(folder))
    GenerationConfig(bos_token_id=BOS_ID, eos_token_id=END_ID, pad_token_id=PAD_ID).save_pretrained(str(folder))
    halves = {name: weight.detach().to("cpu", torch.bfloat16).contiguous() for name, weight in weights.items()}
    partial = folder / f".{WEIGHTS_FILE}.partial"
    save_file(halves, str(partial), metadata={"format": "pt"})
    partial.chmod(0o644)  # safetensors writes for the owner only
    os.replace(partial, folder / WEIGHTS_FILE)


def load_weights(folder: Path) -> Weights:
    """The exported weights as fp32. Raises FileNotFoundError when the folder holds none."""
    return {name: weight.float() for name, weight in load_file(str(folder / WEIGHTS_FILE)).items()}
