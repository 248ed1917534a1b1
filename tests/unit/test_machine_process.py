"""The command line of a whole machine in one process."""

from __future__ import annotations

import pytest

from machine_service.__main__ import main, parse
from outrider.errors import InvalidRequest

VERIFIER = ["--model", "target", "--listen", "unix:/v", "--threads", "2"]
DRAFTER = ["--model", "draft", "--threads", "1"]
GATEWAY = ["--listen", "unix:/g"]


def test_each_part_is_read_by_its_own_service() -> None:
    settings = parse([*VERIFIER, "--", *DRAFTER, "--", *GATEWAY])
    assert (settings.verifier.engine.model, settings.verifier.listen) == ("target", "unix:/v")
    assert settings.drafter is not None
    assert (settings.drafter.engine.model, settings.drafter.listen) == ("draft", ())
    assert settings.drafter.engine.lent_threads == 1
    assert (settings.gateway.listen, settings.gateway.verifiers) == (("unix:/g",), ("unix:/v",))


def test_without_options_of_a_drafter_there_is_none() -> None:
    assert parse([*VERIFIER, "--", "--", *GATEWAY]).drafter is None


@pytest.mark.parametrize("parts", [VERIFIER, [*VERIFIER, "--", *DRAFTER], [*VERIFIER, "--", "--", *GATEWAY, "--"]])
def test_there_are_three_parts(parts: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="--: there are three parts"):
        parse(parts)


@pytest.mark.parametrize("other", [["--verifier", "unix:/other"], ["--coordinator", "127.0.0.1:1"]])
def test_the_gateway_has_the_verifier_of_its_process(other: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="--verifier: the gateway has the verifier of its process"):
        parse([*VERIFIER, "--", "--", *GATEWAY, *other])


def test_a_replica_of_a_fleet_is_a_process_of_its_own() -> None:
    with pytest.raises(InvalidRequest, match="--coordinator: replicas of a fleet"):
        parse([*VERIFIER, "--coordinator", "127.0.0.1:1", "--replica-id", "v", "--", "--", *GATEWAY])


def test_what_is_wrong_is_a_sentence_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*VERIFIER, "--pacing", "hasty", "--", *DRAFTER, "--", *GATEWAY]) == 2
    assert "machine_service: --pacing: 'hasty' is unknown" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "VERIFIER_OPTIONS -- [DRAFTER_OPTIONS] -- GATEWAY_OPTIONS" in capsys.readouterr().out
