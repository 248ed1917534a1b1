"""The worlds that policies are compared in: every combination of a few values of each axis.

Axes: acceptance, T_target / T_draft, one-way delay in target forwards, sessions, shape of the cost curves, sharing of cores, pauses of an
unsure drafter, side branches. Must not know policies or results.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from outrider.errors import InvalidRequest
from outrider_bench.simulation.curves import CurveShape
from outrider_bench.simulation.profile import Profile
from outrider_bench.simulation.world import World

OUTPUT_LEN = 192
BASE_TOKENS = 1920
TOKENS_PER_SESSION = 96  # beyond the middle of every session's answer, where changing acceptances change


@dataclass(frozen=True, slots=True)
class Axes:
    """Values of each axis. shared: how much longer verifier and drafter take while both run, 1 = on machines of their own.

    unsure: how often the drafter stops for want of confidence before a wrong and before a right guess, `0.8/0.1`; `0` = never.
    hedged: how often its second choice is right where the first is wrong; 0 = it drafts no side branches.
    """

    acceptances: tuple[str, ...] = ("0", "0.5", "0.8", "0.98", "0.95>0.1", "0.1>0.95", "0.9|0.3")
    cost_ratios: tuple[float, ...] = (1, 3, 10, 30)
    delays: tuple[float, ...] = (0, 0.5, 2)
    sessions: tuple[int, ...] = (1, 8, 64)
    curves: tuple[str, ...] = ("knee",)
    shared: tuple[float, ...] = (1.0,)
    unsure: tuple[str, ...] = ("0",)
    hedged: tuple[float, ...] = (0.0,)


QUICK = Axes(("0", "0.6", "0.9", "0.95>0.1"), (2, 10), (0, 1), (1, 8), ("knee",))
WIDE_CURVES = ("knee", "measured")  # an accelerator, and two cores on which every row costs something
WIDE_SHARED = (1.0, 2.0)  # machines of their own, and both on the same cores


def widened(axes: Axes) -> Axes:
    """Their cells, and those of the same worlds on processors."""
    return replace(axes, curves=WIDE_CURVES, shared=WIDE_SHARED)


@dataclass(frozen=True, slots=True)
class Machine:
    """What all cells have in common: a target step of one row, what a message and a step cost beside, the curves by name, the seed."""

    target_us: float
    message_us: int
    step_overhead_us: int
    shapes: Mapping[str, CurveShape]
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination. cost_ratio: T_target / T_draft at one row. delay: one way, in target forwards."""

    acceptance: str
    cost_ratio: float
    delay: float
    num_sessions: int
    curve: str
    shared: float
    unsure: str
    hedged: float = 0.0

    def world(self, machine: Machine) -> World:
        """The world of this cell."""
        shape = machine.shapes[self.curve]
        unsure_when_wrong, unsure_when_right = unsure_shares(self.unsure)
        return World(
            verify=shape.verify_curve(machine.target_us),
            draft=shape.draft_curve(machine.target_us / self.cost_ratio),
            phases=Profile.parse(self.acceptance).phases(OUTPUT_LEN),
            delay_us=round(self.delay * machine.target_us),
            message_us=machine.message_us,
            step_overhead_us=machine.step_overhead_us,
            num_sessions=self.num_sessions,
            verify_slowdown=self.shared,
            draft_slowdown=self.shared,
            unsure_when_wrong=unsure_when_wrong,
            unsure_when_right=unsure_when_right,
            output_len=OUTPUT_LEN,
            seed=machine.seed,
            hedge_acceptance=self.hedged,
        )

    def num_tokens(self, share: float) -> int:
        """Tokens to simulate, one at least; share: of the usual number."""
        return max(1, round(share * (BASE_TOKENS + TOKENS_PER_SESSION * self.num_sessions)))

    def describe(self) -> str:
        """One line for people."""
        return f"acceptance {self.acceptance}, {self.setting()}"

    def setting(self) -> str:
        """All but the acceptance."""
        cores = "" if self.shared == 1.0 else f", shared cores x{self.shared:g}"
        unsure = "" if self.unsure == "0" else f", unsure {self.unsure}"
        hedged = f", hedged {self.hedged:g}" if self.hedged else ""
        return f"c {self.cost_ratio:g}, delay {self.delay:g}, {self.num_sessions} sessions, {self.curve}{cores}{unsure}{hedged}"


def cells_of(axes: Axes) -> list[Cell]:
    """Every combination; acceptances that differ by session only where there are several."""
    costs = axes.cost_ratios, axes.delays, axes.sessions, axes.curves
    every = itertools.product(axes.acceptances, *costs, axes.shared, axes.unsure, axes.hedged)
    return [Cell(*values) for values in every if "|" not in values[0] or values[3] > 1]


def unsure_shares(text: str) -> tuple[float, float]:
    """Of `wrong/right`, or of `0`; raises InvalidRequest when it is neither."""
    wrong, _, right = text.partition("/")
    try:
        shares = (float(wrong), float(right or 0.0))
    except ValueError as error:
        raise InvalidRequest("unsure", f"{text!r} is not two shares a/b") from error
    if not all(0.0 <= share <= 1.0 for share in shares):
        raise InvalidRequest("unsure", f"{text!r}: a share lies in [0, 1]")
    return shares
