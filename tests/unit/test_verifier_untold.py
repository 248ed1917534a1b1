"""A drafter that may not guess is told of commits later, in one frame, and in time to be of use again."""

from __future__ import annotations

import numpy as np

from fakes import TruthTable
from fakes_simulation import spec_of
from outrider.session.events import DrafterFrameArrived, DrafterJoined, RoundPlanned, RoundVerified, SendToDrafter, VerifierEffect
from outrider.session.pacing.contract import SessionView
from outrider.session.pacing.serial import SerialPacing
from outrider.session.session_drafters import MAX_UNTOLD_TOKENS
from outrider.session.verifier import VerifierSession
from outrider.types.frames import Commit, Open, Opened
from outrider.types.tree import Verdict


class OnDemand(SerialPacing):
    """Serial drafts of four, only while `on`."""

    on = False

    def draft_ahead(self, session: SessionView) -> int:
        """Nothing while off."""
        return super().draft_ahead(session) if self.on else 0


def _session(pacing: OnDemand) -> VerifierSession:
    session = VerifierSession(spec_of(1, [5, 6, 7], 400, TruthTable(vocab_size=1000)), pacing, 0)
    (effect,) = session.step(DrafterJoined("d", 0))
    assert isinstance(effect, SendToDrafter)
    assert isinstance(effect.frame, Open)
    session.step(DrafterFrameArrived("d", Opened(1, effect.frame.incarnation, 3), 1))
    return session


def _decode(session: VerifierSession, now_us: int) -> list[Commit]:
    """One plain round; the commits it sends."""
    session.step(RoundPlanned(64, 0, now_us))
    verdict = Verdict((), 8 + now_us % 100, True)
    effects: list[VerifierEffect] = session.step(RoundVerified(verdict, 10, now_us + 10))
    return [effect.frame for effect in effects if isinstance(effect, SendToDrafter) and isinstance(effect.frame, Commit)]


def test_commits_without_credit_are_held_back_and_told_in_one_frame() -> None:
    pacing = OnDemand(4)
    session = _session(pacing)
    assert [_decode(session, 100 * at) for at in range(1, 6)] == [[]] * 5
    pacing.on = True
    (told,) = _decode(session, 600)
    assert told.begin == 3
    assert told.tokens.tolist() == session.prefix.slice(3, session.committed_len).tolist()
    assert told.prefix_hash == session.prefix.hash
    assert told.draft_until == session.committed_len + 4
    (after,) = _decode(session, 700)
    assert (after.begin, len(after.tokens)) == (9, 1)


def test_leave_that_is_taken_back_is_told_at_once() -> None:
    pacing = OnDemand(4)
    pacing.on = True
    session = _session(pacing)
    assert len(_decode(session, 100)) == 1
    pacing.on = False
    (told,) = _decode(session, 200)
    assert told.draft_until == session.committed_len, "it would go on for the rest of its credit"
    assert not session.view(300).is_drafting
    assert [_decode(session, 100 * at) for at in range(3, 6)] == [[]] * 3


def test_a_drafter_that_reads_the_prompt_keeps_its_leave() -> None:
    """It would rest, and say that it is done with the prompt, for which the verifier would wait at its next draft."""
    pacing = OnDemand(4)
    pacing.on = True
    session = VerifierSession(spec_of(1, [5, 6, 7], 400, TruthTable(vocab_size=1000)), pacing, 0)
    session.step(DrafterJoined("d", 0))
    pacing.on = False
    told = [_decode(session, 100 * at) for at in range(1, 6)]
    assert [[commit.draft_until for commit in commits] for commits in told] == [[7]] * 3 + [[]] * 2


def test_what_is_held_back_is_bounded() -> None:
    session = _session(OnDemand(4))
    told = [commit for at in range(1, 2 * MAX_UNTOLD_TOKENS + 1) for commit in _decode(session, 100 * at)]
    assert [len(commit.tokens) for commit in told] == [MAX_UNTOLD_TOKENS] * 2
    assert np.concatenate([commit.tokens for commit in told]).tolist() == session.prefix.slice(3, session.committed_len).tolist()
