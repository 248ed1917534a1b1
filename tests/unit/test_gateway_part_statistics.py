"""What a lost verifier did is told from the origins of its tokens.

pytest tests/unit/test_gateway_part_statistics.py
"""

from __future__ import annotations

from outrider.gateway.part_statistics import with_lost_part
from outrider.v1 import generation_pb2 as pb
from outrider.v1.sampling_pb2 import TOKEN_ORIGIN_ACCEPTED as A
from outrider.v1.sampling_pb2 import TOKEN_ORIGIN_BONUS as B
from outrider.v1.sampling_pb2 import TOKEN_ORIGIN_CORRECTED as C


def test_rounds_and_accepted_guesses_of_a_lost_part_are_added_and_the_ratios_follow() -> None:
    last = pb.DraftStatistics(
        num_rounds=2, num_drafted=6, num_accepted=3, mean_emitted_per_round=2.5, acceptance_rate=0.5, verify_us=70, pacing="serial"
    )
    total = with_lost_part(last, [B, A, A, C, A, B, C])
    assert (total.num_rounds, total.num_accepted, total.num_drafted) == (2 + 4, 3 + 3, 6 + 3 + 2)
    assert (total.mean_emitted_per_round, round(total.acceptance_rate, 6)) == (2.0, round(6 / 11, 6))
    assert (total.verify_us, total.pacing) == (70, "serial")
    assert last.num_rounds == 2, "what was given is not changed"


def test_a_last_stream_without_statistics_leaves_what_the_origins_tell() -> None:
    total = with_lost_part(pb.DraftStatistics(), [B, A, A])
    assert (total.num_rounds, total.num_accepted, total.num_drafted, total.mean_emitted_per_round) == (1, 2, 2, 3.0)
    assert with_lost_part(pb.DraftStatistics(), []).mean_emitted_per_round == 0.0


def test_depths_and_guesses_of_a_lost_part_add_up_to_what_was_accepted_and_drafted() -> None:
    """Or more guesses would have been verified than were made, and more accepted than all depths together."""
    last = pb.DraftStatistics(num_rounds=1, num_drafted=3, num_accepted=1, num_guessed=4, drafted_by_depth=[1, 1, 1], accepted_by_depth=[1])
    total = with_lost_part(last, [B, A, A, C, A, B, C])
    assert (list(total.accepted_by_depth), list(total.drafted_by_depth)) == ([1 + 2, 1], [1 + 3, 1 + 1, 1 + 1])
    assert sum(total.accepted_by_depth) == total.num_accepted
    assert sum(total.drafted_by_depth) == total.num_drafted
    assert total.num_guessed - total.num_drafted == last.num_guessed - last.num_drafted
    alone = with_lost_part(pb.DraftStatistics(), [A] * 4 + [B])
    assert list(alone.accepted_by_depth) == list(alone.drafted_by_depth) == [1, 1, 1, 1]
