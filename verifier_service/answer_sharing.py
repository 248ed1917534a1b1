"""Which sessions take guesses from other answers, and whose answers others may have.

Lives on the engine thread. A request without drafts or lookup neither asks nor is learnt. An answer is learnt when it has ended by itself,
whole: one that was cancelled, or that reached its length with stop strings to be looked for, may have been decoded beyond a stop that only
the gateway knows. Must not know how answers are shared.
"""

from __future__ import annotations

from pathlib import Path

from outrider.session.events import Finish, FinishReason
from outrider.session.opening import VerifierSpec
from outrider.session.shared_lookup import NO_TEXTS, SharedTexts
from outrider.session.verifier import VerifierSession
from outrider.store.shared_ngrams import CONTEXT_LEN, MAX_LEARNED_LEN, SharedNgrams
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import Label
from outrider.types.identity import ModelIdentity


class AnswerSharing:
    """Of one target. shared: None: nothing is shared. metrics: guesses from other answers are counted into."""

    def __init__(self, shared: SharedNgrams | None, identity: ModelIdentity, metrics: LocalMetrics) -> None:
        self._shared = shared
        self._identity = identity
        self._metrics = metrics
        self._labels = {Label.MODEL: Path(identity.model).name}

    def texts(self, spec: VerifierSpec) -> SharedTexts:
        """What a session may take its guesses from."""
        if self._shared is None or not _takes_part(spec):
            return NO_TEXTS
        return self._shared.texts(self._shared.keys(spec.tenant, spec.adapter, self._identity))

    def ended(self, session: VerifierSession, finish: Finish) -> None:
        """A session is over."""
        if self._shared is None or not _takes_part(session.spec):
            return
        spec, (num_shared, num_accepted) = session.spec, session.num_shared
        if num_shared:
            self._metrics.add(names.NUM_SHARED_NGRAM_TOKENS, self._labels, num_shared)
            self._metrics.add(names.NUM_SHARED_NGRAM_ACCEPTED_TOKENS, self._labels, num_accepted)
        if _is_whole(spec, finish) and session.committed_len > spec.num_prompt:
            first = max(0, spec.num_prompt - CONTEXT_LEN)
            answer = session.prefix.slice(first, min(session.committed_len, spec.num_prompt + MAX_LEARNED_LEN))
            self._shared.learn(self._shared.keys(spec.tenant, spec.adapter, self._identity), answer, spec.num_prompt - first)


def _is_whole(spec: VerifierSpec, finish: Finish) -> bool:
    """Nothing was decoded beyond the answer's end."""
    return finish.reason is FinishReason.STOP or (finish.reason is FinishReason.LENGTH and not spec.has_stop_strings)


def _takes_part(spec: VerifierSpec) -> bool:
    return spec.lookup and spec.max_draft_len > 0
