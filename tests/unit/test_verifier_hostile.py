"""Frames that no honest drafter sends: whatever they hold, the session answers with effects, and only that drafter pays."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes import TruthTable
from fakes_simulation import spec_of
from outrider.errors import ProtocolViolation
from outrider.session.events import DrafterFrameArrived, DrafterJoined, Emit, Keep, RoundPlanned, RoundVerified, SendToDrafter, Verify
from outrider.session.pacing.pearl import PearlPacing
from outrider.session.session_drafters import MAX_REOPENS
from outrider.session.tail_check import MAX_ROW_SUPPORT, check_tail
from outrider.session.verifier import VerifierSession
from outrider.types.frames import Close, CloseReason, DrafterFrame, Opened, Refused, Tail, TailEnd
from outrider.types.tree import ROOT, DraftRow, DraftTree, Verdict, extend_hash

TABLE = TruthTable(vocab_size=30)
PROMPT = [3, 4, 5]
VERY = [-(2**40), -1, 0, 1, 2, 3, 5, 29, 30, 1024, 2**31, 2**70]
INTEGERS = st.one_of(st.sampled_from(VERY), st.integers(0, 8))
SMALL = st.one_of(st.integers(0, 6), st.sampled_from([-1, 1025]))
ARRAYS = st.one_of(
    st.lists(st.integers(-2, 31), max_size=6).map(lambda values: np.array(values, np.int32)),
    st.just(np.zeros((2, 2), np.int32)),
    st.just(np.array([0.5, 1.5], np.float32)),
)
FLOATS = st.lists(st.floats(width=32), max_size=4).map(lambda values: np.array(values, np.float32))
ROWS = st.builds(DraftRow, parent=st.integers(-3, 9), ids=ARRAYS, probs=FLOATS)
TAILS = st.builds(
    Tail,
    session=st.sampled_from([1, 1, 1, 2]),
    incarnation=st.sampled_from([0, 1, 1, 1, 2]),
    tree_id=SMALL,
    first_node=SMALL,
    base=st.one_of(st.integers(2, 5), INTEGERS),
    prefix_hash=st.sampled_from([extend_hash(0, PROMPT), 0, -5, 2**80]),
    tokens=ARRAYS,
    parents=ARRAYS,
    end=st.sampled_from(TailEnd),
    source=st.sampled_from(["model", "x" * 500]),
    draft_us=st.sampled_from([0, 10, -1, 2**60]),
    begin_ns=st.sampled_from([0, 5, -(2**60)]),
    end_ns=st.sampled_from([0, 5, 2**60]),
    scores=st.one_of(st.none(), FLOATS),
    rows=st.lists(ROWS, max_size=3).map(tuple),
)
SESSIONS = st.sampled_from([1, 1, 2])
FRAMES: st.SearchStrategy[DrafterFrame] = st.one_of(
    TAILS,
    TAILS,
    st.builds(Opened, SESSIONS, SMALL, INTEGERS),
    st.builds(Refused, SESSIONS, SMALL, st.text(max_size=9)),
    st.builds(Close, SESSIONS, SMALL, st.sampled_from(CloseReason), st.text(max_size=9)),
)


def pick(prefix: list[int]) -> int:
    return TABLE.next(len(prefix), prefix[-1])


def judge(prefix: list[int], tree: DraftTree) -> Verdict:
    """The target's verdict, checking that the tree could be fed: a trie of real tokens."""
    children: dict[tuple[int, int], int] = {}
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
        assert 0 <= token < TABLE.vocab_size
        assert ROOT <= parent < node
        assert children.setdefault((parent, token), node) == node
    path: list[int] = []
    text = list(prefix)
    while (node := children.get((path[-1] if path else ROOT, pick(text)), -1)) >= 0:
        text.append(pick(text))
        path.append(node)
    return Verdict(tuple(path), pick(text), bonus=False)


def run_round(session: VerifierSession, text: list[int]) -> None:
    (verify,) = session.step(RoundPlanned(64, 16, 0))
    assert isinstance(verify, Verify)
    effects = session.step(RoundVerified(judge(text, verify.tree), 10, 0))
    for effect in effects:
        assert isinstance(effect, Emit | Keep | SendToDrafter)
        if isinstance(effect, Emit):
            text += effect.tokens


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(["bad", "bad", "good", "stranger"]), FRAMES), max_size=12), st.booleans(), st.integers(0, 99))
def test_garbage_never_breaks_a_session(frames: list[tuple[str, DrafterFrame]], with_rows: bool, seed: int) -> None:
    session = VerifierSession(spec_of(1, PROMPT, 40, TABLE, with_rows=with_rows), PearlPacing(3), 0)
    text = list(PROMPT)
    for name in ("bad", "good"):
        session.step(DrafterJoined(name, 0))
    rng = random.Random(seed)
    for name, frame in frames:
        for effect in session.step(DrafterFrameArrived(name, frame, 0)):
            assert isinstance(effect, SendToDrafter)
            assert effect.drafter == name, "one drafter's frame concerns another"
        session.view(0)
        if rng.random() < 0.5:
            run_round(session, text)
    run_round(session, text)
    assert text == PROMPT + TABLE.answer(PROMPT, len(text), frozenset())
    assert session.statistics.num_reopens <= 2 * (MAX_REOPENS + 1)


def test_a_violation_bans_one_drafter_and_leaves_the_other() -> None:
    session = VerifierSession(spec_of(1, PROMPT, 40, TABLE), PearlPacing(3), 0)
    for name in ("bad", "good"):
        session.step(DrafterJoined(name, 0))
        session.step(DrafterFrameArrived(name, Opened(1, 1, 3), 0))
    good = pick(PROMPT)
    base = extend_hash(0, PROMPT)
    tokens, parents = np.array([good, 99], np.int32), np.array([-1, 0], np.int32)
    bad = Tail(1, 1, 0, 0, 3, base, tokens, parents, TailEnd.MORE, "m", 1, 0, 1)
    honest = Tail(1, 1, 0, 0, 3, base, tokens[:1], parents[:1], TailEnd.MORE, "m", 1, 0, 1)
    session.step(DrafterFrameArrived("good", honest, 0))
    (close,) = session.step(DrafterFrameArrived("bad", bad, 0))
    assert isinstance(close, SendToDrafter)
    assert isinstance(close.frame, Close)
    assert close.frame.reason is CloseReason.PROTOCOL
    assert session.step(DrafterJoined("bad", 0)) == [], "it may not come back"
    text = list(PROMPT)
    run_round(session, text)
    assert session.statistics.num_accepted == 1
    assert session.statistics.num_violations == 1


@pytest.mark.parametrize(("support", "is_fine"), [(MAX_ROW_SUPPORT, True), (MAX_ROW_SUPPORT + 1, False)])
def test_a_draft_row_has_a_bounded_support(support: int, is_fine: bool) -> None:
    """A session keeps the rows of a whole tree: with the whole vocabulary in each they would fill the memory."""
    row = DraftRow(ROOT, np.arange(support, dtype=np.int32), np.full(support, 1 / support, np.float32))
    tokens, parents = np.array([5], np.int32), np.array([ROOT], np.int32)
    tail = Tail(1, 1, 0, 0, 3, 0, tokens, parents, TailEnd.MORE, "m", 1, 0, 1, rows=(row,))
    with contextlib.nullcontext() if is_fine else pytest.raises(ProtocolViolation, match="draft row has 1025"):
        check_tail(tail, 4 * MAX_ROW_SUPPORT)
