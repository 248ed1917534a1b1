"""The simulator's reduced drafter sends the very frames of the real DrafterSession, and whole runs with either come out the same."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import numpy as np
import pytest

from mostly_slow import crossed
from outrider.session.pacing.registry import make_pacing
from outrider.types.frames import DrafterFrame, Tail, TailEnd, VerifierFrame
from outrider_bench.simulation.chain_drafter import ChainDrafter
from outrider_bench.simulation.curves import CURVE_SHAPES
from outrider_bench.simulation.drafter_side import DrafterSide, SessionDrafter
from outrider_bench.simulation.event_loop import DrafterKind, Simulation, simulate
from outrider_bench.simulation.text import Text
from outrider_bench.simulation.world import Phase, World

FLAT, KNEE = CURVE_SHAPES["flat"], CURVE_SHAPES["knee"]
QUIET = World(FLAT.verify_curve(6_000), FLAT.draft_curve(1_200), ((Phase(0.8),),), output_len=60)
WORLDS = {
    "one session": QUIET,
    "never right": replace(QUIET, phases=((Phase(0.0),),)),
    "always right, beyond the bound of a tree": replace(QUIET, phases=((Phase(1.0),),), output_len=2_000),
    "slow way, changing acceptance": replace(QUIET, delay_us=7_001, message_us=130, phases=((Phase(0.95, 30), Phase(0.1)),)),
    "many sessions on shared cores": replace(
        QUIET,
        verify=KNEE.verify_curve(6_000),
        num_sessions=6,
        verify_slowdown=1.4,
        draft_slowdown=1.7,
        phases=((Phase(0.9),), (Phase(0.3),)),
    ),
    "a drafter slower than the target": replace(QUIET, draft=FLAT.draft_curve(7_300), step_overhead_us=311),
    "a drafter that is often unsure": replace(QUIET, unsure_when_wrong=0.7, unsure_when_right=0.15, num_sessions=2),
    "unsure and never right": replace(QUIET, unsure_when_wrong=0.9, phases=((Phase(0.0),),), delay_us=900),
    "a drafter that drifts": replace(
        QUIET, phases=((Phase(0.95, 30, (0.8, 0.3)), Phase(0.9)), (Phase(0.4, None, (0.9,)),)), num_sessions=2
    ),
    "guesses that follow": replace(QUIET, max_followed=6),
    "guesses that follow a while, behind tight bounds": replace(QUIET, max_followed=2, max_draft_len=7, max_nodes=9, num_sessions=2),
    "tight bounds": replace(QUIET, max_draft_len=3, max_nodes=4, max_rows=8, num_sessions=3),
}
POLICIES = (("serial", 5), ("pearl", 4), ("adaptive", None), ("serial", None), ("pearl", None))


class TwinDrafter:
    """Both kinds at once; every frame must be the same."""

    def __init__(self, handle: int, text: Text) -> None:
        self.real: DrafterSide = SessionDrafter(handle, text)
        self.reduced: DrafterSide = ChainDrafter(handle, text)
        self.ends: set[TailEnd] = set()

    @property
    def ended(self) -> bool:
        assert self.real.ended == self.reduced.ended
        return self.real.ended

    def wants(self) -> bool:
        assert self.real.wants() == self.reduced.wants()
        return self.real.wants()

    def can_grow(self) -> bool:
        assert self.real.can_grow() == self.reduced.can_grow()
        return self.real.can_grow()

    def num_growing(self, most: int) -> int:
        assert self.real.num_growing(most) == self.reduced.num_growing(most)
        return self.real.num_growing(most)

    def num_branches(self) -> int:
        assert self.real.num_branches() == self.reduced.num_branches()
        return self.real.num_branches()

    def may_hedge(self) -> bool:
        assert self.real.may_hedge() == self.reduced.may_hedge()
        return self.real.may_hedge()

    def hedge(self, begin_us: int, end_us: int) -> list[DrafterFrame]:
        return self._same(self.real.hedge(begin_us, end_us), self.reduced.hedge(begin_us, end_us))

    def receive(self, frame: VerifierFrame) -> list[DrafterFrame]:
        return self._same(self.real.receive(frame), self.reduced.receive(frame))

    def grow(self, begin_us: int, end_us: int) -> list[DrafterFrame]:
        return self._same(self.real.grow(begin_us, end_us), self.reduced.grow(begin_us, end_us))

    def _same(self, real: list[DrafterFrame], reduced: list[DrafterFrame]) -> list[DrafterFrame]:
        assert len(real) == len(reduced)
        for one, other in zip(real, reduced, strict=True):
            assert type(one) is type(other)
            for field in fields(one):
                np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), err_msg=field.name)
        self.ends |= {frame.end for frame in real if isinstance(frame, Tail)}
        return real


class TwinSimulation(Simulation):
    """Drafters that are both."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.twins: list[TwinDrafter] = []

    def _open_drafter(self, handle: int) -> DrafterSide:
        self.twins.append(TwinDrafter(handle, self._texts[handle]))
        return self.twins[-1]


@pytest.mark.parametrize(("name", "pacing"), crossed(list(WORLDS), POLICIES))
def test_every_frame_is_that_of_the_real_session(name: str, pacing: tuple[str, int | None]) -> None:
    world = WORLDS[name]
    num_tokens = 1_500 if world.output_len == 2_000 else 150 * world.num_sessions
    simulation = TwinSimulation(world, make_pacing(*pacing), num_tokens)
    simulation.run()
    assert sum(len(twin.ends) for twin in simulation.twins) > 0


def test_the_comparison_meets_every_way_a_chain_can_end() -> None:
    met: set[TailEnd] = set()
    for name in ("one session", "tight bounds", "a drafter that is often unsure"):
        simulation = TwinSimulation(WORLDS[name], make_pacing("pearl", 4), 600)
        simulation.run()
        met |= {end for twin in simulation.twins for end in twin.ends}
    assert met >= {TailEnd.MORE, TailEnd.CREDIT, TailEnd.LIMIT, TailEnd.CONFIDENCE}


@pytest.mark.parametrize("name", WORLDS)
def test_a_run_comes_out_the_same_with_either(name: str) -> None:
    world = WORLDS[name]
    outcomes = [asdict(simulate(world, make_pacing("pearl", 4), 200 * world.num_sessions, kind)) for kind in DrafterKind]
    assert outcomes[0] == outcomes[1]
