"""One engine step: which rows of which sequences go through the model, and what comes back.

Rows of a sequence in a step are its `committed` tokens (a prefill chunk, or just the newest committed token) followed by new
tree nodes. The token picked after a row at position t has position t + 1; that is the position its noise is addressed by.
Must not know torch: arrays are numpy, logits never leave the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import DraftRow, FloatArray, IntArray, Verdict
from outrider.types.value import quickly_made


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """What an engine must know to open a sequence.

    num_prompt: how many of the first committed tokens are prompt (output penalties skip them).
    max_len: committed tokens the sequence may ever hold. max_nodes: live tree nodes at any time. adapter: name of a LoRA adapter, empty for
    none. first_len: committed tokens, its prefix among them, for which KV blocks are held from the beginning, besides those for max_nodes
    tree rows; 0: max_len.
    tenant: whose text it is: KV is shared within one tenant only. Empty is a tenant like any other.
    """

    sampling: SamplingParams
    noise: NoiseAddress
    num_prompt: int
    max_len: int
    max_nodes: int
    adapter: str = ""
    tenant: str = ""
    first_len: int = 0


@quickly_made
@dataclass(frozen=True, slots=True)
class Follow:
    """Go on from a step's own pick: feed it as a child of its row, pick again, and so on, without a step for each.

    num_more: picks beyond the first, at most; an engine may make fewer. A pick less probable than stop_below, or one that ends a text, is
    the last. All picks but the last are live nodes then, a chain below the row.
    """

    num_more: int
    stop_below: float = 0.0


@quickly_made
@dataclass(frozen=True, slots=True)
class SequenceRows:
    """A sequence's part in a step.

    committed: int32 [num_committed], extends the committed prefix whose KV is present; must be empty while nodes are live.
    tokens: int32 [num_nodes] new tree nodes. parents: int32 [num_nodes], indices into the sequence's live nodes (those of earlier
    steps first, then this step's), -1 = newest committed token.
    wanted: whether results are wanted; the rows with results are the last committed row (if any was fed) and every new node.
    num_choices: Gumbel-top-k candidates per wanted row (0: none). top_logprobs: None = no logprobs, n = the chosen token's and n best.
    pick_probs: whether the picks' probabilities are wanted (under softmax(logits / T) without filters; at T = 0 at temperature 1).
    seconds: whether each pick's next best draw is wanted; for drafting, where it is a guess at what the pick should have been.
    acceptance: registered acceptance rule to judge the new nodes with, empty for none (drafting). draft_rows: for that rule.
    follow: for a sequence with one wanted row, below which nothing lives: what else to draft at once. Not
    beside penalties, a logit bias, choices, logprobs or a verdict: there one pick is made, as by an engine that follows none.
    """

    sequence: int
    committed: IntArray
    tokens: IntArray
    parents: IntArray
    wanted: bool = True
    num_choices: int = 0
    top_logprobs: int | None = None
    pick_probs: bool = False
    acceptance: str = ""
    draft_rows: tuple[DraftRow, ...] = ()
    follow: Follow | None = None
    seconds: bool = False


@quickly_made
@dataclass(frozen=True, slots=True)
class StepPlan:
    """All rows of one forward pass; a sequence appears at most once.

    lent_threads: compute threads that the engine may use beyond its own from this step on, until the next one or until `end_loan`, because
    somebody else's cores are idle. For speed only: in `invariant` numerics the results have the same bits, and an engine that cannot use
    them works with what it has.
    """

    sequences: tuple[SequenceRows, ...]
    lent_threads: int = 0


@quickly_made
@dataclass(frozen=True, slots=True)
class Choices:
    """Per wanted row: ids int32 [rows, k] in draw order, scores float32 [rows, k] (perturbed logits), probs float32 [rows, k]
    under the processed distribution, entropy float32 [rows] in nats of that distribution.

    At T = 0 probs and entropy are those of the unfiltered distribution at temperature 1 (a point mass says nothing about confidence).
    Where filters leave fewer than k tokens the rest have score -inf and probability 0: they are not draws.
    """

    ids: IntArray
    scores: FloatArray
    probs: FloatArray
    entropy: FloatArray


@quickly_made
@dataclass(frozen=True, slots=True)
class Seconds:
    """Per pick, the next draw under the same noise and filters: ids int32 [picks], -1 where there is none (or none near enough to matter,
    or it is not clear which); behind float32 [picks], how far its perturbed score (at T = 0 its logit) lies behind the pick's, else NaN.

    A heuristic for drafts, no promise: draws a rounding apart may stand in either order.
    """

    ids: IntArray
    behind: FloatArray


@quickly_made
@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Raw log-softmax of the model's logits: chosen float32 [rows], top_ids int32 [rows, n], top float32 [rows, n]."""

    chosen: FloatArray
    top_ids: IntArray
    top: FloatArray


@quickly_made
@dataclass(frozen=True, slots=True)
class SequenceResult:
    """picks int32 [wanted rows]: the target's own token after each row (row 0 is the last committed token's when one was fed).

    pick_probs: float32 [wanted rows], when asked for; so are seconds. With `follow`, all go on with the picks that followed, in
    follow_us.
    With a verdict, logprobs has one row per token of path + emitted, in order; without, one per wanted row (of its pick).
    """

    sequence: int
    picks: IntArray
    choices: Choices | None = None
    logprobs: TokenLogprobs | None = None
    verdict: Verdict | None = None
    pick_probs: FloatArray | None = None
    follow_us: int = 0
    seconds: Seconds | None = None


@quickly_made
@dataclass(frozen=True, slots=True)
class StepResult:
    """results in plan order. forward_us: model forward alone. step_us: the whole step. num_rows: rows fed, without padding.

    Of the plan's rows: what `follow` fed counts in step_us only. was_ahead: it was computed, or begun, before it was asked for, on
    fewer threads and beside other work.
    """

    results: tuple[SequenceResult, ...]
    forward_us: int
    step_us: int
    num_rows: int
    was_ahead: bool = False
