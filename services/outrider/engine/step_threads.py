"""Threads of steps: an engine's own, or more while somebody else's cores are idle (StepPlan.lent_threads).

Changing the number costs a wake-up for the team of thin operations; for torch less than a microsecond, and about ten more in the operation
that follows (measured: 1 and 2 threads in turn, products of 0.4 ms). Must not know who lends.
"""

from __future__ import annotations

import logging
from typing import Protocol

import torch
from threadpoolctl import ThreadpoolController

from outrider.engine.config import EngineConfig
from outrider.types.identity import Numerics
from outrider_kernels.thin_team import ThinTeam

_LOG = logging.getLogger(__name__)


class StepThreads(Protocol):
    """most_lent: how many more threads than its own an engine has."""

    most_lent: int

    def use(self, num_lent: int) -> None:
        """From now on so many beyond its own, most_lent of them at most. Called by the thread that steps, between operations."""
        ...

    def own_loan(self) -> None:
        """What could be lent is the engine's own from now on. By the same thread."""
        ...


class FixedThreads:
    """The same for every step: as many of torch's as there were at first, whatever an engine beside this one uses."""

    most_lent = 0

    def __init__(self) -> None:
        self._num_torch = torch.get_num_threads()

    def use(self, num_lent: int) -> None:
        """Nothing can be lent."""
        _use_torch(self._num_torch)

    def own_loan(self) -> None:
        """There is none."""


class TeamThreads:
    """Threads of thin operations. Torch, which only picks then, has one: a second would wait for more to do, awake, on a core that the team
    needs (steps with log-probabilities take 1.5 times as long so, of one row or 32: bench/LOG.md)."""

    def __init__(self, team: ThinTeam, most_lent: int) -> None:
        self.most_lent = most_lent
        self._team = team
        self._num_own = team.num_threads - most_lent
        self._num_held = 0  # nothing yet
        self.use(0)

    def use(self, num_lent: int) -> None:
        """See StepThreads."""
        _use_torch(1)
        wanted = self._num_own + min(num_lent, self.most_lent)
        if wanted != self._num_held:  # a call of compiled code lets go of the interpreter, and this is asked before each step
            self._num_held = wanted
            self._team.hold(wanted)

    def own_loan(self) -> None:
        """See StepThreads."""
        self._num_own, self.most_lent = self._num_own + self.most_lent, 0
        self.use(0)


class TorchThreads:
    """Threads of torch and numpy, for `fast` numerics: how a sum is split among torch's threads shows in its bits."""

    def __init__(self, most_lent: int) -> None:
        self.most_lent = most_lent
        self._num_own = torch.get_num_threads()
        self._num_lent = 0
        self._blas = ThreadpoolController().select(user_api="blas").lib_controllers

    def use(self, num_lent: int) -> None:
        """See StepThreads."""
        num_lent = min(num_lent, self.most_lent)
        _use_torch(self._num_own + num_lent)
        if num_lent == self._num_lent:
            return
        self._num_lent = num_lent
        for library in self._blas:
            library.set_num_threads(self._num_own + num_lent)

    def own_loan(self) -> None:
        """See StepThreads."""
        most_lent, self.most_lent = self.most_lent, 0
        self._num_own += most_lent
        self._num_lent = most_lent  # of what is held now, so that the libraries are told
        self.use(0)


def _use_torch(num_threads: int) -> None:
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)


def step_threads(config: EngineConfig, team: ThinTeam | None = None) -> StepThreads:
    """How an engine of this configuration changes its threads. team: of its thin operations, with room for what is lent."""
    if team is not None:
        return TeamThreads(team, config.lent_threads)
    if not config.lent_threads:
        return FixedThreads()
    if config.device != "cpu" or config.numerics is Numerics.INVARIANT:
        _LOG.warning("threads cannot be lent to torch's operations in %s numerics on %s", config.numerics.value, config.device)
        return FixedThreads()
    return TorchThreads(config.lent_threads)
