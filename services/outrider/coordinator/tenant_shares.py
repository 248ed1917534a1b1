"""Who has how much of the fleet, and who has to wait while it is nearly full.

The rule. A tenant's part is its samples that are placed and not finished. While the verifiers that fit a request are nearly full (their
sessions or their KV blocks used to NEARLY_FULL or more, all tenants' and the reported load counted), the request is refused if its tenant
has more than the mean of all tenants that have any, the asking one included. So a tenant with at most its equal share is served as long as
there is room at all, one alone is never refused, and what is left above NEARLY_FULL is for those who have less.
Must not know verifiers.
"""

from __future__ import annotations

from collections import Counter

from outrider.errors import Overloaded

NEARLY_FULL = 0.9


class TenantShares:
    """As many entries as tenants have samples placed."""

    def __init__(self) -> None:
        self._live: Counter[str] = Counter()
        self._total = 0

    def __len__(self) -> int:
        return len(self._live)

    def live(self, tenant: str) -> int:
        """Samples placed and not finished."""
        return self._live[tenant]

    def add(self, tenant: str, num_samples: int) -> None:
        """Placed."""
        self._live[tenant] += num_samples
        self._total += num_samples

    def remove(self, tenant: str, num_samples: int) -> None:
        """Finished."""
        self._live[tenant] -= num_samples
        self._total -= num_samples
        if not self._live[tenant]:
            del self._live[tenant]

    def check(self, tenant: str, used_share: float) -> None:
        """Raises Overloaded by the rule above. used_share: of the verifiers that fit."""
        num_tenants = len(self._live) + (tenant not in self._live)
        if used_share >= NEARLY_FULL and self._live[tenant] * num_tenants > self._total:
            raise Overloaded(
                f"the fleet is nearly full ({used_share:.0%}), and tenant {tenant!r} has {self._live[tenant]} samples in it, more than its "
                f"share: {num_tenants} tenants have {self._total}"
            )
