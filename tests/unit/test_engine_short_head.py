"""An engine whose guesses are chosen among a shortlist: each is the best of what is listed, whichever way its row goes, and whatever was
read can be guessed; who may have one, and what is refused.

Broken twins (ids that stay when they are listed no more, text that is not read) show that the comparisons would notice.
Run: pytest tests/unit/test_engine_short_head.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fakes_models
from fakes_followed import MAX_LEN, NONE, NUM_IDS, SAMPLINGS, FollowingEngines, followed, ints, one_by_one, opened, step
from outrider.engine import short_head
from outrider.engine.config import AUTO_SHORTLIST, LEAST_SHORTLIST_IDS, EngineConfig, EngineKind, shortlist_from
from outrider.engine.load import load_engine
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.short_head import ShortChain, ShortHead
from outrider.engine.shortlist import Shortlist
from outrider.errors import InvalidRequest
from outrider.types.step import Follow, SequenceRows
from outrider.types.tree import IntArray
from outrider_kernels.native_library import NativeUnavailable
from outrider_kernels.thin_matrix import PANEL

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT = 3 * PANEL  # of six panels
PROMPT = np.random.default_rng(5).integers(0, NUM_IDS, MAX_LEN).astype(np.int32)
WAYS = ["lone", "general", "tree"]


def rows_of(way: str, tokens: IntArray) -> SequenceRows:
    """Committed tokens; and below the newest two nodes side by side, which no chain is."""
    nodes, parents = (ints(int(tokens[0]), int(tokens[-1])), ints(-1, -1)) if way == "tree" else (NONE, NONE)
    return SequenceRows(51, tokens, nodes, parents, pick_probs=True)


def best_listed(engine: PagedEngine, rows: SequenceRows, panels: list[int]) -> list[int]:
    """Of a whole head's candidates, which are in order, the first that is listed, a row each."""
    ranked = step(engine, replace(rows, num_choices=NUM_IDS, pick_probs=False)).choices
    assert ranked is not None
    return [next(token for token in row if token // PANEL in panels) for row in ranked.ids.tolist()]


def check(engines: FollowingEngines, way: str, sampling: str) -> None:
    """Texts of different panels, one after another, in one sequence."""
    short, whole = opened(engines.make(shortlist=SHORT), SAMPLINGS[sampling]), opened(engines.make(), SAMPLINGS[sampling])
    if way != "lone":
        short._lone = None
    shortlist, seen = Shortlist(fakes_models.VOCAB, SHORT), set[tuple[int, ...]]()
    for begin in range(0, 60, 5):
        rows = rows_of(way, PROMPT[begin : begin + 5])
        shortlist.read(np.concatenate((rows.committed, rows.tokens)))
        panels = shortlist.panels.tolist()
        picks = step(short, rows).picks.tolist()
        assert picks == best_listed(whole, rows, panels)
        if way == "lone":  # a chain's guesses count as read
            shortlist.read(picks)
        seen.add(tuple(panels))
        for engine in (short, whole):
            engine.keep(51, ())
    assert len(seen) > 4, "the list should have changed"


@pytest.mark.parametrize("sampling", ["greedy", "warm"])
@pytest.mark.parametrize("way", WAYS)
def test_a_guess_is_the_best_of_what_is_listed(engines: FollowingEngines, way: str, sampling: str) -> None:
    check(engines, way, sampling)


@pytest.mark.parametrize("way", WAYS)
def test_ids_that_stayed_when_they_are_listed_no_more_would_be_noticed(
    engines: FollowingEngines, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(short_head, "PANEL", 0)  # what is to be forgotten: the first id, again and again
    with pytest.raises(AssertionError):
        check(engines, way, "greedy")


@pytest.mark.parametrize("way", WAYS)
def test_text_that_is_not_read_would_be_noticed(engines: FollowingEngines, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(ShortHead, "read", lambda self, tokens: None)
    with pytest.raises(AssertionError):
        check(engines, way, "greedy")


@pytest.mark.parametrize("sampling", list(SAMPLINGS))
def test_a_chain_is_what_steps_of_a_row_make(engines: FollowingEngines, sampling: str) -> None:
    """Probabilities too, which are among the listed ids."""
    for length in (4, 9, 20):
        first, wish = SequenceRows(51, PROMPT[:length], NONE, NONE, pick_probs=True), Follow(6, 0.01)
        ours, theirs = (opened(engines.make(shortlist=SHORT), SAMPLINGS[sampling]) for _ in range(2))
        assert isinstance(ours.chain, ShortChain)
        assert followed(ours, first, wish) == one_by_one(theirs, first, wish)


def test_probabilities_are_among_what_is_listed(engines: FollowingEngines) -> None:
    short, whole = (opened(engines.make(shortlist=listed), SAMPLINGS["greedy"]) for listed in (SHORT, 0))
    rows = rows_of("lone", PROMPT[:1])
    shortlist = Shortlist(fakes_models.VOCAB, SHORT)
    shortlist.read(rows.committed)
    ranked = step(whole, replace(rows, num_choices=NUM_IDS, pick_probs=False)).choices
    assert ranked is not None
    is_listed = np.isin(ranked.ids[0] // PANEL, shortlist.panels)
    result = step(short, rows)
    assert result.pick_probs is not None
    listed = ranked.probs[0][is_listed]
    assert result.pick_probs[0] == pytest.approx(float(listed[0] / listed.sum()), rel=1e-4)


def test_candidates_are_listed_ones_and_ends_of_text_always_are(engines: FollowingEngines) -> None:
    engine = opened(engines.make(shortlist=SHORT, end_ids=(NUM_IDS - 1,)), SAMPLINGS["warm"])
    for begin in range(0, 60, 10):
        choices = step(engine, SequenceRows(51, PROMPT[begin : begin + 10], NONE, NONE, num_choices=NUM_IDS)).choices
        assert choices is not None
        there = choices.ids[0][np.isfinite(choices.scores[0])]
        assert len(there) <= SHORT
        assert (NUM_IDS - 1) in there
        assert np.isfinite(choices.entropy).all()


# --- who has one ----------------------------------------------------------------------------------------------------------

LARGE = 2048


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of 2,048 ids, which the least list is half of."""
    folder = tmp_path_factory.mktemp("large")
    fakes_models.make_model("llama", folder, vocab_size=LARGE, hidden_size=64)
    return str(folder)


def num_listed(engine: object) -> int:
    """Ids that its guesses are chosen among."""
    assert isinstance(engine, PagedEngine)
    if not isinstance(engine.chain, ShortChain):
        return engine.identity.vocab_size
    return len(engine.chain._short._shortlist.panels) * PANEL


@pytest.mark.parametrize(
    ("shortlist", "auto_ids", "wanted"),
    [
        (0, 1024, LARGE),
        (1024, 32768, 1024),
        (1500, 32768, 1488),
        (LARGE, 32768, LARGE),
        (AUTO_SHORTLIST, 1024, 1024),
        (AUTO_SHORTLIST, 1040, LARGE),
    ],
)
def test_it_is_as_long_as_was_asked_for(large: str, monkeypatch: pytest.MonkeyPatch, shortlist: int, auto_ids: int, wanted: int) -> None:
    """Of itself only where the vocabulary is twice as large; and the check at load time sees the whole head."""
    monkeypatch.setattr("outrider.engine.lean_engine.SHORTLIST_IDS", auto_ids)
    assert num_listed(load_engine(EngineConfig(large, num_blocks=4, num_threads=1, shortlist=shortlist))) == wanted


NOBODY_ELSE: dict[str, Callable[[EngineConfig], EngineConfig]] = {
    "transformers": lambda config: replace(config, kind=EngineKind.TRANSFORMERS),
    "no thin products": lambda config: replace(config, thin_products=False),
    "bfloat16 by torch": lambda config: replace(config, array_rows=0),
}


@pytest.mark.parametrize("way", list(NOBODY_ELSE))
def test_other_ways_take_all_ids_and_refuse_a_number(large: str, way: str) -> None:
    config = NOBODY_ELSE[way](EngineConfig(large, num_blocks=4, num_threads=1, probe=False))
    with pytest.raises(InvalidRequest, match=r"engine\.shortlist: only our own compiled code"):
        load_engine(replace(config, shortlist=1024))
    assert num_listed(load_engine(replace(config, shortlist=AUTO_SHORTLIST))) == LARGE


def test_without_a_compiler_a_number_is_refused(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(num_threads: int) -> None:
        raise NativeUnavailable("no compiler")

    monkeypatch.setattr("outrider.engine.lean_engine.ThinTeam", none)
    with pytest.raises(InvalidRequest, match=r"engine\.shortlist"):
        load_engine(EngineConfig(large, num_blocks=4, num_threads=1, probe=False, shortlist=1024))


def test_a_model_that_is_not_ours_refuses_a_number(tmp_path: Path) -> None:
    fakes_models.make_model("gpt_neox", tmp_path)
    with pytest.raises(InvalidRequest, match=r"engine\.shortlist"):
        load_engine(EngineConfig(str(tmp_path), num_blocks=4, num_threads=1, shortlist=1024))


@pytest.mark.parametrize("shortlist", [1, LEAST_SHORTLIST_IDS - 1, -2])
def test_lists_too_short_to_guess_from_are_refused(shortlist: int) -> None:
    with pytest.raises(InvalidRequest, match=r"engine\.shortlist: must be 0 \(all ids\) or at least 1024"):
        EngineConfig("model", shortlist=shortlist).check()


def test_command_lines_say_it_in_words_or_numbers() -> None:
    assert [shortlist_from("--shortlist", text) for text in ("auto", "off", "1024", "50000")] == [AUTO_SHORTLIST, 0, 1024, 50000]
    for text in ("", "0", "-1", "1023", "all", "1e4", "²"):
        with pytest.raises(InvalidRequest, match="--shortlist: must be auto, off, or a number of ids of at least 1024"):
            shortlist_from("--shortlist", text)
