"""A draft model asked directly, as a verifier would: what it guesses at every place of a text, and what a token takes it.

Over the drafter's own stream, with no verifier and no policy. Must not know cells.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from outrider.types.frames import Close, CloseReason, DraftLimits, Open, Tail, TailEnd
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.v1 import identity_pb2
from outrider_bench.grid.costs import Trace
from outrider_bench.link import DrafterLine, drafter_line
from outrider_bench.simulation.text import NEVER
from verifier_service.settings import DraftDefaults

TIMED_TOKENS = 24  # of each session
KEPT_TOKENS = 192  # of a session that keeps a drafter at work: most of the time it drafts, and reads no prompt
JOIN_TIMEOUT_S = 60.0
SHORT_PROMPT = 2


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose answer is known. tokens: prompt and answer."""

    tokens: tuple[int, ...]
    prompt_len: int
    sampling: SamplingParams
    noise: NoiseAddress


@dataclass(frozen=True, slots=True)
class DraftTimes:
    """Microseconds, of all sessions at once. token_us: of a guess that follows another. first_us: until the first one, the prompt's reading
    included."""

    token_us: float
    first_us: float


def traces_of(drafter: str, verifier: identity_pb2.ModelIdentity, asked: Sequence[Asked]) -> list[Trace]:
    """What it would guess at every place of each answer, by the noise of its request. Raises what drafter_line raises."""
    traces = []
    for each in asked:
        with drafter_line(drafter, verifier) as line:
            traces.append(trace_of(line, each))
    return traces


def trace_of(line: DrafterLine, asked: Asked) -> Trace:
    """Of one request: chains from the truth on, each to its first mistake or pause; the next begins behind that."""
    end, handles = len(asked.tokens), count(1)
    right, unsure, stray_lens = [False] * end, [False] * end, [NEVER] * end
    position = asked.prompt_len
    while position < end:
        tail = _chain(line, next(handles), asked, position, end)
        guessed = [int(token) for token in tail.tokens]
        num_right = _num_right(guessed, asked.tokens[position:])
        right[position : position + num_right] = [True] * num_right
        has_paused, went_wrong = tail.end in (TailEnd.CONFIDENCE, TailEnd.EMPTY), num_right < len(guessed)
        if has_paused and went_wrong:
            stray_lens[position + num_right] = len(guessed) - num_right - 1
        if has_paused and (doubt := _doubt(tail, position)) < end and (doubt == position or not went_wrong):
            unsure[doubt] = True
        position += max(1, num_right + went_wrong)
    begin = asked.prompt_len
    return Trace(begin, tuple(right[begin:]), tuple(unsure[begin:]), tuple(stray_lens[begin:]))


def _doubt(tail: Tail, position: int) -> int:
    """Which guess a pause was for: the one that was not made, or the only one, which is made whatever it is worth."""
    if len(tail.tokens) == 1 and tail.scores is not None and float(np.exp(tail.scores[0])) < DraftDefaults().stop_below:
        return position
    return position + len(tail.tokens)


def _num_right(guessed: Sequence[int], truth: Sequence[int]) -> int:
    return next((at for at, (one, other) in enumerate(zip(guessed, truth, strict=False)) if one != other), min(len(guessed), len(truth)))


def _chain(line: DrafterLine, handle: int, asked: Asked, position: int, until: int) -> Tail:
    defaults = DraftDefaults()
    line.send(_opening(handle, asked, position, until, DraftLimits(until, defaults.max_nodes, stop_below=defaults.stop_below)))
    tail = next(line.tails(handle))
    line.send(Close(handle, 1, CloseReason.FINISHED, ""))
    return tail


def _opening(handle: int, asked: Asked, prefix_len: int, until: int, limits: DraftLimits) -> Open:
    prefix = np.asarray(asked.tokens[:prefix_len], np.int32)
    return Open(handle, 1, "bench", prefix, prefix_len, asked.prompt_len, asked.sampling, asked.noise, limits, until)


def draft_times(drafter: str, verifier: identity_pb2.ModelIdentity, asked: Sequence[Asked]) -> DraftTimes:
    """Of sessions that draft behind these prompts, all at once and without a pause. Raises what drafter_line raises."""
    with drafter_line(drafter, verifier) as line:
        return _timed(line, count(1), asked, TIMED_TOKENS)


def beginning(asked: Asked) -> Asked:
    """Hardly any prompt: what is left of the time until the first guess is not for reading."""
    return Asked(asked.tokens[:SHORT_PROMPT], SHORT_PROMPT, asked.sampling, asked.noise)


def _timed(line: DrafterLine, handles: count[int], asked: Sequence[Asked], num_tokens: int) -> DraftTimes:
    opened = [next(handles) for _ in asked]
    for handle, each in zip(opened, asked, strict=True):
        limits = DraftLimits(each.prompt_len + num_tokens, num_tokens)
        line.send(_opening(handle, each, each.prompt_len, each.prompt_len + num_tokens, limits))
    tails = _first_tails(line, opened)
    for handle in opened:
        line.send(Close(handle, 1, CloseReason.FINISHED, ""))
    tokens_us = [(tail.draft_us - tail.first_us) / max(1, len(tail.tokens) - 1) for tail in tails]
    return DraftTimes(statistics.median(tokens_us), statistics.median(tail.first_us for tail in tails))


def _first_tails(line: DrafterLine, handles: Sequence[int]) -> list[Tail]:
    """The first tail of each session, whatever their order."""
    found: dict[int, Tail] = {}
    for frame in line.received:
        if isinstance(frame, Tail) and frame.session in handles:
            found.setdefault(frame.session, frame)
        if len(found) == len(handles):
            break
    return [found[handle] for handle in handles]


@dataclass(slots=True)
class Drafting:
    """A drafter that is kept at work. tokens_us: of each chain it has drafted meanwhile."""

    tokens_us: list[float] = field(default_factory=list)


@contextmanager
def kept_drafting(drafter: str, verifier: identity_pb2.ModelIdentity, asked: Asked) -> Iterator[Drafting]:
    """While the block runs, the drafter drafts for one session after another. Raises what drafter_line raises, at the end."""
    done, under_way, found = threading.Event(), threading.Event(), Drafting()
    errors: list[BaseException] = []

    def draft_on() -> None:
        try:
            with drafter_line(drafter, verifier) as line:
                handles = count(1)
                while not done.is_set():
                    found.tokens_us.append(_timed(line, handles, [asked], KEPT_TOKENS).token_us)
                    under_way.set()
        except BaseException as error:  # noqa: BLE001 -- a thread's edge: raised where the block ends
            errors.append(error)
        finally:
            under_way.set()

    thread = threading.Thread(target=draft_on, name="kept drafting", daemon=True)
    thread.start()
    under_way.wait(JOIN_TIMEOUT_S)
    try:
        yield found
    finally:
        done.set()
        thread.join(JOIN_TIMEOUT_S)
    if errors:
        raise errors[0]
