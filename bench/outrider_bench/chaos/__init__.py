"""Real processes, real faults: kills, stops, cut and slow links while seeded requests run, and a count of what was lost or differs."""

from outrider_bench.chaos.driver import run

__all__ = ["run"]
