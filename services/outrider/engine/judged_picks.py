"""Verdicts of rules that look at nothing but picks: whose they are, and what they are.

Must not know logits, batches or how picks came to be.
"""

from __future__ import annotations

from outrider.engine.acceptance.contract import AcceptanceNoise, Guarantee, ProbArray, TargetRows
from outrider.engine.acceptance.registry import ACCEPTANCE_RULES
from outrider.types.sampling import NoiseAddress
from outrider.types.step import SequenceRows
from outrider.types.tree import DraftTree, IntArray, Verdict

_BY_PICKS = frozenset(name for name, rule in ACCEPTANCE_RULES.items() if not rule.reads_probs and rule.guarantee is Guarantee.TOKENS)


def is_judged_by_picks(rows: SequenceRows) -> bool:
    """Whether no rule is asked, or one that promises the target's own tokens and looks at nothing but its picks."""
    return not rows.acceptance or rows.acceptance in _BY_PICKS


def judged_picks(rows: SequenceRows, noise: NoiseAddress, base: int, picks: IntArray) -> Verdict:
    """What such a rule makes of the rows' tree. picks: int32 [1 + nodes], the root's first; base: position of the root's children."""
    tree, target = DraftTree(rows.tokens, rows.parents), TargetRows(picks, _no_probs)
    return ACCEPTANCE_RULES[rows.acceptance].accept(tree, rows.draft_rows, target, AcceptanceNoise(noise, base))


def _no_probs(row: int) -> ProbArray:
    raise AssertionError(f"a rule that says it reads no probabilities asked for those of row {row}")
