"""What users ask: conversations of a few turns, each turn reading everything before it. A user thinks between turns, and asks anew when a
conversation is over. Must not know the fleet.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

MAX_TURNS = 6
FIRST_PROMPT_LEN = (100, 1_500)
FURTHER_PROMPT_LEN = (20, 200)
MEAN_ANSWER_LEN, MAX_ANSWER_LEN = 180, 768
MEAN_THINK_S = 2.0
NUM_TENANTS = 12
DIGEST_LEN = 512  # tokens: a digest for every so many, so that no prefix here has more than a wish may name
TEXT_LUCK = 0.15  # how far a text's acceptance may be from what the drafter's is on average


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. is_further: it follows another turn, whose prefix may be warm. answer_len: what it turns out to be; placements know
    MAX_ANSWER_LEN only. text_luck: added to acceptance."""

    user: int
    tenant: str
    conversation: int
    is_further: bool
    prefix_len: int
    answer_len: int
    text_luck: float

    def digests(self, length: int) -> tuple[bytes, ...]:
        """Of the beginnings of the first `length` tokens of the conversation, shortest first."""
        return tuple(f"{self.user} {self.conversation} {at}".encode() for at in range(length // DIGEST_LEN))

    @property
    def digest_lens(self) -> tuple[int, ...]:
        """Tokens of each of the prefix's."""
        return tuple(range(DIGEST_LEN, self.prefix_len + 1, DIGEST_LEN))


class Users:
    """num_users, each with a luck of its own: what it asks does not depend on when it is answered."""

    def __init__(self, num_users: int, seed: int) -> None:
        self._luck = [random.Random(f"{seed} {user}") for user in range(num_users)]
        self._last: list[Turn | None] = [None] * num_users
        self._turns_left = [0] * num_users
        self._conversations = [0] * num_users

    def __len__(self) -> int:
        return len(self._last)

    def think_s(self, user: int) -> float:
        """Until its next turn."""
        return self._luck[user].expovariate(1.0 / MEAN_THINK_S)

    def next_turn(self, user: int) -> Turn:
        """What it asks now."""
        luck = self._luck[user]
        before = self._last[user] if self._turns_left[user] else None
        if before is None:
            self._conversations[user] += 1
            self._turns_left[user] = luck.randint(1, MAX_TURNS)
        self._turns_left[user] -= 1
        prefix_len = (
            before.prefix_len + before.answer_len + luck.randint(*FURTHER_PROMPT_LEN) if before else luck.randint(*FIRST_PROMPT_LEN)
        )
        turn = Turn(
            user,
            f"tenant {user % NUM_TENANTS}",
            self._conversations[user],
            before is not None,
            prefix_len,
            min(MAX_ANSWER_LEN, 1 + int(luck.expovariate(1.0 / MEAN_ANSWER_LEN))),
            before.text_luck if before else luck.uniform(-TEXT_LUCK, TEXT_LUCK),
        )
        self._last[user] = turn
        return turn
