"""Answers at temperature 0 that are not our plain ones, explained: how far apart the tokens' logits are where they part.

The judge is the oracle (transformers' forward without a cache). A small gap is a near tie, which other kernels or another order of
sums may turn; anything else is a fault of one of the two. Must not know how answers were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider_bench.measurement import Prompt
from outrider_bench.results import Cell, Flip, Recorder

GREEDY = SamplingParams(temperature=0.0)


class Disagreeing(Protocol):
    """What a judge says of one position (oracle.Disagreement)."""

    @property
    def position(self) -> int: ...
    @property
    def gap(self) -> float: ...
    @property
    def near_tie(self) -> bool: ...


class Judge(Protocol):
    """oracle.Oracle, or a fake."""

    def judge(self, prompt: Sequence[int], answer: Sequence[int], params: SamplingParams, address: NoiseAddress) -> Sequence[Disagreeing]:
        """Positions (prompt included) where the judge would have picked another token."""
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that is not the plain one. gap: of the lower token's logit to the judge's pick; None where one answer had ended."""

    flip: Flip
    gap: float | None
    near_tie: bool

    @property
    def text(self) -> str:
        """One line for reports."""
        flip = self.flip
        where = (
            f"{flip.cell}, {flip.contestant}, prompt {flip.prompt}: token {flip.position} is {flip.drafted_token}, plain {flip.plain_token}"
        )
        if self.gap is None:
            return f"{where}; one of them had ended"
        return f"{where}; {'a near tie' if self.near_tie else 'NOT a near tie'}, logits {self.gap:.2g} apart"


def explain(
    flips: Iterable[Flip], cells: Mapping[str, Cell], recorder: Recorder, prompts: Mapping[str, Sequence[Prompt]], judge: Judge, plain: str
) -> list[Difference]:
    """Every flip with its gap. cells: by name; prompts: by task; plain: the contestant whose answers are the truth."""
    return [_explain(flip, cells[flip.cell], recorder, prompts, judge, plain) for flip in flips]


def _explain(flip: Flip, cell: Cell, recorder: Recorder, prompts: Mapping[str, Sequence[Prompt]], judge: Judge, plain: str) -> Difference:
    if min(flip.plain_token, flip.drafted_token) < 0:
        return Difference(flip, None, near_tie=False)
    prompt = prompts[cell.task][flip.prompt].token_ids
    common = recorder.answers[cell, plain, 0][flip.prompt].tokens[: flip.position]
    address = NoiseAddress(0)
    found = [
        each
        for token in (flip.plain_token, flip.drafted_token)
        for each in judge.judge(prompt, (*common, token), GREEDY, address)
        if each.position == len(prompt) + flip.position
    ]
    return Difference(flip, max(each.gap for each in found), all(each.near_tie for each in found))
