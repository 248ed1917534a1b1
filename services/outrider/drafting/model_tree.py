"""One session of the model drafter: its guess tree beside what of it the engine has fed.

Knows which nodes have KV. A guessed leaf has none: it is only the outcome of its parent's row, and is fed when it is expanded, or as a
committed token when the truth reaches it before that (so 'all accepted' feeds the drafter's own last token, ALGORITHMS.md section 0).
Invariant between steps: every committed token is cached and the root's children are guessed, or the newest committed token is not
cached. Must not know engines' insides, frames or other sessions. Plain lists: the arrays here are tiny and the cost is per token.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafting.contract import SourceSession
from outrider.drafting.hedges import MAX_HEDGE_ROWS, Branch, Hedges, Second, has_precedence
from outrider.drafting.length.contract import StopRule
from outrider.drafting.length.registry import rules_for
from outrider.engine.prefill_order import Prefill
from outrider.types.frames import TailEnd
from outrider.types.tree import ROOT


class ModelTree:
    """The live guesses of one session. Node indices are those of the session's GuessTree.

    num_cached: committed tokens with KV. found_len: of them, those that were found cached. held_len: committed tokens that there are KV
    blocks for. awaits_prefix: another session is being read whose blocks will be this one's too. live: nodes below the root. leaves: those
    of them that may be expanded, value by node (cumulative log-score). closed: nodes below which nothing is to be guessed now, and why.
    place: engine index of each fed live node. hedges: what of a chain's tree lies on side branches, None before any were allowed;
    hedge_budget: how many of its nodes may live.
    """

    def __init__(self, session: SourceSession, eos_token_ids: frozenset[int], max_depth: int) -> None:
        self.session = session.session
        self.limits = session.limits
        self.sampling = session.sampling
        self.with_rows = session.with_rows
        self.rules: tuple[StopRule, ...] = () if session.with_rows else rules_for(session.limits)
        self.wants_choices = self.limits.tree_width > 1 or any(rule.needs_entropy for rule in self.rules)
        self.truth: list[int] = session.prefix.tolist()
        self.num_cached = 0
        self.found_len = 0
        self.held_len = 0
        self.awaits_prefix = False
        self._prefix = session.prefix
        self._tenant = session.tenant
        self._eos_token_ids = eos_token_ids
        self._max_depth = max_depth
        self.hedges: Hedges | None = None
        self.hedge_budget = 0
        self.plant(0)

    def plant(self, tree_id: int) -> None:
        """Start an empty tree after the present truth."""
        self.tree_id = tree_id
        self.root = ROOT
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.positions: list[int] = []
        self.values: list[float] = []
        self.live: set[int] = set()
        self.leaves: dict[int, float] = {}
        self.closed: dict[int, TailEnd] = {}
        self.place: dict[int, int] = {}
        if self.hedges is not None:
            self.hedges.plant()

    @property
    def num_uncached(self) -> int:
        """Committed tokens still to be fed, the newest among them; 0 once the root's children are guessed."""
        return len(self.truth) - self.num_cached

    def skip(self, found_len: int) -> None:
        """The engine holds the KV of the first found_len committed tokens already. Before it was fed any."""
        self.num_cached = self.found_len = found_len

    @property
    def is_reading(self) -> bool:
        """Whether the prefix was not fed to its end."""
        return self.num_cached < len(self._prefix)

    def prefill(self) -> Prefill:
        """What of the prefix is still to be read."""
        return Prefill(self._prefix, self.num_cached, self.num_cached > self.found_len, self._tenant)

    # --- growing --------------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Nodes that may still be guessed, side branches apart."""
        return self.limits.max_nodes - len(self.live) + (0 if self.hedges is None else len(self.hedges.nodes))

    def expandable(self, draft_until: int) -> list[int]:
        """Leaves whose children would lie before draft_until, best first; at most tree_width, room permitting."""
        most = min(self.limits.tree_width, self.room)
        if most <= 0:
            return []
        if not self.leaves:
            return []
        positions, draft_until = self.positions, min(draft_until, len(self.truth) + self._max_depth)
        ready = [leaf for leaf in self.leaves if positions[leaf] + 1 < draft_until]
        if len(ready) > 1:
            ready.sort(key=self.leaves.__getitem__, reverse=True)
            del ready[most:]
        return ready

    def pause(self, draft_until: int) -> TailEnd:
        """Why nothing can be expanded now."""
        if self.room <= 0:
            return TailEnd.LIMIT
        if self.leaves or draft_until <= len(self.truth):
            limit = min(self.limits.max_len, len(self.truth) + self._max_depth)
            return TailEnd.CREDIT if draft_until < limit else TailEnd.LIMIT
        ends = list(self.closed.values()) if self.hedges is None else [self.closed.get(self.hedges.tip(self.root), TailEnd.EMPTY)]
        ends = [end for end in ends if end is not TailEnd.EMPTY]
        return TailEnd.CONFIDENCE if TailEnd.CONFIDENCE in ends else TailEnd.EOS if ends else TailEnd.EMPTY

    def shares(self, num_parents: int) -> list[int]:
        """How many children each of the parents may get: fixed before any is drawn, as rejection acceptance needs."""
        room = self.room
        if num_parents == 1:
            return [min(self.limits.tree_width, room)]
        shares: list[int] = []
        for left in range(num_parents, 0, -1):
            share = min(self.limits.tree_width, room - (left - 1))
            room -= share
            shares.append(share)
        return shares

    def mark_fed(self, nodes: Sequence[int]) -> None:
        """These leaves were fed, in this order after the ones fed before."""
        for node in nodes:
            del self.leaves[node]
            self.place[node] = len(self.place)

    def add_children(
        self, parent: int, tokens: Sequence[int], steps: Sequence[float], best_prob: float, entropy: float, *, is_hedge: bool = False
    ) -> int:
        """Guess children of a row in draw order; steps: their log-scores relative to the parent. Returns how many were added.

        is_hedge: the row is of a side branch.
        """
        last = False
        for rule in self.rules:
            if rule.stops(self.limits, best_prob, entropy):
                last = True
                if not rule.sends_trigger and self.live:
                    self.closed[parent] = TailEnd.CONFIDENCE
                    return 0
        position = len(self.truth) if parent == self.root else self.positions[parent] + 1
        value = 0.0 if parent == self.root else self.values[parent]
        for token, step in zip(tokens, steps, strict=True):
            node = self._add(parent, token, position, value + step)
            if token in self._eos_token_ids:
                self.closed[node] = TailEnd.EOS
            elif last:
                self.closed[node] = TailEnd.CONFIDENCE
            elif is_hedge and self.hedges is not None:
                self.hedges.end_at(node, parent, token)
            else:
                self.leaves[node] = value + step
        return len(tokens)

    def add_fed(self, parent: int, tokens: list[int], seconds: Sequence[Second | None]) -> int:
        """A chain of guesses below a row, each fed after the one before; returns the newest. They end nothing: the engine went on.

        seconds: of each row that guessed one of them; empty where nobody asked.
        """
        first, end = len(self.tokens), len(self.tokens) + len(tokens)
        position = len(self.truth) if parent == self.root else self.positions[parent] + 1
        value = 0.0 if parent == self.root else self.values[parent]
        self.tokens += tokens
        self.parents.append(parent)
        self.parents += range(first, end - 1)
        self.positions += range(position, position + len(tokens))
        self.values += [value] * len(tokens)
        self.live.update(range(first, end))
        self.place.update(zip(range(first, end), range(len(self.place), len(self.place) + len(tokens)), strict=True))
        if self.hedges is not None:
            for node, second in zip(range(first, end), seconds or [None] * len(tokens), strict=True):
                self._note(self.parents[node], node, second)
        return end - 1

    def _add(self, parent: int, token: int, position: int, value: float) -> int:
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.positions.append(position)
        self.values.append(value)
        self.live.add(node)
        return node

    # --- side branches --------------------------------------------------------------------------------------------------

    def allow_hedges(self, budget: int) -> None:
        """At most so many nodes of side branches may live from now on. Of chains only, and not where guesses come with their rows."""
        self.hedge_budget = 0 if self.with_rows or self.limits.tree_width > 1 else min(budget, self.limits.hedge_nodes)
        if self.hedge_budget and self.hedges is None:
            self.hedges = Hedges()
            for node in sorted(self.live):
                self.hedges.note(self.parents[node], node, 1.0, None)

    def note_row(self, parent: int, second: Second | None) -> None:
        """The newest node is the first child of this row, this its second choice, if it has one and was asked for it."""
        if self.hedges is not None:
            self._note(parent, len(self.tokens) - 1, second)

    def _note(self, parent: int, child: int, second: Second | None) -> None:
        assert self.hedges is not None
        if second is None:
            self.hedges.note(parent, child, 1.0, None)
        else:
            self.hedges.note(parent, child, 1.0 - second.share, None if second.token in self._eos_token_ids else second)

    def branches(self, draft_until: int) -> list[Branch]:
        """The rows of side branches most worth a step, best first."""
        if self.hedges is None or not self.hedge_budget:
            return []
        limit = min(draft_until, len(self.truth) + self._max_depth, self.limits.max_len)
        room = min(self.hedge_budget - len(self.hedges.nodes), self.limits.max_nodes + self.limits.hedge_nodes - len(self.live))
        return self.hedges.best(limit, self._position_of, MAX_HEDGE_ROWS, room)

    def prefers_branches(self, leaves: Sequence[int], branches: Sequence[Branch], price: float) -> bool:
        """Whether the best of these rows is worth more for its time than the chain's next guess, of which it costs so many."""
        return self.hedges is not None and bool(branches) and not has_precedence(price * self.hedges.reach(leaves[0]), branches)

    def feed_branch(self, branch: Branch) -> int:
        """This row was fed, after those fed before; returns its node."""
        assert self.hedges is not None
        node = branch.node
        if node is None:
            value = 0.0 if branch.parent == self.root else self.values[branch.parent]
            node = self._add(branch.parent, branch.token, self._position_of(branch.parent) + 1, value)
            self.hedges.open(branch, node)
        self.hedges.fed(node)
        self.place[node] = len(self.place)
        return node

    def _position_of(self, node: int) -> int:
        return len(self.truth) - 1 if node == self.root else self.positions[node]

    # --- the truth moves ------------------------------------------------------------------------------------------------

    def fed_path(self, path: Sequence[int]) -> tuple[int, ...]:
        """Engine indices of the path's fed nodes. Only its last node can lack KV: a node exists once its parent was fed."""
        place = self.place
        return tuple(place[node] for node in path if node in place)

    def descend(self, node: int) -> None:
        """The truth reached this node: forget what is not below it."""
        self.root = node
        live: set[int] = set()
        parents = self.parents
        for below in range(node + 1, len(parents)):
            if parents[below] == node or parents[below] in live:
                live.add(below)
        self.live = live
        self.leaves = {leaf: value for leaf, value in self.leaves.items() if leaf in live}
        self.closed = {closed: end for closed, end in self.closed.items() if closed in live or closed == node}
        if self.hedges is not None:
            tip = self.hedges.descend(node, live)
            if tip is not None:
                self.leaves[tip] = self.values[tip]  # the chain's end, now that the truth came by

    def renumber(self, kept: Sequence[int]) -> None:
        """The engine kept these of its live nodes (old indices in new order)."""
        fed = sorted(self.place, key=self.place.__getitem__)
        self.place = {fed[old]: new for new, old in enumerate(kept)}
