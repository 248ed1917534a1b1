"""Shared prefixes: an answer is the same with and without them, in bits where numerics promise bits; nobody writes what others read.

Broken twins (a key without its parent's, a truncation that does not give its blocks up) show that the comparisons would notice.
Run: pytest tests/unit/test_engine_prefix_cache.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fakes_models
from mostly_slow import crossed, mostly_slow
from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.load import load_engine
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.prefix_cache import NO_COPY, PrefixCache, SlotCopy
from outrider.engine.prefix_index import PrefixIndex
from outrider.engine.sequence_state import SequenceState
from outrider.errors import InvalidRequest, Overloaded
from outrider.types.identity import Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray

NONE: IntArray = np.empty(0, np.int32)
BLOCK_LEN = 16
VOCAB = fakes_models.VOCAB
PROMPT: IntArray = np.random.default_rng(8).integers(0, VOCAB, 70).astype(np.int32)  # four blocks and six tokens; beyond every window
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.4, "presence_penalty": 0.6, "frequency_penalty": 0.4}
Scored = tuple[list[int], list[bytes]]  # tokens, and the bits of every logprob they were picked from


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    fakes_models.make_model("llama", tmp_path)
    return tmp_path


def load(directory: Path, *, kind: EngineKind = EngineKind.TRANSFORMERS, num_blocks: int = 48, **settings: Any) -> PagedEngine:
    config = EngineConfig(
        str(directory), kind=kind, num_blocks=num_blocks, block_len=BLOCK_LEN, probe=False, **{"numerics": Numerics.INVARIANT, **settings}
    )
    engine = load_engine(config)
    assert isinstance(engine, PagedEngine)
    return engine


def spec(max_len: int = 128, max_nodes: int = 12, tenant: str = "", num_prompt: int = len(PROMPT), **sampling: Any) -> SequenceSpec:
    params = SamplingParams(**{"temperature": 0.8, **sampling})
    return SequenceSpec(params, NoiseAddress(3), num_prompt, max_len, max_nodes, tenant=tenant)


def begin(engine: PagedEngine, sequence: int, tokens: IntArray = PROMPT, **wishes: Any) -> int:
    """Open; returns what is cached."""
    engine.open(sequence, spec(**wishes), tokens)
    return engine.cached_len(sequence)


def decode(engine: PagedEngine, sequence: int, count: int, tokens: IntArray = PROMPT) -> Scored:
    """Feed what is not cached of `tokens`, then go on one token a step."""
    picks: list[int] = []
    bits: list[bytes] = []
    committed = tokens[engine.cached_len(sequence) :]
    for _ in range(count):
        result = engine.step(StepPlan((SequenceRows(sequence, committed, NONE, NONE, top_logprobs=VOCAB),))).results[0]
        assert result.logprobs is not None
        committed = result.picks
        picks.append(int(committed[0]))
        bits.append(result.logprobs.top_ids.tobytes() + result.logprobs.top.tobytes())
    return picks, bits


def answer(engine: PagedEngine, count: int = 20, tokens: IntArray = PROMPT, **wishes: Any) -> tuple[int, Scored]:
    """A whole request: (tokens found cached, what it gave)."""
    found = begin(engine, 1, tokens, **wishes)
    scored = decode(engine, 1, count, tokens)
    engine.close(1)
    return found, scored


KINDS = [(EngineKind.TRANSFORMERS, name) for name in ("llama", "mistral", "gemma2", "gemma3", "gpt_neox")]
KINDS += [(EngineKind.LEAN, name) for name in ("qwen3", "mistral")]


@pytest.mark.parametrize(("kind", "name"), KINDS, ids=lambda value: str(getattr(value, "value", value)))
@pytest.mark.parametrize("sampling", mostly_slow([PENALTIES, {}], 1), ids=["penalised", "plain"])
def test_the_same_prompt_again_gives_the_same_bits(kind: EngineKind, name: str, sampling: dict[str, Any], tmp_path: Path) -> None:
    fakes_models.make_model(name, tmp_path)
    truth = answer(load(tmp_path, kind=kind, prefix_cache=False), **sampling)
    assert truth[0] == 0
    engine = load(tmp_path, kind=kind)
    assert answer(engine, **sampling) == truth
    found, again = answer(engine, **sampling)
    assert found == 64
    assert again == truth[1]
    assert engine.num_free_blocks == 48


@pytest.mark.parametrize("kind", [EngineKind.TRANSFORMERS, EngineKind.LEAN])
def test_fast_numerics_give_the_same_tokens_but_for_rounding(kind: EngineKind, model_dir: Path) -> None:
    settings: dict[str, Any] = {"kind": kind, "numerics": Numerics.FAST}
    engine = load(model_dir, **settings)
    _, (tokens, _) = answer(load(model_dir, prefix_cache=False, **settings), **PENALTIES)
    found = [answer(engine, **PENALTIES) for _ in range(3)]
    assert [cached for cached, _ in found] == [0, 64, 64]
    assert all(scored[0] == tokens for _, scored in found)


def test_penalties_see_the_part_that_was_not_fed(model_dir: Path) -> None:
    """A twin that forgets it gives another answer, so the comparisons above would notice."""
    engine = load(model_dir)
    _, truth = answer(engine, **PENALTIES)
    assert begin(engine, 1, **PENALTIES) == 64
    engine._sequences.state(1).tokens[:64] = 0
    assert decode(engine, 1, 20) != truth


def test_a_follow_up_turn_finds_the_answer_before_it(model_dir: Path) -> None:
    engine, plain = load(model_dir), load(model_dir, prefix_cache=False)
    _, (first, _) = answer(engine)
    turn = np.concatenate([PROMPT, np.asarray([*first, 5, 6, 7], np.int32)])
    found, second = answer(engine, tokens=turn, num_prompt=len(turn))
    assert found == 80, "five blocks: 64 tokens of the prompt, and of the 20 answered what was cached"
    assert second == answer(plain, tokens=turn, num_prompt=len(turn))[1]


def test_open_sequences_share_and_each_goes_its_own_way(model_dir: Path) -> None:
    engine, plain = load(model_dir), load(model_dir, prefix_cache=False)
    assert begin(engine, 1, temperature=0.0) == 0
    decode(engine, 1, 1)
    used = 48 - engine.num_free_blocks
    for sequence in (2, 3):
        assert begin(engine, sequence) == 64
    assert engine._sequences.state(2).table.blocks[:4] == engine._sequences.state(1).table.blocks[:4]
    assert 48 - engine.num_free_blocks == 3 * used - 2 * 4, "the shared blocks are held once"
    rows = tuple(SequenceRows(sequence, PROMPT[64:], NONE, NONE) for sequence in (2, 3))
    picks = [int(result.picks[0]) for result in engine.step(StepPlan(rows)).results]
    _, truth = answer(plain)
    assert picks == truth[0][:1] * 2
    engine.close(1)
    assert decode(engine, 3, 19, np.append(PROMPT, truth[0][0]).astype(np.int32)) == (truth[0][1:], truth[1][1:])
    engine.close(3)
    engine.close(2)
    assert engine.num_free_blocks == 48


def test_only_whole_blocks_behind_a_newer_token_are_found(model_dir: Path) -> None:
    engine = load(model_dir)
    answer(engine, count=1, tokens=PROMPT[:64])
    lengths = {48: 32, 49: 48, 63: 48, 64: 48, 65: 48, 70: 48}
    assert {length: answer(engine, count=1, tokens=PROMPT[:length])[0] for length in lengths if length <= 64} == {
        length: found for length, found in lengths.items() if length <= 64
    }
    assert answer(engine, count=1, tokens=PROMPT[:65])[0] == 48, "64 tokens were cached, but none behind the fourth block"
    assert answer(engine, count=1, tokens=PROMPT)[0] == 64, "now there was one"


def test_texts_that_differ_early_share_nothing_behind_it(model_dir: Path) -> None:
    engine, plain = load(model_dir), load(model_dir, prefix_cache=False)
    answer(engine)
    other = PROMPT.copy()
    other[0] = (other[0] + 1) % VOCAB
    found, scored = answer(engine, tokens=other)
    assert found == 0
    assert scored == answer(plain, tokens=other)[1]


def test_a_key_without_its_parent_would_be_noticed(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: block contents alone. Two texts with equal second blocks then share KV of different contexts."""
    original = PrefixIndex.block_key
    monkeypatch.setattr(PrefixIndex, "block_key", lambda self, before, tokens: original(self, b"", tokens))
    engine, plain = load(model_dir), load(model_dir, prefix_cache=False)
    answer(engine)
    other = np.concatenate([PROMPT[16:32], PROMPT[16:]])
    found, scored = answer(engine, tokens=other)
    assert found == 64
    assert scored != answer(plain, tokens=other)[1]


