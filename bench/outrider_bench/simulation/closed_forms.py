"""What theory says of a world: tokens per microsecond of plain, serial and PEARL decoding (ALGORITHMS section 0 and A.1).

Derived from a world alone, independently of the policies' own models, to test simulator and policies against. All sessions alike and in
step with each other; drafts are chains. PEARL without delay only. Must not simulate.
"""

from __future__ import annotations

from outrider_bench.simulation.world import World


def plain_tokens_per_us(world: World) -> float:
    """One token a session and step."""
    return world.num_sessions / _step_us(world, 1)


def tokens_per_serial_round(acceptance: float, draft_len: int) -> float:
    """1 + alpha + ... + alpha^gamma: the leading right guesses, and the target's own token."""
    return sum(acceptance**right for right in range(draft_len + 1))


def serial_tokens_per_us(world: World, acceptance: float, draft_len: int) -> float:
    """Commit on its way, gamma draft steps, tail on its way, one step of the target."""
    way_us = 2 * (world.delay_us + world.message_us)
    round_us = way_us + draft_len * world.draft.verify_us(world.num_sessions) + _step_us(world, draft_len + 1)
    return world.num_sessions * tokens_per_serial_round(acceptance, draft_len) / round_us


def pearl_tokens_per_target_time(acceptance: float, draft_len: int) -> float:
    """A.1 at gamma = T_target / T_draft: a PRE round emits one token, a POST round n + 1 up to the first wrong guess or gamma.

    share of POST rounds pi = alpha / (alpha + 1 - alpha^gamma): PRE becomes POST when d1 is right, POST stays when all gamma are.
    """
    whole = acceptance**draft_len
    post_share = acceptance / (acceptance + 1.0 - whole)
    emitted = sum(acceptance**right * (1.0 - acceptance) * (right + 1) for right in range(draft_len)) + draft_len * whole
    return (1.0 - post_share) + post_share * emitted


def _step_us(world: World, rows_each: int) -> float:
    return world.verify.verify_us(world.num_sessions * rows_each) + world.step_overhead_us
