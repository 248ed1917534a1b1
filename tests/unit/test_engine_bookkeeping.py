"""Blocks, tables and live trees against naive models; the replay engine's script, rate and costs.

Run: pytest tests/unit/test_engine_bookkeeping.py
"""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from outrider.engine.block_allocator import BlockAllocator
from outrider.engine.block_table import BlockTable
from outrider.engine.contract import EngineLimits
from outrider.engine.free_runs import FreeRuns
from outrider.engine.live_tree import LiveTree
from outrider.engine.pick_walk import walk_picks
from outrider.engine.prefix_index import PrefixIndex
from outrider.engine.replay_cost import BusyClock, CountingClock, WaitingClock, linear_cost
from outrider.engine.replay_engine import ReplayEngine, ReplayScript, replay_identity
from outrider.engine.sequence_table import SequenceTable
from outrider.errors import Overloaded
from outrider.types.identity import incompatibility
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import ROOT, IntArray

NONE: IntArray = np.empty(0, np.int32)
LIMITS = EngineLimits(64, 16, 32, 512)
SPEC = SequenceSpec(SamplingParams(), NoiseAddress(1), 3, 400, 16)


def ints(*numbers: int) -> IntArray:
    return np.asarray(numbers, np.int32)


def test_allocations_are_runs_while_a_run_fits() -> None:
    allocator = BlockAllocator(12)
    first, second, third = allocator.allocate(3), allocator.allocate(4), allocator.allocate(5)
    assert (first, second, third) == ([0, 1, 2], [3, 4, 5, 6], [7, 8, 9, 10, 11])
    allocator.release(third)
    allocator.release(first)
    assert allocator.allocate(2) == [0, 1]  # the smallest run that fits
    assert allocator.allocate(6) == [2, 7, 8, 9, 10, 11]
    with pytest.raises(Overloaded):
        allocator.allocate(1)
    assert allocator.num_free == 0


@pytest.mark.parametrize("seed", range(10))
def test_no_block_is_held_twice_or_lost(seed: int) -> None:
    chance = random.Random(seed)
    allocator = BlockAllocator(40)
    held: list[list[int]] = []
    for _ in range(200):
        if held and chance.random() < 0.5:
            allocator.release(held.pop(chance.randrange(len(held))))
        else:
            count = chance.randint(1, 12)
            try:
                held.append(allocator.allocate(count))
            except Overloaded:
                assert allocator.num_free < count
        taken = [block for blocks in held for block in blocks]
        assert len(taken) == len(set(taken)) == 40 - allocator.num_free


def test_a_shared_block_is_free_when_its_last_holder_lets_go() -> None:
    allocator = BlockAllocator(4)
    blocks = allocator.allocate(2)
    allocator.retain(blocks[:1])
    allocator.release(blocks)
    assert (allocator.num_free, allocator.num_references(blocks[0])) == (3, 1)
    allocator.release(blocks[:1])
    assert allocator.num_free == 4
    with pytest.raises(AssertionError):
        allocator.release(blocks[:1])


def naive_take(free: set[int], count: int) -> list[int]:
    """The smallest run that fits, else the largest runs first: over a plain set."""
    runs = [[block] for block in sorted(free) if block - 1 not in free]
    for run in runs:
        while run[-1] + 1 in free:
            run.append(run[-1] + 1)
    fitting = [run for run in runs if len(run) >= count]
    if fitting:
        return min(fitting, key=lambda run: (len(run), run[0]))[:count]
    taken = [block for run in sorted(runs, key=lambda run: (-len(run), run[0])) for block in run]
    return sorted(taken[:count])


@pytest.mark.parametrize("seed", range(10))
def test_free_runs_agree_with_a_set(seed: int) -> None:
    chance = random.Random(seed)
    runs, free = FreeRuns(50), set(range(50))
    held: list[int] = []
    for _ in range(300):
        if held and chance.random() < 0.6:
            block = held.pop(chance.randrange(len(held)))
            runs.add(block)
            free.add(block)
        elif free:
            count = chance.randint(1, min(9, len(free)))
            assert runs.fits(count) == any(all(block + step in free for step in range(count)) for block in free)
            begin = chance.randrange(50)
            follows = all(block in free for block in range(begin, begin + count)) and begin - 1 not in free
            taken = runs.take_from(begin, count)
            assert taken == (list(range(begin, begin + count)) if follows else [])
            if not taken:
                taken = runs.take(count)
                assert taken == naive_take(free, count)
            free -= set(taken)
            held += taken
        assert runs.num_free == len(free)


def test_what_grows_goes_on_where_it_ends_if_it_can() -> None:
    allocator = BlockAllocator(10)
    first, second = allocator.allocate(2), allocator.allocate(3)
    assert allocator.allocate(2, behind=first[-1]) == [5, 6], "somebody else lies there"
    allocator.release(second)
    assert allocator.allocate(2, behind=first[-1]) == [2, 3]
    assert allocator.allocate(2, behind=3) == [7, 8], "a single block lies there"
    assert allocator.num_free == 2
    with pytest.raises(Overloaded):
        allocator.allocate(3, behind=3)
    assert allocator.num_free == 2


