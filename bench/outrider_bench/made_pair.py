"""A pair of another architecture, made on the spot: random weights whose later layers whisper, and a draft of the first layer alone.

Nothing is trained, so the text is gibberish; what is measured is the machinery. The target's later layers add little to what the first one
says, so that the draft, the target's own embedding, first layer and head, is right often and wrong often, at a fraction of the cost. The
tokenizer is the reference pair's, and no token ends an answer. Run as `python -m outrider_bench.made_pair FAMILY FOLDER`: the process that
asks for a pair stays free of torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from outrider.errors import Unavailable
from outrider.launch.threads import thread_environment
from outrider_bench import enlarged_pair, spread_pair, widened_pair
from outrider_models.paths import model_dir

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
TOKENIZER_OF = "ref-large"
NUM_LAYERS = 8
HIDDEN_LEN = 256
LOGIT_SPREAD = 6.0  # standard deviation of a row of logits: the best token has about half of the probability
SEED = 20
# Not families: the reference pair with a target ten times as large, with a vocabulary 64 times as large, and with that in shapes that
# people serve; their text is real.
WRITERS = {"widened": widened_pair.write_pair, "spread": spread_pair.write_pair, "enlarged": enlarged_pair.write_pair}
_COMMON: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 2048,
        "hidden_size": HIDDEN_LEN,
        "intermediate_size": 704,
        "num_attention_heads": 4,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": None,
        "pad_token_id": 4,
    }
)


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture.

    config: transformers' class. own: what it is told beside the common sizes. outputs: ends of the names of the matrices through which a
    layer speaks. layers: what layers' names begin with. whisper: the factor of all but the first layer's.
    """

    config: str
    own: Mapping[str, Any]
    outputs: tuple[str, ...]
    layers: str
    whisper: float


_LLAMA_OUTPUTS = ("o_proj.weight", "down_proj.weight")
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        # The lean forward, with norms of queries and keys.
        "qwen3": Family("Qwen3Config", {"num_key_value_heads": 2, "head_dim": 64}, _LLAMA_OUTPUTS, "model.layers.", 0.06),
        # The lean forward, with a window.
        "mistral": Family("MistralConfig", {"num_key_value_heads": 2, "sliding_window": 256}, _LLAMA_OUTPUTS, "model.layers.", 0.06),
        # transformers' own modules: another order of sums, biases, attention and MLP side by side.
        "gpt_neox": Family("GPTNeoXConfig", {}, ("attention.dense.weight", "dense_4h_to_h.weight"), "gpt_neox.layers.", 0.06),
    }
)


def make(family: str, folder: Path) -> tuple[str, str]:
    """Write a target and its draft below `folder`, in a process of its own; returns their folders. Raises Unavailable with its error."""
    command = [sys.executable, "-m", "outrider_bench.made_pair", family, str(folder)]
    paths = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
    environment = {**os.environ, "PYTHONPATH": paths, **thread_environment(1)}
    made = subprocess.run(command, capture_output=True, text=True, env=environment)
    if made.returncode:
        raise Unavailable(f"no pair of the family {family!r} could be made:\n{made.stderr.strip()[-2000:]}")
    return str(folder / "target"), str(folder / "draft")


def write_pair(family: Family, folder: Path) -> None:
    """Both models with the reference tokenizer."""
    target = _model(family, NUM_LAYERS)
    _fill(target, family)
    draft = _model(family, 1)
    draft.load_state_dict({name: weight for name, weight in target.state_dict().items() if name in draft.state_dict()})
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(folder / name)
        for file in TOKENIZER_FILES:
            shutil.copyfile(model_dir(TOKENIZER_OF) / file, folder / name / file)


def _model(family: Family, num_layers: int) -> PreTrainedModel:
    import transformers

    config = getattr(transformers, family.config)(**{**_COMMON, **family.own, "num_hidden_layers": num_layers})
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(config)
    return model.eval()


def _fill(model: PreTrainedModel, family: Family) -> None:
    import torch

    generator = torch.Generator().manual_seed(SEED)
    head = model.get_output_embeddings().weight
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() < 2:
                continue  # norms and biases stay as they are made
            spread = 1.0 if "embed" in name and weight is not head else weight.shape[-1] ** -0.5
            weight.normal_(0.0, spread, generator=generator)
            if name.startswith(family.layers) and name.endswith(family.outputs) and not name.startswith(f"{family.layers}0."):
                weight.mul_(family.whisper)
        head.mul_(LOGIT_SPREAD)


if __name__ == "__main__":
    if sys.argv[1] in WRITERS:
        WRITERS[sys.argv[1]](Path(sys.argv[2]))
    else:
        write_pair(FAMILIES[sys.argv[1]], Path(sys.argv[2]))
