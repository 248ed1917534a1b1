"""A transformers decoder behind the DecoderForward seam, with our attention registered through transformers' attention interface.

All rows go in as one flat sequence [1, rows] with explicit positions; the attention state of the step travels as a keyword argument of
the forward call down to every attention layer. No mask function is registered for our name, so transformers builds no mask. The head
is the model's own forward around a base model that returns given hidden states, with its output projection in fp32: soft caps and
logit scales come along. Must not know sequences, the cache's layout or sampling.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from outrider.engine.admission import refusing
from outrider.engine.attention import Scoring, StepAttention
from outrider.engine.context_len import context_len
from outrider.engine.decoder_forward import DecoderShape
from outrider.engine.paged_cache import LayerShape, PagedCache
from outrider.engine.served_families import UNWINDOWED_FAMILIES, architecture_refused, missing_output
from outrider.errors import ModelRefused

ATTENTION_NAME = "outrider"
STEP_ARGUMENT = "outrider_step"
_TRACE_ROWS = 4
_UNDERSTOOD = frozenset({"dropout", "is_causal", "position_ids", "use_cache", "output_attentions", "cache_position", "is_bidirectional"})


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention interface. query: [1, heads, rows, dim]; key, value: [1, kv_heads, rows, dim]; s_aux: sinks, [heads].

    Returns ([1, rows, heads, dim], None). Raises ModelRefused when the layer asks for something this attention does not do.
    """
    step: StepAttention | None = kwargs.pop(STEP_ARGUMENT, None)
    if step is None:
        raise ModelRefused(f"{type(module).__name__} does not hand keyword arguments to its attention; the model cannot be served")
    for name, setting in kwargs.items():
        if name not in _UNDERSTOOD and setting is not None:
            raise ModelRefused(f"{type(module).__name__} asks its attention for {name!r}, which is not supported")
    if attention_mask is not None:
        raise ModelRefused(f"{type(module).__name__} builds its own attention mask, which is not supported")
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = module.layer_idx
    assert isinstance(layer, int)
    key_dim, value_dim = key.shape[-1], value.shape[-1]
    if value_dim > key_dim:
        raise ModelRefused(f"{type(module).__name__} has keys of {key_dim} and values of {value_dim} dimensions; not supported")
    if value_dim < key_dim:  # latent attention (DeepSeek): kept, and attended to, with zeros behind
        value = nn.functional.pad(value, (0, key_dim - value_dim))
    keys_values = torch.cat((key, value))
    out = step.attend(layer, query[0].transpose(0, 1), keys_values, Scoring(factor, sliding_window, softcap, s_aux))
    return out[..., :value_dim].contiguous().unsqueeze(0), None  # some models view it as rows


AttentionInterface.register(ATTENTION_NAME, attention_forward)


class LayerTrace:
    """A StepAttention that only notes what each layer asks for; attends to nothing."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.windows: dict[int, int | None] = {}
        self.group_lens: dict[int, int] = {}

    def attend(self, layer: int, query: Tensor, keys_values: Tensor, scoring: Scoring) -> Tensor:
        """Note the layer's cache shape and window; returns zeros [rows, heads, dim]."""
        if layer in self.shapes:
            raise ModelRefused(f"layer index {layer} attends twice in one forward; not supported")
        self.shapes[layer] = LayerShape(keys_values.shape[1], keys_values.shape[3])
        self.windows[layer] = scoring.window
        self.group_lens[layer] = query.shape[1] // keys_values.shape[1]
        return torch.zeros_like(query)


class _GivenHidden(nn.Module):
    """Stands in for the base model: returns the hidden states it was given, whatever it is called with.

    Heads of models that may have an encoder in front of them (GPT-2) pass on their base model's attention to it, those of models that may
    see or hear (Gemma 3 and 4) what it made of that, of models whose layers share keys (Gemma 4) what is shared, and of mixtures of experts
    their routing, which only training reads: what is not there, or read by nobody, is None.
    """

    given: Tensor

    @property
    def decoder(self) -> _GivenHidden:
        """Heads that step over their base model to the decoder in it (OPT) find the same hidden states."""
        return self

    def forward(self, *_: Any, **__: Any) -> BaseModelOutputWithPastAndCrossAttentions:
        output = BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.given)
        output.image_hidden_states = output.audio_hidden_states = output.shared_kv_states = output.router_logits = None
        return output


class _Fp32Projection(nn.Module):
    """An output projection in fp32, whatever the model's dtype."""

    def __init__(self, projection: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(projection.weight.detach().float(), requires_grad=False)
        bias = projection.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden.float(), self.weight, self.bias)


