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
