"""Every Triton kernel compiles for a card (compute capability 9.0) on a machine without one: the interpreter accepts what the compiler
refuses. Nothing is run.

Run: pytest tests/kernels/test_triton_compile.py
"""

from __future__ import annotations

import ast
import struct
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import outrider_kernels
from mostly_slow import mostly_slow_rows
from outrider.noise.exact_log import LN2_HIGH, LN2_LOW, SERIES
from outrider_kernels import (
    triton_add_norm,
    triton_compact,
    triton_filtered_pick,
    triton_gate,
    triton_noise,
    triton_pick,
    triton_pick_walk,
    triton_rejection,
    triton_rotate,
    triton_tree_attention,
)

TARGET = GPUTarget("cuda", 90, 32)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compile anew, whatever earlier runs left on this machine."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(kernel: Any, constants: dict[str, int], types: dict[str, str], rest: str = "i32", fusion: bool = True) -> str:
    """The assembly of a kernel. types: of the arguments by name; the rest share one type."""
    signature = {name: "constexpr" if name in constants else types.get(name, rest) for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return str(triton.compile(source, target=TARGET, options={"enable_fp_fusion": fusion}).asm["ptx"])


@pytest.mark.parametrize(("members", "product"), mostly_slow_rows([(16, "mma.sync"), (64, "wgmma"), (128, "wgmma")], 2))
def test_tree_attention_compiles_to_tensor_core_products(members: int, product: str) -> None:
    constants = {
        "GROUP_LEN": 4, "HEAD_DIM": 96, "BLOCK_LEN": 16, "NUM_SPLITS": 4, "HAS_WINDOW": True, "HAS_SOFTCAP": True, "HAS_SINKS": True,
        "WIDE": False, "MEMBERS": members, "BLOCK_KEYS": triton_tree_attention.BLOCK_KEYS, "BLOCK_DIM": 128,
    }  # fmt: skip
    tables = ("tiles", "block_table", "committed_lens", "num_nodes", "node_positions", "row_positions", "row_ancestry")
    types = dict.fromkeys(tables, "*i32") | dict.fromkeys(("query", "keys", "values", "sinks"), "*bf16")
    types |= {"summed_out": "*fp32", "top_out": "*fp32", "weight_out": "*fp32"}
    types |= {"inner": "fp32", "outer": "fp32"}
    assembly = compiled(triton_tree_attention._split_kernel, constants, types)
    assert product in assembly


def test_the_merge_of_splits_compiles() -> None:
    constants = {"HEAD_DIM": 96, "NUM_SPLITS": 4, "TILE_SPLITS": 4, "BLOCK_DIM": 128}
    types = dict.fromkeys(("summed_in", "top_in", "weight_in"), "*fp32") | {"out": "*bf16"}
    assert compiled(triton_tree_attention._merge_kernel, constants, types)


def test_what_lies_between_products_compiles() -> None:
    rows = dict.fromkeys(("states", "added", "weight", "out", "gate_up", "joined", "norm", "queries", "keys", "values"), "*bf16")
    sizes = {"HIDDEN_LEN": 3000, "TILE_LEN": 4096, "HAS_ADDED": True}
    assert compiled(triton_add_norm._add_norm_kernel, sizes, rows | {"epsilon": "fp32"})
    assert compiled(triton_gate._gate_kernel, {"MLP_LEN": 3000, "TILE_LEN": triton_gate.TILE_LEN}, rows)
    sizes = {"NUM_HEADS": 6, "NUM_KV_HEADS": 2, "HEAD_DIM": 96, "HAS_NORM": True, "TILE_PAIRS": 64}
    types = rows | {"rotations": "*fp32", "positions": "*i64", "slots": "*i64", "epsilon": "fp32"}
    assert compiled(triton_rotate._rotate_kernel, sizes, types)


@pytest.mark.parametrize("bits", [16, 64])
def test_compaction_compiles_and_waits_between_reading_and_writing(bits: int) -> None:
    constants = {"DIM": 96, "ELEMENT_BITS": bits, "TILE_MOVES": 64, "BLOCK_DIM": 128}
    types = {"addresses": "*i64", "slots": "*i64"}
    assembly = compiled(triton_compact._move_kernel, constants, types)
    assert assembly.rindex("ld.global") < assembly.index("bar.sync") < assembly.index("st.global")


RULE_TYPES = {"bias": "*fp32", "allowed": "*i32", "touched_biases": "*fp64"}
RULE_TYPES |= dict.fromkeys(("touched_lens", "touched_tokens", "touched_counts"), "*i32")
RULE_TYPES |= dict.fromkeys(("repetitions", "frequencies", "presences"), "*fp64")


JUDGE_TYPES = RULE_TYPES | dict.fromkeys(("logits", "winner_logits", "sums_out"), "*fp32") | {"temperatures": "*fp64"}
JUDGE_TYPES |= dict.fromkeys(("winner_tokens", "counts_out"), "*i32")
DECIDE_TYPES = dict.fromkeys(("sums", "sums_out", "winner_logits", "probs_out"), "*fp32") | {"top_ks": "*i64"}
DECIDE_TYPES |= dict.fromkeys(("counts", "counts_out", "winner_tokens", "tokens_out"), "*i32")
DECIDE_TYPES |= dict.fromkeys(("temperatures", "top_ps", "min_p_gaps"), "*fp64")


def rule_sizes(filtered: bool) -> dict[str, int]:
    """With bias, allowed tokens and touched ones, or with none."""
    return {"HAS_BIAS": filtered, "HAS_ALLOWED": filtered, "TILE_TOUCHED": 1024 if filtered else 0}


@pytest.mark.parametrize("filtered", [False, True])
def test_the_pick_compiles_without_a_fused_multiply_add(filtered: bool) -> None:
    """Fused, the logarithm's last bits would differ from the definition's, and picks from those of other machines."""
    constants = rule_sizes(filtered) | {"BLOCK_TOKENS": triton_pick.BLOCK_TOKENS}
    types = RULE_TYPES | {"logits": "*bf16", "keys": "*i64", "positions": "*i64", "temperatures": "*fp64"}
    types |= {"scores_out": "*fp64", "logits_out": "*fp32", "tokens_out": "*i32"}
    assembly = compiled(triton_pick._tile_kernel, constants, types, fusion=triton_noise.NO_FUSION["enable_fp_fusion"])
    assert "mul.rn.f64" in assembly
    assert "div.rn.f64" in assembly
    assert "fma" not in assembly
    for constant in (LN2_HIGH, LN2_LOW, *SERIES):  # in full, not by way of fp32
        assert f"0d{struct.pack('>d', constant).hex().upper()}" in assembly
    assert "fma.rn.f64" in compiled(triton_pick._tile_kernel, constants, types)  # what the option is for


def test_the_merge_of_picks_and_the_walk_compile() -> None:
    types = {"scores": "*fp64", "logits": "*fp32", "tokens": "*i32", "scores_out": "*fp64", "logits_out": "*fp32", "tokens_out": "*i32"}
    assert compiled(triton_pick._best_kernel, {"TILE_PARTS": 64}, types)
    assert compiled(triton_pick_walk._walk_kernel, {"TILE_NODES": 64}, {"max_nodes": "i32"}, rest="*i32")


@pytest.mark.parametrize("filtered", [False, True])
def test_the_filters_of_the_pick_compile(filtered: bool) -> None:
    constants = rule_sizes(filtered) | {"BLOCK_TOKENS": triton_pick.BLOCK_TOKENS}
    assert "fma.rn.f64" not in compiled(triton_filtered_pick._judge_kernel, constants, JUDGE_TYPES, fusion=False)
    assert compiled(triton_filtered_pick._decide_kernel, {"LEFT": triton_filtered_pick.LEFT, "TILE_PARTS": 256}, DECIDE_TYPES)
    assert compiled(triton_filtered_pick._reduce_kernel, {"TILE_PARTS": 256}, DECIDE_TYPES)


@pytest.mark.parametrize("num_tiles", [1, 149])
def test_rejection_compiles_without_a_fused_multiply_add(num_tiles: int) -> None:
    """Fused, sums would differ from those of the definition, and the test of a token from that of other machines."""
    types = {"targets": "*fp32", "drafts": "*fp32", "sums": "*fp64", "sums_out": "*fp64"}
    types |= dict.fromkeys(("begins", "lens", "subtracts", "lens_out", "subtracts_out", "tokens", "bonus_out", "emitted_out"), "*i32")
    types |= dict.fromkeys(("keys", "bases"), "*i64")
    ones = {"num_tiles": 1} if num_tiles == 1 else {}
    sizes = {"BLOCK_TOKENS": triton_rejection.BLOCK_TOKENS}
    parts = sizes | ones | {"TILE_PARTS": 1 if num_tiles == 1 else 256}
    for kernel, constants in (
        (triton_rejection._walk_kernel, {}),
        (triton_rejection._sum_kernel, sizes),
        (triton_rejection._draw_kernel, parts),
    ):
        assembly = compiled(kernel, constants, types, fusion=triton_noise.NO_FUSION["enable_fp_fusion"])
        assert "fma" not in assembly


def test_sizes_of_one_compile_too() -> None:
    """A number that is 1 becomes part of the kernel, where it is no tensor any more."""
    ones = dict.fromkeys(("window", "num_heads", "head_stride", "slot_stride"), 1)
    constants = {
        "GROUP_LEN": 1, "HEAD_DIM": 16, "BLOCK_LEN": 16, "NUM_SPLITS": 1, "HAS_WINDOW": True, "HAS_SOFTCAP": False,
        "HAS_SINKS": True, "WIDE": False, "MEMBERS": 16, "BLOCK_KEYS": triton_tree_attention.BLOCK_KEYS, "BLOCK_DIM": 16,
    }  # fmt: skip
    tables = ("tiles", "block_table", "committed_lens", "num_nodes", "node_positions", "row_positions", "row_ancestry")
    types = dict.fromkeys(tables, "*i32") | dict.fromkeys(("query", "keys", "values", "sinks", "summed_out"), "*fp16")
    types |= {"top_out": "*fp32", "weight_out": "*fp32", "inner": "fp32", "outer": "fp32"}
    assert compiled(triton_tree_attention._split_kernel, constants | ones, types)
    single = dict.fromkeys(("num_ids", "logits_stride", "part_stride", "touched_stride", "biases_stride"), 1)
    constants = rule_sizes(filtered=True) | {"TILE_TOUCHED": 1, "BLOCK_TOKENS": 1024}
    assert compiled(triton_filtered_pick._judge_kernel, constants | single, JUDGE_TYPES)
    for kernel, own in ((triton_filtered_pick._decide_kernel, {"LEFT": -1}), (triton_filtered_pick._reduce_kernel, {"num_rows": 1})):
        assert compiled(kernel, own | {"TILE_PARTS": 1, "num_parts": 1, "part_stride": 1}, DECIDE_TYPES)


def test_sizes_that_differ_from_step_to_step_make_no_new_kernels() -> None:
    for kernel in (triton_tree_attention._split_kernel, triton_tree_attention._merge_kernel):
        varying = [parameter.name for parameter in kernel.params if parameter.do_not_specialize]
        assert "num_rows" in varying
    assert {"table_stride", "node_stride", "ancestry_stride"} <= {
        parameter.name for parameter in triton_tree_attention._split_kernel.params if parameter.do_not_specialize
    }


def test_only_files_named_after_triton_need_it() -> None:
    """It is an extra: an engine without a card imports the package, its values and its torch operations."""
    needing = set()
    for path in Path(outrider_kernels.__path__[0]).glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        if any(name.split(".")[0] == "triton" or name.startswith("outrider_kernels.triton_") for name in names):
            needing.add(path.stem)
    assert needing
    assert all(name.startswith("triton_") for name in needing)
