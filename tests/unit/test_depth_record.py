"""Acceptance by depth: a drafter that drifts shows it, one that does not plans as ever, and a text that changes is not taken for drift."""

from __future__ import annotations

import dataclasses
import random

import pytest

from fakes import TruthTable
from fakes_simulation import spec_of
from outrider.session.depth_record import MAX_INFORMATION, MAX_OFFSET, NO_DEPTHS, DepthRecord
from outrider.session.guess_depths import DepthCounts, GuessDepths
from outrider.session.pacing.depth_bands import BAND_BEGINS, BAND_OF, MAX_DEPTH, NUM_BANDS, log_odds, rights_by_depth
from outrider.session.pacing.serial import SerialPacing
from outrider.session.statistics import FIRST_PRIORS, SessionStatistics
from outrider.session.verifier import VerifierSession

FALLING, FLAT, RISING = (0.9, 0.8, 0.5, 0.3), (0.7,) * NUM_BANDS, (0.5, 0.8, 0.9, 0.95)
LEN = 6
SEEDS = range(12)


def drafted(rights: tuple[float, ...], num_rounds: int, seed: int, stats: SessionStatistics | None = None) -> SessionStatistics:
    """Rounds in turns of LEN guesses, right by band of depth as these say."""
    stats, luck = stats or SessionStatistics(), random.Random(seed)
    for _ in range(num_rounds):
        num_right = next((at for at in range(LEN) if luck.random() >= rights[BAND_OF[at + 1]]), LEN)
        is_wrong = num_right < LEN
        stats.count_round(LEN, LEN, num_right, num_right + 1, corrected=is_wrong)
        right, wrong = [0] * NUM_BANDS, [0] * NUM_BANDS
        for depth in range(1, num_right + 1):
            right[BAND_OF[depth]] += 1
        if is_wrong:
            wrong[BAND_OF[num_right + 1]] += 1
        stats.count_depths(DepthCounts(tuple(right), tuple(wrong)))
    return stats


def believed(stats: SessionStatistics) -> list[float]:
    """Of the first guess of each band."""
    rights = rights_by_depth(stats.acceptance, stats.by_depth.offsets_from(stats.acceptance))
    return [float(rights[begin - 1]) for begin in BAND_BEGINS]


@pytest.mark.parametrize("rights", [FALLING, RISING])
def test_a_drafter_that_errs_by_depth_is_found_out(rights: tuple[float, ...]) -> None:
    found = [believed(drafted(rights, 400, seed)) for seed in SEEDS if drafted(rights, 400, seed).by_depth.differs]
    assert len(found) == len(SEEDS)
    for band in range(3):  # the fourth is never tested by drafts so short
        mean = sum(one[band] for one in found) / len(found)
        assert mean == pytest.approx(rights[band], abs=0.08), band


def test_a_band_that_was_hardly_tested_is_as_the_one_before_it() -> None:
    stats = drafted(FALLING, 400, 1)
    offsets = stats.by_depth.offsets_from(0.7)
    assert offsets[3] == offsets[2] < offsets[1] < offsets[0]
    for wanted in (True, False):
        stats.count_depths(DepthCounts([0] * NUM_BANDS, [0, 0, 0, 3 if wanted else 12]))
        offsets = stats.by_depth.offsets_from(0.7)
        assert (offsets[3] == offsets[2]) is wanted


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_where_depth_makes_no_difference_there_are_no_offsets(share: float) -> None:
    for seed in SEEDS:
        stats = drafted((share,) * NUM_BANDS, 300, seed)
        assert stats.by_depth.offsets_from(stats.acceptance) == ()


def test_few_guesses_change_nothing() -> None:
    assert drafted((1.0, 0.0, 0.0, 0.0), 3, 1).by_depth.offsets_from(0.5) == ()


def test_a_text_that_changes_is_no_drift() -> None:
    """Deep guesses are judged where the text is easy, shallow ones everywhere: pooled, that looks like a drafter that gets better."""
    for seed in SEEDS:
        stats = SessionStatistics()
        for turn in range(8):
            drafted(((0.95, 0.3)[turn % 2],) * NUM_BANDS, 25, 100 * seed + turn, stats)
            assert not stats.by_depth.differs


def test_until_depth_makes_a_difference_the_single_estimate_says_how_right_guesses_are() -> None:
    stats = drafted((0.95,) * NUM_BANDS, 100, 1)
    offsets = drafted((0.3,) * NUM_BANDS, 200, 2, stats).by_depth.remembered().offsets
    assert max(map(abs, offsets)) < 1.0


def test_an_estimate_that_lags_behind_is_no_drift() -> None:
    """Session after session begins with a hope that its text does not fulfil."""
    depths = NO_DEPTHS
    for seed in SEEDS:
        stats = SessionStatistics(acceptance=0.9, by_depth=DepthRecord(depths))
        drafted((0.0,) * NUM_BANDS, 60, seed, stats)
        assert not stats.by_depth.differs
        depths = stats.by_depth.remembered()


