"""What sessions that share steps got together, against what their courses promised: which pace keeps its promises in company.

There a round's time is not all that can go wrong: a step that begins for a prompt's sake finds guesses missing, one that waits keeps
everybody waiting, and plain decoding has its own way to take longer than its parts. So tokens are compared, of every pace, plain decoding
included: with guesses those to expect of the guesses that a step really holds, by the acceptance that its sessions have shown (what is
hoped of new ones is the promise's own), for a text that changes, or a run of bad luck, is no fault of a pace. Knows views, plans and
courses. Must not know how a course is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from outrider.session.pacing.contract import PacingPlan, SessionPlan, SessionView, StepView
from outrider.session.pacing.course_choice import ACCEPTANCE_STEP
from outrider.session.pacing.pace_memory import PaceMemory
from outrider.session.pacing.round_model import MAX_SERIAL_LEN, Course, Pace, chains

MIN_TOGETHER = 2  # sessions that decode
# What guesses are known to cost beside their rows may grow or shrink so many times before what was held against promises at the old price
# is forgotten: a price that is found out late would count twice, as a pace that breaks its promises and in those it makes from then on.
PRICE_GROWTH = 2.0
LEAST_PRICE_US = 20  # below it is nothing
# Of a pace, with each step of another that has guesses: load comes and goes, so that less is kept than of one session alone. As much, and
# sixteen sessions at 0.9 had 0.94 of plain decoding instead of 1.01 (bench/LOG.md, forty-fifth session).
KEEP_UNUSED = 0.99
SESSIONS_A_ROUND = 16  # whose guesses in one step say as much as a round of one alone: all of them had the same luck with that step


class _Window(NamedTuple):
    """Of a step, from when those before it brought something: committed lengths of the sessions that decode, what their courses promise
    (tokens per microsecond), how much longer the step takes for prompts that it reads, and the tokens to expect of its guesses; 0 = it has
    none, so that what comes is as sure, of how many such steps ever."""

    since_us: int
    lengths: dict[int, int]
    tokens_per_us: float
    pace: Pace
    reading_us: float
    num_expected: float


class _Wait(NamedTuple):
    """For guesses, while no step is under way: since when, and whose."""

    since_us: int
    sessions: frozenset[int]


class CompanySpeed:
    """Follows plans of several sessions."""

    def __init__(self) -> None:
        self._memory = PaceMemory(KEEP_UNUSED)
        self._window: _Window | None = None
        self._wait: _Wait | None = None
        self._price_us = 0.0  # of a session's guesses in a round, at which promises were made

    def factor(self, pace: Pace, alone: float = 1.0) -> float:
        """As of PaceMemory. alone: of sessions that shared no step; what it is before any of several did."""
        return self._memory.factor(pace, alone)

    def observe(self, view: StepView) -> bool:
        """Before each plan: what came of the step before, once anything did. Of who ended meanwhile it is not known. Returns whether
        promises are to be made anew, at another price of guesses."""
        if self._is_repriced(view.guess_us):
            return True
        self._count(view)
        return False

    def _count(self, view: StepView) -> None:
        window = self._window
        if window is None:
            return
        now = {session.session: session.committed_len for session in view.sessions}
        if not now.keys() >= window.lengths.keys():
            self._window = None
            return
        num_tokens = sum([now[session] - length for session, length in window.lengths.items()])
        if num_tokens:
            self._window = None
            took_us = max(1.0, view.now_us - window.since_us - window.reading_us)
            is_plain = window.pace is Pace.PLAIN
            num_rounds = max(1.0, num_tokens / len(window.lengths)) if is_plain else 1.0
            weight = 1.0 if is_plain else max(1.0, len(window.lengths) / SESSIONS_A_ROUND)
            self._memory.count(window.pace, took_us * window.tokens_per_us, window.num_expected or float(num_tokens), num_rounds, weight)

    def _is_repriced(self, guess_us: float) -> bool:
        now_us, before_us = max(LEAST_PRICE_US, guess_us), max(LEAST_PRICE_US, self._price_us)
        if PRICE_GROWTH * min(now_us, before_us) >= max(now_us, before_us):
            return False
        self._memory, self._window, self._price_us = PaceMemory(KEEP_UNUSED), None, guess_us
        return True

    def planned(self, view: StepView, plan: PacingPlan, course_of: Callable[[int], Course]) -> None:
        """After each plan, one that waits included: all wait for it."""
        if len(view.sessions) == 1:
            self._wait = None
            return
        if not plan.take:
            self._wait = self._wait or _Wait(view.now_us, frozenset([session.session for session in view.sessions]))
            return
        wait, self._wait = self._wait, None
        lengths = {session.session: session.committed_len for session in view.sessions if session.num_uncached == 1}
        courses = [course_of(session) for session in lengths]
        if len(lengths) < MIN_TOGETHER or not all(course.tokens_per_us for course in courses):
            self._window = None
            return
        drafting = next((course.pace for course in courses if course.pace is not Pace.PLAIN), Pace.PLAIN)
        reading_us, num_expected = _reading_us(view, plan), 0.0 if drafting is Pace.PLAIN else _num_expected(view, plan)
        if (window := self._window) is not None and window.pace is drafting:  # the step before read prompts, and nobody decoded in it
            reading_us, num_expected = window.reading_us + reading_us, window.num_expected + num_expected
            self._window = window._replace(reading_us=reading_us, num_expected=num_expected)
            return
        promised = sum([course.tokens_per_us for course in courses])
        since_us = wait.since_us if wait is not None and lengths.keys() >= wait.sessions else view.now_us
        self._window = _Window(since_us, lengths, promised, drafting, reading_us, num_expected)


def _num_expected(view: StepView, plan: PacingPlan) -> float:
    """Tokens of those that decode, by the guesses that they have in this step; 0 if nobody has any."""
    if not any(part.max_nodes for part in plan.take):
        return 0.0
    sessions = {session.session: session for session in view.sessions}
    return sum([_tokens(sessions[part.session], part) for part in plan.take if sessions[part.session].num_uncached == 1])


def _tokens(session: SessionView, part: SessionPlan) -> float:
    if part.from_lookup:
        reached: Iterator[float] = accumulate(session.lookup_rights[: part.max_nodes], mul)
        return 1.0 + sum(reached)
    acceptance = round(session.acceptance / ACCEPTANCE_STEP) * ACCEPTANCE_STEP
    emitted, _ = chains(acceptance, 1.0, MAX_SERIAL_LEN, session.depth_offsets)
    return float(emitted[min(part.max_nodes, session.depth, MAX_SERIAL_LEN)])


def _reading_us(view: StepView, plan: PacingPlan) -> float:
    num_read = sum([part.max_feed for part in plan.take if part.max_feed > 1])
    if not num_read or view.prefill is None:
        return 0.0
    return view.prefill.added_us(num_read, sum([part.num_rows for part in plan.take]) - num_read)
