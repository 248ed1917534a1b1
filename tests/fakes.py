"""Fakes that many tests share: a manual clock, a table in place of a target model, and a network that fails on purpose.

Everything is deterministic in its seed; nothing downloads, sleeps or imports torch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from outrider.engine.contract import EngineLimits
from outrider.errors import AlreadyExists, DoesNotFit, Overloaded, UnknownSession
from outrider.types.identity import ModelIdentity, Numerics
from outrider.types.step import SequenceResult, SequenceRows, SequenceSpec, StepPlan, StepResult, TokenLogprobs
from outrider.types.tree import ROOT, IntArray, Verdict

Frame = TypeVar("Frame")


class ManualClock:
    """Microseconds that pass only when told to."""

    def __init__(self, now_us: int = 1_000_000) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us

    def advance(self, by_us: int) -> None:
        """Time goes on, never back."""
        assert by_us >= 0
        self.now_us += by_us


BREAK_EVERY = 37


@dataclass(frozen=True)
class TruthTable:
    """A target model as a pure function: the token after `last` at `position - 1` is the token at `position`."""

    vocab_size: int = 50
    seed: int = 0
    eos: int = 0
    eos_every: int = 0  # roughly one token in so many is eos; 0: never
    period: int = 0  # the text repeats itself after so many tokens, but for one in BREAK_EVERY or so; 0: never

    def next(self, position: int, last: int) -> int:
        if self.period:
            broken = (position * 2_654_435_761 >> 7) % BREAK_EVERY == 0
            position, last = position if broken else position % self.period, 0
        mixed = (self.seed * 1_000_003 + position * 7919 + last * 104_729 + 12_345) & 0xFFFFFFFF
        mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D & 0xFFFFFFFF
        mixed ^= mixed >> 12
        if self.eos_every and mixed % self.eos_every == 0:
            return self.eos
        return 1 + mixed % (self.vocab_size - 1)

    def answer(self, prefix: list[int], max_len: int, stop: frozenset[int]) -> list[int]:
        """Plain decoding: the tokens after prefix up to max_len committed tokens or a stop token."""
        tokens = list(prefix)
        while len(tokens) < max_len:
            tokens.append(self.next(len(tokens), tokens[-1]))
            if tokens[-1] in stop:
                break
        return tokens[len(prefix) :]


@dataclass
class _Sequence:
    spec: SequenceSpec
    blocks: int
    cached: list[int] = field(default_factory=list)
    nodes: list[tuple[int, int]] = field(default_factory=list)


class TableEngine:
    """The Engine protocol over a TruthTable, strict about every invariant a scheduler must keep. step_us: what a step claims to cost.

    prefix_cache: whether what one sequence was fed, another need not be fed again, in whole blocks; num_fed counts committed rows.
    lent_threads: what a step can use of its plan's; then it claims to cost lent_step_us. lent: what each step was given.
    held: what the newest step was given, until the loan was ended; num_ended: how often there was one to end.
    """

    def __init__(
        self,
        table: TruthTable,
        *,
        num_blocks: int = 256,
        block_len: int = 16,
        max_rows: int = 256,
        step_us: int = 1000,
        prefix_cache: bool = False,
        lent_threads: int = 0,
        lent_step_us: int = 600,
    ) -> None:
        self.table = table
        self.step_us = step_us
        self.lent_step_us = lent_step_us
        self.lent: list[int] = []
        self.held = self.num_ended = 0
        self.num_steps = 0
        self.num_fed = 0
        self._limits = EngineLimits(max_rows, block_len, num_blocks, num_blocks * block_len, prefix_cache, lent_threads)
        self._known: set[tuple[str, tuple[int, ...]]] = set()
        self._sequences: dict[int, _Sequence] = {}
        self._free = num_blocks

    @property
    def identity(self) -> ModelIdentity:
        size, eos = self.table.vocab_size, (self.table.eos,)
        return ModelIdentity("table", "", "w", f"vocab{size}", size, "float32", Numerics.INVARIANT, "f", self._limits.max_context, eos)

    @property
    def limits(self) -> EngineLimits:
        return self._limits

    @property
    def num_free_blocks(self) -> int:
        return self._free

    @property
    def num_open(self) -> int:
        return len(self._sequences)

    def open(self, sequence: int, spec: SequenceSpec, prefix: IntArray | None = None) -> None:
        if sequence in self._sequences:
            raise AlreadyExists(f"sequence {sequence} is open")
        if self._num_blocks(spec, spec.max_len) > self._limits.num_blocks:
            raise DoesNotFit("max_tokens", "longer than every block there is")
        blocks = self._num_blocks(spec, spec.first_len or spec.max_len)
        if blocks > self._free:
            raise Overloaded("no KV blocks")
        self._free -= blocks
        self._sequences[sequence] = _Sequence(spec, blocks)
        if prefix is not None:
            self.match_prefix(sequence, prefix)

    def reserve(self, sequence: int, length: int) -> None:
        state = self._sequences[sequence]
        missing = self._num_blocks(state.spec, min(length, state.spec.max_len)) - state.blocks
        if missing > self._free:
            raise Overloaded("no KV blocks")
        self._free -= max(0, missing)
        state.blocks += max(0, missing)

    def _num_blocks(self, spec: SequenceSpec, num_tokens: int) -> int:
        return -(-(num_tokens + spec.max_nodes) // self._limits.block_len)

    def match_prefix(self, sequence: int, prefix: IntArray) -> int:
        state, block_len = self._sequences[sequence], self._limits.block_len
        found = len(state.cached)
        while found + block_len < len(prefix) and (state.spec.tenant, tuple(prefix[: found + block_len].tolist())) in self._known:
            found += block_len
        state.cached = prefix[:found].tolist()
        return found

    def close(self, sequence: int) -> None:
        if sequence not in self._sequences:
            raise UnknownSession(f"sequence {sequence}")
        self._free += self._sequences.pop(sequence).blocks

    def cached_len(self, sequence: int) -> int:
        return len(self._sequences[sequence].cached)

    def truncate(self, sequence: int, length: int) -> None:
        state = self._sequences[sequence]
        del state.cached[length:]
        state.nodes.clear()

    def end_loan(self) -> None:
        self.num_ended += self.held > 0
        self.held = 0

    def keep(self, sequence: int, path: tuple[int, ...], *, subtree: bool = False) -> IntArray:
        assert not subtree
        state = self._sequences[sequence]
        parent = ROOT
        for node in path:
            token, of = state.nodes[node]
            assert of == parent, "a kept path goes from parent to child"
            state.cached.append(token)
            parent = node
        state.nodes.clear()
        return np.empty(0, np.int32)

    def step(self, plan: StepPlan) -> StepResult:
        self.num_steps += 1
        num_rows = sum(len(rows.committed) + len(rows.tokens) for rows in plan.sequences)
        assert 0 < num_rows <= self._limits.max_rows
        assert len({rows.sequence for rows in plan.sequences}) == len(plan.sequences)
        results = tuple(self._step_one(rows) for rows in plan.sequences)
        assert 0 <= plan.lent_threads <= self._limits.lent_threads
        self.lent.append(plan.lent_threads)
        self.held = plan.lent_threads
        step_us = self.lent_step_us if plan.lent_threads else self.step_us
        return StepResult(results, step_us, step_us, num_rows)

    def _step_one(self, rows: SequenceRows) -> SequenceResult:
        state = self._sequences[rows.sequence]
        assert not (len(rows.committed) and state.nodes), "committed rows while nodes are live"
        state.cached += rows.committed.tolist()
        self.num_fed += len(rows.committed)
        if self._limits.prefix_cache and rows.wanted:
            whole = range(self._limits.block_len, len(state.cached), self._limits.block_len)
            self._known |= {(state.spec.tenant, tuple(state.cached[:length])) for length in whole}
        assert len(state.cached) <= state.spec.max_len
        assert self._num_blocks(state.spec, len(state.cached)) <= state.blocks, "a text that grew beyond its room"
        first = len(state.nodes)
        state.nodes += list(zip(rows.tokens.tolist(), rows.parents.tolist(), strict=True))
        assert len(state.nodes) <= state.spec.max_nodes
        picks = [self._pick(state, ROOT)] if len(rows.committed) else []
        picks += [self._pick(state, node) for node in range(first, len(state.nodes))]
        verdict = self._judge(state) if rows.acceptance else None
        logprobs = None
        if rows.top_logprobs is not None and verdict is not None:
            num = len(verdict.path) + 1
            top = np.zeros((num, rows.top_logprobs), np.float32)
            logprobs = TokenLogprobs(np.full(num, -0.5, np.float32), top.astype(np.int32), top)
        return SequenceResult(rows.sequence, np.asarray(picks, np.int32), None, logprobs, verdict)

    def _pick(self, state: _Sequence, node: int) -> int:
        depth, at = 0, node
        while at != ROOT:
            depth, at = depth + 1, state.nodes[at][1]
        last = state.cached[-1] if node == ROOT else state.nodes[node][0]
        return self.table.next(len(state.cached) + depth, last)

    def _judge(self, state: _Sequence) -> Verdict:
        path: list[int] = []
        node = ROOT
        while True:
            pick = self._pick(state, node)
            children = {token: child for child, (token, parent) in enumerate(state.nodes) if parent == node}
            if pick not in children:
                return Verdict(tuple(path), pick, bonus=not children)
            node = children[pick]
            path.append(node)


@dataclass(frozen=True)
class Weather:
    """What a network does to each frame: probabilities, and the largest delay in microseconds (delays reorder)."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    max_delay_us: int = 0


