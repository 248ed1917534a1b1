"""What to expect of a session before it has shown anything, its guesses above all: learned from the sessions that ended lately."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.session.answer_ends import NO_ENDS, AnswerEnds
from outrider.session.events import FinishReason
from outrider.session.lookup_odds import FIRST_RIGHTS
from outrider.session.shared_lookup import FIRST_SHARED_RIGHTS
from outrider.session.statistics import FIRST_PRIORS, DraftPriors
from outrider.session.verifier import VerifierSession


@dataclass(frozen=True, slots=True)
class SessionPriors:
    """drafts: of drafters. lookup, shared: chance of a guess from the session's own text and from other answers, by class
    (lookup_odds.CLASS_LENS). ends: how soon answers end."""

    drafts: DraftPriors = FIRST_PRIORS
    lookup: tuple[float, ...] = FIRST_RIGHTS
    shared: tuple[float, ...] = FIRST_SHARED_RIGHTS
    ends: AnswerEnds = NO_ENDS

    def after(self, session: VerifierSession) -> SessionPriors:
        """With what this session, which has ended, showed."""
        return SessionPriors(
            session.statistics.remembered(self.drafts),
            session.lookup_priors(self.lookup),
            session.shared_priors(self.shared),
            self._ends_after(session),
        )

    def _ends_after(self, session: VerifierSession) -> AnswerEnds:
        num_tokens = session.committed_len - session.spec.num_prompt  # those of an earlier verifier too
        if session.finished is None or session.finished.reason is FinishReason.FAILED:
            return self.ends
        return self.ends.after(num_tokens, by_itself=session.finished.reason is not FinishReason.LENGTH)
