"""The committed prefix: tokens and the hash at every length, made in whatever order somebody asks."""

from __future__ import annotations

import numpy as np
import pytest

from fakes import TruthTable
from fakes_simulation import spec_of
from outrider.session import prefix as prefix_module
from outrider.session.events import RoundPlanned, RoundVerified
from outrider.session.pacing.plain import PlainPacing
from outrider.session.prefix import CommittedPrefix
from outrider.session.verifier import VerifierSession
from outrider.types.tree import Verdict, extend_hash

TOKENS = [7, 1, 8, 2, 8, 1, 8, 2, 8]


@pytest.mark.parametrize("order", [(4, 5, 6, 9), (9, 4, 6), (6, 9, 5), (4, 4, 9)])
def test_a_hash_is_that_of_the_tokens_before_whoever_asks_first(order: tuple[int, ...]) -> None:
    prefix = CommittedPrefix(np.array(TOKENS[:4], np.int32))
    prefix.append(TOKENS[4:6])
    assert prefix.hash == extend_hash(0, TOKENS[:6])
    prefix.append(TOKENS[6:])
    assert [prefix.hash_at(length) for length in order] == [extend_hash(0, TOKENS[:length]) for length in order]
    late = CommittedPrefix(np.array(TOKENS[:4], np.int32))
    late.append(TOKENS[4:])
    assert [late.hash_at(length) for length in order] == [extend_hash(0, TOKENS[:length]) for length in order]
    assert (prefix.start, len(prefix), prefix.newest_begin, late.newest_begin) == (4, 9, 6, 4)


def test_a_session_without_drafters_hashes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def hashing(*arguments: object) -> int:
        raise AssertionError("nobody asked for a hash")

    monkeypatch.setattr(prefix_module, "extend_hash", hashing)
    monkeypatch.setattr(prefix_module, "running_hashes", hashing)
    session = VerifierSession(spec_of(1, TOKENS, 40, TruthTable(9)), PlainPacing(), 0)
    for token in (5, 6, 7):
        session.step(RoundPlanned(16, 8, 0))
        session.step(RoundVerified(Verdict((), token, bonus=True), 0, 0))
    assert session.committed_len == len(TOKENS) + 3
    with pytest.raises(AssertionError, match="nobody asked"):
        _ = session.prefix.hash