def test_the_next_session_begins_with_what_depth_changes_and_its_own_acceptance() -> None:
    priors = drafted(FALLING, 400, 1).remembered(FIRST_PRIORS)
    offsets = DepthRecord(priors.depths).offsets_from(0.5)
    assert offsets[0] > 0.5 > offsets[1] > offsets[2]
    assert DepthRecord(NO_DEPTHS).offsets_from(0.5) == ()


def test_a_first_wrong_guess_of_a_session_is_blamed_on_its_depth_where_depth_makes_a_difference() -> None:
    """The single estimate falls by an eighth with it. Were that the level of all depths, deep guesses would look bad too."""
    priors = drafted((0.6, 0.97, 0.97, 0.97), 600, 1).remembered(FIRST_PRIORS)
    stats = SessionStatistics(acceptance=priors.acceptance, by_depth=DepthRecord(priors.depths, priors.acceptance))
    before = rights_by_depth(stats.acceptance, stats.by_depth.offsets_from(stats.acceptance))
    assert before[4] > 0.8, "the level that its kind had"
    stats.count_round(4, 4, 0, 1, corrected=True)
    stats.count_depths(DepthCounts((0,) * NUM_BANDS, (1, *(0,) * (NUM_BANDS - 1))))
    after = rights_by_depth(stats.acceptance, stats.by_depth.offsets_from(stats.acceptance))
    assert stats.acceptance < priors.acceptance - 0.1
    assert after[0] < before[0]
    assert after[4] > before[4] - 0.03


def test_a_session_begins_at_the_level_of_its_kind() -> None:
    """Its very first look plans by depths, so they must speak of the acceptance that its kind had, not of any."""
    priors = dataclasses.replace(drafted((0.6, 0.97, 0.97, 0.97), 600, 1).remembered(FIRST_PRIORS), acceptance=0.95)
    spec = dataclasses.replace(spec_of(1, [1, 2, 3], 40, TruthTable(8)), draft_priors=priors)
    view = VerifierSession(spec, SerialPacing(4), 0).view(0)
    assert view.depth_offsets == DepthRecord(priors.depths, 0.95).offsets_from(0.95) != DepthRecord(priors.depths).offsets_from(0.95)


def test_what_is_remembered_is_bounded() -> None:
    depths = drafted(FALLING, 3_000, 1).remembered(FIRST_PRIORS).depths
    assert max(depths.information) <= MAX_INFORMATION + LEN
    assert max(map(abs, drafted((1.0, 0.0, 0.0, 0.0), 3_000, 1).by_depth.offsets_from(0.5))) <= MAX_OFFSET


def test_a_drafter_that_stops_to_drift_is_forgiven() -> None:
    stats = drafted(FALLING, 400, 1)
    assert stats.by_depth.differs
    assert not drafted((0.8,) * NUM_BANDS, 1_500, 2, stats).by_depth.differs


def test_depth_is_what_the_drafter_had_not_heard_of_when_it_began_the_tail() -> None:
    depths = GuessDepths(batch=1)
    depths.told(100, 1_000.0)
    depths.join(3, 100, 1_200)  # guesses for 100, 101, 102, the first three beyond the truth it knows
    depths.told(102, 2_000.0)
    depths.join(2, 100, 1_900)  # for 103 and 104, before it has heard: the fourth and fifth
    depths.join(2, 100, 2_000)  # for 105 and 106, after: the fourth and fifth again
    depths.judge(0, 100, 107, right=True)
    assert depths.take() == DepthCounts([1, 2, 4, 0], [0] * NUM_BANDS)
    assert depths.take() is None


def test_few_guesses_wait_for_others() -> None:
    depths = GuessDepths(batch=3)
    depths.join(4, 10, 0)
    depths.judge(0, 10, 12, right=True)
    assert depths.take() is None
    depths.judge(2, 12, 13, right=False)
    assert depths.take() == DepthCounts([1, 1, 0, 0], [0, 1, 0, 0])


def test_a_new_tree_counts_its_nodes_anew() -> None:
    depths = GuessDepths(batch=1)
    depths.join(4, 10, 0)
    depths.begin_tree()
    depths.join(1, 20, 0)
    depths.judge(0, 20, 21, right=False)
    assert depths.take() == DepthCounts([0] * NUM_BANDS, [1, 0, 0, 0])


def test_what_was_drafted_before_the_truth_it_knew_has_no_depth() -> None:
    depths = GuessDepths(batch=1)
    depths.told(105, 0.0)
    depths.join(2, 100, 10)
    depths.judge(0, 100, 102, right=True)
    assert depths.take() == DepthCounts([0] * NUM_BANDS, [0] * NUM_BANDS)


def test_bands_cover_every_depth_in_order() -> None:
    assert [BAND_OF[begin] for begin in BAND_BEGINS] == list(range(NUM_BANDS))
    assert list(BAND_OF[1:]) == sorted(BAND_OF[1:])
    rights = rights_by_depth(0.7, (1.0, 0.0, -1.0, -2.0))
    assert len(rights) == MAX_DEPTH
    assert rights[1] == rights[2] == pytest.approx(0.7)
    assert log_odds(float(rights[0])) == pytest.approx(log_odds(0.7) + 1.0)
