"""Guesses among half of a vocabulary, through real processes in `invariant` numerics: some are right, some wrong, and no token changes."""

from __future__ import annotations

from forked_services import ForkedDeployment
from outrider.cli.connection import Connection
from outrider.cli.starting import await_pair
from outrider.launch.deployment import DeploymentSpec
from outrider.launch.threads import ThreadPlan
from outrider_bench.identity_cases import make_cases
from outrider_models.paths import model_dir
from unchanged_drafts import assert_drafts_change_nothing

NUM_CASES = 8
NUM_TOKENS = 64
PACINGS = ("serial", "pearl", "adaptive")


def test_guesses_among_a_shortlist_change_no_token() -> None:
    models = str(model_dir("ref-large")), str(model_dir("ref-small"))
    spec = DeploymentSpec(*models, "serial", ThreadPlan(1, 1), numerics="invariant", draft_weights="auto", draft_shortlist="1024")
    with ForkedDeployment(spec) as deployment, Connection(deployment.gateway) as gateway:
        await_pair(deployment)
        cases = make_cases(gateway, NUM_CASES, NUM_TOKENS, len(PACINGS))
        assert_drafts_change_nothing(gateway, cases, PACINGS)
