"""What speculation did for one sample: the counters that the verifier fills and every client sees.

Knows counts and the two ratios defined over them. Must not know protobuf (`outrider.rpc` converts) or how a round works.
Vocabulary of docs/architecture.md section 7: acceptance rate = accepted / drafted; mean emitted per round counts the corrected or
bonus token.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftStatistics:
    """Totals of one sample.

    num_rounds: verify rounds, the prefill's included. num_drafted: guessed nodes that were verified; num_accepted: of them accepted.
    num_looked_up, num_looked_up_accepted: of these two, what came from the text itself instead of a drafter.
    drafted_by_depth, accepted_by_depth: entry d counts rounds in which depth d was guessed / its guess accepted.
    verify_us: in steps that verified this sample. draft_us: spent by drafters; overlapped_draft_us: the part of it that ran while a
    round of this sample was being verified. reconcile_us: aligning tails with the truth and moving the trees of guesses along it;
    session_us: all else that the verifier's session did, times of the two apart. plan_us: planning steps that it was ready for, shared with
    the others that were. draft_wait_us: ready, but waiting for drafts. num_guessed: nodes that drafters sent, verified or not.
    num_cached_prompt: tokens of the prompt whose KV the target still had, or another request's, so that it did not read them.
    num_hedge_tests: guesses contradicted while side branches were allowed; num_hedge_hits: of them those that found one.
    drafter_losses: num_drafter_losses by cause, for the verifier's own metrics; it does not travel.
    """

    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_emitted: int = 0
    drafted_by_depth: tuple[int, ...] = ()
    accepted_by_depth: tuple[int, ...] = ()
    verify_us: int = 0
    draft_us: int = 0
    overlapped_draft_us: int = 0
    reconcile_us: int = 0
    session_us: int = 0
    plan_us: int = 0
    draft_wait_us: int = 0
    pacing: str = ""
    num_drafter_losses: int = 0
    num_cached_prompt: int = 0
    num_looked_up: int = 0
    num_looked_up_accepted: int = 0
    num_hedge_tests: int = 0
    num_hedge_hits: int = 0
    num_guessed: int = 0
    drafter_losses: tuple[tuple[str, int], ...] = ()

    @property
    def mean_emitted_per_round(self) -> float:
        """Committed tokens divided by rounds; 0 before the first round."""
        return self.num_emitted / self.num_rounds if self.num_rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted, in [0, 1]; 0 when nothing was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0
