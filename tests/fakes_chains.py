"""A small model whose rows go through thin operations, and its chains. The same numbers every time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider_kernels.thin_attention import HeadSizes, ThinAttention
from outrider_kernels.thin_chain import ChainIds, ChainRows, ThinChain
from outrider_kernels.thin_matrix import ThinMatrix
from outrider_kernels.thin_product import RowNorm, ThinProduct
from outrider_kernels.thin_program import ThinOperation, ThinProgram
from outrider_kernels.thin_team import ThinTeam

FloatArray = npt.NDArray[np.float32]

NUM_SLOTS, NUM_POSITIONS, HIDDEN_LEN, NUM_IDS, NUM_LOGITS = 96, 64, 24, 37, 40
SIZES = HeadSizes(4, 2, 8, 1e-5)
WINDOWS = (None, 7)
MOST_ROWS = 8


class ChainModel:
    """Two layers of attention, of which one has a window, between an embedding and a head. Always the same."""

    def __init__(self, team: ThinTeam) -> None:
        draw = np.random.default_rng(4)

        def numbers(*shape: int) -> FloatArray:
            return draw.standard_normal(shape).astype(np.float32)

        num_heads = SIZES.num_heads + 2 * SIZES.num_kv_heads
        heads, attended = numbers(MOST_ROWS, num_heads * SIZES.dim), numbers(MOST_ROWS, SIZES.num_heads * SIZES.dim)
        self.attended = attended
        self.team, self.embedding = team, numbers(NUM_IDS, HIDDEN_LEN)
        self.states = numbers(MOST_ROWS, HIDDEN_LEN)
        self.last, self.logits = (np.repeat(numbers(1, length), MOST_ROWS, axis=0) for length in (HIDDEN_LEN, NUM_LOGITS))
        self.pools = [numbers(2, SIZES.num_kv_heads, NUM_SLOTS, SIZES.dim) for _ in WINDOWS]
        rotations = numbers(NUM_POSITIONS, SIZES.dim)
        operations: list[ThinOperation] = []
        for step, pool in enumerate(self.pools):
            operations += [
                ThinProduct(team, ThinMatrix.pack(numbers(heads.shape[1], HIDDEN_LEN)), self.states, heads),
                (ThinAttention(team, SIZES, heads, attended, pool, rotations), step),
                ThinProduct(team, ThinMatrix.pack(numbers(HIDDEN_LEN, attended.shape[1])), attended, self.states, adds=True),
            ]
        self.program = ThinProgram(team, operations)
        norm = RowNorm(np.full(HIDDEN_LEN, 0.4, np.float32), 1e-5)
        self.head = ThinProduct(team, ThinMatrix.pack(numbers(NUM_LOGITS, HIDDEN_LEN)), self.last, self.logits, norm=norm)

    def chain(self, ids: ChainIds, windows: tuple[int | None, ...] = WINDOWS) -> ThinChain:
        rows = ChainRows(self.program, self.head, self.embedding, self.states, self.attended, self.last, self.logits, windows)
        return ThinChain(self.team, rows, ids)
