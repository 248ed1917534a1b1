"""The compiled pick either equals the definition or leaves the row to it; its probabilities are softmax's own; neighbours change neither.

Broken copies of the C file (noise of another place, a margin or a filter left out) show that the comparisons would notice.
Run: pytest tests/kernels/test_thin_pick.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from broken_c import break_thin
from mostly_slow import mostly_slow
from outrider.engine.sampling.pick import pick
from outrider.engine.sampling.quick_picks import pick_rule
from outrider.engine.sampling.rows import RowSampling
from outrider.noise.field import gumbel
from outrider.noise.reference_pick import perturbed, pick_processed, support
from outrider.types.sampling import SamplingParams
from outrider_kernels.thin_pick import LEFT, MAX_TOP_K, PickRule, ThinPick, ThinPicks
from outrider_kernels.thin_team import ThinTeam

FloatArray = npt.NDArray[np.float32]
IdArray = npt.NDArray[np.int64]

KEY = 0xFEDC_BA98_7654_3210
VOCABS = (1, 2, 7, 8, 31, 33, 1000, 1024, 2021, 8193)
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1e-6),
    SamplingParams(temperature=0.05),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=5.0),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=1.0, top_p=0.3),
    SamplingParams(temperature=2.0, top_p=1e-6),
    SamplingParams(temperature=1.0, min_p=0.1),
    SamplingParams(temperature=1.5, top_p=0.95, min_p=0.02),
    SamplingParams(temperature=0.0, top_k=3),
    SamplingParams(temperature=1e-6, top_k=4),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.83),  # of equal logits 0.8 would be an edge
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=5.0, top_k=MAX_TOP_K),
    SamplingParams(temperature=1.3, top_k=50, top_p=0.9, min_p=0.05),
)


@pytest.fixture(scope="module")
def picker() -> ThinPick:
    return ThinPick(ThinTeam(1))


def drawn(generator: np.random.Generator, vocab: int, scale: float) -> FloatArray:
    return (generator.standard_normal(vocab) * scale).astype(np.float32)


def few_panels(generator: np.random.Generator, vocab: int) -> npt.NDArray[np.bool_]:
    """Whether an id is in none of them: of the first panel of sixteen none is, of the others most are."""
    is_out = generator.random(-(-vocab // 16)) < 0.85
    is_out[0] = False
    return is_out.repeat(16)[:vocab]


def rows_of(seed: int) -> Iterator[FloatArray]:
    """Plain ones, ties, plateaus, masked ids, far ones, and values a rounding apart."""
    generator = np.random.default_rng(seed)
    for vocab in VOCABS:
        plain = drawn(generator, vocab, 3.0)
        near = np.full(vocab, 2.5, np.float32)
        near[generator.random(vocab) < 0.5] = np.nextafter(np.float32(2.5), np.float32(3))
        masked = drawn(generator, vocab, 1.0)
        masked[generator.integers(0, vocab, vocab // 2)] = -np.inf
        far = drawn(generator, vocab, 1.0)
        far[generator.integers(0, vocab)] += 30.0
        yield from (plain, np.round(plain), near, np.zeros(vocab, np.float32), masked, far, plain * np.float32(1e4) + np.float32(3e5))
    for vocab in VOCABS:
        listed = drawn(generator, vocab, 3.0)
        listed[few_panels(generator, vocab)] = -np.inf
        yield listed


def one(picker: ThinPick, logits: FloatArray, rule: PickRule, position: int) -> tuple[int, float]:
    found = picker.run(logits[None], [(rule, [position])])
    return int(found.tokens[0]), float(found.probs[0])


def check(picker: ThinPick, params: SamplingParams) -> None:
    """Rows that are decided equal the definition, and few are left."""
    num_left = num_rows = 0
    for seed in range(3):
        for position, logits in enumerate(rows_of(seed)):
            token, _ = one(picker, logits, pick_rule(params, KEY, False), position)
            num_rows += 1
            num_left += token == LEFT
            assert token in (LEFT, pick_processed(logits, params, KEY, position)) or not np.isfinite(logits.max())
    is_cold = 0.0 < params.temperature < 1e-3  # the rows far from 0 swallow its noise
    assert num_left <= (0.16 if is_cold else 0.1 if params.top_p < 1.0 else 0.02) * num_rows


def check_near_ties(picker: ThinPick) -> None:
    """Two tokens whose scores are a rounding apart, above all others."""
    generator, num_decided = np.random.default_rng(8), 0
    for position in range(400):
        temperature = float(generator.choice([0.3, 1.0, 5.0]))
        logits = drawn(generator, 60, 1.0)
        noise = temperature * gumbel(KEY, position, np.arange(60)).astype(np.float64)
        first, second = generator.choice(60, 2, replace=False)
        score = float((logits + noise).max()) + 1.0
        logits[first], logits[second] = score - noise[first], score - noise[second]
        token, _ = one(picker, logits, PickRule(KEY, temperature), position)
        num_decided += token != LEFT
        assert token in (LEFT, pick_processed(logits, SamplingParams(temperature=temperature), KEY, position))
    assert num_decided < 40


def two_best(logits: FloatArray, params: SamplingParams, position: int) -> tuple[IdArray, npt.NDArray[np.float64]]:
    """The best tokens of those that the filters leave, by the definition, and their scores."""
    order = support(logits, params) if params.temperature > 0.0 else np.argsort(-logits, kind="stable")
    scores = logits[order].astype(np.float64)
    if params.temperature > 0.0:
        scores = perturbed(logits, order, params.temperature, KEY, position)
    best = np.argsort(-scores, kind="stable")
    best = best[np.isfinite(scores[best])]
    return order[best], scores[best]


def check_seconds(picker: ThinPick, params: SamplingParams) -> None:
    """The pick is the one that nobody's second was asked for of, and the second is the definition's, or is said to be none."""
    num_clear = num_left = num_far = 0
    for seed in range(3):
        for position, logits in enumerate(rows_of(seed)):
            bare = pick_rule(params, KEY, True)
            alone, both = (picker.run(logits[None], [(rule, [position])]) for rule in (bare, replace(bare, with_second=True)))
            assert same(alone, ThinPicks(both.tokens, both.probs))
            assert both.seconds is not None
            assert both.behinds is not None
            second, behind = int(both.seconds[0]), float(both.behinds[0])
            assert np.isnan(behind) == (second == LEFT)
            if both.tokens[0] == LEFT:
                assert second == LEFT
                continue
            ids, scores = two_best(logits, params, position)
            if len(ids) < 2:
                assert second == LEFT
                continue
            is_far = 0.0 < params.temperature * 40.0 < scores[0] - scores[1]
            is_tied = params.temperature > 0.0 and len(ids) > 2 and scores[1] - scores[2] < 1e-5 * max(1.0, abs(float(scores[1])))
            num_far += is_far
            if is_far:
                assert second == LEFT
            elif not is_tied:
                num_clear += 1
                num_left += second == LEFT
                assert second in (LEFT, ids[1])
            if second != LEFT:
                assert behind == pytest.approx(scores[0] - scores[1], rel=1e-4, abs=1e-5 * max(1.0, abs(float(scores[0]))))
    assert num_left <= (0.1 if params.top_p < 1.0 else 0.0) * num_clear
    assert num_clear + num_far > 10 or params.top_p < 1e-3 or params.top_k == 1


def check_all(picker: ThinPick) -> None:
    check_near_ties(picker)
    for params in PARAMS:
        check(picker, params)
        check_seconds(picker, params)


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_it_equals_the_definition_wherever_it_decides(picker: ThinPick, params: SamplingParams) -> None:
    check(picker, params)


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_the_next_best_is_the_definitions_and_asking_for_it_changes_nothing(picker: ThinPick, params: SamplingParams) -> None:
    check_seconds(picker, params)


def test_seconds_come_where_any_row_asks_and_only_there(picker: ThinPick) -> None:
    logits = np.array([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0], [-np.inf, 1.0, -np.inf]], np.float32)
    bare, asked = PickRule(1, 0.0), PickRule(1, 0.0, with_second=True)
    assert picker.run(logits, [(bare, range(3))]).seconds is None
    found = picker.run(logits, [(asked, range(1)), (bare, range(1, 2)), (asked, range(2, 3))])
    assert found.seconds is not None
    assert found.behinds is not None
    assert found.seconds.tolist() == [2, LEFT, LEFT], "an id at -inf stands for nothing"
    assert found.behinds.tolist()[0] == 2.0
    assert np.isnan(found.behinds[1:]).all()


def test_scores_a_rounding_apart_are_left(picker: ThinPick) -> None:
    check_near_ties(picker)


def test_every_row_of_a_long_run_is_the_general_picks(picker: ThinPick) -> None:
    """Peaked and flat rows of a real vocabulary's size, thousands of them: no decision differs, few are left."""
    generator = np.random.default_rng(5)
    for params in PARAMS:
        logits = np.stack([drawn(generator, 1021, scale) for scale in (0.5, 2.0, 6.0) for _ in range(100)])
        expected = pick(torch.from_numpy(logits), [RowSampling(params, KEY, np.arange(300))]).numpy()
        found = picker.run(logits, [(pick_rule(params, KEY, True), range(300))]).tokens
        decided = found != LEFT
        np.testing.assert_array_equal(found[decided], expected[decided])
        assert decided.mean() > 0.97


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 0.5, 1.0, 5.0])
def test_probabilities_are_those_of_softmax(picker: ThinPick, temperature: float) -> None:
    generator = np.random.default_rng(4)
    rule = PickRule(77, temperature, with_prob=True)
    for position, vocab in enumerate(VOCABS * 5):
        logits = drawn(generator, vocab, 3.0)
        token, prob = one(picker, logits, rule, position)
        check_prob(logits, temperature, token, prob)
        logits[few_panels(generator, vocab)] = -np.inf
        check_prob(logits, temperature, *one(picker, logits, rule, position))


