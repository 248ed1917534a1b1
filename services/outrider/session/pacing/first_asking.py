"""When the drafter of a new session is asked for the first time: at once, unless the sessions before found nothing in it.

Finding out costs a short answer as much as guesses bring a long one: the drafter reads the prompt, and a round or two verify what is wrong.
Where several sessions in a row went without after their first guesses, the next ones are not asked before they have decoded a while
plainly; one in a few is all the same, so that another kind of text is noticed. Where guesses paid lately, more in a row are chance. Source:
our own. Must not know views, courses or why guesses did not pay.
"""

from __future__ import annotations

from outrider.session.pacing.probing import PROBE_AFTER

NUM_AGAINST = 6  # sessions in a row that went without once their first guesses were judged: with fewer, it may be chance
NUM_ALIKE_AGAINST = 3  # the same of sessions known to be of one kind, which has fewer surprises
# So many more of either where guesses paid lately: prompts that begin with one system prompt, as prompts like none before, are of several
# kinds of text, and of those that guesses suit most would never be asked.
NUM_MIXED_AGAINST = 9
KEPT = 0.95  # of those that paid, with each session that is judged
AT_ONCE_EVERY = 3  # new sessions, of which one is asked at once whatever those before found
# The same of one kind, where it is so many for each that went without in a row: asking in vain takes a fifth of a short answer and more.
MAX_AT_ONCE_EVERY = 27
FAR_TIMES = 3  # times as many where drafters are far away: there a look may come before the guesses that matter
LATER = PROBE_AFTER  # tokens of a session, decoded plainly before it is asked: as many as between two probes


class FirstAsking:
    """Of a kind of sessions. alike: their prompts began alike, so that another kind of text is hardly to be expected among them: the more
    of them went without in a row, the fewer are asked at once. known: of sessions that these were among before."""

    def __init__(self, known: FirstAsking | None = None, *, alike: bool = False) -> None:
        self._most_between, self._enough = (MAX_AT_ONCE_EVERY, NUM_ALIKE_AGAINST) if alike else (AT_ONCE_EVERY, NUM_AGAINST)
        self._num_against: int = 0 if known is None else known._num_against
        self._num_for: float = 0.0 if known is None else known._num_for  # of those judged lately, that went on with guesses
        self._num_later = 0  # new sessions since the newest that was asked at once

    def judged(self, *, drafts: bool) -> None:
        """A session's first guesses were judged, and it goes on with guesses or without; or one that went without has begun with them."""
        self._num_against = 0 if drafts else self._num_against + 1
        self._num_for = KEPT * self._num_for + drafts

    @property
    def found_nothing(self) -> bool:
        """Whether the newest session whose first guesses were judged went without."""
        return self._num_against > 0

    def is_later(self, *, is_far: bool = False) -> bool:
        """Whether the session that now begins is asked later; once for each. is_far: its drafter is far away."""
        self._num_later += 1
        if self._num_later >= self._every(FAR_TIMES if is_far else 1):
            self._num_later = 0
            return False
        return True

    def _every(self, times: int) -> int:
        """Of so many new sessions one is asked at once. times: as many have to go without."""
        if self._num_against < times * (self._enough + NUM_MIXED_AGAINST * min(1.0, self._num_for)):
            return 0
        return min(self._most_between, AT_ONCE_EVERY * (self._num_against // times))
