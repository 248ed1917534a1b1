"""The model drafter over a table engine: every guess is what the engine itself would say after exactly that path, whatever was committed.

The table's picks depend on every token fed, so a row fed twice, left out or kept by mistake shows as a wrong guess.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from fakes_drafting import BLOCK_LEN, VOCAB_SIZE, TableEngine, table_ranking, table_scores
from fakes_driven import SESSION, Driven, drive, next_commit
from mostly_slow import crossed
from outrider.drafting.contract import ProposeRequest, SourceSession
from outrider.drafting.model_source import ModelSource
from outrider.session.guess_tree import GuessTree
from outrider.types.frames import DraftLimits, TailEnd
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import StepPlan, StepResult


@pytest.fixture(params=[None, 5], ids=["one pick a step", "picks followed"])
def follow_seed(request: pytest.FixtureRequest) -> int | None:
    """Of the engine: None makes a step for each row."""
    seed: int | None = request.param
    return seed


@pytest.mark.parametrize(("shape", "follow_seed"), crossed([(1, 64), (1, 3), (2, 24), (3, 10), (4, 4)], [5, None]))
def test_every_guess_is_the_models_own_choice_after_any_mixture_of_commits(shape: tuple[int, int], follow_seed: int | None) -> None:
    width, max_nodes = shape
    for seed in range(12):
        drive(seed, DraftLimits(max_len=200, max_nodes=max_nodes, tree_width=width), TableEngine(max_rows=16, follow_seed=follow_seed))


def test_a_chain_that_agrees_with_the_target_is_accepted_whole_for_ever(follow_seed: int | None) -> None:
    driven = Driven(ModelSource(TableEngine(follow_seed=follow_seed)), SESSION, [1, 2, 3], DraftLimits(max_len=300))
    while len(driven.truth) < 250:
        assert driven.draft(len(driven.truth) + 5) is TailEnd.CREDIT
        accepted = [driven.tree.tokens[node] for node in driven.tree.live_nodes()]
        assert len(accepted) == 5
        bonus = table_ranking(driven.truth + accepted)[0]
        assert not driven.commit([*accepted, bonus])


def test_a_free_running_chain_keeps_its_tree_through_commits_that_follow_it(follow_seed: int | None) -> None:
    engine = TableEngine(follow_seed=follow_seed)
    driven = Driven(ModelSource(engine), SESSION, [1, 2, 3], DraftLimits(max_len=300, max_nodes=20))
    driven.draft(15)
    before = engine.num_steps + engine.num_followed
    assert driven.commit(driven.path(4))
    assert driven.tree.tree_id == 0
    assert driven.draft(17) is TailEnd.CREDIT
    assert engine.num_steps + engine.num_followed == before + 2


def test_one_call_is_one_engine_step_for_all_sessions() -> None:
    engine = TableEngine()
    source = ModelSource(engine)
    all_driven = [Driven(source, session, [session + 1, 2], DraftLimits(max_len=50)) for session in range(5)]
    for step in range(1, 6):
        proposals = source.propose([ProposeRequest(driven.session, 0, 40) for driven in all_driven])
        assert engine.num_steps == step
        for driven, proposal in zip(all_driven, proposals, strict=True):
            assert len(proposal.tokens) == 1
            driven.take(proposal.tokens, proposal.parents)


def test_a_long_prefill_does_not_stall_a_session_that_drafts() -> None:
    source = ModelSource(TableEngine(max_rows=40))
    quick = Driven(source, 1, [1, 2], DraftLimits(max_len=300))
    slow = Driven(source, 2, [3] * 400, DraftLimits(max_len=500))
    calls = 0
    while True:
        calls += 1
        first, second = source.propose([ProposeRequest(1, 0, 200), ProposeRequest(2, 0, 500)])
        quick.take(first.tokens, first.parents)
        assert len(first.tokens) == 1, "a prefill took the step from a drafting session"
        if second.tokens:
            break
        assert second.end is TailEnd.MORE
    slow.take(second.tokens, second.parents)
    assert calls == pytest.approx(400 / 39, abs=1)


def test_more_sessions_than_rows_take_turns() -> None:
    source = ModelSource(TableEngine(max_rows=3))
    all_driven = [Driven(source, session, [session], DraftLimits(max_len=50)) for session in range(8)]
    for _ in range(40):
        proposals = source.propose([ProposeRequest(driven.session, 0, 11) for driven in all_driven])
        for driven, proposal in zip(all_driven, proposals, strict=True):
            driven.take(proposal.tokens, proposal.parents)
    assert [driven.tree.num_nodes for driven in all_driven] == [10] * 8


def test_nothing_is_drafted_below_an_end_token_or_beyond_the_longest_text(follow_seed: int | None) -> None:
    truth = [1, 2, 3]
    for _ in range(4):
        truth.append(table_ranking(truth)[0])
    engine = TableEngine(eos_token_ids=(truth[-1],), follow_seed=follow_seed)
    first = truth.index(truth[-1], 3) - 3
    driven = Driven(ModelSource(engine), SESSION, truth[:3], DraftLimits(max_len=100))
    assert driven.draft(90) is TailEnd.EOS
    assert driven.tree.tokens == truth[3 : 4 + first]
    short = Driven(ModelSource(TableEngine(follow_seed=follow_seed)), SESSION, [1, 2, 3], DraftLimits(max_len=6))
    assert short.draft(6) is TailEnd.LIMIT
    assert short.tree.num_nodes == 3


def test_a_tree_never_holds_more_live_nodes_than_asked_for() -> None:
    driven = Driven(ModelSource(TableEngine()), SESSION, [5], DraftLimits(max_len=100, max_nodes=11, tree_width=3))
    assert driven.draft(90) is TailEnd.LIMIT
    assert len(driven.tree.live_nodes()) == 11


def test_a_trees_best_leaf_is_expanded_first() -> None:
    driven = Driven(ModelSource(TableEngine()), SESSION, [5], DraftLimits(max_len=100, max_nodes=30, tree_width=3))
    driven.propose(90)
    driven.propose(90)
    assert driven.tree.parents[3:6] == [0, 0, 0], "the pick's own children come first"


def test_an_unsure_guess_is_held_back_unless_it_is_the_only_one(follow_seed: int | None) -> None:
    driven = Driven(ModelSource(TableEngine(follow_seed=follow_seed)), SESSION, [1, 2], DraftLimits(max_len=100, stop_below=0.999))
    assert driven.draft(90) is TailEnd.CONFIDENCE
    assert driven.tree.num_nodes == 1
    assert driven.commit([driven.tree.tokens[0]])
    assert driven.draft(90) is TailEnd.CONFIDENCE
    assert driven.tree.num_nodes == 2


def test_a_held_back_guess_is_made_again_when_the_truth_arrives_there(follow_seed: int | None) -> None:
    def best(context: list[int]) -> float:
        engine = TableEngine()
        driven = Driven(ModelSource(engine), SESSION, context, DraftLimits(max_len=100, tree_width=2))
        (proposal,) = driven.source.propose([ProposeRequest(SESSION, 0, 90)])
        assert proposal.scores is not None
        return float(np.exp(proposal.scores[0]))

    prefix = [1, 2]
    bars = [best(prefix)]
    while len(bars) < 2 or bars[-1] >= min(bars[:-1]):
        prefix = [*prefix, table_ranking(prefix)[0]]
        bars.append(best(prefix))
    bar = (bars[-1] + min(bars[:-1])) / 2
    source = ModelSource(TableEngine(follow_seed=follow_seed))
    driven = Driven(source, SESSION, [1, 2], DraftLimits(max_len=100, stop_below=bar))
    assert driven.draft(90) is TailEnd.CONFIDENCE
    num_sure = driven.tree.num_nodes
    assert num_sure == len(bars) - 1
    assert driven.commit(driven.path(num_sure - 1))
    assert driven.draft(90) is TailEnd.CONFIDENCE
    assert driven.tree.num_nodes == num_sure + 1


def test_an_entropy_stop_still_sends_the_guess_that_fired() -> None:
    driven = Driven(ModelSource(TableEngine()), SESSION, [1, 2], DraftLimits(max_len=100, svip_threshold=1e-3))
    assert driven.draft(90) is TailEnd.CONFIDENCE
    assert driven.tree.num_nodes == 1


class Recorder(TableEngine):
    """Keeps what every row that picks was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[tuple[int, bool, bool]] = set()

    def step(self, plan: StepPlan) -> StepResult:
        self.asked |= {(rows.num_choices, rows.pick_probs, rows.top_logprobs is not None) for rows in plan.sequences if rows.wanted}
        return super().step(plan)


