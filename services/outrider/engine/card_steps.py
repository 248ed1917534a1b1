"""Steps on a card: the whole forward from tokens to picks over inputs in fixed places, played from a recording where the step is small.

One copy brings a step to the card and one brings its picks back; the logits stay there, for what the fused pick leaves. A step that fits a
bucket (engine/card_buckets.py) is padded to it and played; a larger one is launched operation by operation. `fast` numerics only: how many
rows a product has, and how an attention is split, shows in the last bits. Must not know sequences beyond a step's segments. Needs Triton:
import it where a card is used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from outrider.engine.admission import refusing
from outrider.engine.card_attention import CardAttention
from outrider.engine.card_buckets import CardBuckets, StepSizes
from outrider.engine.card_filling import StepPadding, fill_rows
from outrider.engine.card_graphs import GraphCapture
from outrider.engine.card_inputs import CardInputs, CardLayout, CardShape, HostArray
from outrider.engine.card_penalties import fill_touched, touched_tokens
from outrider.engine.card_rules import fill_rules
from outrider.engine.card_upload import CardUpload
from outrider.engine.decoder_forward import DecoderForward
from outrider.engine.paged_cache import PagedCache
from outrider.engine.row_picker import Decided
from outrider.engine.step_batch import LongArray, StepBatch
from outrider.engine.torch_settings import await_device
from outrider.errors import ModelRefused
from outrider_kernels.triton_filtered_pick import FilteredRows, filtered_pick
from outrider_kernels.triton_tree_attention import rows_per_tile

LOG_EVERY = 8  # recordings between two lines of progress

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CardAnswer:
    """logits: float32 [wanted rows, num_ids] on the card, valid until the next step; ids that stand for nothing are at -inf."""

    logits: Tensor
    decided: Decided


@dataclass(frozen=True, slots=True)
class _Recording:
    """A bucket made ready. arrays: where the host writes its inputs. play: runs it."""

    layout: CardLayout
    arrays: CardInputs[HostArray]
    play: Callable[[], None]


class CardSteps:
    """Steps of one forward over one cache, which has one block more than sizes.num_blocks, for rows of padding."""

    def __init__(self, forward: DecoderForward, cache: PagedCache, sizes: StepSizes, num_ids: int, missing_ids: tuple[int, ...]) -> None:
        """num_ids: emittable ids; columns of the logits beyond are padding. missing_ids: ids below that stand for nothing."""
        self._forward = forward
        self._hidden = (forward.card_forward() or forward).hidden
        self._cache = cache
        self._sizes = sizes
        self._num_ids = num_ids
        self._device = cache.device
        self._missing = torch.tensor(missing_ids, dtype=torch.int64, device=self._device) if missing_ids else None
        self._padding = StepPadding(sizes.block_len, sizes.num_blocks)
        self._buckets = CardBuckets(sizes, partial(rows_per_tile, forward.shape.group_len, cache.pools[0].dtype))
        self._recordings: dict[CardShape, _Recording] = {}
        self._upload = CardUpload(1, self._device)
        self._large = CardUpload(1, self._device)
        self._logits = self._answers = torch.empty(0, device=self._device)

    @property
    def num_recordings(self) -> int:
        """Buckets that are played; 0 where none is."""
        return len(self._recordings)

    def record(self, graphs: GraphCapture) -> None:
        """Make every bucket ready, the largest first: the others fit its memory. Where one fails, none is played, and a line says so."""
        started = time.perf_counter()
        layouts = [CardLayout(shape) for shape in reversed(self._buckets.shapes)]
        most_rows = max(layout.shape.rows for layout in layouts)
        self._upload = CardUpload(max(layout.num_words for layout in layouts), self._device)
        self._logits = torch.zeros(most_rows, self._num_ids, dtype=torch.float32, device=self._device)
        self._answers = torch.zeros(2 * most_rows, dtype=torch.int32, device=self._device)
        try:
            with refusing("the card's graphs cannot be recorded"), torch.inference_mode():
                for number, layout in enumerate(layouts, 1):
                    self._recordings[layout.shape] = self._recorded(layout, graphs)
                    if number % LOG_EVERY == 0:
                        _LOG.info("recorded %d of %d graphs", number, len(layouts))
        except ModelRefused as error:
            self._recordings.clear()
            _LOG.warning("every step is launched operation by operation, which is slower: %s", error)
            return
        held = (self._upload.num_words * 4 + self._logits.nbytes + graphs.num_bytes) / 2**20
        _LOG.info("%d graphs of steps up to %d rows, %.0f MiB, %.1f s", len(layouts), most_rows, held, time.perf_counter() - started)

    def run(self, batch: StepBatch, wanted: LongArray) -> CardAnswer:
        """The step's forward and picks. wanted: flat rows with results. Keys and values are stored."""
        bucket = self._buckets.bucket_for(batch) if self._recordings else None
        if bucket is None:
            return self._run_own(batch, wanted)
        recording = self._recordings[bucket]
        self._upload.wait()
        self._fill(recording.arrays, recording.layout, batch, wanted, self._upload)
        recording.play()
        return self._answer(self._logits[: len(wanted)], self._answers, bucket.rows, len(wanted))

    def _recorded(self, layout: CardLayout, graphs: GraphCapture) -> _Recording:
        num_rows = layout.shape.rows
        arrays = layout.arrays(self._upload.wait())
        self._fill(arrays, layout, _empty_batch(), np.empty(0, np.int64), self._upload)
        inputs = layout.tensors(self._upload.device_words)
        attention = self._attention(inputs, layout.shape)
        logits, answers = self._logits[:num_rows], self._answers[: 2 * num_rows]

        def work() -> None:
            hidden = self._hidden(inputs.tokens, inputs.positions, attention)
            logits.copy_(self._forward.logits(hidden.index_select(0, inputs.wanted))[:, : self._num_ids])
            self._pick(logits, inputs, answers)

        return _Recording(layout, arrays, graphs.capture(work))

    def _run_own(self, batch: StepBatch, wanted: LongArray) -> CardAnswer:
        layout = CardLayout(self._buckets.own_shape(batch))
        if self._large.num_words < layout.num_words:
            self._large = CardUpload(2 * layout.num_words, self._device)
        self._fill(layout.arrays(self._large.wait()), layout, batch, wanted, self._large)
        inputs = layout.tensors(self._large.device_words)
        hidden = self._hidden(inputs.tokens, inputs.positions, self._attention(inputs, layout.shape))
        num_wanted = len(wanted)
        if num_wanted == 0:
            await_device(self._device)
            nothing = Decided(np.empty(0, np.int32), np.empty(0, np.float32))
            return CardAnswer(hidden.new_empty(0, self._num_ids, dtype=torch.float32), nothing)
        logits = self._forward.logits(hidden.index_select(0, inputs.wanted[:num_wanted]))[:, : self._num_ids]
        answers = torch.empty(2 * num_wanted, dtype=torch.int32, device=self._device)
        self._pick(logits, inputs, answers)
        return self._answer(logits, answers, num_wanted, num_wanted)

    def _fill(self, arrays: CardInputs[HostArray], layout: CardLayout, batch: StepBatch, wanted: LongArray, upload: CardUpload) -> None:
        fill_rows(arrays, layout.shape, batch, wanted, self._padding)
        fill_rules(arrays, batch, wanted)
        num_touched_rows = fill_touched(arrays, batch)
        upload.send(layout.used_words(len(batch.segments), num_touched_rows))

    def _attention(self, inputs: CardInputs[Tensor], shape: CardShape) -> CardAttention:
        return CardAttention(self._cache, inputs, shape, self._sizes.block_len)

    def _pick(self, logits: Tensor, inputs: CardInputs[Tensor], answers: Tensor) -> None:
        """answers: int32 [2 * rows], the picks and then the bits of their probabilities."""
        num_rows = len(logits)
        if self._missing is not None:
            logits.index_fill_(1, self._missing, -torch.inf)
        rules = (inputs.keys, inputs.pick_positions, inputs.temperatures, inputs.top_ks, inputs.top_ps, inputs.min_p_gaps)
        rows = FilteredRows(*rules, touched=touched_tokens(inputs))
        filtered_pick(logits, rows, answers[:num_rows], answers[num_rows:].view(torch.float32))

    def _answer(self, logits: Tensor, answers: Tensor, num_rows: int, num_wanted: int) -> CardAnswer:
        found = answers[: 2 * num_rows].cpu().numpy()
        picks, probs = found[:num_wanted].copy(), found[num_rows : num_rows + num_wanted].view(np.float32).copy()
        return CardAnswer(logits, Decided(picks, probs))


def _empty_batch() -> StepBatch:
    """A step without rows: all that a recording is made with is padding."""
    nothing = np.empty(0, np.int64)
    return StepBatch(nothing, nothing, nothing, [])
