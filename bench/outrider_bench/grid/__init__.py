"""One and two drafters by one and two verifiers (`outrider bench grid`): measured on this machine, and predicted from micro-benchmarks."""

from outrider_bench.grid.driver import run

__all__ = ["run"]