def test_a_sequence_grows_where_it_ends_though_a_smaller_hole_would_do() -> None:
    table = SequenceTable(replay_identity("fixture", 64, 63, 512), EngineLimits(64, 16, 12, 512))

    def spec(num_blocks: int, first: int = 0) -> SequenceSpec:
        return SequenceSpec(SamplingParams(), NoiseAddress(0), 0, 16 * num_blocks, 0, first_len=16 * first)

    for sequence, one in enumerate((spec(4, 2), spec(4), spec(1), spec(2), spec(1))):
        table.open(sequence, one)
    table.close(1)
    table.close(3)
    table.reserve(0, 64)
    assert table.state(0).table.blocks == [0, 1, 2, 3]
    assert table.state(0).held_len == 64


def keyed(index: PrefixIndex, *blocks: int) -> None:
    for block in blocks:
        index.add(bytes([block]), block)


def test_blocks_that_can_be_found_are_given_up_last_and_the_oldest_first() -> None:
    index = PrefixIndex()
    allocator = BlockAllocator(8, index)
    first, second = allocator.allocate(3), allocator.allocate(3)
    keyed(index, *first, *second)
    allocator.release(first)
    allocator.release(second)
    assert allocator.num_free == 8
    assert allocator.allocate(2) == [6, 7], "never used"
    assert allocator.allocate(1) == [2], "the end of the text let go first: nobody finds it without what is before"
    allocator.retain([0, 1])
    assert allocator.num_free == 3
    assert allocator.allocate(2) == [4, 5]
    assert [index.holds(block) for block in range(8)] == [True, True, False, True, False, False, False, False]
    allocator.release([0, 1])
    assert allocator.allocate(3) == [0, 1, 3]
    with pytest.raises(Overloaded):
        allocator.allocate(1)
    assert len(index) == 0


def test_a_few_more_are_given_up_for_one_run_but_none_for_nothing() -> None:
    index = PrefixIndex()
    allocator = BlockAllocator(8, index)
    allocator.allocate(8)
    keyed(index, 1, 2, 5)
    allocator.release([0])
    allocator.release([3])
    allocator.release([1, 2])
    assert allocator.allocate(2) == [2, 3], "two lie empty apart; giving one up makes them neighbours of it"
    assert index.holds(1)
    allocator.retain([1])
    allocator.release([5])
    allocator.release([7])
    assert allocator.allocate(2) == [0, 7]
    assert index.holds(5), "0, 5 and 7 make no run of two"


@pytest.mark.parametrize("seed", range(10))
def test_kept_blocks_are_neither_lost_nor_held_twice(seed: int) -> None:
    chance = random.Random(seed)
    index = PrefixIndex()
    allocator = BlockAllocator(40, index)
    held: list[list[int]] = []
    num_keys = 0
    for _ in range(300):
        if held and chance.random() < 0.5:
            blocks = held.pop(chance.randrange(len(held)))
            for block in blocks:
                if not index.holds(block) and chance.random() < 0.5:
                    num_keys += 1
                    index.add(num_keys.to_bytes(4, "little"), block)
            allocator.release(blocks)
        else:
            shared = [block for block in range(40) if index.holds(block) and chance.random() < 0.1]
            count = chance.randint(1, 12)
            allocator.retain(shared)
            try:
                held.append(shared + allocator.allocate(count))
            except Overloaded:
                assert allocator.num_free < count
                allocator.release(shared)
        taken = [block for blocks in held for block in blocks]
        assert len(set(taken)) == 40 - allocator.num_free
        assert all(taken.count(block) == allocator.num_references(block) for block in range(40))
    for blocks in held:
        allocator.release(blocks)
    assert sorted(allocator.allocate(40)) == list(range(40))


@pytest.mark.parametrize("seed", range(10))
def test_runs_of_scattered_tables_agree_with_their_slots(seed: int) -> None:
    chance = random.Random(seed)
    blocks = chance.sample(range(12), 6) if seed % 2 else sorted(chance.sample(range(12), 6))
    table = BlockTable(blocks, 4)
    for _ in range(40):
        begin, end = sorted((chance.randint(0, 24), chance.randint(0, 24)))
        runs = table.runs(begin, end)
        assert [slot for left, right in runs for slot in range(left, right)] == table.slots[begin:end].tolist()
        assert all(right != left for (_, right), (left, _) in pairwise(runs)), "runs are maximal"


def test_runs_of_a_table_are_maximal_and_in_order() -> None:
    table = BlockTable([2, 3, 7], 4)
    assert table.runs(0, 12) == ((8, 16), (28, 32))
    assert table.runs(5, 9) == ((13, 16), (28, 29))
    assert table.runs(3, 3) == ()
    assert BlockTable([5, 6], 4).runs(1, 7) == ((21, 27),)


