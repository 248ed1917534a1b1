"""An engine without a model: its truth is a given text, its guesses are right at a given rate, its steps cost what it is told.

For tests, simulations and benchmarks: everything around the model runs for real. A pick is a pure function of the tokens before it: the
text's next token while those follow the text, else a token hashed from them; so drafts and schedules cannot change the answer. As a
drafter it guesses the text's token with a fixed probability per position, decided by a seed. Torch-free. Must not know sessions.
Source: the fixed-acceptance simulations of Leviathan et al. 2023 (section 3.2) and PEARL (Liu et al. 2024, appendix on theory).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.engine.contract import EngineLimits
from outrider.engine.pick_walk import walk_picks
from outrider.engine.replay_cost import BusyClock, StepClock, StepCost, free_steps
from outrider.engine.sequence_state import SequenceState
from outrider.engine.sequence_table import SequenceTable
from outrider.engine.step_batch import Segment, build_batch
from outrider.errors import InvalidRequest
from outrider.types.identity import ModelIdentity, Numerics
from outrider.types.step import Choices, Seconds, SequenceResult, SequenceSpec, StepPlan, StepResult, TokenLogprobs
from outrider.types.tree import MAX_TREE_NODES, IntArray, Verdict, extend_hash

Answer = Callable[[tuple[int, ...]], Sequence[int]]  # prompt -> the answer's tokens
COUPLED = "coupled"
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class ReplayScript:
    """answer: the text of a prompt, or a function of the prompt. Beyond its end the pick is end_token.

    acceptance: probability that a pick is the text's token (1: the truth itself, as a verifier; less: a drafter); decided per position
    by guess_seed, alike for all sequences of one prompt length.
    """

    answer: Answer | Sequence[int]
    end_token: int
    acceptance: float = 1.0
    guess_seed: int = 0

    def text(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """The answer to a prompt."""
        return tuple(self.answer(prompt) if callable(self.answer) else self.answer)


@dataclass(slots=True)
class _Reader:
    """Where a sequence stands in its text. num_matching: leading committed tokens that follow prompt and text."""

    text: tuple[int, ...]
    num_matching: int
    prefix_hash: int
    hashed_len: int = 0


class ReplayEngine:
    """Engine over a script; see engine/contract.py for every promise."""

    def __init__(
        self,
        identity: ModelIdentity,
        limits: EngineLimits,
        script: ReplayScript,
        cost: StepCost = free_steps,
        clock: StepClock | None = None,
    ) -> None:
        self._identity = identity
        self._limits = limits
        self._script = script
        self._cost = cost
        self._clock = BusyClock() if clock is None else clock
        self._sequences = SequenceTable(identity, limits)
        self._readers: dict[int, _Reader] = {}

    @property
    def identity(self) -> ModelIdentity:
        """Who the script pretends to be."""
        return self._identity

    @property
    def limits(self) -> EngineLimits:
        """Sizes fixed at construction."""
        return self._limits

    @property
    def max_tree_depth(self) -> int:
        """Levels a tree may have."""
        return MAX_TREE_NODES

    @property
    def num_free_blocks(self) -> int:
        """KV blocks held by no open sequence."""
        return self._sequences.num_free_blocks

    def open(self, sequence: int, spec: SequenceSpec, prefix: IntArray | None = None) -> None:
        """Reserve blocks as a real engine would; what is cached of `prefix` is taken over.

        Raises DoesNotFit, Overloaded, AlreadyExists or InvalidRequest, holding nothing.
        """
        self._sequences.open(sequence, spec, prefix)

    def reserve(self, sequence: int, length: int) -> None:
        """Hold KV blocks for so many committed tokens, at most its max_len. Raises UnknownSession, or Overloaded, changing nothing."""
        self._sequences.reserve(sequence, length)

    def match_prefix(self, sequence: int, prefix: IntArray) -> int:
        """Skip whole blocks of `prefix` that were read before; returns cached_len, less than len(tokens)."""
        return self._sequences.match_prefix(sequence, prefix)

    def step(self, plan: StepPlan) -> StepResult:
        """Spend the step's cost and read the picks off the script. Raises UnknownSession, InvalidRequest or what a script raises; then
        every sequence is as it was."""
        started = time.perf_counter_ns()
        for rows in plan.sequences:
            if rows.acceptance not in ("", COUPLED):
                raise InvalidRequest("plan.acceptance", f"the replay engine has no distribution; only {COUPLED!r} works")
        batch = build_batch(plan, self._sequences.states, self._limits, self._identity.vocab_size, MAX_TREE_NODES)
        try:
            forward_us = self._clock.spend(self._cost(batch.num_rows))
            batch.apply()
            results = tuple(self._result(segment) for segment in batch.segments)
        except BaseException:
            batch.revert()
            for rows in plan.sequences:  # what they have read of the script may be ahead now
                self._readers.pop(rows.sequence, None)
            raise
        for segment in batch.segments:
            if segment.num_wanted:
                self._sequences.share(segment.state)
        return StepResult(results, forward_us, (time.perf_counter_ns() - started) // 1000, batch.num_rows)

    def end_loan(self) -> None:
        """There is no loan: threads are of no use here."""

    def keep(self, sequence: int, path: tuple[int, ...], *, subtree: bool = False) -> IntArray:
        """Commit the live nodes of `path`; returns the old indices of the nodes that stay live."""
        kept = self._sequences.keep(sequence, path, subtree)
        if path:
            self._sequences.share(self._sequences.state(sequence))
        return np.asarray(kept.survivors, np.int32)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget committed tokens from `length` on, and every live node."""
        self._sequences.truncate(sequence, length)
        self._readers.pop(sequence, None)

    def cached_len(self, sequence: int) -> int:
        """Committed tokens that were fed."""
        return self._sequences.state(sequence).cached_len

    def close(self, sequence: int) -> None:
        """Free everything of the sequence."""
        self._sequences.close(sequence)
        self._readers.pop(sequence, None)

    def _result(self, segment: Segment) -> SequenceResult:
        rows = segment.rows
        if not segment.num_wanted:
            return SequenceResult(rows.sequence, np.empty(0, np.int32))
        paths: list[list[int]] = [[]] if segment.num_committed else []
        tree = segment.state.tree
        paths += [tree.tokens[tree.path_to(node)].tolist() for node in range(segment.live_before, len(tree))]
        picks = self._picks(segment.state, paths)
        verdict = walk_picks(rows.tokens, rows.parents, picks) if rows.acceptance else None
        choices = self._choices(picks, rows.num_choices) if rows.num_choices else None
        probs = np.full(len(picks), self._script.acceptance, np.float32) if rows.pick_probs else None
        seconds = self._seconds(picks) if rows.seconds else None
        scored: TokenLogprobs | None = None
        if rows.top_logprobs is not None:
            scored = _certain(picks, rows.tokens, verdict, rows.top_logprobs, self._identity.vocab_size)
        return SequenceResult(rows.sequence, picks, choices, scored, verdict, probs, seconds=seconds)

    def _picks(self, state: SequenceState, paths: list[list[int]]) -> IntArray:
        if state.cached_len < state.spec.num_prompt:
            before = extend_hash(0, state.committed)
            return np.asarray([_scatter(extend_hash(before, path)) % self._identity.vocab_size for path in paths], np.int32)
        reader = self._reader(state)
        return np.asarray([self._pick(state, reader, path) for path in paths], np.int32)

    def _reader(self, state: SequenceState) -> _Reader:
        reader = self._readers.get(state.sequence)
        num_prompt = state.spec.num_prompt
        if reader is None:
            text = self._script.text(tuple(state.committed[:num_prompt].tolist()))
            reader = self._readers[state.sequence] = _Reader(text, num_prompt, 0)
        fresh = state.committed[reader.hashed_len :].tolist()
        for position, token in enumerate(fresh, reader.hashed_len):
            follows = position == reader.num_matching and _at(reader.text, position - num_prompt, self._script.end_token) == token
            reader.num_matching += follows
        reader.prefix_hash = extend_hash(reader.prefix_hash, fresh)
        reader.hashed_len = state.cached_len
        return reader

    def _pick(self, state: SequenceState, reader: _Reader, path: list[int]) -> int:
        offset = state.cached_len - state.spec.num_prompt
        end = self._script.end_token
        follows = reader.num_matching >= state.cached_len and all(
            _at(reader.text, offset + depth, end) == token for depth, token in enumerate(path)
        )
        if not follows:
            return _scatter(extend_hash(reader.prefix_hash, path)) % self._identity.vocab_size
        true_token = _at(reader.text, offset + len(path), end)
        position = state.cached_len + len(path)
        noise = _scatter((self._script.guess_seed << 32) ^ position)
        if noise / (_MASK64 + 1) < self._script.acceptance:
            return true_token
        return _other(true_token, _scatter(noise), self._identity.vocab_size)

    def _seconds(self, picks: IntArray) -> Seconds:
        """The second of two choices."""
        two = self._choices(picks, 2)
        if two.ids.shape[1] < 2:
            return Seconds(np.full(len(picks), -1, np.int32), np.full(len(picks), np.nan, np.float32))
        return Seconds(two.ids[:, 1].copy(), two.scores[:, 0] - two.scores[:, 1])

    def _choices(self, picks: IntArray, count: int) -> Choices:
        """The pick, then other tokens; half the remaining probability to each next one."""
        size = self._identity.vocab_size
        count = min(count, size)
        ids = (picks[:, None] + np.arange(count, dtype=np.int32)[None, :]) % size
        first = min(max(self._script.acceptance, 1e-3), 1.0 - 1e-3)
        probs = np.asarray([first, *((1.0 - first) * 0.5**rank for rank in range(1, count))], np.float32)
        rows = len(picks)
        entropy = np.full(rows, -first * np.log(first) - (1 - first) * np.log((1 - first) / max(1, size - 1)), np.float32)
        return Choices(ids.astype(np.int32), np.tile(np.log(probs), (rows, 1)), np.tile(probs, (rows, 1)), entropy)