class TransformersForward:
    """DecoderForward over a loaded decoder-only model. Raises ModelRefused when the model's attention cannot be ours."""

    def __init__(self, model: PreTrainedModel) -> None:
        trace = LayerTrace()
        rows = torch.arange(_TRACE_ROWS, device=model.device)
        with _refusing_architecture(model), torch.inference_mode():
            self._base, self._head, self._given = _split(model)
            hidden = self.hidden(rows, rows, trace)
            num_logits = int(self.logits(hidden).shape[-1])
        text_config = model.config.get_text_config()
        with refusing(f"the configuration of {type(model).__name__} does not say what an engine must know"):
            with _refusing_architecture(model):
                check_layers(trace, text_config)
            self._masked_window = _masked_window(self._base, trace, text_config)
            layers = tuple(trace.shapes[layer] for layer in range(text_config.num_hidden_layers))
            self.windows = tuple(trace.windows[layer] for layer in range(text_config.num_hidden_layers))
            self._shape = DecoderShape(layers, int(hidden.shape[-1]), num_logits, context_len(text_config), max(trace.group_lens.values()))

    @property
    def shape(self) -> DecoderShape:
        """Sizes, known once loaded."""
        return self._shape

    def check_context(self, max_context: int) -> None:
        """Raise ModelRefused where texts of this context would get other answers than alone: because they choose the RoPE frequencies of
        the rows beside them, or because a window is hidden in the masks that the model would make for another attention."""
        for variant, most in (rope for part in self._base.modules() for rope in _moving_ropes(part)):
            if max_context > most:
                raise ModelRefused(
                    f"RoPE of type {variant!r} takes other frequencies for all rows once the longest row is beyond position {most}; such a "
                    f"model cannot be batched exactly but for texts of {most} tokens (--max-context {most}; a draft: --max-len {most})"
                )
        window = self._masked_window
        if window is not None and max_context > window:
            raise ModelRefused(
                f"{type(self._base).__name__} hides what lies before its window of {window} tokens in a mask that is not made here; "
                f"not supported but for texts of {window} tokens (--max-context {window}; a draft: --max-len {window})"
            )

    def card_forward(self) -> None:
        """See DecoderForward."""
        return None

    def array_forward(self, cache: PagedCache) -> None:
        """See DecoderForward: modules have only one way."""

    def hidden(self, tokens: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        """See DecoderForward."""
        output = self._base(
            input_ids=tokens.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False, **{STEP_ARGUMENT: attention}
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """See DecoderForward."""
        self._given.given = hidden.unsqueeze(0)
        logits: Tensor = self._head(input_ids=None, inputs_embeds=self._given.given, use_cache=False).logits[0]
        return logits.float()


@contextmanager
def _refusing_architecture(model: PreTrainedModel) -> Iterator[None]:
    """Say of a refusal, or of what transformers raises, which architecture it is and which ones are served."""
    family, name = model.config.model_type, type(model).__name__
    try:
        yield
    except ModelRefused as refusal:
        raise architecture_refused(family, str(refusal)) from refusal
    except Exception as error:
        missing = missing_output(error) if isinstance(error, AttributeError) else None
        problem = missing or f"{name} cannot run with our attention and head: {type(error).__name__}: {error}"
        raise architecture_refused(family, problem) from error


def check_layers(trace: LayerTrace, text_config: Any) -> None:
    """Raise ModelRefused unless the layers that the configuration names attended, no others, and with the windows that it names."""
    family, num_layers = text_config.model_type, text_config.num_hidden_layers
    beyond = sorted(set(trace.shapes) - set(range(num_layers)))
    if beyond:
        raise ModelRefused(f"layers {beyond} of {family!r} attend, and its configuration names {num_layers} layers; not supported")
    missing = sorted(set(range(num_layers)) - set(trace.shapes))
    if missing:
        problem = "do not attend through transformers' attention interface (recurrent or linear layers, or attention of the model's own)"
        raise ModelRefused(f"layers {missing} of {family!r} {problem}; not supported")
    kinds = () if family in UNWINDOWED_FAMILIES else getattr(text_config, "layer_types", None) or ()
    for layer, kind in enumerate(kinds):
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelRefused(f"layer {layer} of {family!r} is of type {kind!r}; only full and sliding attention are supported")
        named = text_config.sliding_window if kind == "sliding_attention" else None
        if trace.windows[layer] != named:
            windows = f"the window {trace.windows[layer]} to its attention, the configuration names {named}"
            raise ModelRefused(f"layer {layer} of {family!r} tells {windows}; not supported")


def _masked_window(base: nn.Module, trace: LayerTrace, text_config: Any) -> int | None:
    """That of a model whose code makes masks with it and whose attention is told none (Phi-MoE). Where layers have types, `check_layers`
    has looked; many a configuration names a window that its family does not look at."""
    window: int | None = getattr(text_config, "sliding_window", None)
    makes_masks = hasattr(sys.modules.get(type(base).__module__), "create_sliding_window_causal_mask")
    is_told = any(trace.windows.values()) or bool(getattr(text_config, "layer_types", None))
    return window if window and makes_masks and not is_told else None


def _moving_ropes(part: Any) -> Iterator[tuple[str, int]]:
    """Of a rotary embedding of transformers: its variants that go by the longest row, and the length that changes something."""
    named = getattr(part, "rope_type", None)
    for kind, variant in named.items() if isinstance(named, dict) else [(None, named)]:
        if variant == "longrope":
            parameters = part.config.rope_parameters
            yield variant, int((parameters if kind is None else parameters[kind])["original_max_position_embeddings"])
        elif isinstance(variant, str) and "dynamic" in variant:
            yield variant, int(part.original_max_seq_len)


def _split(model: PreTrainedModel) -> tuple[nn.Module, nn.Module, _GivenHidden]:
    """The base model, and a shell of the whole model that runs only what comes after it, in fp32."""
    prefix = model.base_model_prefix
    base = getattr(model, prefix, None)
    projection = model.get_output_embeddings()
    if base is None or base is model or not isinstance(projection, nn.Linear):
        raise ModelRefused(f"{type(model).__name__} is not a base model with one linear output projection; not supported")
    shell = copy.copy(model)
    shell.__dict__["_modules"] = dict(model._modules)
    names = [name for name, child in model._modules.items() if child is projection]
    if len(names) != 1:
        raise ModelRefused(f"{type(model).__name__} keeps its output projection in an unknown place; not supported")
    given = _GivenHidden()
    shell._modules[prefix] = given
    if projection.weight.dtype != torch.float32:
        shell._modules[names[0]] = _Fp32Projection(projection)
    return base, shell, given
