"""One drafter as the verifier's session sees it: its incarnation, its guess tree, and whether it is worth waiting for.

Aligns every tail with the committed truth: what repeats the truth is passed over, what contradicts it is useless, a gap discards until
the next tree (docs/architecture.md section 3). Tails are untrusted: everything is checked before it joins a tree. Must not know rounds,
engines, other drafters or clocks.
"""

from __future__ import annotations

from enum import Enum

from outrider.errors import ProtocolViolation
from outrider.session.asked_times import AskedTimes
from outrider.session.drafter_tally import DrafterTally
from outrider.session.guess_depths import GuessDepths
from outrider.session.guess_tree import GuessTree
from outrider.session.leave_times import LeaveTimes
from outrider.session.prefix import CommittedPrefix
from outrider.session.tail_check import check_tail
from outrider.types.frames import Tail, TailEnd
from outrider.types.tree import MAX_TREE_NODES, ROOT, DraftRow

MAX_MISSED_DEADLINES = 3
# Rounds that began past their deadline with at most a trickle (one level) from a drafter, less rounds that it brought more for.
MAX_LATE_ROUNDS = 8
NS_PER_US = 1_000
MAX_UNTOLD_TOKENS = 64  # a drafter without credit is told at least so often, so that what it has to read then stays short
_STILL_PAUSED_WHILE_FOLLOWED = frozenset({TailEnd.CONFIDENCE, TailEnd.EOS})
_MORE = TailEnd.MORE  # what every tail and every commit asks for, without the look-up of a member


class LinkState(Enum):
    """DEFERRED: it is there, and nothing was sent yet. OPENING: Open sent, no answer yet. LIVE: answered. CLOSED: ended or lost, may join
    again. BANNED: broke the protocol, never again."""

    OPENING = 1
    LIVE = 2
    CLOSED = 3
    BANNED = 4
    DEFERRED = 5


class TailFate(Enum):
    """What became of a tail. FOREIGN: its prefix is not ours (hash mismatch), the drafter must be re-opened."""

    JOINED = 1
    STALE = 2
    REPEATED = 3
    GAP = 4
    FOREIGN = 5


_JOINED = TailFate.JOINED


