"""A chain of a model's own picks in one compiled call on a CPU: time, bytes and operations against the processor's measured ceilings.

Run: python kernels/benchmarks/bench_thin_chain.py [--layers 4] [--hidden 384] [--tokens 16] [--threads 1]
Before anything is timed, the picks are compared with those of the same rows one by one, each a program, a head and a pick. Bytes are the
packed weights, read once a token (2 a weight); operations their multiplications and additions. `one_by_one_us` is what the calls from
Python cost without the chain. Prints one line and one JSON line.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import numpy as np
import numpy.typing as npt

from outrider_kernels.card_ceilings import CardCeilings, Timed
from outrider_kernels.host_ceilings import host_best_s, measure_host_ceilings
from outrider_kernels.thin_attention import HeadSizes, RowKeys, ThinAttention, ThinStep
from outrider_kernels.thin_chain import ChainIds, ChainRows, ChainSlots, ChainStart, ThinChain
from outrider_kernels.thin_matrix import ThinMatrix
from outrider_kernels.thin_pick import LEFT, PickRule, ThinPick
from outrider_kernels.thin_product import ThinProduct
from outrider_kernels.thin_program import ThinOperation, ThinProgram
from outrider_kernels.thin_team import ThinTeam

FloatArray = npt.NDArray[np.float32]

HEAD_DIM, NUM_IDS, POSITION = 64, 2048, 256
RULE = PickRule(7, 0.8)
WEIGHT_BYTES = 2


def half(draw: np.random.Generator, outputs: int, inputs: int) -> FloatArray:
    """float32 that bfloat16 holds, small enough to keep states in range."""
    weight = (draw.standard_normal((outputs, inputs)) / inputs**0.5).astype(np.float32)
    halved: FloatArray = (weight.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return halved


class Model:
    """Layers of attention between an embedding and a head."""

    def __init__(self, team: ThinTeam, num_layers: int, hidden_len: int, num_tokens: int) -> None:
        draw, num_heads = np.random.default_rng(0), hidden_len // HEAD_DIM
        self.team, self.num_weights, self.num_tokens = team, 0, num_tokens
        self.states, self.last, self.logits = (np.zeros((1, length), np.float32) for length in (hidden_len, hidden_len, NUM_IDS))
        heads, attended = np.zeros((1, 3 * hidden_len), np.float32), np.zeros((1, hidden_len), np.float32)
        num_slots = POSITION + num_tokens
        rotations = np.tile(np.array([1.0, 0.0], np.float32), (num_slots, HEAD_DIM // 2))
        operations: list[ThinOperation] = []
        for _ in range(num_layers):
            pool = draw.standard_normal((2, num_heads, num_slots, HEAD_DIM)).astype(np.float32)
            attention = ThinAttention(team, HeadSizes(num_heads, num_heads, HEAD_DIM, 1e-5), heads, attended, pool, rotations)
            operations += [
                self._product(half(draw, 3 * hidden_len, hidden_len), self.states, heads),
                (attention, 0),
                self._product(half(draw, hidden_len, hidden_len), attended, self.states, adds=True),
            ]
        self.program = ThinProgram(team, operations)
        self.head = self._product(half(draw, NUM_IDS, hidden_len), self.last, self.logits)
        self.embedding = draw.standard_normal((NUM_IDS, hidden_len)).astype(np.float32)
        rows = ChainRows(self.program, self.head, self.embedding, self.states, attended, self.last, self.logits, (None,))
        self.chain = ThinChain(team, rows, ChainIds(NUM_IDS))
        self.slots = np.arange(num_slots)
        self.picker = ThinPick(team)

    def _product(self, weight: FloatArray, source: FloatArray, target: FloatArray, *, adds: bool = False) -> ThinProduct:
        self.num_weights += weight.size
        return ThinProduct(self.team, ThinMatrix.pack(weight), source, target, adds=adds)

    def follow(self) -> list[int]:
        """In one call; where a pick is left to the definition, the chain ends."""
        where = ChainSlots(self.slots, np.array([0, len(self.slots)], np.int64))
        picks: list[int] = self.chain.follow(ChainStart((1,), POSITION, self.num_tokens, 0.0), RULE, where).picks.tolist()
        return picks

    def one_by_one(self) -> list[int]:
        """The same operations, each row from Python."""
        picks, token = [], 1
        for position in range(POSITION, POSITION + self.num_tokens):
            places = np.array([position], np.int64)
            step = ThinStep(places, places.copy(), [RowKeys(0, 1, ((0, position + 1),), None)])
            self.states[0] = self.embedding[token]
            self.program.run(1, [step])
            self.last[0] = self.states[0]
            self.head.run(1)
            token = int(self.picker.run(self.logits, [(RULE, [position + 1])]).tokens[0])
            if token == LEFT:
                break
            picks.append(token)
        return picks


def measure(
    num_layers: int, hidden_len: int, num_tokens: int, team: ThinTeam, ceilings: CardCeilings, timed: Timed = host_best_s
) -> dict[str, float]:
    """A whole chain, checked and timed."""
    model = Model(team, num_layers, hidden_len, num_tokens)
    picks = model.follow()
    if not picks or picks != model.one_by_one():
        raise SystemExit("The chain's picks are not those of its rows one by one. Nothing was timed.")
    num_read = model.num_weights * len(picks)
    reached = ceilings.report(timed(model.follow), num_read * WEIGHT_BYTES, 2 * num_read)
    return reached | {"num_tokens": len(picks), "one_by_one_us": timed(partial(model.one_by_one)) * 1e6}


def main() -> None:
    """Check, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=384, help=f"a multiple of {HEAD_DIM} (%(default)s)")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    ceilings = measure_host_ceilings(arguments.threads)
    report = measure(arguments.layers, arguments.hidden, arguments.tokens, ThinTeam(arguments.threads), ceilings)
    print("  ".join(f"{key} {value:.3g}" for key, value in report.items()))
    print("RESULT", json.dumps({**vars(arguments), "chain": report}))


if __name__ == "__main__":
    main()
