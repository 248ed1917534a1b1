"""One open sequence of a paged engine: its committed tokens, what of them is cached, its live nodes and where its KV lives.

Knows lengths and slots. Must not know models, tensors or other sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.engine.block_table import BlockTable
from outrider.engine.live_tree import LiveTree
from outrider.engine.sampling.penalty_state import PenaltyState
from outrider.types.step import SequenceSpec
from outrider.types.tree import ROOT, IntArray
from outrider_kernels.thin_chain import ChainSlots
from outrider_kernels.thin_pick import PickRule


@dataclass(slots=True)
class SequenceState:
    """tokens: int32 [spec.max_len], the first cached_len are committed and cached. Node i's KV is at logical slot cached_len + i.

    keys: of the leading blocks that are frozen, because others may read them (engine/prefix_cache.py).
    penalties: counts over the first counted_len committed tokens; None until a row asks that they bear on, or after a truncation.
    pick_rules: how it is picked after, with and without a probability and a second choice, once somebody asked; by these counts.
    """

    sequence: int
    spec: SequenceSpec
    table: BlockTable
    tree: LiveTree
    tokens: IntArray = field(init=False)
    cached_len: int = 0
    keys: list[bytes] = field(default_factory=list)
    penalties: PenaltyState | None = None
    counted_len: int = 0
    pick_rules: dict[tuple[bool, bool], PickRule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens = np.zeros(self.spec.max_len, np.int32)

    def chain_slots(self, parent: int) -> ChainSlots:
        """Where rows lie of which the first will be the next node, below this one (ROOT: the newest committed token), the second below it,
        and so on: by position, the committed tokens, the node's path, and what is free behind all nodes."""
        if parent == len(self.tree) - 1 and self.tree.is_chain:
            return self.table.chain_slots
        return self.table.slots_along(self.cached_len, self.tree.path_to(parent), len(self.tree))

    @property
    def held_len(self) -> int:
        """Committed tokens that it has room for, with all its nodes behind them."""
        return min(self.spec.max_len, self.table.capacity - self.spec.max_nodes)

    @property
    def is_penalised(self) -> bool:
        """Whether picks depend on the tokens before them other than through the model."""
        return self.spec.sampling.has_penalties

    @property
    def committed(self) -> IntArray:
        """The committed tokens, int32 [cached_len]."""
        return self.tokens[: self.cached_len]

    def counted(self) -> PenaltyState:
        """Counts over the committed tokens, grown with the commits and rebuilt after a truncation; of its biases alone where nothing is
        penalised."""
        num_prompt, history = self.spec.num_prompt, self.committed
        if self.penalties is None or self.counted_len < num_prompt:
            prompt, output = history[:num_prompt].tolist(), history[num_prompt:].tolist()
            self.penalties = PenaltyState(self.spec.sampling, prompt, output)
            self.pick_rules.clear()
        elif self.counted_len < len(history):
            self.penalties.append(history[self.counted_len :].tolist())
        self.counted_len = len(history)
        return self.penalties

    def uncounted(self, node: int) -> Sequence[int]:
        """Tokens from a child of the root down to this node (ROOT: none), where penalties look at them."""
        return self.tree.tokens_to(node).tolist() if self.is_penalised and node != ROOT else ()

    def append(self, tokens: IntArray) -> None:
        """Committed rows were fed: their KV is present."""
        self.tokens[self.cached_len : self.cached_len + len(tokens)] = tokens
        self.cached_len += len(tokens)

    def cut(self, length: int) -> None:
        """Forget committed tokens from `length` on, and every live node."""
        self.tree.clear()
        self.cached_len = length
        self.penalties = None
        self.counted_len = 0

    def take(self, path: tuple[int, ...], subtree: bool) -> tuple[list[int], list[int], list[int]]:
        """Commit a path. Returns (surviving old indices, logical slots to copy from, logical slots to copy to)."""
        if not path and not subtree:
            self.tree.clear()
            return [], [], []
        survivors = self.tree.survivors(path) if subtree else []
        if self.tree.is_chain:  # all that stays is where it belongs
            self._take_beginning(len(path), survivors)
            return survivors, [], []
        base = self.cached_len
        source = [base + node for node in (*path, *survivors)]
        destination = list(range(base, base + len(source)))
        tokens = self.tree.tokens[list(path)].copy()
        if subtree:
            self.tree.keep(survivors)
        else:
            self.tree.clear()
        self.append(tokens)
        return survivors, source, destination

    def _take_beginning(self, num_nodes: int, survivors: list[int]) -> None:
        """Commit so many nodes of a chain; the survivors are its end, or nothing."""
        tokens = self.tree.tokens[:num_nodes].copy()
        self.tree.keep(survivors)
        self.append(tokens)
