"""The verifier's command line: what it means, and that a wrong value is refused by the name of its flag before anything is loaded."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from outrider.cli.deployment_options import add_deployment_options
from outrider.engine.config import WeightFormat
from outrider.errors import InvalidRequest
from outrider.session.pacing.default import DEFAULT_PACING
from outrider.session.pacing.registry import PACINGS
from verifier_service.settings import MAX_CONFIGURED, DraftDefaults, VerifierSettings, parse_settings


def parsed(*extra: str) -> VerifierSettings:
    return parse_settings(["--model", "somewhere", *extra])


def test_what_is_not_said_is_what_the_values_default_to() -> None:
    settings = parsed()
    assert settings.draft == DraftDefaults()
    assert settings == VerifierSettings(settings.engine, settings.listen, (), settings.draft)


def test_who_names_no_policy_gets_the_same_from_every_command() -> None:
    commands = argparse.ArgumentParser()
    add_deployment_options(commands)
    assert parsed().draft.pacing == commands.parse_args([]).pacing == DEFAULT_PACING
    assert DEFAULT_PACING in PACINGS


def test_more_drafters_than_a_verifier_keeps_are_refused_before_it_serves() -> None:
    """Else it begins, and refuses every request."""
    named = [option for number in range(MAX_CONFIGURED) for option in ("--drafter", f"h:{number + 1}")]
    assert len(parsed(*named, "--drafter", "h:1").drafters) == MAX_CONFIGURED + 1, "one twice is one"
    with pytest.raises(InvalidRequest, match="names 9 drafters, at most 8") as caught:
        parsed(*named, "--drafter", "h:99")
    assert caught.value.field == "--drafter"


def test_the_draft_length_is_a_number_or_found_by_measuring() -> None:
    assert parsed("--draft-len", "auto").draft.draft_len is None
    assert parsed("--draft-len", "7").draft.draft_len == 7


def test_guesses_come_from_the_text_itself_unless_told_otherwise() -> None:
    assert parsed().draft.lookup
    assert not parsed("--no-lookup").draft.lookup


def test_plans_are_explained_where_a_file_is_named() -> None:
    assert parsed().explain_plans is None
    assert parsed("--explain-plans", "plans.jsonl").explain_plans == Path("plans.jsonl")


def test_prompts_share_what_was_read_unless_told_otherwise() -> None:
    assert parsed().engine.prefix_cache
    assert not parsed("--no-prefix-cache").engine.prefix_cache


def test_weights_are_kept_in_full_unless_told_otherwise() -> None:
    assert parsed().engine.weights is WeightFormat.FULL
    assert parsed("--weights", "int8").engine.weights is WeightFormat.INT8
    with pytest.raises(InvalidRequest, match="lean engine") as caught:
        parsed("--weights", "int8", "--engine", "transformers")
    assert caught.value.field == "engine.weights"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--pacing", "magic"),
        ("--draft-len", "0"),
        ("--draft-len", "some"),
        ("--max-draft-len", "33"),
        ("--max-nodes", "0"),
        ("--tree-width", "9"),
        ("--stop-below", "1"),
        ("--stop-below", "nan"),
        ("--svip-threshold", "-0.5"),
        ("--svip-threshold", "2.5"),
        ("--svip-threshold", "nan"),
        ("--max-sessions", "0"),
        ("--max-sessions", "4097"),
        ("--threads", "-1"),
        ("--threads", "1025"),
        ("--lent-threads", "99999"),
        ("--listen", "nonsense"),
        ("--max-prompt-len", "-1"),
        ("--grace-s", "-1"),
        ("--grace-s", "nan"),
        ("--wait-drafters-s", "inf"),
        ("--stream-interval-ms", "-1"),
        ("--stream-interval-ms", "1001"),
        ("--stream-interval-ms", "nan"),
    ],
)
def test_a_wrong_value_names_its_flag(flag: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=flag):
        parsed(f"{flag}={value}")
