"""Loads a Llama-family model into our own forward and puts it behind the Engine seam.

Shares everything but the forward with the transformers engine: cache, batches, sampling, identity. The load-time probe compares it
with transformers' own forward of the same files. Must not know sampling.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from outrider.engine.admission import refusing
from outrider.engine.card_probe import probed_way
from outrider.engine.card_way import CardWay, card_way
from outrider.engine.config import AUTO_SHORTLIST, SHORTLIST_IDS, SHORTLIST_REFUSAL, DType, EngineConfig, WeightFormat
from outrider.engine.identity import eos_token_ids, model_identity, vocabulary_for
from outrider.engine.lean_config import LeanRefusal, LeanSizes, read_lean_config
from outrider.engine.lean_forward import LeanForward
from outrider.engine.lean_weights import LeanWeights, read_lean_weights
from outrider.engine.matrix_layout import ThinRows
from outrider.engine.model_files import ModelFiles, find_model, weights_hash
from outrider.engine.own_rows import KeptRows, OwnLogits, OwnRows
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.probe import LONGEST_PATH, probe_batches
from outrider.engine.step_threads import step_threads
from outrider.engine.torch_settings import TORCH_DTYPES, check_device, invariant_shape, use_threads
from outrider.errors import InvalidRequest, ModelRefused
from outrider_kernels.native_library import NativeUnavailable
from outrider_kernels.thin_attention import serves_heads_of
from outrider_kernels.thin_matrix import MOST_QUAD_INPUTS
from outrider_kernels.thin_team import (
    ThinTeam,
    multiplies_bfloat16,
    multiplies_bytes,
    multiplies_float16,
    multiplies_tiles,
    prefers_fixed16,
    takes_bfloat16,
)

_LOG = logging.getLogger(__name__)


def is_lean(config: EngineConfig) -> bool:
    """Whether the lean forward can run this model (by its configuration; tensors are checked at load)."""
    return not config.trust_remote_code and not isinstance(read_lean_config(find_model(config.model, config.revision)), LeanRefusal)


def load_lean_engine(config: EngineConfig) -> PagedEngine:
    """Load, probe and wrap a model; the calling thread owns the engine from here on. Raises ModelRefused or InvalidRequest."""
    config.check()
    check_device(config)
    use_threads(config)
    files = find_model(config.model, config.revision)
    model_config = read_lean_config(files)
    if isinstance(model_config, LeanRefusal):
        raise ModelRefused(f"the lean forward cannot run {config.model!r}: {model_config.reason}; use the transformers engine")
    sizes = model_config.sizes
    team = thin_team(config) if serves_heads_of(sizes.head_dim) else None
    if team is None and config.shortlist > 0:
        raise InvalidRequest("engine.shortlist", SHORTLIST_REFUSAL)
    quick = None if team is None or config.weights is not WeightFormat.QUICK else _quick_rows(sizes)
    if config.weights is WeightFormat.QUICK and quick is None:
        config = replace(config, weights=WeightFormat.FULL)
    if team is None and config.weights is WeightFormat.INT8:
        _LOG.warning("int8 weights are widened for each product here: they save memory and cost time")
    with refusing(f"the weights of {config.model!r} cannot be read"):
        thin = None if team is None else quick or _thin_rows(config.dtype)
        dtype = TORCH_DTYPES[config.dtype]
        asked = max(config.max_context, LONGEST_PATH) if config.max_context else 0
        weights = read_lean_weights(files, model_config, dtype, config.device, config.numerics, config.weights, thin, asked)
    cache_dtype = weights.embedding.dtype if team is None else _cache_dtype(config, weights)
    config = replace(config, shortlist=0 if team is None else _shortlist(config, weights.head.shape[1]))
    forward = LeanForward(weights, team, min(config.thin_rows, config.max_rows))
    card = card_way(config, can_record=True)
    vocabulary = vocabulary_for(files, forward.shape.num_logits)
    file_hash = weights_hash(files)
    if config.probe:
        # probe_positions has nothing to ask: rotations are a table here, read by each row's own position
        card = _probed(forward, card, _own_rows(files, config, file_hash), config, cache_dtype, vocabulary.size)
        torch.cuda.empty_cache()  # of a model that was loaded to compare with, which is gone; nothing where there is no card
    max_context = min(config.max_context or forward.shape.max_positions, forward.shape.max_positions)
    eos = eos_token_ids(files.directory, model_config.eos_token_id, vocabulary.size)
    return PagedEngine(
        forward,
        model_identity(files, file_hash, config, _backend(config, team, card, cache_dtype), vocabulary, max_context, eos),
        config,
        cache_dtype,
        vocabulary.missing_ids,
        step_threads(config, team),
        card,
    )


def _probed(
    forward: LeanForward, card: CardWay | None, own: OwnRows, config: EngineConfig, cache_dtype: torch.dtype, num_ids: int
) -> CardWay | None:
    """See probed_way. Raises ModelRefused."""
    dtype = TORCH_DTYPES[config.dtype]
    probe_batches(forward, own, dtype, cache_dtype, config.device, num_ids, invariant_shape(config))
    return probed_way(card, forward, own, dtype, config.device)


def _shortlist(config: EngineConfig, num_ids: int) -> int:
    """How many of a head's ids guesses are chosen among, 0: all."""
    if config.shortlist == AUTO_SHORTLIST:
        return SHORTLIST_IDS if num_ids >= 2 * SHORTLIST_IDS else 0
    return config.shortlist if config.shortlist < num_ids else 0