@pytest.mark.parametrize("seed", range(20))
def test_live_trees_agree_with_sets_of_ancestors(seed: int) -> None:
    chance = random.Random(seed)
    tree = LiveTree(64)
    parents: list[int] = []
    for _ in range(3):
        fresh = [chance.randint(ROOT, len(parents) + index - 1) for index in range(chance.randint(0, 6))]
        tree.add(ints(*(len(parents) + index for index in range(len(fresh)))), ints(*fresh))
        parents += fresh
    above: list[list[int]] = []
    for node, parent in enumerate(parents):
        above.append([*(above[parent] if parent != ROOT else []), node])
    assert [tree.path_to(node) for node in range(len(parents))] == above
    assert tree.depths.tolist() == [len(path) - 1 for path in above]
    if not parents:
        return
    chosen = tuple(above[chance.randrange(len(parents))])
    assert tree.is_path(chosen)
    assert not tree.is_path((*chosen, chosen[-1]))
    survivors = tree.survivors(chosen)
    assert survivors == [node for node, path in enumerate(above) if chosen[-1] in path[:-1]]
    tree.keep(survivors)
    assert tree.tokens.tolist() == survivors
    kept = [[survivors.index(node) for node in above[old] if node in survivors] for old in survivors]
    assert [tree.path_to(node) for node in range(len(survivors))] == kept


def test_the_walk_stops_where_no_child_equals_the_pick() -> None:
    tokens, parents = ints(5, 6, 7, 8), ints(-1, -1, 1, 2)
    assert walk_picks(tokens, parents, ints(6, 0, 7, 8, 9)).path == (1, 2, 3)
    corrected = walk_picks(tokens, parents, ints(6, 0, 1, 8, 9))
    assert (corrected.path, corrected.emitted, corrected.bonus) == ((1,), 1, False)
    leaf = walk_picks(tokens, parents, ints(5, 3, 1, 8, 9))
    assert (leaf.path, leaf.emitted, leaf.bonus) == ((0,), 3, True)


def replay(script: ReplayScript, **settings: object) -> ReplayEngine:
    return ReplayEngine(replay_identity("text", 50, 49), LIMITS, script, **settings)  # type: ignore[arg-type]


def decode(engine: ReplayEngine, prompt: IntArray, count: int) -> list[int]:
    engine.open(1, SPEC)
    tokens, committed = [], prompt
    for _ in range(count):
        committed = engine.step(StepPlan((SequenceRows(1, committed, NONE, NONE),))).results[0].picks
        tokens.append(int(committed[0]))
    engine.close(1)
    return tokens


def test_a_replayed_text_ends_with_its_end_token() -> None:
    assert decode(replay(ReplayScript([4, 8, 15], 49)), ints(1, 2, 3), 5) == [4, 8, 15, 49, 49]


def test_a_script_may_depend_on_the_prompt() -> None:
    engine = replay(ReplayScript(lambda prompt: [sum(prompt), len(prompt)], 49))
    assert decode(engine, ints(1, 2, 3), 2) == [6, 3]
    assert decode(engine, ints(5, 6, 7), 2) == [18, 3]


@pytest.mark.parametrize("rate", [0.6, 0.9])
def test_guesses_are_right_at_the_given_rate_and_the_same_every_time(rate: float) -> None:
    text = np.random.default_rng(1).integers(0, 49, 390).tolist()
    drafter, verifier = replay(ReplayScript(text, 49, rate, 3)), replay(ReplayScript(text, 49))
    assert incompatibility(drafter.identity, verifier.identity) is None
    for engine in (drafter, verifier):
        engine.open(1, SPEC)
    committed, hits = ints(1, 2, 3), []
    for position in range(390):
        guess = drafter.step(StepPlan((SequenceRows(1, committed, NONE, NONE),))).results[0].picks
        committed = verifier.step(StepPlan((SequenceRows(1, committed, NONE, NONE),))).results[0].picks
        hits.append(bool(guess[0] == committed[0] == text[position]))
    assert abs(np.mean(hits) - rate) < 3.5 * (rate * (1 - rate) / 390) ** 0.5
    drafter.truncate(1, 3)
    again = drafter.step(StepPlan((SequenceRows(1, ints(*text[:9]), NONE, NONE),))).results[0].picks
    assert bool(again[0] == text[9]) == hits[9]


def test_steps_cost_what_they_are_told() -> None:
    counting = CountingClock()
    engine = replay(ReplayScript([1], 49), cost=linear_cost(2.0, 0.5), clock=counting)
    engine.open(1, SPEC)
    result = engine.step(StepPlan((SequenceRows(1, ints(1, 2, 3), ints(4), ints(-1)),)))
    assert (result.forward_us, counting.elapsed_us) == (4000, 4000)
    for clock in (BusyClock(), WaitingClock()):
        assert clock.spend(0.002) >= 2000


def test_the_replay_engine_imports_no_torch() -> None:
    code = "import outrider.engine.replay_engine, sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": "services:kernels"}, check=False).returncode == 0
