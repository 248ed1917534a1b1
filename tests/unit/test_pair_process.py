"""The command line of verifier and drafter in one process."""

from __future__ import annotations

import pytest

from outrider.errors import InvalidRequest
from pair_service.__main__ import main, parse

VERIFIER = ["--model", "target", "--listen", "unix:/v", "--threads", "2"]
DRAFTER = ["--model", "draft", "--threads", "1"]


def test_each_half_is_read_by_its_own_service() -> None:
    verifier, drafter = parse([*VERIFIER, "--", *DRAFTER])
    assert (verifier.engine.model, verifier.engine.num_threads, verifier.listen) == ("target", 2, "unix:/v")
    assert (drafter.engine.model, drafter.engine.num_threads, drafter.listen) == ("draft", 1, ())


def test_the_drafter_may_be_lent_the_threads_that_only_the_verifier_has() -> None:
    def lent(verifier: int, drafter: int, *more: str) -> int:
        _, settings = parse([*VERIFIER[:-1], str(verifier), "--", *DRAFTER[:-1], str(drafter), *more])
        return settings.engine.lent_threads

    assert [lent(2, 1), lent(4, 1), lent(4, 3), lent(1, 1), lent(1, 2)] == [1, 3, 1, 0, 0]
    assert lent(2, 1, "--device", "cuda") == 0


def test_without_a_drafters_half_there_is_no_pair() -> None:
    with pytest.raises(InvalidRequest, match="--: the drafter's options are missing"):
        parse(VERIFIER)


def test_the_drafter_has_no_address() -> None:
    with pytest.raises(InvalidRequest, match="--listen: a drafter in the verifier's process listens nowhere"):
        parse([*VERIFIER, "--", *DRAFTER, "--listen", "unix:/d"])


def test_both_are_on_one_card() -> None:
    for verifier, drafter in (("cuda", "cuda"), ("cuda:0", "cuda"), ("cuda:1", "cuda:1"), ("cuda:1", "cpu"), ("cpu", "cuda:1")):
        parse([*VERIFIER, "--device", verifier, "--", *DRAFTER, "--device", drafter])
    with pytest.raises(InvalidRequest, match="--device: cuda:0 and cuda:1: one thread works on one card"):
        parse([*VERIFIER, "--device", "cuda:1", "--", *DRAFTER, "--device", "cuda"])


def test_what_is_wrong_is_a_sentence_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*VERIFIER, "--pacing", "hasty", "--", *DRAFTER]) == 2
    assert "pair_service: --pacing: 'hasty' is unknown" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "VERIFIER_OPTIONS -- DRAFTER_OPTIONS" in capsys.readouterr().out