def _quick_rows(sizes: LeanSizes) -> ThinRows | None:
    """What rows become that meet int8 weights quickest here; None where the full model is as quick."""
    longest = max(sizes.hidden_len, sizes.mlp_len, sizes.num_heads * sizes.head_dim)
    if multiplies_bytes() and longest <= MOST_QUAD_INPUTS:
        return ThinRows.DIGITS
    return ThinRows.FIXED16 if prefers_fixed16() else None


def _cache_dtype(config: EngineConfig, weights: LeanWeights) -> torch.dtype:
    """Of keys and values beside thin products, which compute in float32 whatever is stored: the model's, as wherever it is served, half as
    long to read. Not where keys have biases, of which some tens, as in the Qwen2 family, leave bfloat16 nothing of what tells keys apart;
    nor behind weights whose rows are rounded less than that."""
    biased = any(layer.qkv.bias is not None for layer in weights.layers)
    return torch.float32 if biased or config.weights is not WeightFormat.FULL else TORCH_DTYPES[config.dtype]


def _backend(config: EngineConfig, team: ThinTeam | None, card: CardWay | None, cache_dtype: torch.dtype) -> str:
    """What computes, for the fingerprint."""
    if card is not None:
        return "lean, card kernels"
    if team is None:
        return "lean"
    if config.dtype is not DType.BFLOAT16:
        return "lean, thin products"
    rows = _thin_rows(config.dtype)
    how = f" of {rows.value}" if rows is not ThinRows.BFLOAT16 else " by tiles" if multiplies_tiles() else ""
    return f"lean, thin products{how}{', bfloat16 cache' if cache_dtype == torch.bfloat16 else ''}"


def _thin_rows(dtype: DType) -> ThinRows:
    """Of bfloat16: tiles are quickest, then float16. A processor that has the latter multiplies bfloat16 no faster than float32; one that
    has neither may multiply whole numbers faster."""
    if dtype is not DType.BFLOAT16:
        return ThinRows.FLOAT32
    if not multiplies_bfloat16():
        return ThinRows.FIXED16
    return ThinRows.FLOAT16 if multiplies_float16() and not multiplies_tiles() else ThinRows.BFLOAT16


def _own_rows(files: ModelFiles, config: EngineConfig, file_hash: str) -> KeptRows:
    """What transformers' forward of the same files says, with the weights that are served. file_hash: of the weights."""
    configuration = (files.directory / "config.json").read_text("utf-8")
    facts = {
        "model": file_hash,
        "configuration": configuration,
        "dtype": config.dtype.value,
        "weights": config.weights.value,
        "device": "cpu" if config.device == "cpu" else torch.cuda.get_device_name(config.device),  # another one rounds otherwise
    }
    return KeptRows(lambda: _reference(files, config), facts, config.device)


def _reference(files: ModelFiles, config: EngineConfig) -> OwnLogits:
    """transformers' forward of the same files, with the weights that are served."""
    from outrider.engine.int8_reference import round_to_int8
    from outrider.engine.transformers_engine import load_model, own_logits

    model = load_model(files, config)
    if config.weights is not WeightFormat.FULL:
        round_to_int8(model, with_head=config.weights is WeightFormat.QUICK)
    return own_logits(model)


def thin_team(config: EngineConfig) -> ThinTeam | None:
    """Threads for thin products; None where an engine of this configuration has no use for them, or no compiler made them."""
    is_theirs = config.dtype is DType.FLOAT32 or (config.dtype is DType.BFLOAT16 and config.weights is not WeightFormat.INT8)
    if not (is_theirs and config.thin_products and config.device == "cpu" and config.array_rows):
        return None
    if config.dtype is DType.BFLOAT16 and not takes_bfloat16():
        _LOG.info(
            "bfloat16 is thin products' with a compiler and AVX512_BF16, AVX512_VNNI, or AVX2 alone: torch computes, or ask for float32"
        )
        return None
    try:
        return ThinTeam((config.num_threads or torch.get_num_threads()) + config.lent_threads)
    except NativeUnavailable as error:
        _LOG.warning("thin products are left to numpy, which is slower: %s", error)
        return None
