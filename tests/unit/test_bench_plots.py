"""The pictures of a page are those of its tables: what is read, what is drawn, and what is committed.

pytest tests/unit/test_bench_plots.py
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from outrider.cli.__main__ import main
from outrider.errors import InvalidRequest
from outrider_bench.plots.drawing import figure_of, numbers_in, numbers_text, svg
from outrider_bench.plots.tables import Panel, Picture, pictures_in

BENCH = Path(__file__).parents[2] / "bench"
RESULTS = (BENCH / "RESULTS.md").read_text(encoding="utf-8")
MAX_BYTES = 60_000

SPEEDS = """## Speed

![Speed by task](plots/speed.svg)

### arithmetic, T = 0

| contestant | tokens/s | x plain |
|---|---|---|
| outrider plain | 100 | 1.00 |
| outrider serial | **250** | 2.50 |

### prose, T = 0

| contestant | tokens/s | x plain |
|---|---|---|
| outrider plain | 120 | 1.00 |
| outrider serial |  |  |

### replayed drafts, T = 0

| contestant | tokens/s | x plain |
|---|---|---|
| outrider plain | 7 | 1.00 |
| outrider pearl | 9 | 1.28 |

## Another section

### copying, T = 0

| contestant | tokens/s | x plain |
|---|---|---|
| outrider plain | 1 | 1.00 |
| outrider serial | 2 | 2.00 |
"""
CELLS = """![All](plots/cells.svg)

| cell | outrider plain | outrider serial |
|---|---|---|
| prose, T = 0 | 128 (1.00) | 640 (5.00) |
| copying, T = 0 | 126 (1.00) |  |
"""
DELAYS = """Text before.

![Far away](plots/far.svg)

