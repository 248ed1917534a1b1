"""What a run of faults came to: the RESULT line's numbers, and a table for people. Must not know processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from outrider.rpc.announcer import SUPERSEDED_EXIT_CODE
from outrider_bench.chaos.phase import Phase
from outrider_bench.chaos.schedule import Kind
from outrider_bench.chaos.site import Drain

CALM_QUANTILE = 0.99


def make_report(
    crowd: Phase,
    alone: Phase,
    truth: Sequence[tuple[int, ...]],
    drains: Sequence[Drain],
    zombie_codes: Sequence[int],
    leaks: Mapping[str, int],
) -> dict[str, object]:
    """crowd: the schedule of all kinds under many requests. alone: some kinds again, under one request at a time. Stalls are those of the
    crowd where nothing else is said. zombie_codes: exit codes of processes whose name another had when they woke up."""
    phases = (crowd, alone)
    longest = {kind: _ms(gap_s) for kind, gap_s in crowd.longest.items()}
    calm_gaps = crowd.calm_gaps
    return {
        "faults": crowd.counts.total(),
        "requests_lost": sum(len(phase.harvest.errors) for phase in phases),
        "tokens_differing": sum(phase.num_differing(truth) for phase in phases),
        "leaks": sum(leaks.values()),
        "stall_drafter_ms": longest.get(Kind.KILL_DRAFTER, 0),
        "stall_verifier_ms": longest.get(Kind.KILL_VERIFIER, 0),
        "stall_gateway_ms": longest.get(Kind.KILL_GATEWAY, 0),
        "stall_without_fault_ms": longest.get(None, 0),
        "stall_calm_ms": _ms(calm_gaps[-1].length_s),
        "stall_calm_p99_ms": _ms(calm_gaps[int(CALM_QUANTILE * (len(calm_gaps) - 1))].length_s),
        "stalls_ms": {str(kind): gap_ms for kind, gap_ms in longest.items() if kind is not None},
        **stall_numbers(crowd),
        "alone": {"faults": alone.counts.total(), "requests": _num_requests(alone), **stall_numbers(alone)},
        "drains_unclean": sum(drain.code != 0 for drain in drains),
        "zombies": len(zombie_codes),
        "zombies_unaware": sum(code != SUPERSEDED_EXIT_CODE for code in zombie_codes),
        "longest_drain_ms": _ms(max((drain.took_s for drain in drains), default=0.0)),
        "accepted_tokens": sum(phase.harvest.num_accepted for phase in phases),
        "failovers": sum(phase.harvest.num_failovers for phase in phases),
        "resumes": sum(phase.harvest.num_resumes for phase in phases),
        "answers_inexact": sum(phase.harvest.num_inexact for phase in phases),
        "requests": sum(map(_num_requests, phases)),
        "counts": {str(kind): num for kind, num in crowd.counts.items()},
        "leaked": dict(leaks),
        "took_s": round(crowd.took_s + alone.took_s, 1),
    }


def stall_numbers(phase: Phase) -> dict[str, dict[str, int]]:
    """By kind, in milliseconds: median and longest of the longest wait in each fault's time; the same of equal calm times."""
    stalls = phase.stalls
    return {
        "stalls_median_ms": {str(kind): _ms(stall.median_s) for kind, stall in stalls.items()},
        "stalls_longest_ms": {str(kind): _ms(stall.longest_s) for kind, stall in stalls.items()},
        "calm_median_ms": {str(kind): _ms(stall.calm_median_s) for kind, stall in stalls.items()},
        "calm_longest_ms": {str(kind): _ms(stall.calm_longest_s) for kind, stall in stalls.items()},
    }


def stall_table(phase: Phase) -> Table:
    """For people: faults, and waits by kind."""
    at_a_time = f"{phase.num_at_a_time} request{'s' if phase.num_at_a_time > 1 else ''} at a time"
    table = Table("fault", "how often", "median", "longest", "calm: median", "longest", title=f"longest wait of a client, {at_a_time}")
    stalls = phase.stalls
    for kind in (kind for kind in Kind if phase.counts[kind]):
        stall = stalls.get(kind)
        waits = (stall.median_s, stall.longest_s, stall.calm_median_s, stall.calm_longest_s) if stall else ()
        table.add_row(str(kind), str(phase.counts[kind]), *(f"{_ms(wait_s)} ms" for wait_s in waits))
    table.add_row("no fault near", "", "", f"{_ms(phase.longest.get(None, 0.0))} ms", "", f"{_ms(phase.calm_gaps[-1].length_s)} ms")
    return table


def _num_requests(phase: Phase) -> int:
    return len(phase.harvest.answers) + len(phase.harvest.errors)


def _ms(length_s: float) -> int:
    return round(1000.0 * length_s)
