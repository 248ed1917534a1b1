"""What one finished sample adds to the speculation counters.

Knows DraftStatistics and names. Must not know rounds while they run. With these counters the mean emitted per round is
1 + accepted / drafts where every round was drafted (vLLM's formula), and emitted / rounds always.
"""

from __future__ import annotations

from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import Label
from outrider.types.statistics import DraftStatistics

US_PER_S = 1_000_000


def record_sample(metrics: LocalMetrics, model: str, statistics: DraftStatistics) -> None:
    """Add a finished sample's totals. model: the served target's name."""
    labels = {Label.MODEL: model, Label.PACING: statistics.pacing}
    counts = (
        (names.NUM_ROUNDS, statistics.num_rounds),
        (names.NUM_DRAFTS, statistics.drafted_by_depth[0] if statistics.drafted_by_depth else 0),
        (names.NUM_DRAFT_TOKENS, statistics.num_drafted),
        (names.NUM_ACCEPTED_TOKENS, statistics.num_accepted),
        (names.NUM_EMITTED_TOKENS, statistics.num_emitted),
        (names.NUM_LOOKED_UP_TOKENS, statistics.num_looked_up),
        (names.NUM_LOOKED_UP_ACCEPTED_TOKENS, statistics.num_looked_up_accepted),
        (names.VERIFY_SECONDS, statistics.verify_us / US_PER_S),
        (names.DRAFT_SECONDS, statistics.draft_us / US_PER_S),
        (names.OVERLAPPED_DRAFT_SECONDS, statistics.overlapped_draft_us / US_PER_S),
        (names.RECONCILE_SECONDS, statistics.reconcile_us / US_PER_S),
        (names.SESSION_SECONDS, statistics.session_us / US_PER_S),
        (names.PLAN_SECONDS, statistics.plan_us / US_PER_S),
        (names.DRAFT_WAIT_SECONDS, statistics.draft_wait_us / US_PER_S),
    )
    metrics.add_all(labels, counts)
    for cause, num_losses in statistics.drafter_losses:
        metrics.add(names.NUM_DRAFTER_LOSSES, labels | {Label.CAUSE: cause}, num_losses)
    for position, accepted in enumerate(statistics.accepted_by_depth):
        metrics.add(names.NUM_ACCEPTED_TOKENS_PER_POS, labels | {Label.POSITION: str(position)}, accepted)
