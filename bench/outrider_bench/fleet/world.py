"""The simulated fleet as it really is: speeds, distances, how well drafters suit. Placements see of it only what was measured.

Must not know time, load or strategies.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from outrider.types.identity import ModelIdentity, Numerics

NUM_ZONES = 8  # in a ring: what is next door is near
SAME_ZONE_US, ZONE_US = 300, 1_500  # a round trip within a zone, and what each zone between adds
STEP_US = (8_000.0, 12_000.0, 20_000.0)  # three generations of accelerators
KNEE_ROWS = 128
MAX_SESSIONS = 24  # of a replica
NUM_BLOCKS, BLOCK_LEN = 6_000, 16
DRAFT_US = (400.0, 2_500.0)
DRAFT_READ_SHARE = 1 / 64  # of a drafted token, for a prompt's: 128 of them in a step that takes twice as long as a guess
SUITS = (0.45, 0.65, 0.8)  # three draft models: chance of a guess on an ordinary text
IDENTITY = ModelIdentity(
    "simulated", "", "weights", "vocabulary", 32_000, "bfloat16", Numerics.INVARIANT, "fingerprint", max_context=32_768, eos_token_ids=(2,)
)


@dataclass(frozen=True, slots=True)
class VerifierSpec:
    """cost: (rows, us) of a step."""

    endpoint: str
    zone: int
    cost: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """draft_us: a token while it has one session. suits: acceptance on an ordinary text."""

    endpoint: str
    zone: int
    draft_us: float
    suits: float

    @property
    def read_us(self) -> float:
        """A prompt's token that it has not read before."""
        return DRAFT_READ_SHARE * self.draft_us


@dataclass(frozen=True, slots=True)
class World:
    """Who there is."""

    verifiers: tuple[VerifierSpec, ...]
    drafters: tuple[DrafterSpec, ...]

    def round_trip_us(self, verifier: int, drafter: int) -> int:
        """Between two, by their places in the tuples."""
        apart = abs(self.verifiers[verifier].zone - self.drafters[drafter].zone)
        return SAME_ZONE_US + ZONE_US * min(apart, NUM_ZONES - apart)


def make_world(num_verifiers: int, num_drafters: int, seed: int) -> World:
    """The same for the same seed."""
    luck = random.Random(seed)
    verifiers = tuple(
        VerifierSpec(f"verifier-{at:05}", luck.randrange(NUM_ZONES), _knee(luck.choice(STEP_US))) for at in range(num_verifiers)
    )
    drafters = tuple(
        DrafterSpec(f"drafter-{at:05}", luck.randrange(NUM_ZONES), luck.uniform(*DRAFT_US), luck.choice(SUITS))
        for at in range(num_drafters)
    )
    return World(verifiers, drafters)


def _knee(us: float) -> tuple[tuple[int, float], ...]:
    return ((1, us), (KNEE_ROWS, 1.2 * us), (1_024, 1.2 * us * 1_024 / KNEE_ROWS))
