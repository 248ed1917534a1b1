"""The guesses that a session takes from texts: its own, or other answers where these promise more; one chain, clipped to the session's
bounds, and how likely each of it is right.

Made once per commit, whoever asks for it how often. Exactness needs nothing from it: a looked-up guess is verified as a drafted one is.
Not for rejection acceptance, which needs the distribution that a guess was drawn from. Must not know rounds, drafters or policies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from outrider.session.lookup import TextLookup
from outrider.session.lookup_odds import LookupOdds
from outrider.session.opening import VerifierSpec
from outrider.session.shared_lookup import NO_TEXTS, SharedLookup, SharedTexts
from outrider.types.tree import DraftTree

LEAST_REACHED = 0.02  # chance that a guess is asked at all, below which it is none: a row costs more than that anywhere


class LookupGuesses:
    """rights: for each guess at hand, the chance that it is right if all before it are; promise: tokens that they are expected to add to a
    round. are_shared: they come from other answers.
    odds, shared_odds: how often guesses from the own text and from other answers are right. num_shared, num_shared_accepted: of the
    verified ones, those from other answers."""

    def __init__(self, spec: VerifierSpec, texts: SharedTexts = NO_TEXTS) -> None:
        self.odds = LookupOdds(spec.lookup_priors)
        self.shared_odds = LookupOdds(spec.shared_priors)
        self.rights: tuple[float, ...] = ()
        self.promise = 0.0
        self.are_shared = False
        self.num_shared = self.num_shared_accepted = 0
        self._spec = spec
        self._committed_len = len(spec.prefix)
        self._text = TextLookup(spec.prefix, self.odds)
        self._shared = None if texts is NO_TEXTS else SharedLookup(texts, spec.prefix, self.shared_odds)
        self._tokens: Sequence[int] = []
        self._look()

    def observe_commit(self, tokens: Sequence[int]) -> None:
        """The truth grew."""
        self._text.extend(tokens)
        if self._shared is not None:
            self._shared.extend(tokens)
        self._committed_len += len(tokens)
        self._look()

    def chain(self, max_nodes: int) -> DraftTree:
        """The first max_nodes guesses, to be verified."""
        return DraftTree.chain(self._tokens[:max_nodes])

    def count_verified(self, num_nodes: int, num_accepted: int) -> None:
        """What became of the chain at hand, before the commit that it led to."""
        if self.are_shared:
            self.num_shared += num_nodes
            self.num_shared_accepted += num_accepted

    def _look(self) -> None:
        self._tokens, self.rights = self._guesses(self._text)
        self.promise, self.are_shared = _promise(self.rights), False
        if self._shared is not None and self._shared.match_len:
            tokens, rights = self._guesses(self._shared)
            if (promise := _promise(rights)) > self.promise:
                self._tokens, self.rights, self.promise, self.are_shared = tokens, rights, promise, True

    def _guesses(self, text: TextLookup | SharedLookup) -> tuple[Sequence[int], tuple[float, ...]]:
        match_len = text.match_len
        if not match_len:
            return (), ()
        # The last position of an answer is the target's own: a guess there could save nothing.
        max_len = min(self._spec.max_draft_len, self._spec.max_nodes, self._spec.max_len - self._committed_len - 1)
        rights: list[float] = []
        odds, trust, reached = text.odds, text.odds.trust, 1.0
        while len(rights) < max_len and reached >= LEAST_REACHED:
            rights.append(trust * odds.right(match_len + len(rights)))
            reached *= rights[-1]
        tokens, stop_ids = text.guess(len(rights)), self._spec.stop_token_ids
        if not stop_ids.isdisjoint(tokens):
            tokens = tokens[: next(num for num, token in enumerate(tokens, 1) if token in stop_ids)]
        return tokens, tuple(rights[: len(tokens)])


def _promise(rights: Sequence[float]) -> float:
    """Tokens that a chain is expected to add."""
    return math.fsum(accumulate(rights, mul)) if rights else 0.0
