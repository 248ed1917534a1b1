"""Where the beginnings of prefixes are warm: digest -> the replicas of one role that read it last. Bounded; the longest unused goes first.

Nobody says when a replica has dropped a prefix: an entry is believed for warm_s after its last use. Must not know what a digest is of.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

MAX_HOLDERS = 4  # of one digest: a prompt that everybody shares is warm in many places, and any of them will do


class PrefixAffinity:
    """Replicas are named by numbers that are never used again after they left. Times in seconds."""

    def __init__(self, max_entries: int, warm_s: float) -> None:
        self._max_entries = max_entries
        self._warm_s = warm_s
        self._holders: OrderedDict[bytes, dict[int, float]] = OrderedDict()  # replica -> last use, oldest first

    def __len__(self) -> int:
        return len(self._holders)

    def remember(self, digests: Sequence[bytes], replica: int, now_s: float) -> None:
        """The replica is about to read a prefix with these beginnings."""
        for digest in digests:
            holders = self._holders.setdefault(digest, {})
            holders.pop(replica, None)
            holders[replica] = now_s
            if len(holders) > MAX_HOLDERS:
                del holders[next(iter(holders))]
            self._holders.move_to_end(digest)
        while len(self._holders) > self._max_entries:
            self._holders.popitem(last=False)

    def warm(self, digests: Sequence[bytes], shares_of: Sequence[float], now_s: float) -> dict[int, float]:
        """Share of the prefix that is warm, by replica. Digests are of beginnings, shortest first; shares_of: what each stands for."""
        shares: dict[int, float] = {}
        for digest, share in zip(digests, shares_of, strict=True):
            for replica, used_s in self._holders.get(digest, {}).items():
                if now_s - used_s <= self._warm_s:
                    shares[replica] = share
        return shares
