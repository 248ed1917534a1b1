"""Pairs of chains that compute rounds ahead, or do not, and texts that they decode with drafts and without."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from fakes_chains import NUM_IDS, NUM_POSITIONS, ChainModel
from outrider.engine.sampling.penalty_state import PenaltyState
from outrider.types.sampling import SamplingParams
from outrider_kernels.thin_ahead import ThinAhead
from outrider_kernels.thin_chain import ChainIds, ChainSlots, ChainStart, Followed
from outrider_kernels.thin_pick import PickRule
from outrider_kernels.thin_team import ThinTeam

MAX_GUESSES = 6
WAIT_S = 60.0  # a bound on what would hang, no measure of speed
PLACES = {  # two sequences of the same pools, each in runs of its own
    "one": np.concatenate([np.arange(begin, begin + 12) for begin in (12, 0, 36, 24)]).astype(np.int64),
    "other": np.concatenate([np.arange(begin, begin + 12) for begin in (84, 60, 48, 72)]).astype(np.int64),
}
PENALTIES = SamplingParams(repetition_penalty=1.2, frequency_penalty=0.3, logit_bias=((3, 1.0), (6, -0.5)))
RULES = {
    "greedy": PickRule(3, 0.0, with_prob=True),
    "warm, with seconds": PickRule(2**64 - 5, 0.8, with_prob=True, with_second=True),
    "top p": PickRule(5, 1.0, top_p=0.9, with_prob=True),
    "top k": PickRule(6, 0.9, with_prob=True, top_k=7),
    "penalised": PickRule(7, 0.9, with_prob=True, with_second=True, touched=PenaltyState(PENALTIES).touched),  # each text counts its own
}
# ids the target never picks: where the draft does, it is wrong
TARGET_IDS = ChainIds(NUM_IDS, missing=(1, 2, 8, 13, 21, 30))
DRAFT_IDS = ChainIds(NUM_IDS)


def where(name: str, *, is_lasting: bool = True) -> ChainSlots:
    slots = PLACES[name]
    edges = np.array([0, *(np.flatnonzero(np.diff(slots) != 1) + 1), len(slots)], np.int64)
    return ChainSlots(slots, edges, is_lasting=is_lasting)


@dataclass
class Text:
    """A text that is decoded with drafts: tokens, and how many of them the draft has stored."""

    tokens: list[int]
    name: str = "one"
    drafted: int = 0
    stop_below: float = 0.0
    counted: dict[str, tuple[PenaltyState, int]] = field(default_factory=dict, compare=False)

    def rule(self, rule: PickRule, model: str, num_counted: int) -> PickRule:
        """As this model picks after so many of the tokens, which it has counted by and by."""
        if rule.touched is None:
            return rule
        state, known = self.counted.get(model) or (PenaltyState(PENALTIES), 0)
        state.append(self.tokens[known:num_counted])
        self.counted[model] = state, max(known, num_counted)
        return replace(rule, touched=state.touched)


@dataclass
class Pair:
    """Two chains, and what of a text each has stored."""

    draft_team: ThinTeam = field(default_factory=lambda: ThinTeam(1))
    target_team: ThinTeam = field(default_factory=lambda: ThinTeam(2))
    ahead: ThinAhead | None = None

    def __post_init__(self) -> None:
        self.models = ChainModel(self.draft_team), ChainModel(self.target_team)
        self.draft, self.target = self.models[0].chain(DRAFT_IDS), self.models[1].chain(TARGET_IDS)
        self.places = {name: where(name) for name in PLACES}

    def hurry(self) -> Pair:
        self.ahead = ThinAhead(self.draft, NUM_POSITIONS, self.target, NUM_POSITIONS)
        return self

    def await_helper(self) -> None:
        """Until it has done all that it was sent for."""
        until = time.monotonic() + WAIT_S
        while self.ahead is not None and not self.ahead.is_at_rest:
            assert time.monotonic() < until

    def stored(self, text: Text) -> list[bytes]:
        """Keys and values of what each model has of a text."""
        ends = text.drafted, len(text.tokens) - 1
        return [pool[:, :, PLACES[text.name][:end]].tobytes() for model, end in zip(self.models, ends, strict=True) for pool in model.pools]


def told(found: Followed) -> list[object]:
    seconds = [None if part is None else part.tobytes() for part in (found.seconds, found.behinds)]
    return [found.picks.tolist(), found.probs.tobytes(), *seconds, found.is_left]


def decode_round(
    pair: Pair, text: Text, rule: PickRule, lengths: tuple[int, ...], num_judged: int | None = None, *, keeps_logits: bool = False
) -> list[object]:
    """Draft in calls of these lengths, let the target judge the guesses or fewer, and grow the text. All that was told."""
    place, guesses, heard = pair.places[text.name], list[int](), list[object]()
    position, drafting = text.drafted, text.rule(rule, "draft", text.drafted)
    fed = text.tokens[position:]
    for length in lengths:
        stop_below = text.stop_below if length > 1 else 0.0  # as drafters ask: behind a single pick nothing follows
        before = [*text.tokens[text.drafted :], *guesses][: -len(fed)]
        found = pair.draft.follow(ChainStart(fed, position, length, stop_below, before=before), drafting, place)
        heard += told(found)
        guesses += found.picks.tolist()
        position += len(fed) + len(found.picks) - 1
        fed = guesses[-1:]
        if found.is_left or len(found.picks) < length:
            break
    if len(guesses) > 1 and len(found.probs) and found.probs[-1] < text.stop_below:
        guesses.pop()  # as drafters send them: one that is too unlikely only where it is the only one
    heard += judge(pair, text, rule, guesses[:num_judged], keeps_logits=keeps_logits)
    text.drafted = min(position, len(text.tokens) - 1)
    return heard


def judge(pair: Pair, text: Text, rule: PickRule, guesses: Sequence[int] = (), *, keeps_logits: bool = False) -> list[object]:
    """Let the target judge these guesses, or none, and grow the text. All that was told."""
    rows = [text.tokens[-1], *guesses]
    judging = text.rule(rule, "target", len(text.tokens) - 1)
    start = ChainStart(rows, len(text.tokens) - 1, len(rows), 0.0, len(rows), keeps_logits=keeps_logits)
    found = pair.target.follow(start, judging, pair.places[text.name])
    picks = [max(pick, 0) for pick in found.picks.tolist()] or [0]  # in the place of what is left
    right = 0
    while right < len(guesses) and picks[right] == guesses[right]:
        right += 1
    text.tokens += picks[: right + 1]
    return told(found)


def begin(pair: Pair, text: Text, rule: PickRule) -> None:
    """The target reads all but the newest token; the draft nothing yet."""
    rows = text.tokens[:-1]
    pair.target.follow(ChainStart(rows, 0, 1, 0.0), rule, pair.places[text.name])
    text.drafted = 0


def begun(rule: str, *, stop_below: float = 0.0) -> tuple[Pair, Pair, tuple[Text, Text]]:
    """A pair that computes ahead, one that does not, and the same text of both, read."""
    pair, twin = Pair().hurry(), Pair()
    texts = Text([5, 9, 4], stop_below=stop_below), Text([5, 9, 4], stop_below=stop_below)
    for one, text in zip((pair, twin), texts, strict=True):
        begin(one, text, RULES[rule])
    return pair, twin, texts


class Asked(NamedTuple):
    """A call of a chain."""

    start: ChainStart
    rule: PickRule
    place: str

    def of(self, pair: Pair, *, target: bool) -> list[object]:
        chain = pair.target if target else pair.draft
        return told(chain.follow(self.start, self.rule, pair.places[self.place]))


def other_token(asked: Asked) -> Asked:
    tokens = [*asked.start.tokens[:-1], (asked.start.tokens[-1] + 1) % NUM_IDS]
    return asked._replace(start=replace(asked.start, tokens=tokens))


OTHER: dict[str, Callable[[Asked], Asked]] = {
    "nothing": lambda asked: asked,
    "noise": lambda asked: asked._replace(rule=replace(asked.rule, key=77)),
    "top k": lambda asked: asked._replace(rule=replace(asked.rule, top_k=1)),
    "temperature": lambda asked: asked._replace(rule=replace(asked.rule, temperature=1.7)),
    "penalties": lambda asked: asked._replace(rule=replace(asked.rule, touched=PenaltyState(PENALTIES).touched)),
    "place": lambda asked: asked._replace(place="other"),
    "position": lambda asked: asked._replace(start=replace(asked.start, position=asked.start.position - 2)),
    "token": other_token,
}
