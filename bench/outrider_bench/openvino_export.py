"""Converts a causal language model to what OpenVINO GenAI reads, from the same weights: `python -m outrider_bench.openvino_export`.

Arguments: MODEL FOLDER. transformers' own model goes through OpenVINO's converter, in fp32; then its cache becomes the graph's state, as
GenAI's attention backends expect it (inputs input_ids, attention_mask, position_ids and beam_idx; output logits). optimum-intel makes
such a graph too, but needs older transformers and huggingface_hub than ours. Must not know prompts, threads or what is measured.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from openvino._offline_transformations import apply_make_stateful_transformation
from openvino_tokenizers import convert_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer

EXAMPLE_BATCH, EXAMPLE_PAST, EXAMPLE_NEW = 2, 3, 2  # all different from 1, so that no dimension is taken for a constant


class CachedForward(torch.nn.Module):
    """The model with its cache as plain tensors: past and present are key and value of each layer in turn."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor, past: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Logits [batch, new, vocab], then present [batch, heads, past + new, head_dim] of each layer."""
        cache = DynamicCache()
        cache.layers = [_layer(keys, values) for keys, values in zip(past[::2], past[1::2], strict=True)]
        places = torch.arange(attention_mask.shape[1])[None, None, None, :]
        seen = (places <= position_ids[:, None, :, None]) & attention_mask.bool()[:, None, None, :]
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
        output = self.model(input_ids, attention_mask=mask, position_ids=position_ids, past_key_values=cache, use_cache=True)
        present = [tensor for layer in output.past_key_values.layers for tensor in (layer.keys, layer.values)]
        return output.logits, *present


def _layer(keys: torch.Tensor, values: torch.Tensor) -> DynamicLayer:
    layer = DynamicLayer()
    layer.keys, layer.values, layer.is_initialized = keys, values, True
    return layer


def convert(model_path: str) -> Any:
    """The stateful graph of a model, weights in fp32."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="sdpa").eval()
    config = model.config
    heads = config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    caches = [f"{layer}.{which}" for layer in range(config.num_hidden_layers) for which in ("key", "value")]
    example = (
        torch.zeros(EXAMPLE_BATCH, EXAMPLE_NEW, dtype=torch.long),
        torch.ones(EXAMPLE_BATCH, EXAMPLE_PAST + EXAMPLE_NEW, dtype=torch.long),
        torch.arange(EXAMPLE_PAST, EXAMPLE_PAST + EXAMPLE_NEW).expand(EXAMPLE_BATCH, -1),
        [torch.zeros(EXAMPLE_BATCH, heads, EXAMPLE_PAST, head_dim) for _ in caches],
    )
    with torch.inference_mode():
        graph = ov.convert_model(CachedForward(model), example_input=example)
    _name_ports(graph, caches, [-1, heads, -1, head_dim])
    _choose_beams(graph, caches)
    apply_make_stateful_transformation(graph, {f"past_key_values.{cache}": f"present.{cache}" for cache in caches})
    _begin_empty(graph, heads, head_dim)
    return graph


def _name_ports(graph: Any, caches: list[str], cache_shape: list[int]) -> None:
    names = ["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{cache}" for cache in caches)]
    for port, name in zip(graph.inputs, names, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_friendly_name(name)
        port.get_node().set_partial_shape(ov.PartialShape(cache_shape if name.startswith("past") else [-1, -1]))
    for port, name in zip(graph.outputs, ["logits", *(f"present.{cache}" for cache in caches)], strict=True):
        port.get_tensor().set_names({name})
    graph.validate_nodes_and_infer_types()


def _choose_beams(graph: Any, caches: list[str]) -> None:
    """Every cache is reordered by beam_idx first; GenAI finds the caches by this."""
    beams = ops.parameter([-1], ov.Type.i32, name="beam_idx")
    beams.output(0).get_tensor().set_names({"beam_idx"})
    graph.add_parameters([beams])
    for cache in caches:
        port = graph.input(f"past_key_values.{cache}")
        readers = port.get_target_inputs()
        chosen = ops.gather(port, beams, ops.constant(np.int64(0)))
        for reader in readers:
            reader.replace_source_output(chosen.output(0))
    graph.validate_nodes_and_infer_types()


def _begin_empty(graph: Any, heads: int, head_dim: int) -> None:
    """A state that was never written has the batch of the input and no token."""
    shape = ops.shape_of(graph.input("input_ids"), "i64")
    batch = ops.gather(shape, ops.constant(np.array([0])), ops.constant(np.int64(0)))
    empty = ops.concat([batch, ops.constant(np.array([heads, 0, head_dim]))], 0)
    for node in graph.get_ops():
        if node.get_type_name() == "ReadValue":
            node.set_arguments([ops.broadcast(ops.constant(np.float32(0.0)), empty).output(0)])
    graph.validate_nodes_and_infer_types()


def export(model_path: str, folder: Path) -> None:
    """Write graph, tokenizer and configurations. GenAI wants a tokenizer even for prompts of token ids."""
    ov.save_model(convert(model_path), folder / "openvino_model.xml", compress_to_fp16=False)
    tokenizer, detokenizer = convert_tokenizer(AutoTokenizer.from_pretrained(model_path), with_detokenizer=True)
    ov.save_model(tokenizer, folder / "openvino_tokenizer.xml")
    ov.save_model(detokenizer, folder / "openvino_detokenizer.xml")
    for name in ("config.json", "generation_config.json"):
        source = Path(model_path) / name
        if source.is_file():
            shutil.copy(source, folder / name)


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]))