def replay_identity(name: str, vocab_size: int, end_token: int, max_context: int = 4096, vocab_hash: str = "replay") -> ModelIdentity:
    """An identity for handshakes; pairs of replay engines over one vocabulary size are compatible."""
    return ModelIdentity(
        model=name,
        revision="",
        weights_hash=name,
        vocab_hash=vocab_hash,
        vocab_size=vocab_size,
        dtype="none",
        numerics=Numerics.INVARIANT,
        fingerprint=f"replay:{name}",
        max_context=max_context,
        eos_token_ids=(end_token,),
    )


def _at(text: tuple[int, ...], index: int, end_token: int) -> int:
    return text[index] if 0 <= index < len(text) else end_token


def _other(token: int, noise: int, size: int) -> int:
    """Some token that is not `token`."""
    return (token + 1 + noise % (size - 1)) % size if size > 1 else token


def _scatter(number: int) -> int:
    """A 64-bit finaliser (splitmix64): neighbouring numbers give unrelated ones."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK64
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK64
    return number ^ (number >> 31)


def _certain(picks: IntArray, nodes: IntArray, verdict: Verdict | None, top_n: int, size: int) -> TokenLogprobs:
    """Logprobs of a text that is certain: 0 for every token; the tops repeat it with impossible others behind."""
    ids = picks if verdict is None else np.asarray([*(nodes[node] for node in verdict.path), verdict.emitted], np.int32)
    top_n = min(top_n, size)
    top = np.full((len(ids), top_n), -np.inf, np.float32)
    top[:, :1] = 0.0
    top_ids = (ids[:, None] + np.arange(top_n, dtype=np.int32)[None, :]) % size
    return TokenLogprobs(np.zeros(len(ids), np.float32), top_ids.astype(np.int32), top)
