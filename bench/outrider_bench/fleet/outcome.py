"""What a simulated fleet did for its users. Must not know how."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

COUNTED_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Answer:
    """Times in virtual seconds. is_further: it followed another turn. was_warm: some of its prefix was there already.
    had_warm_drafter: the drafter, too, had read some of it."""

    num_tokens: int
    asked_s: float
    first_s: float
    ended_s: float
    is_further: bool
    was_warm: bool
    had_warm_drafter: bool

    @property
    def token_us(self) -> float:
        """Microseconds a token, from the question to the last one: what a user waits for the whole, by its length."""
        return (self.ended_s - self.asked_s) * 1e6 / self.num_tokens


@dataclass(slots=True)
class Outcome:
    """answers: in the order in which they ended. num_refused: times that a turn found no room and asked again."""

    answers: list[Answer] = field(default_factory=list)
    num_refused: int = 0

    def numbers(self) -> dict[str, float]:
        """tokens_per_s until COUNTED_SHARE of the answers had ended (the last ones are few and slow), percentiles in milliseconds,
        warm_share of further turns, which went where their prefix was warm, and warm_drafter_share, whose drafter had read some of it."""
        counted = self.answers[: math.ceil(COUNTED_SHARE * len(self.answers))]
        token_ms = np.array([answer.token_us for answer in self.answers]) / 1e3
        first_ms = np.array([answer.first_s - answer.asked_s for answer in self.answers]) * 1e3
        further = [answer for answer in self.answers if answer.is_further]
        return {
            "tokens_per_s": round(sum(answer.num_tokens for answer in counted) / counted[-1].ended_s, 1),
            "token_ms_p50": round(float(np.percentile(token_ms, 50)), 3),
            "token_ms_p99": round(float(np.percentile(token_ms, 99)), 3),
            "first_token_ms_p50": round(float(np.percentile(first_ms, 50)), 1),
            "first_token_ms_p99": round(float(np.percentile(first_ms, 99)), 1),
            "warm_share": _share([answer.was_warm for answer in further]),
            "warm_drafter_share": _share([answer.had_warm_drafter for answer in further]),
            "refused": float(self.num_refused),
        }


def _share(held: list[bool]) -> float:
    return round(sum(held) / len(held), 4) if held else 0.0
