"""Whether the text of a session that begins is taken up, for guesses from it: by what such guesses saved sessions of its kind lately.

To keep a text's places takes time with each token, and so do the plans that weigh what it offers; beside a small target a twentieth of a
round and more, whether or not anything comes of it. So sessions of a kind have an account: what rounds by their text are thought to have
saved, against what it took to have them. Where it does not pay, only one session in a few takes its text up. Source: our own. Must not
know views, texts or how guesses are weighed.
"""

from __future__ import annotations

KEEP = 0.999  # of what is known, with each token: one long copy among half a dozen answers must not be forgotten
LEAST_TOKENS = 48.0  # known, for the account to count at all
HANDED_ON = 96.0  # tokens that a kind takes what is known of sessions like it for
# All that it takes is so many times what keeping the text does: plans that weigh its guesses and find none worth a round, a prompt's places
# before the first token, what a round with guesses leaves to those behind it (bench/LOG.md, fifty-sixth session).
COST_TIMES = 3.0
TRY_EVERY = 9  # sessions, of which one takes its text up where it does not pay


class TextTaking:
    """Of a kind of sessions; times in steps of one row. known: of sessions that these were among before."""

    def __init__(self, known: TextTaking | None = None) -> None:
        self._num_tokens = self._saved = self._spent = 0.0
        self._num_resting = 0  # in a row
        if known is not None and known._num_tokens:
            self._num_tokens = min(HANDED_ON, known._num_tokens)
            share = self._num_tokens / known._num_tokens
            self._saved, self._spent = share * known._saved, share * known._spent

    def count(self, num_tokens: int, saved: float, spent: float) -> None:
        """So many tokens of a session whose text is taken up. saved: by a round that went by it, if one did; spent: on keeping it."""
        kept = KEEP**num_tokens
        self._num_tokens = kept * self._num_tokens + num_tokens
        self._saved, self._spent = kept * self._saved + saved, kept * self._spent + spent

    @property
    def pays(self) -> bool:
        """Whether it did lately, or too little is known."""
        return self._num_tokens < LEAST_TOKENS or self._saved >= COST_TIMES * self._spent

    def begins(self) -> bool:
        """Whether the session that now begins takes its text up; once for each."""
        self._num_resting = 0 if self.pays else (self._num_resting + 1) % TRY_EVERY
        return not self._num_resting