@pytest.mark.parametrize(
    ("limits", "with_rows", "asked"),
    [
        (DraftLimits(max_len=100), False, (0, False, False)),
        (DraftLimits(max_len=100, stop_below=0.01), False, (0, True, False)),
        (DraftLimits(max_len=100, svip_threshold=99.0), False, (1, False, False)),
        (DraftLimits(max_len=100, stop_below=0.01, svip_threshold=99.0), False, (1, False, False)),
        (DraftLimits(max_len=100, stop_below=0.01, tree_width=2), False, (2, False, False)),
        (DraftLimits(max_len=100, stop_below=0.01), True, (0, False, True)),
    ],
)
def test_the_engine_computes_no_more_than_the_stop_rules_and_the_tree_need(
    limits: DraftLimits, with_rows: bool, asked: tuple[int, bool, bool]
) -> None:
    engine = Recorder()
    driven = Driven(ModelSource(engine), SESSION, [1, 2], limits, with_rows=with_rows)
    driven.source.propose([ProposeRequest(SESSION, 0, 9)])
    driven.source.propose([ProposeRequest(SESSION, 0, 9)])
    assert engine.asked == {asked}


def test_a_chain_stops_and_scores_by_the_same_probabilities_as_a_tree() -> None:
    def first_scores(width: int) -> list[float]:
        limits = DraftLimits(max_len=100, stop_below=1e-6, tree_width=width, max_nodes=64)
        driven = Driven(ModelSource(TableEngine()), SESSION, [1, 2], limits)
        scores: list[float] = []
        for _ in range(4):
            (proposal,) = driven.source.propose([ProposeRequest(SESSION, 0, 90)])
            assert proposal.scores is not None
            assert len(proposal.scores) == len(proposal.tokens)
            assert driven.tree.num_nodes == 0 or proposal.parents[0] >= 0
            driven.take(proposal.tokens, proposal.parents)
            scores.append(float(proposal.scores[0]))
        return scores

    def along_the_picks(num_tokens: int) -> list[float]:
        context, scores = [1, 2], []
        for _ in range(num_tokens):
            row = np.array(table_scores(context, VOCAB_SIZE, 0))
            scores.append(float(row.max() - np.log(np.exp(row).sum())))
            context.append(table_ranking(context)[0])
        return scores

    assert first_scores(1) == pytest.approx(along_the_picks(4), rel=1e-4)
    assert first_scores(2)[0] == pytest.approx(along_the_picks(1)[0], rel=1e-4)