| one-way delay | task | plain tokens/s | spread | serial | spread | adaptive | spread |
|---|---|---|---|---|---|---|---|
| 0 ms | prose | 521 | 35% | 2.38 | 11% | **2.36** | 76% |
| 5 ms | prose | 529 | 27% | 1.68 | 19% | 1.72 | 24% |
| 0 ms | all tasks | 630 | 49% | 0.37 | 23% | 0.72 | 25% |
| 5 ms | all tasks | 555 | 22% | 1.17 | 16% | 1.61 | 39% |
"""
FAR = Picture(
    "Far away",
    "plots/far.svg",
    False,
    (
        Panel("prose", ("0 ms", "5 ms"), {"serial": (2.38, 1.68), "adaptive": (2.36, 1.72)}),
        Panel("all tasks", ("0 ms", "5 ms"), {"serial": (0.37, 1.17), "adaptive": (0.72, 1.61)}),
    ),
)
BARS = Picture(
    "Speed by task",
    "plots/speed.svg",
    True,
    (Panel("", ("arithmetic, T = 0", "prose, T = 0"), {"outrider plain": (100.0, 120.0), "outrider serial": (250.0, None)}),),
)


def test_every_committed_picture_has_the_numbers_of_its_table() -> None:
    stale = [picture.path for picture in pictures_in(RESULTS) if unlike(picture)]
    assert stale == [], "draw them again: outrider bench plots bench/RESULTS.md"


def unlike(picture: Picture) -> bool:
    return numbers_in((BENCH / picture.path).read_text(encoding="utf-8")) != numbers_text(picture)


def test_a_changed_table_is_told_from_its_picture() -> None:
    bars = next(picture for picture in pictures_in(RESULTS) if picture.is_bars)
    before, link, after = RESULTS.partition(f"]({bars.path})")
    changed = before + link + re.sub(r"\| (\d+)(?= )", r"| \g<1>0", after, count=1)  # the first number below the link
    assert [picture.path for picture in pictures_in(changed) if unlike(picture)] == [bars.path]


def test_the_page_shows_machines_by_delay_and_speed_by_contestant_and_task() -> None:
    pictures = pictures_in(RESULTS)
    assert sorted(picture.path for picture in pictures) == sorted(f"plots/{path.name}" for path in (BENCH / "plots").iterdir())
    by_delay = [picture for picture in pictures if not picture.is_bars]
    assert by_delay
    assert all({"serial", "pearl", "adaptive"} <= panel.series.keys() for picture in by_delay for panel in picture.panels)
    by_task = [picture.panels[0] for picture in pictures if picture.is_bars]
    assert by_task
    for panel in by_task:
        assert {"transformers generate", "outrider plain", "outrider adaptive"} <= panel.series.keys()
        assert {"arithmetic, T = 0", "copying, T = 0.8", "prose, T = 0"} <= set(panel.across)


def test_tables_of_a_cell_each_are_one_picture_as_far_as_they_are_alike() -> None:
    assert pictures_in(SPEEDS) == [BARS]


def test_a_table_of_cells_shows_its_first_numbers() -> None:
    (found,) = pictures_in(CELLS)
    series = {"outrider plain": (128.0, 126.0), "outrider serial": (640.0, None)}
    assert found == Picture("All", "plots/cells.svg", True, (Panel("", ("prose, T = 0", "copying, T = 0"), series),))


def test_a_table_by_distance_has_a_panel_for_each_task_and_shows_ratios_only() -> None:
    assert pictures_in(DELAYS) == [FAR]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("![a](plots/a.svg)\n\n## Next\n\n| cell | x |\n|---|---|\n| a | 1 |\n", "plots/a.svg: no table follows"),
        ("![a](plots/a.svg)\n\n| key | value |\n|---|---|\n| a | 1 |\n", "begins with 'key'"),
        ("![a](plots/a.svg)\n\n| cell | x |\n|---|---|\n| a | fast |\n", "'fast' is no number"),
        ("![a](plots/a.svg)\n\n| contestant | x |\n|---|---|\n| a | 1 |\n", "cannot be read"),
        ("![a](../a.svg)\n\n| cell | x |\n|---|---|\n| a | 1 |\n", "not below the page's folder"),
        ("![a](/tmp/a.svg)\n\n| cell | x |\n|---|---|\n| a | 1 |\n", "not below the page's folder"),
    ],
)
def test_what_cannot_be_shown_is_named(page: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        pictures_in(page)


def test_the_bars_are_as_high_as_the_numbers() -> None:
    axis = figure_of(BARS).axes[0]
    drawn = {bars.get_label(): [bar.get_height() for bar in bars] for bars in axis.containers}
    assert drawn == {"outrider plain": [100.0, 120.0], "outrider serial": [250.0]}
    places = [round(bar.get_x() + bar.get_width() / 2) for bars in axis.containers for bar in bars]
    assert places == [0, 1, 0]


def lines_of(axis: Axes) -> dict[str, tuple[float, ...]]:
    """By label; those without one are no series."""
    lines = {str(line.get_label()): np.asarray(line.get_ydata(), dtype=float) for line in axis.get_lines()}
    return {label: tuple(heights.tolist()) for label, heights in lines.items() if not label.startswith("_")}


def test_the_lines_go_through_the_numbers() -> None:
    figure = figure_of(FAR)
    assert [axis.get_title() for axis in figure.axes] == ["prose", "all tasks"]
    for axis, panel in zip(figure.axes, FAR.panels, strict=True):
        assert lines_of(axis) == panel.series


def test_a_gap_in_a_line_stays_one() -> None:
    holed = Picture("a", "a.svg", False, (Panel("", ("0 ms", "5 ms"), {"serial": (None, 1.0)}),))
    gap, number = lines_of(figure_of(holed).axes[0])["serial"]
    assert math.isnan(gap)
    assert number == 1.0


@pytest.mark.parametrize("picture", [BARS, FAR])
def test_a_file_is_small_and_the_same_again_and_says_its_numbers(picture: Picture) -> None:
    text = svg(picture)
    assert text == svg(picture)
    assert len(text.encode()) < MAX_BYTES
    assert "<dc:date>" not in text
    assert numbers_in(text) == numbers_text(picture)
    assert picture.title in text
    assert numbers_in("<svg/>") == ""


def test_committed_pictures_are_small() -> None:
    assert [path.name for path in (BENCH / "plots").iterdir() if path.stat().st_size > MAX_BYTES] == []


def test_the_command_draws_every_picture_of_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(SPEEDS + "\n" + DELAYS, encoding="utf-8")
    assert main(["bench", "plots", str(page)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == 'RESULT {"drawn": ["speed.svg", "far.svg"]}'
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["far.svg", "speed.svg"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plots"], "name the pages"),
        (["plots", "nowhere.md"], "there is no page nowhere.md"),
        (["speed", "page.md"], "speed takes no further word, got page.md"),
    ],
)
def test_what_the_command_cannot_draw_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert said in capsys.readouterr().err
