"""Writes a random target and a stand-in for its drafter, shard by shard, so that no more than a layer of it is ever in memory.

Every matrix is random and takes part, so that a step costs what a step of a trained model of that shape costs. Layers whisper, and the head
answers to a token with the one STRIDE ids further: the best token leads by so much that rounding, which on a card differs from one number
of rows to the next, does not turn it (a target whose logits are random numbers would differ from itself in every answer), and by so little
that at the temperature of SURPRISE_TEMPERATURE the noise picks another one about once in a hundred tokens. So equal answers prove the order
of things and the noise, not attention: that is what the engine's own check at load is for. The tokenizer is the reference pair's with names
added for further ids; no token ends an answer. The stand-in has the same ids and hardly any numbers: its drafts are replayed. Run as
`python -m outrider_bench.gpu.random_target SIZE FOLDER`. Must not know who measures it.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from outrider_bench.gpu.shapes import MAX_POSITIONS, SIZES, TargetShape
from outrider_bench.progress import make_progress
from outrider_models.paths import model_dir

TOKENIZER_OF = "ref-large"
SEED = 22
STRIDE = 7919  # a prime: the ids are one circle, whatever power of two times small primes there are
WHISPER = 0.3  # what all layers together add, beside an embedding of 1
SURPRISE, SURPRISE_TEMPERATURE = 0.01, 0.8
CHUNK_ROWS = 8192  # of float32 random numbers at a time
DRAFT_SHAPE = (1, 64, 2, 2, 32, 64)  # of everything but the ids


def write_target(shape: TargetShape, folder: Path, on_shard: Callable[[], None]) -> None:
    """`target` and `draft` below a folder. on_shard: called num_shards times."""
    tokenizer = _tokenizer(shape.num_ids)
    for name, its_shape in (("target", shape), ("draft", TargetShape(*DRAFT_SHAPE, shape.num_ids))):
        (folder / name).mkdir()
        (folder / name / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
        shutil.copyfile(model_dir(TOKENIZER_OF) / "tokenizer_config.json", folder / name / "tokenizer_config.json")
        _write_model(its_shape, folder / name, on_shard)


def num_shards(shape: TargetShape) -> int:
    """Of target and stand-in together."""
    return shape.num_layers + 1 + DRAFT_SHAPE[0] + 1


def lead(shape: TargetShape) -> float:
    """The best token's logit, at which another of num_ids wins with the chance SURPRISE at SURPRISE_TEMPERATURE.

    The others' logits have the standard deviation lead / sqrt(hidden); each wins over the best as often as exp of their difference over the
    temperature says. The lead is found by repeated insertion, which converges as that deviation is far below the temperature's square root.
    """
    found = 0.0
    for _ in range(50):
        spread = found**2 / shape.hidden_len
        found = SURPRISE_TEMPERATURE * math.log(shape.num_ids / SURPRISE) + spread / (2 * SURPRISE_TEMPERATURE)
    return found


def _write_model(shape: TargetShape, folder: Path, on_shard: Callable[[], None]) -> None:
    transformers.LlamaConfig(
        vocab_size=shape.num_ids,
        hidden_size=shape.hidden_len,
        intermediate_size=shape.mlp_len,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=MAX_POSITIONS,
        rope_theta=500_000.0,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=4,
        dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)
    where: dict[str, str] = {}
    shards = 1 + shape.num_layers
    for number, tensors in enumerate(_shards(shape), 1):
        name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        save_file(dict(tensors), folder / name, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, name)
        on_shard()
    index = {"metadata": {"total_size": shape.file_bytes}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")


def _shards(shape: TargetShape) -> Iterator[Mapping[str, Tensor]]:
    """What is in one file each: embedding, head and last norm; then a layer at a time."""
    generator = torch.Generator(_drawing_device()).manual_seed(SEED)
    embedding = _random(shape.num_ids, shape.hidden_len, 1.0, generator)
    head = embedding.roll(STRIDE, 0).mul_(lead(shape) / shape.hidden_len)
    ones = torch.ones(shape.hidden_len, dtype=torch.bfloat16)
    yield {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": ones}
    del embedding, head
    for layer in range(shape.num_layers):
        yield {f"model.layers.{layer}.{name}": tensor for name, tensor in _layer(shape, ones, generator).items()}


def _drawing_device() -> str:
    """Billions of random numbers take a processor minutes and a card seconds; which ones they are matters to nobody."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _layer(shape: TargetShape, ones: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    hidden, attended, kept = shape.hidden_len, shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    quiet = WHISPER / math.sqrt(2 * shape.num_layers)
    sizes = {
        "self_attn.q_proj": (attended, hidden, 1.0),
        "self_attn.k_proj": (kept, hidden, 1.0),
        "self_attn.v_proj": (kept, hidden, 1.0),
        "self_attn.o_proj": (hidden, attended, quiet),
        "mlp.gate_proj": (shape.mlp_len, hidden, 1.0),
        "mlp.up_proj": (shape.mlp_len, hidden, 1.0),
        "mlp.down_proj": (hidden, shape.mlp_len, quiet),
    }
    matrices = {f"{name}.weight": _random(outs, ins, loud * ins**-0.5, generator) for name, (outs, ins, loud) in sizes.items()}
    return matrices | {f"{name}_layernorm.weight": ones.clone() for name in ("input", "post_attention")}


def _random(rows: int, columns: int, spread: float, generator: torch.Generator) -> Tensor:
    """bfloat16 [rows, columns] in this machine's memory, by way of few float32 rows at a time on the generator's device."""
    matrix = torch.empty(rows, columns, dtype=torch.bfloat16)
    for begin in range(0, rows, CHUNK_ROWS):
        part = matrix[begin : begin + CHUNK_ROWS]
        part.copy_(torch.randn(part.shape, generator=generator, device=generator.device).mul_(spread))
    return matrix


def _tokenizer(num_ids: int) -> dict[str, Any]:
    """The reference tokenizer, with a name for every id up to num_ids that no text is ever cut into."""
    content: dict[str, Any] = json.loads((model_dir(TOKENIZER_OF) / "tokenizer.json").read_text("utf-8"))
    known = content["model"]["vocab"]
    known |= {f"\u0120<{token_id}>": token_id for token_id in range(len(known), num_ids)}  # the letter that stands for a space
    return content


def main(size: str, folder: Path) -> None:
    """Write with a bar on stderr."""
    shape = SIZES[size]
    with make_progress() as progress:
        bar = progress.add_task(f"writing a random target, {shape.file_bytes / 1e9:.1f} GB", total=num_shards(shape))
        write_target(shape, folder, lambda: progress.advance(bar))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
