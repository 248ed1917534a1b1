"""A drafter's link taking tails and moving along the truth: what a chain, followed without a look at each guess, says as any tree does."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from outrider.errors import ProtocolViolation
from outrider.session.drafter_link import DrafterLink, LinkState, TailFate
from outrider.session.prefix import CommittedPrefix
from outrider.session.tail_check import check_tail
from outrider.types.frames import Tail, TailEnd


class Talk:
    """One link and its text. as_tree: its chains are looked up as any tree is."""

    def __init__(self, *, as_tree: bool) -> None:
        self.as_tree = as_tree
        self.prefix = CommittedPrefix(np.array([1, 2, 3], np.int32))
        self.link = DrafterLink("d", 0)
        self.link.reopen(len(self.prefix))
        self.link.state = LinkState.LIVE

    def guess(self, tree_id: int, first_node: int, tokens: list[int], base: int, end: TailEnd = TailEnd.CREDIT) -> None:
        parents = np.arange(first_node - 1, first_node - 1 + len(tokens), dtype=np.int32)
        placed = (tree_id, first_node, base, self.prefix.hash_at(base), np.array(tokens, np.int32), parents)
        assert self.link.take(Tail(1, 1, *placed, end, "lab", 5, 9_000, 9_000), self.prefix, 100) is TailFate.JOINED
        if self.as_tree and self.link.tree is not None and self.link.tree.is_chain:
            self.link.tree._end_chain()

    def commit(self, tokens: list[int], num_judged: int) -> None:
        judged_len = len(self.prefix) + num_judged
        self.prefix.append(tokens)
        self.link.observe_commit(self.prefix, judged_len)
        self.link.credit = len(self.prefix) + 4
        self.link.depths.told(len(self.prefix), 9.0)

    def known(self) -> tuple[object, ...]:
        link = self.link
        standing = link.num_live, link.depth, link.side_depths, link.starts_over_at, link.newest_levels, link.is_pending(len(self.prefix))
        return (*standing, link.take_outcomes(), link.take_mismatches(), link.tally, link.depths.take())


@pytest.mark.parametrize("seed", range(30))
def test_a_chain_is_followed_as_a_tree_is(seed: int) -> None:
    choose = random.Random(seed)
    talks = Talk(as_tree=False), Talk(as_tree=True)
    for tree_id in range(25):
        base = len(talks[0].prefix)
        guesses = [choose.randrange(3) for _ in range(choose.randrange(1, 6))]
        num_first, end = choose.randrange(len(guesses) + 1), choose.choice(list(TailEnd))
        truths = [[*guesses[: choose.randrange(len(guesses) + 1)], choose.randrange(3)]]
        truths = [truths[0][:1], truths[0][1:]] if len(truths[0]) > 1 and choose.random() < 0.5 else truths
        for talk in talks:
            talk.guess(tree_id, 0, guesses[:num_first], base, TailEnd.MORE)
            talk.guess(tree_id, num_first, guesses[num_first:], base, end)
        assert talks[0].known() == talks[1].known()
        for truth in truths:
            num_judged = choose.randrange(len(truth) + 1)
            for talk in talks:
                talk.commit(truth, num_judged)
            assert talks[0].known() == talks[1].known()


def test_a_guess_is_counted_at_its_distance_from_what_its_drafter_knew() -> None:
    talk = Talk(as_tree=False)
    talk.guess(0, 0, [7, 8, 9, 7, 8, 9, 7, 8, 9], 3)
    talk.commit([7, 8, 9, 7, 8, 9, 7, 8, 1], 9)
    counts = talk.link.depths.take()
    assert counts is not None
    assert (list(counts.right), list(counts.wrong)) == ([1, 2, 4, 1], [0, 0, 0, 1])
    assert (talk.link.tally.num_right, talk.link.tally.num_wrong) == (8, 1)


def test_what_the_truth_passed_beyond_a_tree_is_not_counted_of_a_late_one() -> None:
    talk = Talk(as_tree=False)
    talk.guess(0, 0, [], 3)
    talk.commit([7], 0)
    talk.guess(1, 0, [], 4)
    talk.commit([8, 9], 0)
    talk.guess(2, 0, [7, 8, 9], 3)
    assert talk.link.take_outcomes() == [True, True], "behind what the truth had when it passed the second tree"
    assert (talk.link.tally.num_right, talk.link.num_live) == (2, 0)


@pytest.mark.parametrize(("late", "expected"), [(0, 0), (1, 0), (3, 2)])
def test_a_round_that_brought_much_makes_up_for_one_late_round(late: int, expected: int) -> None:
    talk = Talk(as_tree=False)
    talk.link.credit = 9
    for _ in range(late):
        assert talk.link.miss_deadline(3)
    talk.guess(0, 0, [7, 8], 3)
    talk.commit([7], 1)
    assert talk.link._num_late == expected


def test_nothing_is_guessed_before_what_a_tree_stands_at() -> None:
    """A drafter that was told of less when it began than its tree already stands at: what it stands at counts."""
    talk = Talk(as_tree=False)
    talk.link.depths.told(1, 2.0)
    talk.guess(0, 0, [7], 3)
    talk.commit([7], 1)
    assert talk.link.tally.num_right == 1
    assert talk.link.depths._right == [1, 0, 0, 0]


@pytest.mark.parametrize(("num_right", "is_pending"), [(1, False), (2, True), (3, True)])
def test_a_drafter_that_paused_goes_on_once_the_truth_has_reached_its_last_guess(num_right: int, is_pending: bool) -> None:
    talk = Talk(as_tree=False)
    talk.guess(0, 0, [7, 8], 3, TailEnd.CONFIDENCE)
    talk.commit([7, 8, 9][:num_right], num_right)
    assert talk.link.is_pending(len(talk.prefix)) == is_pending


@pytest.mark.parametrize(("leave", "num_late"), [(0, 1), (1, 0), (2, 1)])
def test_one_guess_is_a_whole_draft_where_no_more_were_allowed(leave: int, num_late: int) -> None:
    talk = Talk(as_tree=False)
    talk.link.credit = 9
    assert talk.link.miss_deadline(3)
    talk.link.credit = 3 + leave
    talk.guess(0, 0, [7], 3, TailEnd.MORE)
    talk.commit([7], 1)
    assert talk.link._num_late == num_late


TAIL = Tail(1, 1, 0, 0, 3, 0, np.array([7, 8], np.int32), np.array([-1, 0], np.int32), TailEnd.MORE, "lab", 5, 9_000, 9_000, first_us=5)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tree_id": -1}, "tree id -1"),
        ({"first_node": -1}, "first node -1"),
        ({"base": -1}, "base -1"),
        ({"source": 65 * "x"}, "source name"),
        ({"draft_us": -1, "first_us": 0, "hedge_us": 9}, "drafting time of -1 and 9"),
        ({"hedge_us": -1}, "drafting time of 5 and -1"),
        ({"end_ns": 8_999}, "drafting time"),
        ({"first_us": 6}, "the first node took 6 us of 5"),
        ({"tokens": np.array([[7, 8]], np.int32)}, "token ids have shape"),
        ({"tokens": np.array([7.0, 8.0])}, "token ids are not integers"),
        ({"tokens": np.array([7, -1], np.int32)}, "token id outside the vocabulary of 100"),
        ({"tokens": np.array([100, 8], np.int32)}, "token id outside the vocabulary of 100"),
        ({"parents": np.array([-1], np.int32)}, "2 tokens but parents of shape"),
        ({"parents": np.array([[-1, 0], [0, 0]], np.int32)}, "2 tokens but parents of shape"),
        ({"parents": np.array([-1.0, 0.0])}, "parents are not integers"),
        ({"scores": np.array([0.0, np.inf], np.float32)}, "one finite number per token"),
        ({"parents": np.array([-1, 1], np.int32)}, "names parent 1"),
        ({"parents": np.array([-1, -2], np.int32)}, "names parent -2"),
    ],
)
def test_an_impossible_tail_is_refused_by_its_first_wrong_field(changes: dict[str, object], problem: str) -> None:
    talk = Talk(as_tree=False)
    tail = dataclasses.replace(TAIL, prefix_hash=talk.prefix.hash)
    assert check_tail(tail, 100) == ([7, 8], [-1, 0])
    with pytest.raises(ProtocolViolation, match=problem):
        talk.link.take(dataclasses.replace(tail, **changes), talk.prefix, 100)  # type: ignore[arg-type]
