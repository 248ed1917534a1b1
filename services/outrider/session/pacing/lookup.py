"""Prompt lookup without a drafter: every session in every step, with guesses from its own text where it has some.

Saxena 2023 (prompt lookup decoding); the equivalent of n-gram speculation elsewhere. The length is the one of best expected throughput
under the measured cost of rows and how often the text's guesses were right; a fixed one is taken whenever so many are there. Loses to plain
decoding by nothing but rows that were wrong, and to a drafter wherever the text is new.
"""

from __future__ import annotations

from outrider.session.pacing.by_lookup import StepRest, least_paying, paying_len, usable_rights
from outrider.session.pacing.contract import PLAIN_REPEATS, PacingPlan, SessionView, StepView
from outrider.session.pacing.draft_length import MAX_DRAFT_LEN
from outrider.session.pacing.explaining import explain_plan, plain_promise
from outrider.session.pacing.explanation import Choice, PlanExplanation, Promise, Way, Why
from outrider.session.pacing.row_budget import Wanted, share_rows


class LookupPacing:
    """draft_len: guesses of a round; None leaves it to the measured costs."""

    name = "lookup"
    drafts = False
    looks_up = True
    hedges = False

    def __init__(self, draft_len: int | None = None) -> None:
        self._draft_len = draft_len

    def plan(self, view: StepView) -> PacingPlan:
        """Everybody, at once."""
        guesses = zip(view.sessions, self._guesses(view), strict=True)
        wanted = [Wanted(session, num, from_lookup=num > 0) for session, (num, _) in guesses]
        take = share_rows(wanted, view.max_rows, view.prefill)
        if not take or any(part.from_lookup for part in take):
            return PacingPlan(take, None, "lookup" if take else "idle")
        return PacingPlan(take, None, "lookup", PLAIN_REPEATS, self._least_promise(view))

    def explain(self, view: StepView, plan: PacingPlan) -> PlanExplanation:
        """Guesses were weighed against none; a length that was fixed is none that was weighed, and what it adds is not known."""
        guesses = {session.session: guess for session, guess in zip(view.sessions, self._guesses(view), strict=True)}
        step_us = view.cost.verify_us(max(1, len(guesses) + sum(num for num, _ in guesses.values())))

        def choice_of(session: SessionView) -> Choice:
            (num, added), plain = guesses[session.session], plain_promise(view, session.step_overhead_us)
            if not num:
                return Choice(plain, (), Why.MOST if session.lookup_rights else Why.ONLY)
            speed = (1.0 + added) / (step_us + session.step_overhead_us) if self._draft_len is None else None
            return Choice(Promise(Way.LOOKUP, num, num, speed), (plain,), Why.ONLY if speed is None else Why.MOST)

        return explain_plan(self.name, view, plan, view.cost, choice_of)

    def _least_promise(self, view: StepView) -> float:
        """As in PacingPlan: texts that promise no more need not be asked."""
        if self._draft_len is not None:
            return 0.0
        num, overheads = len(view.sessions), [session.step_overhead_us for session in view.sessions]
        return least_paying(StepRest(view.cost, num, float(num), max(overheads)))  # whoever pays most beside its rows needs the least

    def _guesses(self, view: StepView) -> list[tuple[int, float]]:
        """Of each session: how many, and the tokens that they are expected to add."""
        found: list[tuple[int, float]] = []
        num_rows, tokens = len(view.sessions), float(len(view.sessions))
        for session in view.sessions:
            num, added = self._num_guesses(session, view, num_rows, tokens)
            num_rows, tokens = num_rows + num, tokens + added
            found.append((num, added))
        return found

    def _num_guesses(self, session: SessionView, view: StepView, num_rows: int, tokens: float) -> tuple[int, float]:
        rights = usable_rights(session, self._draft_len or MAX_DRAFT_LEN)
        if self._draft_len is not None:
            return len(rights), 0.0
        return paying_len(rights, StepRest(view.cost, num_rows, tokens, session.step_overhead_us))

    def draft_ahead(self, session: SessionView) -> int:
        """Nothing is drafted."""
        return 0

    def lets_rest(self, session: int, committed_len: int) -> bool:
        """No drafter has leave, ever."""
        return True

    def takes_up_text(self, kind: int, shorter_kind: int) -> bool:
        """There is nothing else."""
        return True

    def hedge_nodes(self, session: SessionView) -> int:
        """Nothing is drafted."""
        return 0

    def flush_len(self, session: SessionView) -> int:
        """Nothing is drafted."""
        return 0
