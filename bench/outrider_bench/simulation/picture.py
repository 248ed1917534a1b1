"""A simulated grid as a picture: speed by acceptance, a panel for each setting. Does nothing where matplotlib is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from outrider_bench.simulation.profile import Profile
from outrider_bench.simulation.verdict import CellResult

MAX_PANELS = 24
COLUMNS = 4


def draw(results: Sequence[CellResult], policies: Sequence[str], path: Path) -> bool:
    """Lines of tokens/s over plain decoding by steady acceptance (crosses: changing ones); False where it cannot be drawn."""
    panels = _panels(results)
    if importlib.util.find_spec("matplotlib") is None or not panels:
        return False
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(rows, columns, figsize=(4.2 * columns, 3.4 * rows), layout="constrained", squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, group) in zip(grid.flat, panels, strict=False):
        for number, policy in enumerate(policies):
            judged = policy not in group[0].fixed
            color = "black" if judged else f"C{number % 10}"
            steady = _points(group, policy, changing=False)
            changing = _points(group, policy, changing=True)
            axes.plot(*zip(*steady, strict=True), color=color, label=policy, linewidth=2.0 if judged else 1.0) if steady else None
            axes.plot(*zip(*changing, strict=True), "x", color=color) if changing else None
        axes.axhline(1.0, color="grey", linewidth=0.6)
        axes.set_title(title, fontsize="small")
        axes.set_xlabel("acceptance", fontsize="small")
        axes.set_ylabel("tokens/s over the first policy's", fontsize="small")
    grid.flat[0].legend(fontsize="x-small")
    figure.savefig(path)
    pyplot.close(figure)
    return True


def _panels(results: Sequence[CellResult]) -> list[tuple[str, list[CellResult]]]:
    """Cells that differ by acceptance only belong together; at most MAX_PANELS, evenly chosen."""
    groups: dict[str, list[CellResult]] = {}
    for result in results:
        cell = result.cell
        groups.setdefault(cell.setting(), []).append(result)
    titled = list(groups.items())
    step = max(1, -(-len(titled) // MAX_PANELS))
    return titled[::step]


def _points(group: Sequence[CellResult], policy: str, *, changing: bool) -> list[tuple[float, float]]:
    """(mean acceptance, speed over the first policy's) ascending."""
    points = []
    for result in group:
        profile = Profile.parse(result.cell.acceptance)
        if (len(profile.by_session) > 1 or len(profile.by_session[0]) > 1) == changing:
            base = next(iter(result.outcomes.values())).tokens_per_s
            points.append((profile.mean, result.outcomes[policy].tokens_per_s / base))
    return sorted(points)
