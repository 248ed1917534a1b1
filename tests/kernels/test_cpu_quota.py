"""What a container's control groups allow of the processors' time, in both versions of their files.

Run: pytest tests/kernels/test_cpu_quota.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider_kernels.cpu_quota import cpu_quota


def quota(tmp_path: Path, groups: str, **files: str) -> float | None:
    """files: their contents by path below where control groups are mounted, __ for / and _ as it is."""
    (tmp_path / "groups").write_text(groups)
    for name, content in files.items():
        path = tmp_path / "mounted" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return cpu_quota(tmp_path / "groups", tmp_path / "mounted")


def test_a_container_of_version_2_sees_its_own_group_as_the_uppermost(tmp_path: Path) -> None:
    assert quota(tmp_path, "0::/\n", **{"cpu.max": "250000 100000\n"}) == 2.5


def test_the_strictest_of_a_group_and_those_above_counts(tmp_path: Path) -> None:
    files = {"a__cpu.max": "400000 100000\n", "a__b__cpu.max": "max 100000\n", "a__b__c__cpu.max": "800000 100000\n"}
    assert quota(tmp_path, "0::/a/b/c\n", **files) == 4.0


def test_version_1_has_two_files_and_a_path_that_a_container_does_not_see(tmp_path: Path) -> None:
    groups = "3:memory:/docker/1\n2:cpu,cpuacct:/docker/1\n0::/\n"
    assert quota(tmp_path, groups, **{"cpu__cpu.cfs_quota_us": "150000\n", "cpu__cpu.cfs_period_us": "100000\n"}) == 1.5


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("0::/\n", {}),
        ("0::/\n", {"cpu.max": "max 100000\n"}),
        ("0::/\n", {"cpu.max": "\n"}),
        ("2:cpu:/\n", {"cpu__cpu.cfs_quota_us": "-1\n", "cpu__cpu.cfs_period_us": "100000\n"}),
        ("2:cpu:/\n", {"cpu__cpu.cfs_quota_us": "100000\n"}),
        ("3:cpuset:/\n", {"cpu.max": "100000 100000\n"}),
        ("nonsense\n\n", {"other": ""}),
    ],
)
def test_where_nothing_is_said_there_is_none(groups: str, files: dict[str, str], tmp_path: Path) -> None:
    assert quota(tmp_path, groups, **files) is None
    assert cpu_quota(tmp_path / "no such file", tmp_path) is None
