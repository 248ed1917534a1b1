"""Files as such: no package in a generic folder, no file too long, no word that must not be here, and the logs that a bench keeps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from house.repository import ROOT, is_generated, own_files
from house.tree_rules import MAX_PYTHON_LINES, forbidden_words, misplaced_packages, too_long

TOP_FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()}
FILES = [path for path in own_files() if not is_generated(path)]


def test_generic_folders_are_never_packages() -> None:
    assert misplaced_packages(FILES) == []


def test_a_package_in_a_generic_folder_is_found() -> None:
    right = [Path("services/outrider/__init__.py"), Path("kernels/outrider_kernels/__init__.py"), Path("drafter_service/__init__.py")]
    wrong = [Path("kernels/__init__.py"), Path("tests/unit/__init__.py"), Path("proto/outrider/__init__.py")]
    assert misplaced_packages(right + wrong) == [str(path) for path in wrong]


def test_no_python_file_is_too_long(tmp_path: Path) -> None:
    assert too_long(ROOT, FILES) == []
    (tmp_path / "long.py").write_text("x = 1\n" * (MAX_PYTHON_LINES + 1), encoding="utf-8")
    assert len(too_long(tmp_path, [Path("long.py")])) == 1


def test_no_forbidden_word_is_in_the_repository() -> None:
    found = list(forbidden_words(ROOT, FILES))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("setup.sh", "pip install --index-url https://py" + "pi.org/simple torch"),
        ("notes.md", "see /ro" + "ot/results.txt"),
        ("load.py", 'PATH = "/wo' + 'rk/models"'),
        ("later.py", "# TO" + "DO: finish"),
        ("test_it.py", "@pytest.mark.sk" + "ip(reason='flaky')"),
        ("quiet.py", "try:\n    f()\nexcept Exception:\n    " + "pass"),
    ],
)
def test_a_forbidden_word_is_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert len(list(forbidden_words(tmp_path, [Path(name)]))) == 1


def test_the_pages_exist() -> None:
    pages = (
        "README.md",
        "docs/architecture.md",
        "docs/development.md",
        "docs/pacing.md",
        "router_service/README.md",
        "bench/RESULTS.md",
        "bench/HISTORY.md",
        "bench/LOG.md",
    )
    assert [page for page in pages if not (ROOT / page).is_file()] == []


def test_every_link_and_every_file_that_a_page_names_is_there() -> None:
    pages = [path for path in FILES if path.suffix == ".md"]
    assert [f"{page}: {name}" for page in pages for name in missing_names(page)] == []


def missing_names(page: Path) -> list[str]:
    """Relative links of a page, and files it names from the root in backticks, that are not there."""
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    files = [name for name in re.findall(r"`([\w./-]+\.(?:py|md|sh|toml|txt|proto))`", text) if name.split("/")[0] in TOP_FOLDERS]
    return [link for link in links if link and not (ROOT / page.parent / link).exists()] + [
        name for name in files if not (ROOT / name).is_file()
    ]
