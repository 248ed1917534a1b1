"""The truth of a simulated request, and what its drafter would guess at every position.

A guess is right when a counter-based uniform of (seed, client, request, position) lies below the acceptance there, as replayed drafts do:
independent of policies, rounds and restarts, so that all policies of one world meet the same luck. Whether the drafter is unsure there is
another such draw. Must not know sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from outrider.noise.field import bits, uniform_of
from outrider.types.tree import ROOT, DraftTree, IntArray, extend_hash
from outrider_bench.simulation.world import Phases, World

SECOND_WRONG_TOKEN, WRONG_TOKEN = 0, 1
NEVER = 1 << 40
FIRST_TOKEN = 2
NUM_TOKENS = 251  # a prime: no period in common with draft lengths
END_TOKEN = FIRST_TOKEN + NUM_TOKENS  # where an answer ends by itself
VOCAB_SIZE = END_TOKEN + 1
_REQUEST_STRIDE = 1 << 20
_CACHED_TEXTS = 4096
_RIGHT, _UNSURE, _SECOND = 0, 1 << 32, 1 << 33  # purposes of a draw, added to the seed


@dataclass(frozen=True, slots=True)
class Text:
    """truth, guesses: int32 [max_len], by absolute position; unsure: bool [max_len]. hashes: of every prefix, [max_len + 1].

    seconds: int32 [max_len], another guess, right with the world's hedge acceptance where the first is wrong. acceptances: float64
    [max_len], how likely the first guess is to be right. prompt_len: tokens that are given. next_wrong: int64 [max_len], the first wrong
    guess at or behind a position. stray_ends: int64 [max_len], where a chain pauses that went wrong there. NEVER stands for none.
    deeper: int32 [max_len] each, guesses of a drafter that has made one already beyond the truth it knows, two, ...: the last for all
    beyond, () = as `guesses`.
    """

    truth: IntArray
    guesses: IntArray
    unsure: npt.NDArray[np.bool_]
    hashes: tuple[int, ...]
    seconds: IntArray
    acceptances: npt.NDArray[np.float64]
    prompt_len: int
    next_wrong: npt.NDArray[np.int64]
    stray_ends: npt.NDArray[np.int64]
    deeper: tuple[IntArray, ...] = ()

    def guess(self, position: int, num_live: int) -> int:
        """What its drafter guesses, with so many guesses before it beyond the truth that it knows."""
        if not self.deeper or not num_live:
            return int(self.guesses[position])
        return int(self.deeper[min(num_live, len(self.deeper)) - 1][position])

    def num_right(self, position: int, tokens: IntArray) -> int:
        """How many leading tokens of a chain that begins at `position` are the truth."""
        wrong = np.flatnonzero(tokens != self.truth[position : position + len(tokens)])
        return int(wrong[0]) if len(wrong) else len(tokens)

    def path_along(self, position: int, tree: DraftTree) -> tuple[int, ...]:
        """The nodes of a tree that begins at `position` along which the truth goes."""
        path: list[int] = []
        above = ROOT
        for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
            if parent == above and token == self.truth[position + len(path)]:
                path.append(node)
                above = node
        return tuple(path)

    def strays(self, begin: int, position: int) -> bool:
        """Whether a chain of guesses from `begin` to before `position` has gone wrong and pauses here for it."""
        wrong = int(self.next_wrong[begin])
        return wrong < position and bool(position >= self.stray_ends[wrong])


def text_of(world: World, client: int, request: int) -> Text:
    """The text of a client's request; positions before the prompt's end are never guessed."""
    world = world.of_request(request)
    truth, hashes = _truth(world.max_len, world.spare_len)
    phases = world.phases[client % len(world.phases)]
    acceptance, *deeper = _acceptances(phases, world.prompt_len, world.output_len + world.spare_len)
    draws = _draws(world, client, request)
    lucky = draws < acceptance
    unsure_shares = np.where(lucky, world.unsure_when_right, world.unsure_when_wrong)
    unsure = _uniforms(world.seed, client, request, world.max_len, _UNSURE) < unsure_shares
    guesses = np.where(lucky, truth, np.int32(WRONG_TOKEN)).astype(np.int32)
    hedged = ~lucky & (_uniforms(world.seed, client, request, world.max_len, _SECOND) < world.hedge_acceptance)
    seconds = np.where(hedged, truth, np.int32(SECOND_WRONG_TOKEN)).astype(np.int32)
    never = np.full(world.max_len, NEVER, np.int64)
    later = tuple(np.where(draws < rights, truth, np.int32(WRONG_TOKEN)).astype(np.int32) for rights in deeper)
    return Text(truth, guesses, unsure, hashes, seconds, acceptance, world.prompt_len, _next_wrong(lucky), never, later)


def traced_text(prompt_len: int, right: Sequence[bool], unsure: Sequence[bool], stray_lens: Sequence[int]) -> Text:
    """A text whose guesses are known one by one: of each token of the answer, whether the drafter's guess after the truth before it is
    right, whether it is unsure of it, and how many guesses a chain makes behind it before it pauses, if it is wrong."""
    truth, hashes = _truth(prompt_len + len(right), 0)
    lucky = np.concatenate((np.zeros(prompt_len, np.bool_), np.asarray(right, np.bool_)))
    doubts = np.concatenate((np.zeros(prompt_len, np.bool_), np.asarray(unsure, np.bool_)))
    guesses = np.where(lucky, truth, np.int32(WRONG_TOKEN)).astype(np.int32)
    seconds = np.full(len(truth), SECOND_WRONG_TOKEN, np.int32)
    stray_ends = np.full(len(truth), NEVER, np.int64)
    stray_ends[prompt_len:] = np.arange(prompt_len, len(truth)) + 1 + np.asarray(stray_lens, np.int64)
    return Text(truth, guesses, doubts, hashes, seconds, lucky.astype(np.float64), prompt_len, _next_wrong(lucky), stray_ends)


def _next_wrong(right: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """[max_len]; NEVER where none is left."""
    wrong = np.where(right, NEVER, np.arange(len(right), dtype=np.int64))
    return np.minimum.accumulate(wrong[::-1])[::-1]


@lru_cache(maxsize=16)
def _truth(length: int, spare_len: int) -> tuple[IntArray, tuple[int, ...]]:
    truth = (np.arange(length, dtype=np.int32) * 7 % NUM_TOKENS + FIRST_TOKEN).astype(np.int32)
    if spare_len:
        truth[length - spare_len - 1] = END_TOKEN
    hashes = [0]
    for token in truth.tolist():
        hashes.append(extend_hash(hashes[-1], [token]))
    return truth, tuple(hashes)


@lru_cache(maxsize=_CACHED_TEXTS)
def _uniforms(seed: int, client: int, request: int, length: int, purpose: int) -> npt.NDArray[np.float64]:
    return uniform_of(bits(seed + purpose, client * _REQUEST_STRIDE + request, np.arange(length)))


def _draws(world: World, client: int, request: int) -> npt.NDArray[np.float64]:
    if world.luck_by_position:
        return _replayed(world.seed, world.max_len)
    return _uniforms(world.seed, client, request, world.max_len, _RIGHT)


@lru_cache(maxsize=16)
def _replayed(seed: int, length: int) -> npt.NDArray[np.float64]:
    """The draws of outrider.drafting.replay_source."""
    return uniform_of(bits(seed, np.arange(length), 0))


@lru_cache(maxsize=64)
def _acceptances(phases: Phases, prompt_len: int, output_len: int) -> npt.NDArray[np.float64]:
    """[depths, max_len]: of the first guess, the second, ... at every position."""
    depths = max(len(phase.rights) for phase in phases)
    values = np.empty((depths, prompt_len + output_len))
    begin = 0
    for phase in phases:
        end = output_len if phase.until is None else min(phase.until, output_len)
        rights = np.array((*phase.rights, *[phase.rights[-1]] * (depths - len(phase.rights))))
        values[:, prompt_len + begin : prompt_len + end] = rights[:, None]
        begin = end
    values[:, :prompt_len] = values[:, prompt_len + begin :] = rights[:, None]
    return values
