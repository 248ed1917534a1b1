"""The full stack on a card (`outrider bench gpu`): a large random target, replayed drafts, plain decoding, the simulator's prediction."""

from outrider_bench.gpu.driver import run

__all__ = ["run"]
