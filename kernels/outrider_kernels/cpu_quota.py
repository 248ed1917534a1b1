"""How many processors' time a container may use: a quota of its control groups, of which the cores that it may run on say nothing.

Threads that compute together use such a quota up in a part of each period, and then all of them stand still for the rest of it. Knows the
files of both versions of control groups. Must not know threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/proc/self/cgroup")
MOUNTED = Path("/sys/fs/cgroup")


def cpu_quota(groups: Path = GROUPS, mounted: Path = MOUNTED) -> float | None:
    """Processors, as many as the strictest of this process's groups allows; None without a quota, or on a system that has none.

    groups: what says which they are. mounted: where their files are; a container often sees its own group's as if it were the uppermost.
    """
    try:
        lines = groups.read_text("utf-8").splitlines()
    except OSError:
        return None
    return min((quota for line in lines for quota in _quotas(line, mounted)), default=None)


def _quotas(line: str, mounted: Path) -> Iterator[float]:
    """Of one hierarchy: NUMBER:CONTROLLERS:PATH, no controllers for that of version 2."""
    _, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if controllers and "cpu" not in controllers.split(","):
        return
    top = mounted / "cpu" if controllers else mounted
    group = top / path.lstrip("/")
    for folder in (group, *group.parents):
        if folder.is_relative_to(top):
            yield from _quota_of(folder, is_first=bool(controllers))


def _quota_of(folder: Path, *, is_first: bool) -> Iterator[float]:
    """Nothing where there is none (`max`, -1), or no such file."""
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first else ("cpu.max",)
    try:
        quota_us, period_us = map(float, " ".join((folder / name).read_text("utf-8") for name in names).split())
    except (OSError, ValueError):
        return
    if quota_us > 0 and period_us > 0:
        yield quota_us / period_us
