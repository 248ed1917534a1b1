"""What to expect of a session by how its prompt begins: prompts of one application begin alike, and so do their answers behave.

A kind is a beginning that several different prompts had in common (a system prompt, an instruction); a session is of the longest one that
its prompt has. A prompt that is asked again and again makes no kind of itself: what is learned must serve prompts not seen before. Knows
prompts and what ended sessions showed. Must not know drafters, policies or engines. Source: our own.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from outrider.session.opening import VerifierSpec
from outrider.session.verifier import VerifierSession
from verifier_service.session_priors import SessionPriors

# Lengths of beginnings that are told apart, in tokens: closer where instructions are short.
BEGINNING_LENS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256)
MIN_PROMPTS = 2  # different ones, for a beginning to be a kind
MAX_BEGINNINGS = 4096  # kinds not met for the longest are forgotten, and what did not become one


@dataclass(slots=True)
class PromptKind:
    """number: from 1 on, 0 = like no earlier prompt. shorter: the number of the kind that its first session was of before it was one
    itself. newest_prompt: its hash; num_prompts: how often another prompt came than the one before it."""

    number: int
    priors: SessionPriors
    shorter: int = 0
    newest_prompt: int = 0
    num_prompts: int = 0


class PromptKinds:
    """`of` a session that begins, `ended` with one that showed something. Apart for each tenant and adapter, for greedy answers, and by the
    shape of drafts: with siblings more levels are right, and each takes longer."""

    def __init__(self) -> None:
        self.unlike = PromptKind(0, SessionPriors())
        self._beginnings: OrderedDict[int, PromptKind] = OrderedDict()
        self._num_kinds = 0

    def of(self, spec: VerifierSpec) -> PromptKind:
        """The longest beginning of its prompt that others had, or `unlike`."""
        for key in reversed(_keys(spec)):
            kind = self._beginnings.get(key)
            if kind is not None and kind.num_prompts >= MIN_PROMPTS:
                self._beginnings.move_to_end(key)
                return kind
        return self.unlike

    def ended(self, session: VerifierSession) -> None:
        """Its kind learns from it, and so do longer beginnings, which may be kinds one day. Shorter ones do not: they stand for prompts
        that go on otherwise."""
        spec = session.spec
        prompt, keys = hash(spec.prefix[: spec.num_prompt].tobytes()), _keys(spec)
        known = [self._beginnings.get(key) for key in keys]
        place = next((at for at, kind in enumerate(known) if kind is not None and kind.number == spec.kind), -1)
        own = known[place] if place >= 0 else None
        learners = [own or self.unlike]
        for key in keys[place + 1 :]:
            learners.append(self._met(key, prompt, learners[0]))
        learned: dict[int, SessionPriors] = {}  # beginnings that were met together expect the same
        for kind in learners:
            if id(kind.priors) not in learned:
                learned[id(kind.priors)] = kind.priors.after(session)
        for kind in learners:
            kind.priors = learned[id(kind.priors)]

    def _met(self, key: int, prompt: int, shorter: PromptKind) -> PromptKind:
        """The beginning, one more time; it expects what the shorter one does until it knows better."""
        kind = self._beginnings.get(key)
        if kind is None:
            self._num_kinds += 1
            kind = self._beginnings[key] = PromptKind(self._num_kinds, shorter.priors, shorter.number)
            if len(self._beginnings) > MAX_BEGINNINGS:
                self._beginnings.popitem(last=False)
        if kind.newest_prompt != prompt or not kind.num_prompts:
            kind.newest_prompt, kind.num_prompts = prompt, kind.num_prompts + 1
        return kind


def _keys(spec: VerifierSpec) -> list[int]:
    """Of the prompt's beginnings, shortest first; a prompt is no beginning of itself."""
    shape, prefix = (spec.limits.tree_width > 1, spec.with_rows), spec.prefix
    root = spec.tenant, spec.adapter, spec.sampling.temperature == 0.0, shape
    return [hash((root, prefix[:length].tobytes())) for length in BEGINNING_LENS if length < spec.num_prompt]
