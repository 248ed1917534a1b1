"""Pictures of the tables of a page (`outrider bench plots bench/RESULTS.md`): a picture shows the table that its link stands above."""

from outrider_bench.plots.driver import run

__all__ = ["run"]
