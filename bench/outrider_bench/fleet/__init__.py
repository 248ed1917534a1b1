"""A whole fleet on virtual time (`outrider bench fleet`): the coordinator's real placement against simpler ones."""

from outrider_bench.fleet.driver import run

__all__ = ["run"]