def test_a_full_tree_is_rooted_anew_without_losing_a_row(follow_seed: int | None) -> None:
    driven = Driven(ModelSource(TableEngine(follow_seed=follow_seed)), SESSION, [1, 2], DraftLimits(max_len=100))
    driven.draft(12)
    node = driven.tree.live_nodes()[3]
    tokens = driven.path(node)
    driven.truth += tokens
    driven.source.observe(SESSION, np.array(tokens, np.int32), (0, 1, 2, 3), reroot=True, tree_id=1)
    driven.tree = GuessTree(1, len(driven.truth))
    driven.draft(12)
    assert driven.tree.num_nodes == 6


# --- shared prefixes ------------------------------------------------------------------------------------------------------

REST = 3  # tokens behind the last whole block
LONG_PREFIX = [(7 * place) % VOCAB_SIZE for place in range(11 * BLOCK_LEN + REST)]
CHAIN = DraftLimits(max_len=200, max_nodes=8)


def opened(source: ModelSource, session: int, tenant: str = "", prefix: list[int] = LONG_PREFIX) -> None:
    tokens = np.array(prefix, np.int32)
    source.open(SourceSession(session, tokens, len(prefix), SamplingParams(temperature=1.0), NoiseAddress(0), CHAIN, tenant=tenant))


