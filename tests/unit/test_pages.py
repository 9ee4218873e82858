"""Every code block of README and docs runs, or says why it does not; each page runs in one process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import forked
from tests.pages import Block, blocks_of, run, shown

ROOT = Path(__file__).resolve().parents[2]
# the gallery is made of programs that tests/gallery runs, one by one
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if page != ROOT / "docs" / "gallery.md" and blocks_of(page)
]
LEFT_OUT = [(page, block) for page in PAGES for block in blocks_of(page) if block.reason]


def label(value: object) -> str:
    if isinstance(value, Path):
        return value.relative_to(ROOT).as_posix()
    return str(value.line) if isinstance(value, Block) else str(value)


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_a_page_runs_from_its_first_block_to_its_last(page: Path, tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if "XDIST" not in name},
        "COLUMNS": "110",
        "OMP_NUM_THREADS": "1",
        "PY_COLORS": "0",
        "CI": "",
        "GITHUB_ACTIONS": "",
    }
    folder = tmp_path / "reader"
    folder.mkdir()
    done = forked.run(run, page, folder=folder, environment=environment, timeout=900)
    assert done.status == 0, f"{done.out}\n{done.err}"


@pytest.mark.parametrize(("page", "block"), LEFT_OUT, ids=label)
def test_a_block_that_is_not_run_says_why(page: Path, block: Block) -> None:
    assert len(block.reason.split()) >= 2
    pytest.skip(f"{label(page)}:{block.line}: {block.reason}")


def test_what_a_page_shows_must_be_what_was_printed() -> None:
    printed = "one\ntwo in 1.25s\nthree\nfour   \n==== end ====\n"
    assert shown("two in 9.99s\nthree\n", printed)
    assert shown("one\n...\nfour\n========= end =========\n", printed)
    assert not shown("one\nthree\n", printed)
    assert not shown("four\n...\none\n", printed)


def test_a_page_that_shows_something_else_fails(tmp_path: Path) -> None:
    page = tmp_path / "wrong.md"
    page.write_text("```python\nprint('a 1')\n```\n\n```text\na 2\n```\n", encoding="utf-8")
    folder = tmp_path / "reader"
    folder.mkdir()
    done = forked.run(run, page, folder=folder)
    assert done.status == 1
    assert "wrong.md:6 is not what is printed" in done.err
