"""The model drafter: a small model behind the Engine seam guesses ahead for all its sessions in one forward a call.

Chains (tree_width 1) follow the draft model's own pick under the target's noise (docs/architecture.md section 1); trees add the
Gumbel-top-k of the perturbed logits as siblings, in draw order (RSD, 2402.14160; STAND, 2506.04708), expanding the leaves of the best
cumulative log-score first (EAGLE-2's order, with perturbed scores in place of probabilities). Where a chain may have side branches
(hedges.py), they are drafted in steps that no chain wants. After a commit it keeps what still matches and rolls back the rest. Every
`propose` is one engine step, so that fresh commits come in between; the chains of a few sessions may make several guesses in it. It loses
when a draft step costs nearly what a verify step does, or when the pair agrees on little. Must not know frames or streams.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from outrider.drafting.contract import Needs, Proposal, ProposeRequest, RunsAt, SourceSession
from outrider.drafting.draft_rows import ROW_SUPPORT, RowDrawer
from outrider.drafting.follow_cost import FollowCost
from outrider.drafting.hedges import Branch
from outrider.drafting.model_tree import ModelTree
from outrider.drafting.tree_growth import grow_branches, grow_chosen, grow_drawn, grow_followed, grow_picked, second_of
from outrider.engine.contract import Engine
from outrider.engine.prefill_order import waiting
from outrider.errors import UnknownSession
from outrider.types.frames import TailEnd
from outrider.types.step import Follow, SequenceResult, SequenceRows, SequenceSpec, StepPlan
from outrider.types.text_room import first_len, next_len, wants_room
from outrider.types.tree import MAX_TREE_NODES, ROOT, DraftRow, FloatArray, IntArray

# A long prefill takes at most this many rows of a step in which other sessions draft, so that it does not stall them.
PREFILL_SHARE = 128
# Up to this many committed tokens are caught up at once beside drafting rows: a round's own tokens, not a prompt.
CATCH_UP_LEN = 32

_NO_TOKENS: IntArray = np.empty(0, np.int32)


@dataclass(slots=True)
class _Part:
    """One session's part in the step under way: what it feeds (as in SequenceRows; above: the nodes' parents), and what it asks for.

    parents: the rows' nodes (the root's own row first when committed tokens end in it). shares: children of each, where they are several.
    branches: the rows are these, of side branches; parents is empty. rows: how the engine hears of it, once that is settled.
    """

    tree: ModelTree
    draft_until: int
    committed: IntArray
    tokens: IntArray
    above: IntArray
    parents: list[int]
    shares: list[int] = field(default_factory=list)
    branches: tuple[Branch, ...] = ()
    num_choices: int = 0
    top_logprobs: int | None = None
    pick_probs: bool = False
    seconds: bool = False
    follow: Follow | None = None

    @property
    def is_chain(self) -> bool:
        """Whether one row is expanded, which asks for nothing but its pick and its second choice."""
        tree = self.tree
        return len(self.parents) == 1 and not (tree.with_rows or tree.wants_choices)

    @property
    def num_rows(self) -> int:
        """Fed for certain."""
        return len(self.committed) + len(self.tokens)

    def rows(self) -> SequenceRows:
        """For the engine."""
        wanted = bool(self.parents or self.branches), self.num_choices, self.top_logprobs, self.pick_probs
        return SequenceRows(self.tree.session, self.committed, self.tokens, self.above, *wanted, follow=self.follow, seconds=self.seconds)


class ModelSource:
    """Draft source over an Engine. One thread owns both."""

    name = "model"
    runs_at = RunsAt.DRAFTER
    needs = Needs.NOTHING

    def __init__(self, engine: Engine, max_depth: int = MAX_TREE_NODES) -> None:
        """max_depth: levels of nodes the engine takes below the newest committed token."""
        self._engine = engine
        self._max_depth = max_depth
        self._eos_token_ids = frozenset(engine.identity.eos_token_ids)
        self._row_support = min(ROW_SUPPORT, engine.identity.vocab_size)
        self._trees: dict[int, ModelTree] = {}
        self._drawers: dict[int, RowDrawer] = {}
        self._follow_cost = FollowCost()
        self._turn = 0

    @property
    def num_sessions(self) -> int:
        """Open sessions."""
        return len(self._trees)

    def open(self, session: SourceSession) -> None:
        """Begin a session; raises DoesNotFit, Overloaded or AlreadyExists with nothing held."""
        limits = session.limits
        most = limits.max_nodes + limits.hedge_nodes
        held_len = first_len(len(session.prefix), limits.max_len)
        spec = SequenceSpec(session.sampling, session.noise, session.num_prompt, limits.max_len, most, "", session.tenant, held_len)
        self._engine.open(session.session, spec, session.prefix)
        tree = self._trees[session.session] = ModelTree(session, self._eos_token_ids, self._max_depth)
        tree.held_len = held_len
        tree.skip(self._engine.cached_len(session.session))
        if session.with_rows:
            self._drawers[session.session] = RowDrawer(session.sampling, session.noise)

    def close(self, session: int) -> None:
        """Free the session's tree and KV."""
        if self._trees.pop(session, None) is None:
            raise UnknownSession(f"session {session} is not open in the draft source")
        self._drawers.pop(session, None)
        self._engine.close(session)

    # --- the truth moves ------------------------------------------------------------------------------------------------

    def observe(self, session: int, tokens: IntArray, path: tuple[int, ...], *, reroot: bool, tree_id: int) -> None:
        """Keep the KV of what still matches and roll back the rest. Raises Overloaded where the text has grown and there are no blocks for
        more of it: the session is over then."""
        tree = self._trees[session]
        fed = tree.fed_path(path)
        whole = not reroot and len(fed) == len(path)
        if tree.place:
            kept = self._engine.keep(session, fed, subtree=whole)
            tree.num_cached += len(fed)
            tree.place = {} if not whole else tree.place
            if whole:
                tree.renumber(kept.tolist())
        tree.truth += tokens.tolist()
        if reroot:
            tree.plant(tree_id)
        else:
            tree.descend(path[-1])
        if tree.num_uncached == 0 and not tree.live:
            # The root was fed, but its children are gone (a full tree was re-rooted) or were withheld: its row must run again.
            tree.closed.clear()
            tree.num_cached = len(tree.truth) - 1
            self._engine.truncate(session, tree.num_cached)
        if wants_room(len(tree.truth), tree.held_len, tree.limits.max_len):
            held_len = next_len(len(tree.truth), tree.limits.max_len)
            self._engine.reserve(session, held_len)
            tree.held_len = held_len

    # --- drafting -------------------------------------------------------------------------------------------------------

    def propose(self, requests: list[ProposeRequest]) -> list[Proposal]:
        """One engine step over all requesting sessions that have something to expand or to catch up on."""
        parts = self._plan(requests)
        grown: dict[int, Proposal] = {}
        if parts:
            if len(parts) == len(requests):  # nobody else waits for this step to end
                self._follow_all(parts, requests)
            result = self._engine.step(StepPlan(tuple([part.rows() for part in parts])))
            note = self._follow_cost.note_branches if parts[0].branches else self._follow_cost.note
            note(result)
            follow_us = sum([outcome.follow_us for outcome in result.results])
            for part, outcome in zip(parts, result.results, strict=True):
                grown[part.tree.session] = self._apply(part, outcome, outcome.follow_us and follow_us)
        return [grown.get(request.session) or self._idle(request) for request in requests]

    def _idle(self, request: ProposeRequest) -> Proposal:
        """A session that was not in the step: it has a reason to pause, or it waits for room."""
        tree = self._trees[request.session]
        may_hedge = bool(tree.branches(request.draft_until))
        return Proposal(request.session, tree.tree_id, (), (), None, self._end(tree, request.draft_until), may_hedge=may_hedge)

    @staticmethod
    def _end(tree: ModelTree, draft_until: int) -> TailEnd:
        can_go_on = draft_until > len(tree.truth) if tree.num_uncached else bool(tree.expandable(draft_until))
        return TailEnd.MORE if can_go_on else tree.pause(draft_until)

    def _plan(self, requests: list[ProposeRequest]) -> list[_Part]:
        """Drafting rows first, then prefill in what is left; whoever found no room comes first in the next step."""
        left = self._engine.limits.max_rows
        parts: list[_Part] = []
        prefills: list[tuple[ModelTree, int]] = []
        late = self._late(requests)
        start = self._turn % len(requests) if requests else 0
        for request in requests[start:] + requests[:start]:
            tree = self._trees[request.session]
            tree.allow_hedges(request.hedge_nodes)
            if tree.num_uncached:
                if request.draft_until <= len(tree.truth):
                    continue
                if tree.session in late:
                    tree.awaits_prefix = True
                    continue
                self._take_prefix(tree)
                if tree.num_uncached > min(CATCH_UP_LEN, left):
                    prefills.append((tree, request.draft_until))
                    continue
                part = self._feed_truth(tree, request.draft_until, tree.num_uncached)
            else:
                leaves = tree.expandable(request.draft_until)
                if not leaves or not left:
                    continue
                if tree.hedge_budget and tree.prefers_branches(leaves, tree.branches(request.draft_until), self._follow_cost.branch_price):
                    continue
                part = self._feed_leaves(tree, request.draft_until, leaves[:left])
            parts.append(part)
            left -= part.num_rows
        self._turn += 1
        if not parts and not prefills:
            return self._plan_branches(requests[start:] + requests[:start], left)
        budget = min(left, PREFILL_SHARE) if parts else left
        for num_waiting, (tree, draft_until) in zip(range(len(prefills), 0, -1), prefills, strict=True):
            chunk_len = min(tree.num_uncached, -(-budget // num_waiting))
            if chunk_len:
                parts.append(self._feed_truth(tree, draft_until, chunk_len))
                budget -= chunk_len
        return parts

    def _plan_branches(self, requests: list[ProposeRequest], left: int) -> list[_Part]:
        """Side branches of all sessions, in a step that no chain wants."""
        parts: list[_Part] = []
        for request in requests:
            tree = self._trees[request.session]
            branches = [] if tree.num_uncached else tree.branches(request.draft_until)[:left]
            if branches:
                parts.append(self._feed_branches(tree, request.draft_until, tuple(branches)))
                left -= len(branches)
        return parts

    def _late(self, requests: list[ProposeRequest]) -> frozenset[int]:
        """Sessions that wait because another is being read whose blocks will be theirs too."""
        limits = self._engine.limits
        if len(requests) < 2 or not limits.prefix_cache:
            return frozenset()
        reading: list[ModelTree] = []
        for request in requests:
            tree = self._trees[request.session]
            if tree.is_reading and request.draft_until > len(tree.truth):
                reading.append(tree)
        if len(reading) < 2:
            return frozenset()
        reading.sort(key=lambda tree: tree.session)  # as they came, whatever the order of the requests
        return frozenset(waiting({tree.session: tree.prefill() for tree in reading}, limits.block_len))

    def _take_prefix(self, tree: ModelTree) -> None:
        """Before a session is fed that has waited: take over what was read meanwhile."""
        if tree.awaits_prefix:
            tree.awaits_prefix = False
            tree.skip(self._engine.match_prefix(tree.session, np.array(tree.truth, np.int32)))

    def _feed_truth(self, tree: ModelTree, draft_until: int, chunk_len: int) -> _Part:
        chunk = np.array(tree.truth[tree.num_cached : tree.num_cached + chunk_len], np.int32)
        wanted = chunk_len == tree.num_uncached
        parents = [tree.root] if wanted else []
        return self._part(tree, draft_until, chunk, _NO_TOKENS, _NO_TOKENS, parents)

    def _feed_leaves(self, tree: ModelTree, draft_until: int, leaves: list[int]) -> _Part:
        tokens = np.array([tree.tokens[leaf] for leaf in leaves], np.int32)
        above = [tree.parents[leaf] for leaf in leaves]
        parents = np.array([ROOT if parent == tree.root else tree.place[parent] for parent in above], np.int32)
        return self._part(tree, draft_until, _NO_TOKENS, tokens, parents, leaves)

    def _feed_branches(self, tree: ModelTree, draft_until: int, branches: tuple[Branch, ...]) -> _Part:
        tokens = np.array([branch.token for branch in branches], np.int32)
        above = [branch.parent for branch in branches]
        parents = np.array([ROOT if parent == tree.root else tree.place[parent] for parent in above], np.int32)
        part = _Part(tree, draft_until, _NO_TOKENS, tokens, parents, [], branches=branches)
        return self._asking(part)

    def _part(self, tree: ModelTree, draft_until: int, committed: IntArray, tokens: IntArray, above: IntArray, parents: list[int]) -> _Part:
        part = _Part(tree, draft_until, committed, tokens, above, parents)
        if not parents:
            return part
        if tree.with_rows or tree.wants_choices:
            part.shares = tree.shares(len(parents))
        return self._asking(part)

    def _asking(self, part: _Part) -> _Part:
        """With what is wanted of its rows."""
        tree = part.tree
        if tree.with_rows:
            part.top_logprobs = self._row_support
        elif tree.wants_choices:
            part.num_choices = tree.limits.tree_width
        part.pick_probs = bool(tree.rules) and not part.num_choices
        if tree.hedge_budget and part.num_choices:
            part.num_choices = max(part.num_choices, 2)
        part.seconds = tree.hedge_budget > 0 and not part.num_choices
        return part

    def _follow_all(self, parts: list[_Part], requests: list[ProposeRequest]) -> None:
        """Let guesses follow each chain's first in the same step, where all parts are such, and that pays. requests: of the parts."""
        if not all(part.is_chain for part in parts) or not self._follow_cost.pays(len(parts)):
            return
        most = self._follow_cost.most(len(parts))
        flush_nodes = {request.session: request.flush_nodes for request in requests}  # parts may stand in another order
        for part in parts:
            self._follow(part, flush_nodes[part.tree.session], most)

    def _follow(self, part: _Part, flush_nodes: int, most: int) -> None:
        tree = part.tree
        first = len(tree.truth) if part.parents[0] == tree.root else tree.positions[part.parents[0]] + 1
        last = min(part.draft_until, len(tree.truth) + self._max_depth) - 1
        num_more = min(last - first, tree.room - 1, (flush_nodes or most + 1) - 1, most)
        if num_more > 0:
            part.follow = Follow(num_more, tree.limits.stop_below)

    # --- results --------------------------------------------------------------------------------------------------------

    def _apply(self, part: _Part, outcome: SequenceResult, follow_us: int) -> Proposal:
        """follow_us: of the step, what went into anybody's picks that followed: all of it passes before this session has its own."""
        tree = part.tree
        tree.num_cached += len(part.committed)
        if len(part.tokens) and part.parents:
            tree.mark_fed(part.parents)
        first = len(tree.tokens)
        scores: list[float] | None = None
        rows: tuple[DraftRow, ...] = ()
        is_followed = 0 < len(part.parents) < len(outcome.picks)
        if part.branches:
            grow_branches(tree, part.branches, outcome)
        elif tree.with_rows:
            rows = grow_drawn(tree, part.parents, part.shares, outcome, self._drawers[tree.session]) if part.parents else ()
        elif is_followed:
            scores = grow_followed(tree, part.parents[0], outcome)
        elif part.pick_probs:
            scores = grow_picked(tree, part.parents, outcome)
        elif outcome.choices is not None and tree.wants_choices:
            scores = grow_chosen(tree, part.parents, part.shares, outcome)
        else:
            for parent, pick in zip(part.parents, outcome.picks.tolist(), strict=True):
                tree.add_children(parent, (pick,), (0.0,), 1.0, 0.0)
        if tree.hedges is not None and not part.branches and not is_followed and len(tree.tokens) > first:
            tree.note_row(part.parents[0], second_of(outcome, 0))
        tokens, parents = tuple(tree.tokens[first:]), tuple(tree.parents[first:])
        packed: FloatArray | None = None if scores is None else np.array(scores, np.float32)
        end, may_hedge = self._end(tree, part.draft_until), bool(tree.branches(part.draft_until))
        is_hedge = bool(part.branches)
        how = (is_hedge, may_hedge, follow_us)
        return Proposal(tree.session, tree.tree_id, tokens, parents, packed, end, rows, *how)
