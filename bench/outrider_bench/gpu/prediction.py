"""What the simulator makes of a cell: the services' own sessions and policies on virtual time, from micro-benchmarks alone.

All requests of a burst are simulated at once, with the very positions at which the replaying drafter errs. What a burst takes until its
first tokens is measured apart, and stands in for what the simulator says of reading prompts: its curve ends at a step of few rows. Must not
measure.
"""

from __future__ import annotations

from dataclasses import replace

from outrider.session.pacing.registry import make_pacing
from outrider_bench.contestants import DraftWishes
from outrider_bench.gpu.micro import BurstCosts
from outrider_bench.predictions import Circumstances, policy_name, world_of
from outrider_bench.replay import REPLAY_SEED
from outrider_bench.simulation.event_loop import simulate
from outrider_bench.simulation.world import Shape, World

NUM_COUNTED = 2  # bursts, after a first one that teaches the policy


def predict(wishes: DraftWishes, costs: BurstCosts, acceptance: float, num_requests: int, shape: Shape) -> float:
    """Tokens per second of bursts of equal requests. Raises StuckError when the policy makes no progress."""
    world = burst_world(wishes, costs, acceptance, num_requests, shape)
    burst_len = num_requests * shape.output_len
    first_us, all_us = (_simulated_us(world, policy_name(wishes), num * burst_len) for num in (1, 1 + NUM_COUNTED))
    # As plain decoding is simulated to get there: what it says of reading prompts goes out, what was measured comes in.
    reading_us = costs.first_us - _simulated_us(world, "plain", num_requests)
    return 1e6 * burst_len / ((all_us - first_us) / NUM_COUNTED + reading_us)


def burst_world(wishes: DraftWishes, costs: BurstCosts, acceptance: float, num_requests: int, shape: Shape) -> World:
    """Clients that ask again as soon as they are answered: equal requests with equal luck end together, and make the next burst."""
    alone = world_of(wishes, Circumstances(costs.one, acceptance, REPLAY_SEED, 0), shape)
    return replace(alone, num_sessions=num_requests, session_us=costs.session_us, guess_us=costs.guess_us, draft=costs.draft)


def _simulated_us(world: World, policy: str, num_tokens: int) -> float:
    return float(simulate(world, make_pacing(policy), num_tokens).elapsed_us)