def test_another_tenant_finds_nothing(model_dir: Path) -> None:
    engine = load(model_dir)
    assert [answer(engine, count=1, tenant=tenant)[0] for tenant in ("", "a", "b", "", "a", "b", "ab")] == [0, 0, 0, 64, 64, 64, 0]


def test_keys_keep_names_and_contents_apart() -> None:
    index = PrefixIndex()
    specs = [("a", "b"), ("ab", ""), ("", "ab"), ("", "")]
    params, noise = SamplingParams(), NoiseAddress(0)
    keys = {index.root_key(SequenceSpec(params, noise, 0, 1, 0, adapter, tenant)) for tenant, adapter in specs}
    assert len(keys) == 4
    root = index.root_key(SequenceSpec(params, noise, 0, 1, 0))
    blocks: list[IntArray] = [np.asarray(tokens, np.int32) for tokens in ([1, 2], [2, 1], [1], [513], [1, 0, 0, 0])]
    assert len({index.block_key(root, tokens) for tokens in blocks}) == 5
    assert PrefixIndex().root_key(SequenceSpec(params, noise, 0, 1, 0)) != root, "keys are this process's own"


# --- nobody writes what others read ---------------------------------------------------------------------------------------


def rewound(engine: PagedEngine, length: int, sequence: int = 1) -> tuple[int, int]:
    """Two sequences over the prompt; the given one goes back to `length` and writes another text there. Returns blocks taken before and
    after the truncation."""
    for own in (1, 2):
        begin(engine, own)
        decode(engine, own, 1)
    before = 48 - engine.num_free_blocks
    engine.truncate(sequence, length)
    after = 48 - engine.num_free_blocks
    other = np.concatenate([PROMPT[:length], (PROMPT[length:] + 1) % VOCAB])
    decode(engine, sequence, 4, other)
    return before, after


