"""That drafts change no token of a deployment, some of them right and some wrong, under one policy after another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outrider.cli.connection import Connection
from outrider_bench.contestants import DraftWishes
from outrider_bench.identity_cases import Case
from outrider_bench.identity_check import PLAIN_WISHES, Batch, ask_all, differences

CONCURRENCY = 4
MAX_ASKS = 10  # which drafts come in time is the clock's: a policy under which they showed nothing is asked again


def assert_drafts_change_nothing(gateway: Connection, cases: Sequence[Case], pacings: Iterable[str]) -> Batch:
    """Returns the plain answers."""
    plain = ask_all(gateway, cases, PLAIN_WISHES, CONCURRENCY)
    for pacing in pacings:
        num_accepted = num_rejected = 0
        for _ in range(MAX_ASKS):
            drafted = ask_all(gateway, cases, DraftWishes(pacing), CONCURRENCY)
            assert [difference.describe() for difference in differences(cases, plain, drafted)] == [], pacing
            num_accepted, num_rejected = num_accepted + drafted.num_accepted, num_rejected + drafted.num_rejected
            if num_accepted and num_rejected:
                break
        assert num_accepted > 0, f"{pacing}: nothing was accepted, so nothing was shown"
        assert num_rejected > 0, f"{pacing}: nothing was rejected, so nothing was shown"
    return plain