def chain_of(source: ModelSource, *sessions: int, length: int = 4) -> list[list[int]]:
    """What each session guesses, all of them asked together."""
    until = len(LONG_PREFIX) + length
    guesses: dict[int, list[int]] = {session: [] for session in sessions}
    for _ in range(60):
        for proposal in source.propose([ProposeRequest(session, 0, until) for session in sessions]):
            guesses[proposal.session] += proposal.tokens
        if all(len(tokens) == length for tokens in guesses.values()):
            return list(guesses.values())
    raise AssertionError("the source never got there")


def expected_chain(length: int = 4) -> list[int]:
    text = list(LONG_PREFIX)
    for _ in range(length):
        text.append(table_ranking(text, VOCAB_SIZE)[0])
    return text[len(LONG_PREFIX) :]


def test_sessions_opened_together_are_read_once() -> None:
    engine = TableEngine(prefix_cache=True)
    source = ModelSource(engine)
    for session in (3, 1, 2):
        opened(source, session)
    assert chain_of(source, 3, 1, 2) == [expected_chain()] * 3
    assert engine.num_rows == len(LONG_PREFIX) + 2 * REST + 3 * 3
    for session in (1, 2, 3):
        source.close(session)
    assert engine.num_free_blocks == engine.limits.num_blocks


def test_a_session_finds_what_its_own_tenant_had_read() -> None:
    engine = TableEngine(prefix_cache=True)
    source = ModelSource(engine)
    fed = []
    for session, tenant in enumerate(("", "a", "", "a")):
        before = engine.num_rows
        opened(source, session, tenant)
        assert chain_of(source, session) == [expected_chain()]
        fed.append(engine.num_rows - before - 3)
        source.close(session)
    assert fed == [len(LONG_PREFIX), len(LONG_PREFIX), REST, REST]


def test_a_session_that_waits_takes_commits_meanwhile() -> None:
    engine = TableEngine(prefix_cache=True, max_rows=16)
    source = ModelSource(engine)
    opened(source, 1)
    opened(source, 2)
    requests = [ProposeRequest(session, 0, 200) for session in (1, 2)]
    assert [proposal.end for proposal in source.propose(requests)] == [TailEnd.MORE] * 2
    source.observe(2, np.array([4, 5], np.int32), (), reroot=True, tree_id=1)
    text = [*LONG_PREFIX, 4, 5]
    for _ in range(60):
        proposal = source.propose([ProposeRequest(1, 0, 200), ProposeRequest(2, 1, 200)])[1]
        if proposal.tokens:
            break
    assert proposal.tokens == (table_ranking(text, VOCAB_SIZE)[0],)
    assert engine.cached_len(2) == len(text)


@pytest.mark.parametrize("seed", range(6))
def test_many_sessions_over_shared_prefixes_guess_as_if_alone(seed: int, follow_seed: int | None) -> None:
    choose = random.Random(seed)
    engine = TableEngine(prefix_cache=True, follow_seed=follow_seed)
    source = ModelSource(engine)
    limits = DraftLimits(max_len=200, max_nodes=12, tree_width=1 + seed % 3)
    live: list[Driven] = []
    for session in range(12):
        prefix = LONG_PREFIX[: choose.randint(20, len(LONG_PREFIX))] + [choose.randrange(VOCAB_SIZE) for _ in range(choose.randint(0, 2))]
        live.append(Driven(source, session, prefix, limits))
        for _ in range(choose.randint(0, 30)):
            driven = choose.choice(live)
            driven.propose(len(driven.truth) + choose.randint(1, 10))
            if choose.random() < 0.3:
                driven.commit(next_commit(choose, driven))
        if len(live) > 3:
            source.close(live.pop(0).session)
    for driven in live:
        source.close(driven.session)
    assert engine.num_free_blocks == engine.limits.num_blocks