@pytest.mark.parametrize(("length", "sequence"), crossed([0, 16, 21, 33, 63], [1, 2]))
def test_a_cut_into_shared_blocks_leaves_them_to_their_readers(length: int, sequence: int, model_dir: Path) -> None:
    engine, plain = load(model_dir), load(model_dir, prefix_cache=False)
    _, truth = answer(plain)
    before, after = rewound(engine, length, sequence)
    assert after - before == 4 - length // BLOCK_LEN, "one block of its own for each that it will write"
    reader = 3 - sequence
    picks, bits = decode(engine, reader, 19, np.append(PROMPT, truth[0][0]).astype(np.int32))
    assert (picks, bits) == (truth[0][1:], truth[1][1:])
    other = np.concatenate([PROMPT[:length], (PROMPT[length:] + 1) % VOCAB])
    _, expected = answer(plain, count=8, tokens=other)
    told = np.concatenate([other, np.asarray(expected[0][:4], np.int32)])
    assert decode(engine, sequence, 4, told)[1] == expected[1][4:], "the one that was cut reads its copy"
    engine.close(sequence)
    engine.close(reader)
    assert engine.num_free_blocks == 48
    assert answer(engine)[1] == truth
    assert answer(engine, count=8, tokens=other)[1] == expected


def test_a_cut_into_its_own_findable_block_gives_it_up(model_dir: Path) -> None:
    engine = load(model_dir)
    begin(engine, 1)
    decode(engine, 1, 1)
    engine.truncate(1, 40)
    assert begin(engine, 2) == 32
    decode(engine, 1, 1, np.concatenate([PROMPT[:40], PROMPT[:30]]))
    engine.close(1)
    engine.close(2)
    _, truth = answer(load(model_dir, prefix_cache=False))
    assert answer(engine) == (32, truth)