class FakeNetwork(Generic[Frame]):
    """Frames on their way to named endpoints. Order holds per destination unless a frame is reordered; the dead hear nothing."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self._random = random.Random(seed)
        self._weather = weather
        self._flying: list[tuple[int, int, str, str, Frame]] = []
        self._last_due: dict[tuple[str, str], int] = {}
        self._sent = 0
        self.dead: set[str] = set()

    def send(self, now_us: int, source: str, target: str, frame: Frame) -> None:
        """Send one frame, perhaps twice, perhaps not at all."""
        if self._random.random() < self._weather.drop:
            return
        copies = 2 if self._random.random() < self._weather.duplicate else 1
        for _ in range(copies):
            due = now_us + self._random.randint(0, self._weather.max_delay_us)
            if self._random.random() >= self._weather.reorder:
                due = max(due, self._last_due.get((source, target), 0))
                self._last_due[source, target] = due
            self._sent += 1
            self._flying.append((due, self._sent, source, target, frame))

    def next_due(self) -> int | None:
        """When the next frame arrives."""
        return min((due for due, *_ in self._flying), default=None)

    def arrivals(self, now_us: int) -> list[tuple[str, str, Frame]]:
        """Frames that have arrived by now, as (source, target, frame), in order of arrival."""
        due = sorted((entry for entry in self._flying if entry[0] <= now_us), key=lambda entry: entry[:2])
        self._flying = [entry for entry in self._flying if entry[0] > now_us]
        return [(source, target, frame) for _, _, source, target, frame in due if not {source, target} & self.dead]

    def kill(self, endpoint: str) -> None:
        """From now on nothing reaches or leaves it; what is on its way is lost."""
        self.dead.add(endpoint)
        self._flying = [entry for entry in self._flying if endpoint not in entry[2:4]]
