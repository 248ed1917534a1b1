"""What speculation did for a sample whose verifier was lost on the way: the last stream's counters and what is known of those before.

Knows origins and DraftStatistics. A lost stream ends without its counters; the origins of its tokens still tell its rounds (each ends
with a corrected or bonus token) and every accepted guess, and that a corrected token contradicted one. Must not know why it was lost.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence

from outrider.v1 import generation_pb2 as pb
from outrider.v1.sampling_pb2 import TOKEN_ORIGIN_ACCEPTED, TOKEN_ORIGIN_CORRECTED


def with_lost_part(statistics: pb.DraftStatistics, origins: Sequence[int]) -> pb.DraftStatistics:
    """The sum. origins: of the tokens that lost streams committed. Guesses are counted from below: of a round that contradicted some, one
    is known, at the depth behind those it accepted. Each counts as a drafter's, for origins do not tell what was looked up."""
    num_accepted, num_corrected = origins.count(TOKEN_ORIGIN_ACCEPTED), origins.count(TOKEN_ORIGIN_CORRECTED)
    num_emitted = len(origins) + round(statistics.mean_emitted_per_round * statistics.num_rounds)
    total = pb.DraftStatistics()
    total.CopyFrom(statistics)
    total.num_rounds += len(origins) - num_accepted
    total.num_accepted += num_accepted
    total.num_drafted += num_accepted + num_corrected
    total.num_guessed += num_accepted + num_corrected
    num_deep = 0
    for origin in origins:
        if origin == TOKEN_ORIGIN_ACCEPTED:
            _count(total.accepted_by_depth, num_deep)
        if origin in (TOKEN_ORIGIN_ACCEPTED, TOKEN_ORIGIN_CORRECTED):
            _count(total.drafted_by_depth, num_deep)
        num_deep = num_deep + 1 if origin == TOKEN_ORIGIN_ACCEPTED else 0
    total.mean_emitted_per_round = num_emitted / total.num_rounds if total.num_rounds else 0.0
    total.acceptance_rate = total.num_accepted / total.num_drafted if total.num_drafted else 0.0
    return total


def _count(by_depth: MutableSequence[int], depth: int) -> None:
    if depth == len(by_depth):
        by_depth.append(0)
    by_depth[depth] += 1
