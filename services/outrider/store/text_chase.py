"""Reading a text that somebody answered before out of a store of n-grams: what followed, what followed that, and so on.

Entries are short, so one look-up finds the beginning of what is wanted; the end of each continuation is the key to the next. Knows a store
and keys. Must not know threads or sessions.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.store.contract import CONTINUATION_LEN, NOTHING, Continuation, NgramStore
from outrider.store.ngram_keys import NGRAM_LENS
from outrider.store.session_texts import Want

MAX_HOPS = 32  # look-ups one after another for one want: half a thousand tokens ahead
MAX_VAGUE_HOPS = 2  # where the longest n-gram was not found, so that it may be any text


class TextChase:
    """All wants go on together, a batch a hop; samples of one prompt want the same, which is fetched once, and not at all where it came
    since. num_invalid: continuations with ids that the wanted vocabulary has not."""

    def __init__(self, store: NgramStore, memory: NgramStore, wants: Sequence[Want]) -> None:
        self.num_invalid = 0
        self._store = store
        self._memory = memory
        self._runs = self._still_wanted(wants)

    def run(self) -> None:
        """Fetch, and put into memory what was found; at most MAX_HOPS look-ups, and no more after one without any success."""
        running = self._runs
        for _ in range(MAX_HOPS):
            if not running:
                return
            running = self._hop(running)
        for run in running:
            run.hand_on(self._memory, is_over=True)

    def _still_wanted(self, wants: Sequence[Want]) -> list[_Run]:
        """One for each end, by its longest key."""
        wanted = {end[0][1]: want for want in wants if (end := want.keys.at_end(want.end))}
        known = self._memory.lookup(list(wanted))
        return [_Run(want) for want, followed in zip(wanted.values(), known, strict=True) if not followed]

    def _hop(self, running: list[_Run]) -> list[_Run]:
        ends = [run.want.keys.at_end(run.tokens[-max(NGRAM_LENS) :]) for run in running]
        answers = iter(self._store.lookup([key for end in ends for _, key in end]))
        going: list[_Run] = []
        for run, end in zip(running, ends, strict=True):
            found = [(length, next(answers)) for length, _ in end]
            goes_on = run.take(*self._best(run, found))
            run.hand_on(self._memory, is_over=not goes_on)
            if goes_on:
                going.append(run)
        return going

    def _best(self, run: _Run, found: Sequence[tuple[int, Continuation]]) -> tuple[int, Continuation]:
        """The continuation of the longest end that has one, if its ids are of this vocabulary."""
        for length, followed in found:
            if followed and max(followed) < run.want.keys.vocab_size:
                return length, followed
            self.num_invalid += bool(followed)
        return 0, NOTHING


class _Run:
    """One text as it grows. tokens: the end that was wanted, and what followed so far."""

    def __init__(self, want: Want) -> None:
        self.want = want
        self.tokens = list(want.end)
        self._handed_len = len(want.end)
        self._num_hops = 0

    def take(self, length: int, followed: Continuation) -> bool:
        """It grows; whether to look on."""
        self.tokens += followed
        self._num_hops += 1
        is_sure = length == min(max(NGRAM_LENS), len(self.tokens) - len(followed))
        return len(followed) == CONTINUATION_LEN and (is_sure or self._num_hops < MAX_VAGUE_HOPS)

    def hand_on(self, memory: NgramStore, *, is_over: bool) -> None:
        """Entries of the positions whose continuation is whole, or of all."""
        until = len(self.tokens) if is_over else len(self.tokens) - CONTINUATION_LEN + 1
        memory.observe(self.want.keys.entries(self.tokens, self._handed_len, until))
        self._handed_len = until
