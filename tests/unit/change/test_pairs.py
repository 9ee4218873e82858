"""A refactoring is unchanged, within rounding at most; a silent change is found with its module and line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from change_pairs import BLOCK, CHANGED, UNCHANGED, edited
from change_versions import Here, before, compare

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Here:
    """The block as it was before any of the changes."""
    return before(tmp_path_factory.mktemp("block"), BLOCK)


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_refactoring_is_unchanged(tmp_path: Path, old: Here, name: str) -> None:
    found = compare(tmp_path, old, edited(UNCHANGED[name]))
    assert list(found) == ["held"], "\n".join(map(str, found.values()))
    assert "bit by bit" in found["held"].summary or "within rounding" in found["held"].summary


@pytest.mark.parametrize("name", CHANGED)
def test_a_silent_change_is_found(tmp_path: Path, old: Here, name: str) -> None:
    replacements, code, blamed, line = CHANGED[name]
    found = compare(tmp_path, old, edited(replacements))
    assert {c for c, f in found.items() if f.status == "violated"} == {code}, "\n".join(
        map(str, found.values())
    )
    finding = found[code]
    assert finding.culprits[0].name == blamed
    assert finding.location is not None
    assert finding.location.text == line
    assert line in finding.cause
