"""Compile our Triton kernels for an H200, without one: a line for each with what its assembly holds. Run as `python -m triton_compiling`.

Types and sizes are those that the benchmarks launch them with. Triton must not be the interpreter's here, so that this is a process of its
own. Must not know what kernels compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile  # noqa: A004 its own name

from outrider_kernels import triton_compact, triton_noise, triton_pick, triton_pick_walk, triton_tree_attention

H200 = GPUTarget("cuda", 90, 32)
NOTED = ("mma", "fma.rn.f64")
WHOLE, WHOLES, POINTER = "i32", "*i32", "*bf16"

SPLIT = {
    "query": POINTER, "keys": POINTER, "values": POINTER, "tiles": WHOLES, "block_table": WHOLES, "committed_lens": WHOLES,
    "num_nodes": WHOLES, "node_positions": WHOLES, "row_positions": WHOLES, "row_ancestry": WHOLES, "summed_out": "*fp32",
    "top_out": "*fp32", "weight_out": "*fp32", "scaling": "fp32", "softcap": "fp32", "window": WHOLE, "num_rows": WHOLE, "num_heads": WHOLE,
    "head_stride": WHOLE, "slot_stride": WHOLE, "table_stride": WHOLE, "node_stride": WHOLE, "ancestry_stride": WHOLE,
}  # fmt: skip
SPLIT_SIZES = {
    "GROUP_LEN": 4, "HEAD_DIM": 128, "BLOCK_LEN": 16, "NUM_SPLITS": 4, "HAS_WINDOW": True, "HAS_SOFTCAP": True, "WIDE": False,
    "TILE_ROWS": 16, "BLOCK_KEYS": triton_tree_attention.BLOCK_KEYS, "BLOCK_DIM": 128,
}  # fmt: skip
MERGE = {"summed_in": "*fp32", "top_in": "*fp32", "weight_in": "*fp32", "out": POINTER, "num_rows": WHOLE, "num_heads": WHOLE}
TILE = {
    "logits": POINTER, "bias": "*fp32", "allowed": WHOLES, "keys": "*i64", "positions": "*i64", "temperatures": "*fp64",
    "scores_out": "*fp64", "logits_out": "*fp32", "tokens_out": WHOLES, "num_ids": WHOLE, "vocab_begin": WHOLE, "logits_stride": WHOLE,
    "bias_stride": WHOLE, "allowed_stride": WHOLE,
}  # fmt: skip
BEST = {
    "scores": "*fp64", "logits": "*fp32", "tokens": WHOLES, "scores_out": "*fp64", "logits_out": "*fp32", "tokens_out": WHOLES,
    "num_parts": WHOLE,
}  # fmt: skip
WALK = {
    "tokens": WHOLES, "parents": WHOLES, "picks": WHOLES, "node_begins": WHOLES, "paths_out": WHOLES, "lens_out": WHOLES,
    "emitted_out": WHOLES, "bonus_out": WHOLES, "max_nodes": WHOLE,
}  # fmt: skip
MOVE = {"addresses": "*i64", "slots": "*i64", "num_moves": WHOLE, "num_slots": WHOLE}
GUMBEL = {"keys": "*i64", "positions": "*i64", "tokens": "*i64", "bits_out": "*i64", "values_out": "*fp32", "num_values": WHOLE}


def note(kernel: Any, types: Mapping[str, str], sizes: Mapping[str, object], options: Mapping[str, Any] | None = None) -> None:
    """Compile, assemble, and print the kernel's name and what is in it. types: of arguments; sizes: of constants."""
    names = list(kernel.arg_names)
    signature = {name: types.get(name, "constexpr") for name in names}
    source = ASTSource(kernel, signature, constexprs={(names.index(name),): size for name, size in sizes.items()})
    compiled = compile(source, target=H200, options=dict(options or {}))
    assert compiled.asm["cubin"]
    print(kernel.__name__, "compiled", *(word for word in NOTED if word in compiled.asm["ptx"]))


if __name__ == "__main__":
    note(triton_tree_attention._split_kernel, SPLIT, SPLIT_SIZES)
    note(triton_tree_attention._merge_kernel, MERGE, {"HEAD_DIM": 128, "NUM_SPLITS": 4, "BLOCK_DIM": 128})
    picked = {"HAS_BIAS": True, "HAS_ALLOWED": True, "BLOCK_TOKENS": triton_pick.BLOCK_TOKENS}
    note(triton_pick._tile_kernel, TILE, picked, triton_noise.NO_FUSION)
    note(triton_pick._best_kernel, BEST, {"TILE_PARTS": 256})
    note(triton_pick_walk._walk_kernel, WALK, {"TILE_NODES": 32})
    note(triton_compact._move_kernel, MOVE, {"DIM": 128, "ELEMENT_BITS": 16, "TILE_MOVES": 8, "BLOCK_DIM": 128})
    note(triton_noise._gumbel_kernel, GUMBEL, {"BLOCK_TOKENS": triton_noise.BLOCK_TOKENS}, triton_noise.NO_FUSION)