def test_a_cut_that_gives_nothing_up_would_be_noticed(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: truncation as it is without sharing, so that the text behind it is written into blocks that others read."""

    def write_anyway(_: PrefixCache, state: SequenceState, length: int) -> SlotCopy:
        del state.keys[length // BLOCK_LEN :]
        return NO_COPY

    monkeypatch.setattr(PrefixCache, "thaw", write_anyway)
    monkeypatch.setattr(PrefixIndex, "add", lambda self, key, block: self._blocks.setdefault(key, block))
    engine = load(model_dir)
    _, truth = answer(load(model_dir, prefix_cache=False))
    rewound(engine, 21)
    assert decode(engine, 2, 19, np.append(PROMPT, truth[0][0]).astype(np.int32)) != (truth[0][1:], truth[1][1:])


def test_a_cut_without_room_for_a_copy_changes_nothing(model_dir: Path) -> None:
    engine = load(model_dir, num_blocks=14)
    _, truth = answer(load(model_dir, prefix_cache=False))
    begin(engine, 1)  # nine blocks
    decode(engine, 1, 1)
    engine.open(2, spec(max_len=80, max_nodes=0))  # five: all there are
    assert engine.match_prefix(2, PROMPT) == 64
    decode(engine, 2, 1)
    engine.open(3, spec(max_len=engine.num_free_blocks * BLOCK_LEN, max_nodes=0, num_prompt=0))
    assert engine.num_free_blocks == 0
    with pytest.raises(Overloaded):
        engine.truncate(2, 20)
    assert engine.cached_len(2) == len(PROMPT)
    assert decode(engine, 1, 19, np.append(PROMPT, truth[0][0]).astype(np.int32)) == (truth[0][1:], truth[1][1:])
    engine.close(3)
    engine.truncate(2, 20)
    assert decode(engine, 2, 1) == (truth[0][:1], truth[1][:1])


def test_kept_nodes_are_never_moved_into_a_block_that_can_be_found(model_dir: Path) -> None:
    """Rounds with scattered trees across block borders: whatever was findable before a round has its bits after it."""
    engine = load(model_dir)
    _, (truth, _) = answer(load(model_dir, prefix_cache=False), count=50)
    begin(engine, 1, max_len=160)
    begin(engine, 2, max_len=160)
    text, generator = PROMPT.copy(), np.random.default_rng(5)
    frozen: dict[int, bytes] = {}
    told = 0
    while told < 44:
        right = int(generator.integers(0, 5))
        tokens = [token for node in truth[told + 1 : told + 1 + right] for token in ((node + 1) % VOCAB, node)]
        parents = [2 * (place // 2) - 1 for place in range(2 * right)]
        committed = text[engine.cached_len(1) :]
        if told == 0:
            committed = np.append(committed, truth[0]).astype(np.int32)
            text = np.append(text, truth[0]).astype(np.int32)
        engine.step(StepPlan((SequenceRows(1, committed, np.asarray(tokens, np.int32), np.asarray(parents, np.int32)),)))
        engine.keep(1, tuple(range(1, 2 * right, 2)))
        for block, bits in frozen.items():
            assert _block_bits(engine, block) == bits
        index = engine._sequences._prefixes._index  # type: ignore[union-attr]
        frozen = {block: _block_bits(engine, block) for block in index._keys}
        text = np.concatenate([text, np.asarray(truth[told + 1 : told + right + 2], np.int32)])
        told += right + 1
    assert len(frozen) >= 6
    engine.close(1)
    engine.close(2)
    assert answer(engine, count=50)[1][0] == truth


def _block_bits(engine: PagedEngine, block: int) -> bytes:
    slots = slice(block * BLOCK_LEN, (block + 1) * BLOCK_LEN)
    return b"".join(pool[:, :, slots].view(torch.uint8).numpy().tobytes() for pool in engine._cache.pools)


# --- when blocks can be found ---------------------------------------------------------------------------------------------


def test_a_step_that_failed_leaves_nothing_to_be_found(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(model_dir)
    _, truth = answer(load(model_dir, prefix_cache=False))
    begin(engine, 1)

    def fail(*_: object) -> None:
        raise RuntimeError("spoilt")

    with monkeypatch.context() as patch:
        patch.setattr(engine._picker, "results", fail)
        with pytest.raises(RuntimeError, match="spoilt"):
            decode(engine, 1, 1, np.flip(PROMPT).copy())
    assert begin(engine, 2, np.flip(PROMPT).copy()) == begin(engine, 3) == 0
    assert decode(engine, 1, 20) == truth


def test_a_chunk_is_found_only_after_the_model_answered_to_it(model_dir: Path) -> None:
    engine = load(model_dir)
    begin(engine, 1)
    engine.step(StepPlan((SequenceRows(1, PROMPT[:64], NONE, NONE, wanted=False),)))
    assert begin(engine, 2) == 0
    decode(engine, 1, 1)
    assert engine.match_prefix(2, PROMPT) == 64, "asked again, it finds what was read meanwhile"
    assert engine.match_prefix(2, PROMPT) == 64
    with pytest.raises(InvalidRequest, match="prefix"):
        engine.match_prefix(2, np.flip(PROMPT).copy())
    assert engine.cached_len(2) == 64
    _, truth = answer(load(model_dir, prefix_cache=False))
    assert decode(engine, 2, 20) == truth
    assert engine.match_prefix(2, PROMPT) == len(PROMPT) + 19, "once fed, nothing changes"


def test_old_prefixes_make_room_for_new_sequences(model_dir: Path) -> None:
    engine = load(model_dir, num_blocks=12)
    prompts = [np.random.default_rng(seed).integers(0, VOCAB, 50).astype(np.int32) for seed in range(3)]
    wishes: dict[str, Any] = {"count": 2, "max_len": 64, "max_nodes": 0, "num_prompt": 0}
    for prompt in prompts:
        answer(engine, tokens=prompt, **wishes)
    assert engine.num_free_blocks == 12
    assert answer(engine, tokens=prompts[2], **wishes)[0] == 48, "nine blocks are kept, the one of the fourth sequence is empty"
    engine.open(7, spec(max_len=6 * BLOCK_LEN, max_nodes=0))
    assert engine.num_free_blocks == 6
    engine.close(7)
    assert [answer(engine, tokens=prompts[which], **wishes)[0] for which in (2, 0)] == [48, 0], "what was used last went last"
    engine.open(7, spec(max_len=12 * BLOCK_LEN, max_nodes=0))
    assert engine.num_free_blocks == 0
    engine.close(7)
    assert [answer(engine, tokens=prompt, **wishes)[0] for prompt in prompts] == [0, 0, 0]
    assert engine.num_free_blocks == 12


def test_refused_sequences_hold_nothing_and_cost_no_prefix(model_dir: Path) -> None:
    engine = load(model_dir, num_blocks=12)
    answer(engine, count=1)
    engine.open(1, spec(max_len=4 * BLOCK_LEN, max_nodes=0, num_prompt=0))
    with pytest.raises(Overloaded):
        engine.open(2, spec())
    engine.close(1)
    assert answer(engine, count=1)[0] == 64


def test_switched_off_nothing_is_kept(model_dir: Path) -> None:
    engine = load(model_dir, prefix_cache=False)
    assert [answer(engine, count=2)[0] for _ in range(3)] == [0, 0, 0]
    begin(engine, 1)
    assert engine.match_prefix(1, PROMPT) == 0
    assert not engine._sequences._allocator._kept
