"""What a step's results make of a session's tree: the children of each row that was fed, by pick, by draws, or on side branches.

Knows rows' results and trees. Must not know engines, sessions' steps or in which order rows are fed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from outrider.drafting.draft_rows import RowDrawer
from outrider.drafting.hedges import Branch, Second, second_behind
from outrider.drafting.model_tree import ModelTree
from outrider.types.step import SequenceResult
from outrider.types.tree import DraftRow


def grow_picked(tree: ModelTree, parents: Sequence[int], outcome: SequenceResult) -> list[float]:
    """A chain's next node is the row's pick; returns the new nodes' log-probabilities."""
    assert outcome.pick_probs is not None
    logprobs: list[float] = []
    for parent, pick, prob in zip(parents, outcome.picks.tolist(), outcome.pick_probs.tolist(), strict=True):
        if tree.add_children(parent, (pick,), (0.0,), prob, 0.0):
            logprobs.append(math.log(max(prob, 1e-30)))
    return logprobs


def grow_followed(tree: ModelTree, parent: int, outcome: SequenceResult) -> list[float] | None:
    """A chain of picks, all but the last of which were fed: nothing but the last may end it. Returns the new nodes' log-probabilities where
    they were asked for."""
    picks = outcome.picks.tolist()
    probs = None if outcome.pick_probs is None else outcome.pick_probs.tolist()
    seconds = _seconds_of(outcome)
    newest = tree.add_fed(parent, picks[:-1], seconds[:-1])
    if tree.add_children(newest, (picks[-1],), (0.0,), 1.0 if probs is None else probs[-1], 0.0):
        tree.note_row(newest, seconds[-1] if seconds else None)
    elif probs is not None:
        del probs[-1]
    return None if probs is None else [math.log(max(prob, 1e-30)) for prob in probs]


def grow_chosen(tree: ModelTree, parents: Sequence[int], shares: Sequence[int], outcome: SequenceResult) -> list[float]:
    """Children are the row's best perturbed scores in draw order, as many as its share; returns the new nodes' log-probabilities."""
    assert outcome.choices is not None
    choices, width = outcome.choices, tree.limits.tree_width
    logprobs: list[float] = []
    table = (choices.ids.tolist(), choices.scores.tolist(), choices.probs.tolist(), choices.entropy.tolist())
    for parent, share, ids, scores, probs, entropy in zip(parents, shares, *table, strict=True):
        num = sum(math.isfinite(score) for score in scores[:share])
        steps = _log_softmax(scores[:num])
        num_added = tree.add_children(parent, ids[:num], steps, max(probs[:width]), entropy)
        logprobs += [math.log(max(prob, 1e-30)) for prob in probs[:num_added]]
    return logprobs


def grow_branches(tree: ModelTree, branches: Sequence[Branch], outcome: SequenceResult) -> None:
    """Each row's node goes on with its pick, by the same stop rules as the chain."""
    for row, branch in enumerate(branches):
        node = tree.feed_branch(branch)
        best_prob = 1.0 if outcome.pick_probs is None else float(outcome.pick_probs[row])
        entropy = 0.0
        if outcome.choices is not None and tree.wants_choices:
            best_prob, entropy = float(outcome.choices.probs[row, 0]), float(outcome.choices.entropy[row])
        if tree.add_children(node, (int(outcome.picks[row]),), (0.0,), best_prob, entropy, is_hedge=True):
            tree.note_row(node, second_of(outcome, row))


def grow_drawn(
    tree: ModelTree, parents: Sequence[int], shares: Sequence[int], outcome: SequenceResult, drawer: RowDrawer
) -> tuple[DraftRow, ...]:
    """Rejection acceptance: children are drawn by private noise from exactly the sparse row that is sent along."""
    assert outcome.logprobs is not None
    rows: list[DraftRow] = []
    for index, (parent, share) in enumerate(zip(parents, shares, strict=True)):
        position = len(tree.truth) if parent == tree.root else tree.positions[parent] + 1
        top_ids, top = outcome.logprobs.top_ids[index], outcome.logprobs.top[index]
        row, drawn, values = drawer.draw(parent, position, top_ids, top, int(outcome.picks[index]), share)
        tree.add_children(parent, drawn, values, 1.0, 0.0)
        rows.append(row)
    return tuple(rows)


def second_of(outcome: SequenceResult, row: int) -> Second | None:
    """A row's second choice, from its draws or its candidates; None where there is none, or it was not asked for."""
    seconds, choices = outcome.seconds, outcome.choices
    if seconds is not None:
        return second_behind(int(seconds.ids[row]), float(seconds.behind[row]))
    if choices is None or choices.ids.shape[1] < 2:
        return None
    first, second = choices.scores[row, :2].tolist()
    return second_behind(int(choices.ids[row, 1]), first - second)


def _seconds_of(outcome: SequenceResult) -> list[Second | None]:
    """Of every pick; empty where they were not asked for."""
    if outcome.seconds is None:
        return []
    both = zip(outcome.seconds.ids.tolist(), outcome.seconds.behind.tolist(), strict=True)
    return [second_behind(token, behind) for token, behind in both]


def _log_softmax(scores: Sequence[float]) -> list[float]:
    """Log-shares of a row's candidates: how far the best perturbed score stands above its siblings."""
    if len(scores) < 2:
        return [0.0] * len(scores)
    top = scores[0]
    total = math.log(sum(math.exp(score - top) for score in scores))
    return [score - top - total for score in scores]