class DrafterLink:
    """State of one drafter within one session.

    starts_over_at: committed length at which the drafter is known to begin a new tree (after a contradiction or an Open); while the
    truth has not moved on from there, nothing it sent before can follow. credit: the newest draft_until it was given.
    told_len: committed tokens that were sent to it; asked: when it was given leave to guess on from them; leaves: and how far.
    hedge_nodes: side branches it may hold at present, max_hedge_nodes: ever.
    newest_levels: levels of the tree that the nodes of the newest joined tail lie on, side branches left out. depth, num_live: of the
    guesses beyond the truth, side branches left out; side_depths: of those on side branches (GuessTree.side_depths). tally: what it did, in
    all its incarnations. depths: how far its guesses were from what it knew.
    Nobody waits for a drafter after MAX_MISSED_DEADLINES in silence, until it answers, nor after MAX_LATE_ROUNDS with at most a trickle,
    until it brings more: one token a round, just before the deadline, would only cost time. What it sends is used if it is there in time.
    """

    __slots__ = (  # more than a dictionary shares between instances, and read anew in every round: side by side they are found sooner
        "_discarding",
        "_end",
        "_has_delivered",
        "_heard",
        "_judged_len",
        "_mismatched_len",
        "_newest_tree",
        "_num_hedged",
        "_num_late",
        "_num_levels_heard",
        "_num_mismatches",
        "_num_missed",
        "_outcomes",
        "_tallied_len",
        "_tree_hash",
        "asked",
        "credit",
        "depth",
        "depths",
        "hedge_nodes",
        "incarnation",
        "leaves",
        "max_hedge_nodes",
        "name",
        "newest_levels",
        "num_live",
        "num_reopens",
        "open_len",
        "rows",
        "side_depths",
        "starts_over_at",
        "state",
        "takes_turns",
        "tally",
        "told_len",
        "tree",
    )

    def __init__(self, name: str, incarnation: int, *, takes_turns: bool = False) -> None:
        self.name = name
        self.takes_turns = takes_turns
        self.incarnation = incarnation
        self.state = LinkState.CLOSED
        self.credit = 0
        self.num_reopens = 0
        self.max_hedge_nodes = self.hedge_nodes = 0
        self.tally = DrafterTally()
        self._reset(0)

    def _reset(self, prefix_len: int) -> None:
        self.open_len = self.told_len = prefix_len
        self.asked = AskedTimes()
        self.leaves = LeaveTimes()
        self.starts_over_at = prefix_len
        self.tree: GuessTree | None = None
        self.rows: dict[int, DraftRow] = {}
        self.depths = GuessDepths()
        self.depth = 0
        self.num_live = 0
        self.side_depths: tuple[int, ...] = ()
        self.newest_levels = 0
        self._newest_tree = -1
        self._tree_hash = 0
        self._end = TailEnd.MORE
        self._discarding = False
        self._num_levels_heard = 0
        self._heard = False
        self._has_delivered = False
        self._num_missed = 0
        self._num_late = 0
        self._judged_len = prefix_len
        self._outcomes: list[bool] = []
        self._num_mismatches = self._num_hedged = 0
        self._mismatched_len = prefix_len
        self._tallied_len = prefix_len

    @property
    def is_open(self) -> bool:
        """Whether frames go to it."""
        return self.state is LinkState.LIVE or self.state is LinkState.OPENING

    @property
    def is_stalled(self) -> bool:
        """It missed so many deadlines, or only trickled past so many, that nobody waits for it until it answers, or brings more."""
        return self._num_missed >= MAX_MISSED_DEADLINES or self._num_late >= MAX_LATE_ROUNDS

    @property
    def is_worth_waiting(self) -> bool:
        """It is live, answers in time, and is not between trees because of a gap."""
        return self.state is LinkState.LIVE and not self._discarding and not self.is_stalled

    def is_following(self, prefix_len: int) -> bool:
        """False when it is known to start over at the newest commit, so that nothing can be waited for yet."""
        return self.starts_over_at != prefix_len

    def is_pending(self, prefix_len: int) -> bool:
        """More of its guesses may be expected unasked: it has credit and has not said that it paused."""
        return self.is_worth_waiting and self.may_be_at_work(prefix_len)

    def may_be_at_work(self, prefix_len: int) -> bool:
        """It is reading the prompt, or has leave to guess on and has not said that it paused, whether or not anybody waits for it."""
        if self.state is not LinkState.LIVE:
            return self.state is LinkState.OPENING
        return self._end is TailEnd.MORE and self.credit > prefix_len + self.depth

    def is_at_rest(self, prefix_len: int) -> bool:
        """It is not open, or has no leave to guess beyond the truth, no guess that stands and not much to hear; one that has not answered
        yet too, for far away that takes a good part of a short answer."""
        return not self.is_open or (self.credit <= prefix_len < self.told_len + MAX_UNTOLD_TOKENS and not self.num_live)

    def reopen(self, prefix_len: int, max_hedge_nodes: int = 0) -> None:
        """Begin a new incarnation at this prefix. max_hedge_nodes: of side branches; with any, the tree is a chain but for them."""
        self.incarnation += 1
        self.max_hedge_nodes = max_hedge_nodes
        self.state = LinkState.OPENING
        self.credit = self.hedge_nodes = 0
        self._reset(prefix_len)

    def close(self, state: LinkState) -> None:
        """Forget its guesses; CLOSED or BANNED."""
        self.state = state
        self.tree = None
        self.rows = {}
        self.depth = self.num_live = 0
        self.side_depths = ()

    def take(self, tail: Tail, prefix: CommittedPrefix, vocab_size: int) -> TailFate:
        """Judge a tail of the present incarnation; raises ProtocolViolation on what no honest drafter sends."""
        tokens, parents = check_tail(tail, vocab_size)
        if tail.tree_id < self._newest_tree:
            return TailFate.STALE
        fate = self._begin_tree(tail, prefix) if tail.tree_id > self._newest_tree else self._locate(tail)
        if fate is _JOINED:
            self._join(tail, tokens, parents, prefix)
        return fate

    def _begin_tree(self, tail: Tail, prefix: CommittedPrefix) -> TailFate:
        if not self.open_len <= tail.base <= len(prefix):
            raise ProtocolViolation(f"tree {tail.tree_id} stands at {tail.base}, outside [{self.open_len}, {len(prefix)}]")
        self._newest_tree = tail.tree_id
        self.tree = None
        self.depths.begin_tree()
        self.rows = {}
        self.depth = self.num_live = 0
        self.side_depths = ()
        if tail.first_node != 0:
            self._discarding = True
            return TailFate.GAP
        if tail.prefix_hash != prefix.hash_at(tail.base):
            return TailFate.FOREIGN
        self.tree = GuessTree(tail.tree_id, tail.base, width=1 if self.max_hedge_nodes else MAX_TREE_NODES)
        self._tree_hash = tail.prefix_hash
        self._discarding = False
        return _JOINED

    def _locate(self, tail: Tail) -> TailFate:
        tree = self.tree
        if tree is None:
            return TailFate.STALE
        if tail.base != tree.base or tail.prefix_hash != self._tree_hash:
            raise ProtocolViolation(f"tree {tail.tree_id} moved from base {tree.base} to {tail.base}")
        if tail.first_node == tree.num_nodes:
            return _JOINED
        if tail.first_node > tree.num_nodes:
            self.tree = None
            self.depth = self.num_live = 0
            self.side_depths = ()
            self._discarding = True
            return TailFate.GAP
        if tail.first_node + len(tail.tokens) > tree.num_nodes:
            raise ProtocolViolation(f"tail at node {tail.first_node} overlaps the {tree.num_nodes} nodes sent before it")
        return TailFate.REPEATED

    def _join(self, tail: Tail, tokens: list[int], parents: list[int], prefix: CommittedPrefix) -> None:
        tree = self.tree
        assert tree is not None
        tree.append(tokens, parents)
        self.depths.join(len(tokens), tail.base, tail.begin_ns // NS_PER_US)
        self.newest_levels = len(tokens) if tree.is_chain else tree.num_levels(tail.first_node)
        for row in tail.rows:
            if not ROOT <= row.parent < tree.num_nodes:
                raise ProtocolViolation(f"a draft row names node {row.parent}, which does not exist")
            self.rows[row.parent] = row
        self._end = tail.end
        self._num_levels_heard += self.newest_levels
        self._heard = True
        self._num_missed = 0
        known_len = len(prefix)
        self._follow(prefix, known_len)
        reaches_on = self.credit > known_len + self.depth
        if tail.end is not TailEnd.CREDIT or not self.num_live:
            self.leaves.go_on()
        else:
            self.leaves.stop(known_len + self.depth, known_len)
        if reaches_on and self._end is TailEnd.CREDIT:
            self._end = _MORE  # it paused for credit that is on its way to it
        is_whole = not reaches_on or tail.end is not _MORE
        has_leave = self.credit > known_len  # who is asked for nothing delivers nothing
        self._has_delivered |= has_leave and (is_whole or self._num_levels_heard > 1)

    def take_outcomes(self) -> list[bool]:
        """Guesses that the truth overtook before any round could verify them, right or wrong, since last asked.

        Left out, acceptance would be known only of guesses that came in time, which in overlapped rounds are those after right ones.
        """
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def take_mismatches(self) -> tuple[int, int]:
        """Since last asked: guesses that the truth contradicted, and of them those where it went on along a side branch instead."""
        counts = self._num_mismatches, self._num_hedged
        self._num_mismatches = self._num_hedged = 0
        return counts

    def observe_commit(self, prefix: CommittedPrefix, judged_len: int) -> None:
        """The truth grew: move along it, and expect the drafter to go on unless it still waits at the end of what it guessed.

        judged_len: positions before it were judged by a round, if they were guessed.
        """
        if judged_len > self._judged_len:
            self._judged_len = judged_len
        if self._num_late and self._has_delivered:  # a round that it brought more for than a trickle makes up for a late one
            self._num_late -= 1
        self._num_levels_heard = 0
        self._heard = self._has_delivered = False
        if self.tree is not None:
            self._follow(prefix, len(prefix))
        if self.num_live == 0 or self._end not in _STILL_PAUSED_WHILE_FOLLOWED:
            self._end = _MORE

    def _follow(self, prefix: CommittedPrefix, prefix_len: int) -> None:
        """Walk the root along the truth; notice where the tree cannot go on."""
        tree = self.tree
        assert tree is not None
        if tree.root_len < prefix_len:
            self._walk(tree, prefix)
        position = tree.root_len
        num_below, num_levels = tree.main_size()
        if position == prefix_len:
            self.num_live, self.depth = num_below, num_levels
            self.side_depths = () if tree.is_chain else tree.side_depths()
            return
        if num_below:
            self._judge(position, position + 1, tree.first_child(tree.root), right=False)
            self._count_mismatch(position)
        self.num_live = self.depth = 0
        self.side_depths = ()
        # The truth left the tree: by another token than guessed, or beyond the end of a tree whose drafter had paused.
        left = num_below > 0 or self._end is not _MORE
        if left and position >= prefix.newest_begin:
            self.starts_over_at = prefix_len
        if left:
            self.leaves.go_on()
        self._end = _MORE  # it has, or will have, the commit that leads away from this tree, and goes on from there

    def _walk(self, tree: GuessTree, prefix: CommittedPrefix) -> None:
        """Follow the truth as far as it was guessed."""
        begin, above = tree.root_len, tree.root
        path = tree.follow(prefix.tokens_from(begin))
        if tree.is_chain:
            self._judge(begin, tree.root_len, begin - tree.base, right=True)
            return
        for position, node in enumerate(path, begin):
            took_side = tree.is_side_of(node, above)
            self._judge(position, position + 1, tree.first_child(above), right=not took_side)
            if took_side:
                self._take_side(position, prefix)
            above = node

    def _take_side(self, position: int, prefix: CommittedPrefix) -> None:
        """The truth entered a side branch at this position: it stays in the tree, but the drafter goes on from there only once it hears."""
        self._count_mismatch(position)
        self._num_hedged += 1  # early, or in time to overtake the truth again
        if position >= prefix.newest_begin:
            self.starts_over_at = len(prefix)

    def _count_mismatch(self, position: int) -> None:
        """Each position once."""
        if position >= self._mismatched_len:
            self._mismatched_len = position + 1
            self._num_mismatches += 1

    def _judge(self, begin: int, end: int, node: int | None, *, right: bool) -> None:
        """The guesses for committed positions [begin, end), each once: for the tally and by depth whether they were verified or overtaken,
        and as outcomes if no round has judged them. node: the first of them, the others follow by number."""
        if end > self._judged_len:
            self._outcomes += [right] * (end - max(begin, self._judged_len))
            self._judged_len = end
        if end > self._tallied_len:
            first = begin if begin > self._tallied_len else self._tallied_len
            if node is not None:
                self.depths.judge(node + first - begin, first, end, right=right)
            self._tallied_len = end
            if right:
                self.tally.num_right += end - first
            else:
                self.tally.num_wrong += end - first

    def miss_deadline(self, prefix_len: int) -> bool:
        """A round starts after its deadline; True (and counted) when its drafter brought at most a trickle."""
        if self._has_delivered or not self.is_pending(prefix_len):
            return False
        self._num_late += 1
        self.tally.num_missed_deadlines += 1
        self._num_missed += not self._heard
        return True

    def discard_tree(self) -> None:
        """Give up the present tree: what follows of it is discarded until the next one."""
        self.tree = None
        self.rows = {}
        self.depth = self.num_live = 0
        self.side_depths = ()
        self._discarding = True
