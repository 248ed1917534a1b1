"""Which dtype a deployment computes in where nobody says: the checkpoints' own, if that is quick here.

Knows configuration files, and what the engine's compiled products take. Must not know torch: a command line asks, before
anything is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from outrider.engine.model_files import find_model
from outrider.engine.served_families import LEAN_FAMILIES
from outrider_kernels.thin_attention import serves_heads_of
from outrider_kernels.thin_team import takes_bfloat16

AUTO_DTYPE = "auto"
FLOAT32, BFLOAT16 = "float32", "bfloat16"
DTYPE_HELP = (
    "of weights and activations; auto: bfloat16 where the checkpoints are and this processor is quicker in it (AVX512_BF16, AVX512_VNNI, "
    "or AVX2 and no AVX512, and a C compiler), else float32 (%(default)s)"
)


def auto_dtype(models: Sequence[str], kept: Sequence[str]) -> str:
    """bfloat16 if every one of the models is kept in it and computed by compiled products that take it, else float32.

    models: folders or hub names. kept: what is kept of their weights, `full`, `int8` or a draft's `auto`. Raises ModelRefused for a model
    that is nowhere.
    """
    if "int8" in kept or not takes_bfloat16():
        return FLOAT32
    return BFLOAT16 if all(_suits_bfloat16(_folder_of(model)) for model in models) else FLOAT32


def _folder_of(model: str) -> Path:
    """Fetched from the hub first where it is none."""
    folder = Path(model).expanduser()
    return folder if folder.is_dir() else find_model(model).directory


def _suits_bfloat16(folder: Path) -> bool:
    """False for a folder whose configuration is missing or cannot be read: who loads it says better what is wrong."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        if config.get("dtype", config.get("torch_dtype")) != BFLOAT16 or config.get("model_type") not in LEAN_FAMILIES:
            return False
        return serves_heads_of(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        return False
