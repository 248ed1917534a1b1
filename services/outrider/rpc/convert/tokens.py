"""What comes back with committed tokens: origins, log-probabilities, finish reasons and draft statistics, both ways.

Knows the wire's enums for them. Must not know rounds or text. Values decoded here come from a verifier, which the gateway trusts with
the tokens but not with its own memory: lengths and enum numbers are still checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outrider.errors import InvalidRequest
from outrider.rpc.convert.bounds import finite, same_len
from outrider.session.events import FinishReason
from outrider.types.generation import TokenLogprob
from outrider.types.statistics import DraftStatistics
from outrider.types.step import TokenLogprobs
from outrider.types.tree import TokenOrigin
from outrider.v1 import generation_pb2, sampling_pb2

_ORIGIN_VALUES = {
    TokenOrigin.ACCEPTED: sampling_pb2.TOKEN_ORIGIN_ACCEPTED,
    TokenOrigin.CORRECTED: sampling_pb2.TOKEN_ORIGIN_CORRECTED,
    TokenOrigin.BONUS: sampling_pb2.TOKEN_ORIGIN_BONUS,
}
_ORIGIN_NUMBERS = {origin._value_: number for origin, number in _ORIGIN_VALUES.items()}  # an enum's own hash is a call a token
_ORIGINS: dict[int, TokenOrigin] = {int(value): origin for origin, value in _ORIGIN_VALUES.items()}
_FINISH_VALUES = {
    FinishReason.STOP: generation_pb2.FINISH_REASON_STOP_TOKEN,
    FinishReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: generation_pb2.FINISH_REASON_CANCELLED,
}


def origins_to_proto(origins: Iterable[TokenOrigin]) -> list[sampling_pb2.TokenOrigin]:
    """One wire value per committed token."""
    return [_ORIGIN_NUMBERS[origin._value_] for origin in origins]


def origins_from_proto(values: Sequence[int], num_tokens: int, field: str = "origins") -> tuple[TokenOrigin, ...]:
    """One origin per committed token; raises InvalidRequest for another count or an unknown value."""
    same_len(field, len(values), "token_ids", num_tokens)
    origins = tuple(_ORIGINS[int(value)] for value in values if int(value) in _ORIGINS)
    if len(origins) != len(values):
        raise InvalidRequest(field, "holds a value that is no token origin")
    return origins


def logprobs_to_proto(logprobs: TokenLogprobs) -> list[sampling_pb2.TokenLogprob]:
    """One message per row of a step's log-probabilities."""
    rows = zip(logprobs.chosen.tolist(), logprobs.top_ids.tolist(), logprobs.top.tolist(), strict=True)
    return [sampling_pb2.TokenLogprob(logprob=chosen, top_token_ids=ids, top_logprobs=top) for chosen, ids, top in rows]


def logprob_from_proto(message: sampling_pb2.TokenLogprob, field: str = "logprobs") -> TokenLogprob:
    """One emitted token's; raises InvalidRequest when the two lists of best tokens differ in length."""
    same_len(f"{field}.top_logprobs", len(message.top_logprobs), "top_token_ids", len(message.top_token_ids))
    return TokenLogprob(message.logprob, tuple(zip(message.top_token_ids, message.top_logprobs, strict=True)))


def finish_reason_to_proto(reason: FinishReason) -> generation_pb2.FinishReason:
    """The wire's reason; FAILED has none, because a failure is a status, not an answer."""
    assert reason is not FinishReason.FAILED, "a failed session ends its stream with a status"
    return _FINISH_VALUES[reason]


def statistics_to_proto(statistics: DraftStatistics) -> generation_pb2.DraftStatistics:
    """Counters and the two ratios over them."""
    return generation_pb2.DraftStatistics(
        num_rounds=statistics.num_rounds,
        num_drafted=statistics.num_drafted,
        num_accepted=statistics.num_accepted,
        mean_emitted_per_round=statistics.mean_emitted_per_round,
        acceptance_rate=statistics.acceptance_rate,
        drafted_by_depth=statistics.drafted_by_depth,
        accepted_by_depth=statistics.accepted_by_depth,
        verify_us=statistics.verify_us,
        draft_us=statistics.draft_us,
        overlapped_draft_us=statistics.overlapped_draft_us,
        reconcile_us=statistics.reconcile_us,
        draft_wait_us=statistics.draft_wait_us,
        pacing=statistics.pacing,
        num_drafter_losses=statistics.num_drafter_losses,
        num_cached_prompt_tokens=statistics.num_cached_prompt,
        num_looked_up=statistics.num_looked_up,
        num_looked_up_accepted=statistics.num_looked_up_accepted,
        num_hedge_tests=statistics.num_hedge_tests,
        num_hedge_hits=statistics.num_hedge_hits,
        session_us=statistics.session_us,
        plan_us=statistics.plan_us,
        num_guessed=statistics.num_guessed,
    )


def statistics_from_proto(message: generation_pb2.DraftStatistics) -> DraftStatistics:
    """Counters as sent; num_emitted is recovered from the mean, exactly while it is below 2**23. Raises InvalidRequest on a mean that
    is no number."""
    mean = finite("statistics.mean_emitted_per_round", message.mean_emitted_per_round, 0.0)
    return DraftStatistics(
        num_rounds=message.num_rounds,
        num_drafted=message.num_drafted,
        num_accepted=message.num_accepted,
        num_emitted=round(mean * message.num_rounds),
        drafted_by_depth=tuple(message.drafted_by_depth),
        accepted_by_depth=tuple(message.accepted_by_depth),
        verify_us=message.verify_us,
        draft_us=message.draft_us,
        overlapped_draft_us=message.overlapped_draft_us,
        reconcile_us=message.reconcile_us,
        draft_wait_us=message.draft_wait_us,
        pacing=message.pacing,
        num_drafter_losses=message.num_drafter_losses,
        num_cached_prompt=message.num_cached_prompt_tokens,
        num_looked_up=message.num_looked_up,
        num_looked_up_accepted=message.num_looked_up_accepted,
        num_hedge_tests=message.num_hedge_tests,
        num_hedge_hits=message.num_hedge_hits,
        session_us=message.session_us,
        plan_us=message.plan_us,
        num_guessed=message.num_guessed,
    )
