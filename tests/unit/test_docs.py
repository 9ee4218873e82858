"""The docs say what is there: a page for every check, tests that exist, generated parts that are current."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_torchcheck import promises
from pytest_torchcheck.catalogue import catalogue

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    page.stem: page for page in (ROOT / "docs" / "checks").glob("*.md") if page.stem != "index"
}


def test_every_check_has_a_page_and_every_page_a_check() -> None:
    assert set(PAGES) == set(catalogue())


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_says_what_why_how_and_how_to_opt_out(name: str) -> None:
    text = PAGES[name].read_text(encoding="utf-8")
    for heading in ("## Why", "## How", "## When it does not apply"):
        _, _, after = text.partition(heading)
        body = re.sub(r"<!--.*?-->", "", after.partition("\n## ")[0])
        assert len(body.split()) >= 5, f"{heading} of {name} is empty"
    assert catalogue()[name].summary in text
    assert catalogue()[name].cost in text


def test_the_generated_parts_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "docs/build.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,  # half a minute's work, on a machine that may have a dozen others
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_fits_three_screens() -> None:
    text = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(text.splitlines()) <= 150


def test_links_between_the_docs_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def rows_of_the_guides() -> dict[int, str]:
    """Return the file that shows each row, by the row's number."""
    text = (ROOT / "docs" / "guides.md").read_text(encoding="utf-8")
    return {int(n): path for n, path in re.findall(r"^\| (\d+) \|.*\| `([^`]+)` \|$", text, re.M)}


def test_every_row_of_the_guides_names_a_test_that_exists() -> None:
    rows = rows_of_the_guides()
    assert list(rows) == list(range(1, 46))
    assert [path for path in rows.values() if not (ROOT / path).exists()] == []


def test_the_tests_of_a_row_are_in_the_file_that_it_names() -> None:
    shown: dict[int, set[str]] = {}
    for file in sorted((ROOT / "tests" / "guides").glob("test_*.py")):
        for number in re.findall(r"^def test_row_(\d\d)", file.read_text(encoding="utf-8"), re.M):
            shown.setdefault(int(number), set()).add(file.relative_to(ROOT).as_posix())
    named = {number: {path} for number, path in rows_of_the_guides().items()}
    assert shown == named


def test_every_promise_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    assert [
        name for name in promises.__all__ if name != "Promise" and f"`{name}(" not in text
    ] == []
