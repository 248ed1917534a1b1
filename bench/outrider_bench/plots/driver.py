"""`outrider bench plots PAGE.md...`: draws, or draws again, every picture that the pages link to from the tables that they stand above.

Measures nothing. Run it after a table under a picture has changed: a test holds the pictures to their tables.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

from outrider.errors import InvalidRequest
from outrider_bench.plots.tables import pictures_in


def run(args: argparse.Namespace) -> int:
    """Draw, and print what was drawn. Raises InvalidRequest for a page that cannot be read, and where matplotlib is not installed."""
    if not args.files:
        raise InvalidRequest("plots", "name the pages, for example bench/RESULTS.md")
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidRequest("plots", "matplotlib is not installed: it is in the extra `plots`")
    drawn = [path for page in args.files for path in draw_page(page)]
    for path in drawn:
        print(path)
    print("RESULT " + json.dumps({"drawn": [path.name for path in drawn]}))
    return 0


def draw_page(page: Path) -> Sequence[Path]:
    """Write every picture of a page; where. Raises InvalidRequest for a page that is not there or has no picture."""
    from outrider_bench.plots.drawing import svg

    if not page.is_file():
        raise InvalidRequest("plots", f"there is no page {page}")
    pictures = pictures_in(page.read_text(encoding="utf-8"))
    if not pictures:
        raise InvalidRequest("plots", f"{page} links to no picture: a line ![title](plots/NAME.svg) above a table is one")
    paths = []
    for picture in pictures:
        path = page.parent / picture.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(svg(picture), encoding="utf-8")
        paths.append(path)
    return paths
