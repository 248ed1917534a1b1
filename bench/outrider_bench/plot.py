"""A speed run as a picture: bars of tokens per second, a group for each cell. Does nothing where matplotlib is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from outrider_bench.results import Row


def draw(rows: Sequence[Row], path: Path) -> bool:
    """Write the picture (by the path's suffix: .svg, .png); False where it cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    groups = list(dict.fromkeys(row.cell for row in rows))
    names = list(dict.fromkeys(row.contestant for row in rows))
    width = 0.8 / len(names)
    figure, axes = pyplot.subplots(figsize=(1.5 + 1.6 * len(groups), 4.5), layout="constrained")
    for index, name in enumerate(names):
        speeds = {row.cell: row.summary.tokens_per_s for row in rows if row.contestant == name}
        places = [number + index * width for number, cell in enumerate(groups) if cell in speeds]
        axes.bar(places, [speeds[cell] for cell in groups if cell in speeds], width, label=name)
    axes.set_xticks([number + 0.4 - width / 2 for number in range(len(groups))], [cell.name for cell in groups], rotation=20, ha="right")
    axes.set_ylabel("tokens per second")
    axes.legend(fontsize="small")
    figure.savefig(path)
    pyplot.close(figure)
    return True
