"""Loads any admitted transformers decoder and puts it behind the Engine seam.

Knows which models can be served: decoder-only, safetensors, softmax attention that goes through transformers' attention interface, and
rows that do not influence one another. Everything else is refused with the reason before a request sees it. Must not know sampling.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from outrider.engine.admission import refusing
from outrider.engine.card_probe import probed_way
from outrider.engine.card_way import card_way
from outrider.engine.config import EngineConfig
from outrider.engine.identity import eos_token_ids, model_identity, vocabulary_for
from outrider.engine.model_files import ModelFiles, find_model, weights_hash
from outrider.engine.own_rows import ComputedRows, OwnLogits
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.probe import probe_batches, probe_positions
from outrider.engine.row_experts import compute_by_rows
from outrider.engine.served_families import architecture_refused
from outrider.engine.step_threads import step_threads
from outrider.engine.torch_settings import TORCH_DTYPES, check_device, invariant_shape, use_threads
from outrider.engine.transformers_forward import ATTENTION_NAME, TransformersForward
from outrider.engine.widened_forward import widened
from outrider.errors import ModelRefused
from outrider.types.identity import Numerics

_LOG = logging.getLogger(__name__)

_SCALED_DTYPES = frozenset({"F8_E4M3", "F8_E5M2", "I8"})  # as safetensors names them: numbers that mean something with a scale only


def load_transformers_engine(config: EngineConfig) -> PagedEngine:
    """Load, probe and wrap a model; the calling thread owns the engine from here on. Raises ModelRefused or InvalidRequest."""
    config.check()
    check_device(config)
    use_threads(config)
    files = find_model(config.model, config.revision)
    model = load_model(files, config)
    forward = TransformersForward(model)
    vocabulary = vocabulary_for(files, forward.shape.num_logits)
    dtype = TORCH_DTYPES[config.dtype]
    card = card_way(config, can_record=False)  # modules may ask the card for a number, which a recording cannot
    max_context = min(config.max_context or forward.shape.max_positions, forward.shape.max_positions)
    with refusing(f"the configuration of {type(model).__name__} does not say what an engine must know"):
        forward.check_context(max_context)
    if config.probe:
        with refusing(f"{type(model).__name__} of {config.model!r} fails when it is checked, and cannot be served"):
            probe_positions(forward, config.device, max_context)
            own = ComputedRows(own_logits(model))
            probe_batches(forward, own, dtype, dtype, config.device, vocabulary.size, invariant_shape(config))
            card = probed_way(card, forward, own, dtype, config.device)
    eos = eos_token_ids(files.directory, getattr(model.config.get_text_config(), "eos_token_id", None), vocabulary.size)
    backend = "transformers" if card is None else "transformers, card kernels"
    identity = model_identity(files, weights_hash(files), config, backend, vocabulary, max_context, eos)
    return PagedEngine(forward, identity, config, dtype, vocabulary.missing_ids, step_threads(config), card)


def load_model(files: ModelFiles, config: EngineConfig) -> PreTrainedModel:
    """The model in evaluation mode with our attention. Raises ModelRefused for what is not a decoder-only causal model."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with refusing(f"transformers cannot load {config.model!r} as a causal language model"):
        model_config = AutoConfig.from_pretrained(files.directory, trust_remote_code=config.trust_remote_code)
        if getattr(model_config, "is_encoder_decoder", False):
            family = model_config.model_type
            raise architecture_refused(family, f"{config.model!r} is an encoder-decoder")
        model, report = _from_pretrained(files, config, model_config.model_type)
        if report["unexpected_keys"]:
            ignored = sorted(report["unexpected_keys"])
            _LOG.warning("transformers ignores %d tensors of %r: %s", len(ignored), config.model, ", ".join(ignored[:3]))
            if getattr(model, "hf_quantizer", None) is None:
                _refuse_scaled(files, ignored)
        if report["missing_keys"]:  # transformers would fill them with random numbers and a warning
            raise ModelRefused(f"the weights of {config.model!r} lack {', '.join(sorted(report['missing_keys'])[:3])}")
        for part in (model.config, model.config.get_text_config()):
            if getattr(part, "output_router_logits", False):
                part.output_router_logits = False  # a loss that only training reads
        if config.numerics is Numerics.INVARIANT:
            compute_by_rows(model)
        return model.to(config.device).eval()


def _from_pretrained(files: ModelFiles, config: EngineConfig, family: str) -> tuple[PreTrainedModel, dict[str, Any]]:
    """The model, and transformers' report about its tensors."""
    try:
        loaded: tuple[PreTrainedModel, dict[str, Any]] = AutoModelForCausalLM.from_pretrained(
            files.directory,
            dtype=TORCH_DTYPES[config.dtype],
            use_safetensors=True,
            attn_implementation=ATTENTION_NAME,
            trust_remote_code=config.trust_remote_code,
            output_loading_info=True,
        )
    except KeyError as error:
        if error.args != (ATTENTION_NAME,):
            raise
        raise architecture_refused(family, "it does not attend through transformers' attention interface") from error
    return loaded


def _refuse_scaled(files: ModelFiles, ignored: list[str]) -> None:
    """Raise ModelRefused for quantized weights beside whose numbers lies what scales them, in tensors that transformers ignores: it takes
    the numbers alone for weights, and so would the load-time check, which knows no others."""
    beside = {name.rpartition(".")[0] for name in ignored}
    for path in files.weights:
        with safe_open(path, framework="pt") as shard:
            for name in sorted(set(shard.keys()) - set(ignored)):
                kept = shard.get_slice(name).get_dtype()
                if kept in _SCALED_DTYPES and name.rpartition(".")[0] in beside:
                    raise ModelRefused(
                        f"the weights are quantized in a way that transformers does not know: {name} is {kept}, and what scales it is "
                        f"ignored ({len(ignored)} tensors); serve the model that it was made of"
                    )


def own_logits(model: PreTrainedModel) -> OwnLogits:
    """The model's own forward over one path, with its eager attention and experts and no cache, for the probe."""
    experts = model.get_experts_implementation()

    def logits(tokens: list[int], *, in_float32: bool = False) -> Tensor:
        model.set_attn_implementation("eager")
        model.set_experts_implementation("eager")
        try:
            failure = f"{type(model).__name__} cannot run on its own, so that there is nothing to check it by"
            with refusing(failure), widened(model) if in_float32 else nullcontext():
                output = model(input_ids=torch.tensor([tokens], device=model.device), use_cache=False)
        finally:
            model.set_attn_implementation(ATTENTION_NAME)
            model.set_experts_implementation(experts)
        found: Tensor = output.logits[0]
        return found

    return logits
