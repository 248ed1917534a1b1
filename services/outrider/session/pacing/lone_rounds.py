"""What rounds really take of a session that is alone with a drafter of the target's own thread: plain ones, and by guesses verified.

There a round's parts say little of the whole: while the interpreter reads one round the next is computed (engine/round_ahead.py), so that
drafting, the way and the step add up to more than passes, and what passes beside a plain step is more than the session measures of it. But
nobody else has a part in such rounds, and they differ in nothing but their guesses. So they are timed whole: a line through times by
guesses, newer rounds counting more, held up by what the parts say where nothing was seen yet. Times are kept in steps of one row, for a
machine's speed drifts. Must not know courses, nor who is alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from outrider.session.pacing.round_model import RoundRates, turn_us

KEEP = 0.995  # of what is known, with each round
KEEP_PLAIN = 0.998  # with each plain one
PRIOR_LENS = (1, 16)
PRIOR_ROUNDS = (4.0, 0.5)  # that the parts' word counts for, at either length: one far off bears on a line as many near ones do
MOST_TIMES = 3.0  # the time expected that a round may count for: a machine that stalled for once is no property of its rounds
SURE_LOOKED_UP = 8.0  # rounds with guesses from the text, by when half of what they took is believed
LEAST_PLAIN = 16.0  # rounds, for their mean to count
MOST_HIDDEN = 0.5  # of a plain step that is computed ahead, before it is asked for


@dataclass(slots=True)
class Extra:
    """What some rounds with a whole draft took beyond others of as many guesses: a fading mean, in steps of one row."""

    _num: float = 0.0
    _steps: float = 0.0

    def count(self, beyond_us: float, step_us: float) -> None:
        """One took so much longer; at most MOST_TIMES what others did, and a step, or so much less."""
        most_us = MOST_TIMES * max(self.us(step_us), step_us) if self._num else abs(beyond_us)
        self._num = KEEP * self._num + 1.0
        self._steps = KEEP * self._steps + max(-most_us, min(beyond_us, most_us)) / step_us

    def us(self, step_us: float) -> float:
        """What to expect of the next; 0 while there was none."""
        return step_us * max(0.0, self._steps / self._num) if self._num else 0.0


class LoneRounds:
    """Fading sums over rounds, of guesses and of times in steps of one row. openings: a session's first rounds with guesses, in which its
    drafter is opened and reads the prompt; returns: first ones behind a round by the text, whose draft was not computed ahead;
    plain_returns: what is behind one where nobody drafts, a plain step that was not computed ahead, or more guesses for nothing.
    are_ahead: rounds are computed before they are asked for, plain ones too: most of what passes beside a step is hidden, and only trying
    them tells what is left."""

    def __init__(self) -> None:
        self._num = self._guesses = self._squares = self._steps = self._products = 0.0
        self._num_plain = self._plain_steps = 0.0
        self._num_looked_up = self._looked_up_steps = 0.0
        self.openings, self.returns, self.plain_returns = Extra(), Extra(), Extra()
        self.are_ahead = False

    def count_plain(self, num_rounds: int, took_us: float, step_us: float) -> None:
        """So many without guesses took so long. step_us: of one row, at present."""
        kept = KEEP_PLAIN**num_rounds
        steps = min(took_us / step_us, MOST_TIMES * num_rounds)
        self._num_plain = kept * self._num_plain + num_rounds
        self._plain_steps = kept * self._plain_steps + steps
        # What did not pay in a slow minute is tried again some day.
        self._num_looked_up, self._looked_up_steps = kept * self._num_looked_up, kept * self._looked_up_steps

    def count(self, num_guesses: int, took_us: float, expected_us: float, step_us: float) -> None:
        """A round in which so many were drafted and verified, from commit to commit."""
        steps = min(took_us, MOST_TIMES * expected_us) / step_us
        sums = self._num, self._guesses, self._squares, self._steps, self._products
        seen = 1.0, num_guesses, num_guesses**2, steps, num_guesses * steps
        self._num, self._guesses, self._squares, self._steps, self._products = (KEEP * a + b for a, b in zip(sums, seen, strict=True))

    def count_looked_up(self, beside_us: float, step_us: float) -> None:
        """A round with guesses from the text took so long beside its step."""
        self._num_looked_up = KEEP * self._num_looked_up + 1.0
        self._looked_up_steps = KEEP * self._looked_up_steps + min(max(0.0, beside_us) / step_us, MOST_TIMES)

    def guessing_us(self, step_us: float, overhead_us: float) -> tuple[float, float]:
        """What a round with guesses from the text takes beside its step and what passes beside a plain one, and the round behind it beyond
        others: where that is a plain one, and where it has a draft. While few were seen, hardly anything: only who goes that way finds
        out."""
        sure = self._num_looked_up / (self._num_looked_up + SURE_LOOKED_UP)
        seen_us = step_us * self._looked_up_steps / self._num_looked_up if sure else 0.0
        beside_us = max(0.0, sure * (seen_us - overhead_us))
        return beside_us + sure * self.plain_returns.us(step_us), beside_us + self.returns.us(step_us)

    def by_text_us(self, step_us: float, otherwise_us: float) -> tuple[float, float, float]:
        """What passes beside the step of a plain round, and guessing_us of both kinds. otherwise_us: as for overhead_us."""
        overhead_us = self.overhead_us(step_us, otherwise_us)
        return overhead_us, *self.guessing_us(step_us, overhead_us)

    def overhead_us(self, step_us: float, otherwise_us: float) -> float:
        """Of a plain round, beside its step; while too few were seen otherwise_us, or nothing where rounds are ahead. It may be less than
        nothing: a step that had begun before it was asked for passes quicker than one of its kind takes."""
        if self._num_plain < LEAST_PLAIN:
            return 0.0 if self.are_ahead else otherwise_us
        return max(-MOST_HIDDEN, self._plain_steps / self._num_plain - 1.0) * step_us

    def rates(self, parts: RoundRates, step_us: float) -> RoundRates:
        """With what whole rounds took."""
        at_1, at_16 = (turn_us(parts, num) for num in PRIOR_LENS)
        return replace(parts, overhead_us=self.overhead_us(step_us, parts.overhead_us), turn_us=self.line(step_us, (at_1, at_16)))

    def line(self, step_us: float, parts_us: tuple[float, float]) -> tuple[float, float]:
        """What a round takes without its guesses, a step at least, and each of them, in microseconds. parts_us: what parts say of rounds of
        PRIOR_LENS."""
        num, guesses, squares, steps, products = self._num, self._guesses, self._squares, self._steps, self._products
        for at, took_us, weight in zip(PRIOR_LENS, parts_us, PRIOR_ROUNDS, strict=True):
            num, guesses, squares = num + weight, guesses + weight * at, squares + weight * at * at
            steps, products = steps + weight * took_us / step_us, products + weight * at * took_us / step_us
        mean, mean_steps = guesses / num, steps / num
        slope = max(0.0, (products - mean * steps) / (squares - mean * guesses))  # the two lengths differ: never by zero
        begin = mean_steps - slope * mean
        if begin < 1.0:
            begin, slope = 1.0, max(0.0, (mean_steps - 1.0) / mean)
        return begin * step_us, slope * step_us
