"""Side branches with real (tiny) models on both sides, in `invariant` numerics: the answer is the plain one, token by token.

The drafter is a worn copy of the target, so that many guesses are wrong and the truth often takes a branch; network and clock are fake.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fakes import TruthTable, Weather
from fakes_hedging import HedgingPacing, SourceDrafter
from fakes_models import VOCAB, make_model, worn
from fakes_simulation import Simulation, spec_of
from mostly_slow import mostly_slow, mostly_slow_rows
from outrider.drafting.model_source import ModelSource
from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.contract import Engine
from outrider.engine.load import load_engine
from outrider.session.pacing.registry import make_pacing
from outrider.types.frames import DraftLimits
from outrider.types.identity import Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan

MAX_TOKENS = 32
STEP_US = 10_000
EMPTY = np.empty(0, np.int32)
SAMPLINGS = {"greedy": SamplingParams(temperature=0.0), "warm": SamplingParams(temperature=0.8, top_p=0.95, frequency_penalty=0.2)}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Engine]:
    """Target and drafter."""
    folder = tmp_path_factory.mktemp("target")
    make_model("llama", folder)
    draft = worn(folder, tmp_path_factory.mktemp("draft"), 0.2)
    return loaded(folder), loaded(draft)


def loaded(folder: Path) -> Engine:
    config = EngineConfig(str(folder), EngineKind.LEAN, numerics=Numerics.INVARIANT, probe=False, num_blocks=256, max_rows=48)
    return load_engine(config)


def plain(engine: Engine, prompt: list[int], sampling: SamplingParams, noise: NoiseAddress) -> list[int]:
    engine.open(99, SequenceSpec(sampling, noise, len(prompt), len(prompt) + MAX_TOKENS, 0))
    tokens: list[int] = []
    feed = prompt
    while len(tokens) < MAX_TOKENS:
        rows = SequenceRows(99, np.array(feed, np.int32), EMPTY, EMPTY)
        feed = engine.step(StepPlan((rows,))).results[0].picks.tolist()
        tokens += feed
    engine.close(99)
    return tokens


@pytest.mark.parametrize(("pacing", "side_nodes"), mostly_slow_rows([("pearl", 6), ("adaptive", 0), ("pearl", 0)], 2))
@pytest.mark.parametrize("sampling", mostly_slow(["warm", "greedy"], 1))
def test_the_answers_are_the_plain_ones_and_branches_were_taken(
    engines: tuple[Engine, Engine], sampling: str, pacing: str, side_nodes: int
) -> None:
    """side_nodes: of branches that every round verifies beside its chain; `adaptive` finds out by itself how many."""
    target, draft = engines
    prompts = {handle: [(handle * 7 + at * 3) % (VOCAB - 4) + 4 for at in range(5 + handle)] for handle in range(1, 4)}
    params = SAMPLINGS[sampling]
    expected = {handle: plain(target, prompt, params, NoiseAddress(handle)) for handle, prompt in prompts.items()}
    source = ModelSource(draft, max_depth=32)
    drafter = SourceDrafter("d", source, VOCAB, 1_000, frozenset())
    policy = HedgingPacing(make_pacing(pacing, 4), (16,), side_nodes)
    weather = Weather(max_delay_us=3_000)
    simulation = Simulation(target, policy, [drafter], weather=weather, step_cost=lambda rows: STEP_US)  # type: ignore[arg-type, list-item]
    for handle, prompt in prompts.items():
        changes = {"sampling": params, "noise": NoiseAddress(handle), "stop_token_ids": frozenset(), "vocab_size": VOCAB}
        limits = DraftLimits(len(prompt) + MAX_TOKENS, 16)
        simulation.add(
            spec_of(handle, prompt, MAX_TOKENS, TruthTable(vocab_size=VOCAB), **changes, limits=limits, max_draft_len=16, max_nodes=16)
        )
    simulation.run()
    for handle, request in simulation.requests.items():
        assert request.tokens == expected[handle]
    statistics = [request.session.statistics for request in simulation.requests.values()]
    assert sum(one.num_accepted for one in statistics) > 0
    assert sum(one.num_hedge_hits for one in statistics) > 0
    assert (policy.num_side_nodes > 0) is (side_nodes > 0 or pacing == "adaptive")
    assert target.num_free_blocks == target.limits.num_blocks
    assert draft.num_free_blocks == draft.limits.num_blocks
    assert source.num_sessions == 0
