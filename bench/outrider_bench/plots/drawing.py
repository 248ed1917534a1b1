"""A picture as SVG: small, the same bytes for the same numbers, and with its numbers inside, so that a test can hold it to its table.

Text stays text, ids come from a fixed salt, and there is no date. Must not read pages or know what was measured.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import asdict
from textwrap import fill
from typing import Any
from xml.sax.saxutils import unescape

import matplotlib as mpl
from matplotlib.figure import Figure

from outrider_bench.plots.tables import Panel, Picture

SALT = "outrider"
SETTINGS = {"svg.hashsalt": SALT, "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9.0}
BARS_INCHES, LINES_INCHES = (11.0, 4.2), (3.4, 3.4)
MIN_PANELS = 2.2  # of whose width a picture of lines is at least: beside them is the legend
MAX_COLOURS = 10  # of matplotlib's own circle of colours; a series more begins it again, hatched or dashed
_NUMBERS = re.compile(r"<dc:description>(.*?)</dc:description>", re.DOTALL)
LABEL_CHARS = 12  # of a line below the bars
_GROUP = 0.84  # of a cell's width is bars


def svg(picture: Picture) -> str:
    """The file's text."""
    with mpl.rc_context(SETTINGS):
        written = io.BytesIO()
        # An empty creator: matplotlib's own would name its version, and any new one would change every file.
        metadata = {"Date": None, "Creator": None, "Title": picture.title, "Description": numbers_text(picture)}
        figure_of(picture).savefig(written, format="svg", metadata=metadata)
    return "\n".join(line.rstrip() for line in written.getvalue().decode("utf-8").splitlines()) + "\n"


def numbers_text(picture: Picture) -> str:
    """The picture's panels as JSON, as they stand in its file."""
    return json.dumps([asdict(panel) for panel in picture.panels])


def numbers_in(text: str) -> str:
    """What numbers_text said when the file was written; empty for a file that was written by others."""
    found = _NUMBERS.search(text)
    return unescape(found.group(1)) if found else ""


def figure_of(picture: Picture) -> Figure:
    """Bars in one panel, or lines in a panel each."""
    if picture.is_bars:
        figure = Figure(figsize=BARS_INCHES, layout="constrained")
        axes = [figure.subplots()]
        _bars(axes[0], picture.panels[0])
    else:
        width, height = LINES_INCHES
        figure = Figure(figsize=(width * max(MIN_PANELS, len(picture.panels)), height), layout="constrained")
        axes = list(figure.subplots(1, len(picture.panels), sharey=True, squeeze=False)[0])
        for axis, panel in zip(axes, picture.panels, strict=True):
            _lines(axis, panel)
        axes[0].set_ylabel("times plain decoding")
    figure.suptitle(picture.title, fontsize="large")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize="small")
    return figure


def _bars(axis: Any, panel: Panel) -> None:
    width = _GROUP / len(panel.series)
    for number, (name, values) in enumerate(panel.series.items()):
        shown = [(place, value) for place, value in enumerate(values) if value is not None]
        axis.bar(
            [place + (number + 0.5) * width - _GROUP / 2 for place, _ in shown],
            [value for _, value in shown],
            width,
            label=name,
            color=f"C{number % MAX_COLOURS}",
            hatch="//" if number >= MAX_COLOURS else None,
        )
    axis.set_xticks(range(len(panel.across)), [fill(text, LABEL_CHARS) for text in panel.across])
    axis.set_ylabel("tokens per second")
    axis.grid(axis="y", linewidth=0.4)
    axis.set_axisbelow(True)


def _lines(axis: Any, panel: Panel) -> None:
    for number, (name, values) in enumerate(panel.series.items()):
        numbers = [float("nan") if value is None else value for value in values]
        style = "--" if number >= MAX_COLOURS else "-"
        axis.plot(range(len(values)), numbers, style, marker="o", markersize=4, label=name, color=f"C{number % MAX_COLOURS}")
    axis.axhline(1.0, color="grey", linewidth=0.8)
    axis.set_xticks(range(len(panel.across)), panel.across)
    axis.set_xlabel("one way")
    axis.set_title(panel.title, fontsize="medium")
    axis.set_ylim(bottom=0.0)
