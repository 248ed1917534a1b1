"""A chain in one call against its rows one by one, each in a step made anew and picked after by the same pick: picks, probabilities, and
every key and value stored, bit for bit; with several rows before the first pick; and all that ends a chain.

Broken twins (runs, windows, ids, positions, tokens not as they should be) show that the comparisons would notice.
Run: pytest tests/kernels/test_thin_chain.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from fakes_chains import MOST_ROWS, NUM_IDS, NUM_LOGITS, WINDOWS, ChainModel
from outrider_kernels.thin_attention import RowKeys, ThinStep
from outrider_kernels.thin_chain import ChainIds, ChainSlots, ChainStart, Followed
from outrider_kernels.thin_pick import LEFT, PickRule, ThinPick
from outrider_kernels.thin_team import ThinTeam

FloatArray = npt.NDArray[np.float32]

RULES = {
    "greedy": PickRule(3, 0.0, with_prob=True),
    "greedy with seconds": PickRule(3, 0.0, with_prob=True, with_second=True),
    "warm": PickRule(2**64 - 5, 0.8, with_prob=True),
    "top p": PickRule(5, 1.0, top_p=0.7, with_prob=True),
    "top p with seconds": PickRule(5, 1.0, top_p=0.9, with_second=True),
    "without probabilities": PickRule(6, 1.5, min_p_gap=2.0),
}
# a sequence's blocks of 4 slots: neighbours, a jump ahead, one back, neighbours again
SLOTS = np.concatenate([np.arange(begin, begin + 4) for begin in (8, 12, 16, 40, 44, 0, 92, 60, 64, 68, 24, 76)]).astype(np.int64)
WHERE = ChainSlots(SLOTS, np.array([0, *(np.flatnonzero(np.diff(SLOTS) != 1) + 1), len(SLOTS)], np.int64))
START = ChainStart((5,), 9, 30, 0.0)
ALL_IDS = ChainIds(NUM_IDS)


class Model(ChainModel):
    """With its rows one by one."""

    def row(self, token: int, position: int, missing: tuple[int, ...]) -> FloatArray:
        """float32 [1, NUM_IDS] of one row, in steps made anew."""
        steps = []
        for window in WINDOWS:
            first = 0 if window is None else max(0, position + 1 - window)
            runs = tuple((int(slot), int(slot) + 1) for slot in SLOTS[first : position + 1])
            steps.append(ThinStep(np.array([position]), SLOTS[position : position + 1].copy(), [RowKeys(0, 1, runs, None)]))
        self.states[0] = self.embedding[token]
        self.program.run(1, steps)
        self.last[0] = self.states[0]
        self.head.run(1)
        self.logits[0, list(missing)] = -np.inf
        return self.logits[:1, :NUM_IDS]

    def one_by_one(self, start: ChainStart, rule: PickRule, ids: ChainIds) -> Followed:
        picker, position = ThinPick(self.team), start.position
        picks: list[int] = []
        probs: list[float] = []
        seconds: list[tuple[int, float]] = []
        for token in start.tokens[:-1]:
            self.row(token, position, ids.missing)
            position += 1
        token, prob = start.tokens[-1], 1.0
        while not picks or (len(picks) < start.most and token not in ids.ends and not prob < start.stop_below):
            found = picker.run(self.row(token, position, ids.missing), [(rule, [position + 1])])
            token, prob = int(found.tokens[0]), float(found.probs[0]) if rule.with_prob else 1.0
            if token == LEFT:
                return whole(rule, picks, probs, seconds, is_left=True)
            picks.append(token)
            probs.append(prob)
            if found.seconds is not None and found.behinds is not None:
                seconds.append((int(found.seconds[0]), float(found.behinds[0])))
            position += 1
        return whole(rule, picks, probs, seconds, is_left=False)


def whole(rule: PickRule, picks: list[int], probs: list[float], seconds: list[tuple[int, float]], *, is_left: bool) -> Followed:
    found = np.array(picks, np.int32), np.array(probs, np.float32), is_left
    if not rule.with_second:
        return Followed(*found)
    both = np.array([second for second, _ in seconds], np.int32), np.array([behind for _, behind in seconds], np.float32)
    return Followed(*found, 0, 0, *both)


def seen(model: Model, found: Followed) -> list[object]:
    stored = [pool.tobytes() for pool in model.pools]
    seconds = [None if part is None else part.tobytes() for part in (found.seconds, found.behinds)]
    return [found.picks.tolist(), found.probs.tobytes(), *seconds, found.is_left, model.logits[0].tobytes(), *stored]


def compare(
    start: ChainStart = START,
    rule: PickRule = RULES["warm"],
    ids: ChainIds = ALL_IDS,
    *,
    num_threads: int = 1,
    way: Callable[[Model], Followed] | None = None,
) -> Followed:
    """way: another chain in the place of the right one."""
    team = ThinTeam(num_threads)
    ours, theirs = Model(team), Model(team)
    found = ours.chain(ids).follow(start, rule, WHERE) if way is None else way(ours)
    assert seen(ours, found) == seen(theirs, theirs.one_by_one(start, rule, ids))
    return found


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("rule", list(RULES))
def test_a_chain_is_its_rows_one_by_one(rule: str, num_threads: int) -> None:
    found = compare(rule=RULES[rule], num_threads=num_threads)
    assert len(found.picks) == START.most
    assert (found.probs == 1.0).all() == (not RULES[rule].with_prob)
    assert (found.seconds is not None and (found.seconds != LEFT).any()) == RULES[rule].with_second


@pytest.mark.parametrize("position", [0, 1, 6, 7, 11, 12, 46, 47])
def test_a_chain_may_begin_and_end_anywhere(position: int) -> None:
    most = len(SLOTS) - position
    for length in {1, most}:
        assert len(compare(replace(START, position=position, most=length)).picks) == length


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("position", [0, 3, 9, 20])
@pytest.mark.parametrize("num_tokens", [2, 3, 7, 8, 9, 16, 20])
def test_rows_before_the_first_pick_are_those_rows_one_by_one(num_tokens: int, position: int, num_threads: int) -> None:
    """Some fit into the window of the second layer, others reach beyond it; some go through at once, others in parts."""
    tokens = tuple(int(token) for token in np.random.default_rng(num_tokens).integers(0, NUM_IDS, num_tokens))
    found = compare(ChainStart(tokens, position, 8, 0.0), num_threads=num_threads)
    assert len(found.picks) == 8
    assert 0 < found.forward_ns <= found.first_ns


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize(("num_tokens", "num_wanted"), [(2, 2), (3, 2), (8, 8), (8, 5), (8, 2)])
def test_picks_after_several_rows_are_those_after_each(num_tokens: int, num_wanted: int, rule: str, num_threads: int) -> None:
    tokens = tuple(int(token) for token in np.random.default_rng(num_tokens).integers(0, NUM_IDS, num_tokens))
    for position in (0, 3, 9):
        ours, theirs = Model(ThinTeam(num_threads)), Model(ThinTeam(num_threads))
        start = ChainStart(tokens, position, num_wanted, 0.9, num_wanted)
        found = ours.chain(ChainIds(NUM_IDS, (7,), tuple(range(NUM_IDS)))).follow(start, RULES[rule], WHERE)
        picks, probs = [], []
        seconds: list[int] = []
        for at, token in enumerate(tokens, position):
            one = ThinPick(theirs.team).run(theirs.row(token, at, (7,)), [(RULES[rule], [at + 1])])
            picks.append(int(one.tokens[0]))
            probs.append(float(one.probs[0]) if RULES[rule].with_prob else 1.0)
            seconds += [] if one.seconds is None else one.seconds.tolist()
            if at >= position + num_tokens - num_wanted:
                row = at - position - num_tokens + num_wanted
                assert ours.logits[row].tobytes() == theirs.logits[0].tobytes()
        assert (found.picks.tolist(), found.probs.tolist(), found.is_left) == (picks[-num_wanted:], probs[-num_wanted:], False)
        assert (None if found.seconds is None else found.seconds.tolist()) == (seconds[-num_wanted:] or None)
        assert [pool.tobytes() for pool in ours.pools] == [pool.tobytes() for pool in theirs.pools]


def test_several_rows_whose_picks_are_left_say_so() -> None:
    undecided = replace(RULES["warm"], temperature=float("nan"))
    found = Model(ThinTeam(1)).chain(ALL_IDS).follow(ChainStart((5, 6, 9), 3, 2, 0.0, 2), undecided, WHERE)
    assert found.is_left
    assert found.picks.tolist() == [LEFT, LEFT]


def test_a_chain_may_end_with_its_last_slot() -> None:
    most = len(SLOTS) - 40
    assert len(compare(ChainStart((5, 6, 7), 40, most - 2, 0.0)).picks) == most - 2


def test_a_second_chain_goes_on_where_the_first_ended() -> None:
    whole = compare()
    ours = Model(ThinTeam(1))
    chain = ours.chain(ChainIds(NUM_IDS))
    first = chain.follow(replace(START, most=11), RULES["warm"], WHERE)
    again = replace(START, tokens=(int(first.picks[-1]),), position=START.position + 11, most=19)
    second = chain.follow(again, RULES["warm"], WHERE)
    assert [*first.picks, *second.picks] == whole.picks.tolist()
    assert first.probs.tobytes() + second.probs.tobytes() == whole.probs.tobytes()


# --- what ends it ---------------------------------------------------------------------------------------------------------


def test_an_end_token_is_the_last_pick_and_is_not_fed() -> None:
    picks = compare().picks.tolist()
    for token in set(picks):
        found = compare(ids=ChainIds(NUM_IDS, ends=(NUM_IDS + 9, token)))
        assert found.picks.tolist() == picks[: picks.index(token) + 1]
    told = compare(ids=ChainIds(NUM_IDS, ends=tuple(START.tokens))).picks
    assert len(told) > 1 or told[0] in START.tokens, "what is told is fed, whatever it is"
    chain = Model(ThinTeam(1)).chain(ChainIds(NUM_IDS, ends=(4,)))
    assert [chain.feeds(token, 0.5, bar) for token, bar in ((4, 0.0), (3, 0.0), (3, 0.5), (3, 0.6))] == [False, True, True, False]


def test_a_pick_below_the_bar_is_the_last() -> None:
    probs = compare().probs.tolist()
    for place, prob in enumerate(probs):
        if prob < min(probs[:place], default=1.0):
            assert len(compare(replace(START, stop_below=prob)).picks) > place + 1 or place + 1 == START.most
            assert len(compare(replace(START, stop_below=float(np.nextafter(np.float64(prob), 1.0)))).picks) == place + 1
    unasked = replace(START, stop_below=1.0)
    assert len(compare(unasked, RULES["without probabilities"]).picks) == START.most


def test_a_pick_that_cannot_be_decided_is_left_with_its_logits() -> None:
    found = compare(rule=replace(RULES["warm"], temperature=float("nan")))
    assert found.is_left
    assert len(found.picks) == 0
    picks = compare().picks.tolist()
    token = next(token for token in picks if token not in START.tokens)

    def broken(model: Model) -> Model:
        model.embedding[token] = np.nan
        return model

    ours, theirs = broken(Model(ThinTeam(1))), broken(Model(ThinTeam(1)))
    found = ours.chain(ChainIds(NUM_IDS)).follow(START, RULES["warm"], WHERE)
    assert found.is_left
    assert found.picks.tolist() == picks[: picks.index(token) + 1]
    assert seen(ours, found) == seen(theirs, theirs.one_by_one(START, RULES["warm"], ChainIds(NUM_IDS)))


def test_ids_that_stand_for_nothing_are_never_picked() -> None:
    picks = compare().picks.tolist()
    missing = tuple(sorted(set(picks)))[1:]
    assert not set(compare(ids=ChainIds(NUM_IDS, missing)).picks.tolist()) & set(missing)


# --- broken twins, and what is refused ------------------------------------------------------------------------------------


def follow(
    model: Model,
    start: ChainStart = START,
    rule: PickRule = RULES["warm"],
    where: ChainSlots = WHERE,
    *,
    ids: ChainIds = ALL_IDS,
    windows: tuple[int | None, ...] = WINDOWS,
) -> Followed:
    return model.chain(ids, windows).follow(start, rule, where)


SEVERAL = replace(START, tokens=(5, 6, 7, 8, 9, 10, 11, 12, 13, 14))

BROKEN: dict[str, Callable[[Model], Followed]] = {
    "the first rows exchanged": lambda model: follow(model, replace(START, tokens=(6, 5, *SEVERAL.tokens[2:]))),
    "an edge left out": lambda model: follow(model, where=ChainSlots(SLOTS, np.delete(WHERE.edges, 2))),
    "no window": lambda model: follow(model, windows=(None, None)),
    "the windows exchanged": lambda model: follow(model, windows=(7, None)),
    "a window of one more": lambda model: follow(model, windows=(None, 8)),
    "ids left out": lambda model: follow(model, ids=ChainIds(NUM_IDS - 9)),
    "another position": lambda model: follow(model, replace(START, position=START.position + 1)),
    "another key": lambda model: follow(model, rule=replace(RULES["warm"], key=RULES["warm"].key - 1)),
}


@pytest.mark.parametrize("broken", list(BROKEN))
def test_a_chain_that_differs_would_be_noticed(broken: str) -> None:
    start = SEVERAL if "rows" in broken else START
    compare(start, way=lambda model: follow(model, start))
    with pytest.raises(AssertionError):
        compare(start, way=BROKEN[broken])


@pytest.mark.parametrize("windows", [(None, None), (7, None), (None, 8)])
def test_several_rows_with_other_windows_would_be_noticed(windows: tuple[int | None, ...]) -> None:
    with pytest.raises(AssertionError):
        compare(SEVERAL, way=lambda model: follow(model, SEVERAL, windows=windows))


def test_what_does_not_fit_is_refused() -> None:
    model = Model(ThinTeam(1))
    for ids in (ChainIds(NUM_LOGITS), ChainIds(0), ChainIds(NUM_IDS, missing=(NUM_IDS,))):
        with pytest.raises(ValueError, match=r"ids"):
            model.chain(ids)
    with pytest.raises(ValueError, match="windows"):
        model.chain(ChainIds(NUM_IDS), (None,) * 9)
    chain = model.chain(ChainIds(NUM_IDS))
    for tokens in ((NUM_IDS,), (-1,), (1, NUM_IDS, 2), ()):
        with pytest.raises(ValueError, match="does not fit"):
            chain.follow(replace(START, tokens=tokens), RULES["warm"], WHERE)
    several = replace(START, tokens=(1, 2, 3), most=3, num_wanted=2), replace(START, most=2, num_wanted=2)
    for start in (*several, replace(START, tokens=(1,) * (MOST_ROWS + 1), most=2, num_wanted=2)):
        with pytest.raises(ValueError, match="at once"):
            chain.follow(start, RULES["warm"], WHERE)
    for start in (replace(START, most=40), replace(START, most=0), replace(START, position=-1), replace(SEVERAL, position=9, most=31)):
        with pytest.raises(ValueError, match="does not fit"):
            chain.follow(start, RULES["warm"], WHERE)