def check_prob(logits: FloatArray, temperature: float, token: int, prob: float) -> None:
    exact = torch.softmax(torch.from_numpy(logits).double() / (temperature or 1.0), dim=0)
    assert prob == pytest.approx(float(exact[token]), rel=2e-5)


def test_only_probabilities_asked_for_are_given(picker: ThinPick) -> None:
    for temperature in (0.0, 1.0):
        assert np.isnan(one(picker, np.zeros(9, np.float32), PickRule(1, temperature), 0)[1])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_left(picker: ThinPick, broken: float, temperature: float) -> None:
    rule = PickRule(1, temperature, with_prob=True)
    for vocab in VOCABS:
        for place in {0, vocab // 2, vocab - 1}:
            logits = drawn(np.random.default_rng(1), vocab, 3.0)
            logits[place] = broken
            token, prob = one(picker, logits, rule, 0)
            assert token == LEFT
            assert np.isnan(prob)
        assert one(picker, np.full(vocab, -np.inf, np.float32), rule, 0)[0] == LEFT


def test_what_it_does_not_know_is_left(picker: ThinPick) -> None:
    logits = drawn(np.random.default_rng(1), 50, 3.0)
    for params in (SamplingParams(top_k=MAX_TOP_K + 1), SamplingParams(temperature=1e-7), SamplingParams(temperature=1e-7, top_k=3)):
        assert one(picker, logits, pick_rule(params, 1, False), 0)[0] == LEFT
    assert one(picker, logits, pick_rule(SamplingParams(temperature=0.0, top_k=MAX_TOP_K + 1), 1, False), 0)[0] == logits.argmax()
    assert one(picker, logits, pick_rule(SamplingParams(temperature=0.0, top_p=0.5, min_p=0.5), 1, False), 0)[0] == logits.argmax()


def same(ours: ThinPicks, theirs: ThinPicks) -> bool:
    return ours.tokens.tobytes() == theirs.tokens.tobytes() and ours.probs.tobytes() == theirs.probs.tobytes()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_rows_result_depends_on_the_row_alone(picker: ThinPick, num_threads: int) -> None:
    """Neighbours, threads, and columns that are padding change no bit."""
    generator, many = np.random.default_rng(6), ThinPick(ThinTeam(num_threads))
    padded = generator.standard_normal((4 * len(PARAMS), 1030)).astype(np.float32) * 4
    logits = padded[:, :1021]
    rules = [pick_rule(params, KEY + at, True) for at, params in enumerate(PARAMS)]
    together = many.run(logits, [(rule, range(4 * at, 4 * at + 4)) for at, rule in enumerate(rules)])
    for row, own in enumerate(logits):
        alone = picker.run(own[None].copy(), [(rules[row // 4], [row])])
        assert same(alone, ThinPicks(together.tokens[row : row + 1], together.probs[row : row + 1]))


def test_logits_of_another_kind_are_refused(picker: ThinPick) -> None:
    for logits in (np.zeros((2, 8)), np.zeros((8, 2), np.float32).T, np.zeros((3, 8), np.float32)):
        with pytest.raises(ValueError, match="not what is to be picked"):
            picker.run(logits, [(PickRule(1, 1.0), [0, 1])])  # type: ignore[arg-type]


# --- broken copies --------------------------------------------------------------------------------------------------------

BREAKS = {
    "the noise of the position before": ("(uint64_t)(row->position + 1) * POSITION_STEP", "(uint64_t)row->position * POSITION_STEP"),
    "no margin between scores": ("first.score - first.next > margin", "1"),
    "tokens ruled out too soon": ("gumbel_of(run->subkey, run->best_id) - SLACK", "gumbel_of(run->subkey, run->best_id) + 0.5"),
    "no nucleus": ("row->top_p < 1.0 && first.at", "0 && first.at"),
    "no min-p": ("!(below <= row->min_p_gap)", "0"),
    "seconds that stand for nothing": ("if (second.token < 0) return;", ""),
    "the noise of the token before": ("words counters = {1, 2, 3, 4}", "words counters = {0, 1, 2, 3}"),
    "scores by the wrong noise": ("mixed(subkey + (uint64_t)(token + 1) * TOKEN_STEP)", "mixed(subkey + (uint64_t)token * TOKEN_STEP)"),
    "a bound that rises too far": ("exp(run->bound + SLACK - reached)", "exp(2.0 * (run->bound + SLACK - reached))"),
    "no margin at the nucleus": ("#define CLEAR_MARGIN 1e-3", "#define CLEAR_MARGIN -1e-2"),
    "no barrier behind the nucleus": ("if (is_behind ||", "if ("),
    "ties in any order": ("((bits)(some == value) & (bits)(ids < limit))", "(bits)(some == value)"),
    "a race that seconds are not in": ("float factor = to_second ? open_to_second(run) : 1.0f;", "float factor = 1.0f;"),
    "seconds ruled out too soon": ("to_second ? (first->next - (double)run->best)", "to_second ? (first->score - (double)run->best)"),
    "a second that the nucleus does not hold": ("row->top_p < 1.0 && first.next_id", "0 && first.next_id"),
    "a nucleus that is forgotten": ("barrier = &outside;\n        first = find_both", "first = find_both"),
    "the first as its own second": ("if (logits[token] == most && token != but)", "if (logits[token] == most)"),
    "a second that is hopeless": ("|| !(behind <= MAX_BEHIND * row->temperature)", ""),
    "a vector passed over for one of its tokens": (
        "return !any_of((bits)(logits != splat(-INFINITY)));",
        "return any_of((bits)(logits == splat(-INFINITY))) != 0;",
    ),
    "no top-k": ("else if (row->top_k)", "else if (0)"),
    "a token fewer than top-k": ("found->len < most ?", "found->len < most - 1 ?"),
    "ties of the last place in the other order": ("if (!(logits[token] > least)) continue;", "if (!(logits[token] >= least)) continue;"),
    "a nucleus of all, not of what top-k left": (
        "for (int64_t at = 0; at < kept->len; at++) total +=",
        "for (int64_t at = 0; at < MAX_TOP_K; at++) if (at >= kept->len) total += 0.01; else total +=",
    ),
    "a nucleus that begins with its second": ("if (short_of < 0.0) return at;", "if (short_of - weights[at] < 0.0) return at;"),
    "no min-p among the first": ("at < len && best - (double)kept.at[at].value <= row->min_p_gap;", "at < len;"),
    "the last largest logit": (
        "while (logits[at] != most) at++;",
        "for (int64_t id = 0; id < num_ids; id++) at = logits[id] == most ? id : at;",
    ),
}


@pytest.mark.parametrize("broken", mostly_slow(BREAKS, 3))
def test_a_broken_pick_would_be_noticed(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_thin(monkeypatch, tmp_path, "pick.c", *BREAKS[broken])
    picker = ThinPick(ThinTeam(1))
    with pytest.raises(AssertionError):
        check_all(picker)
