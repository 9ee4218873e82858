"""Every bug of the gallery is one cause, told in its golden text.

Write the texts anew with ``TORCHCHECK_GALLERY=write``, and read what has changed.
"""

from __future__ import annotations

import difflib
import os

import pytest
from gallery import ENTRIES, HERE, comparable, run, told


@pytest.mark.filterwarnings("ignore:Using a target size")  # torch says it of loss-stretched too
@pytest.mark.parametrize("code", ENTRIES)
def test_bug(code, monkeypatch):
    report = run(HERE / code / "bug.py", monkeypatch)
    found = told(report)
    assert [finding.code for finding in found] == [code], str(report)
    text = str(found[0])
    assert "explaining it failed" not in text, text
    golden = HERE / code / "expected.txt"
    if os.environ.get("TORCHCHECK_GALLERY") == "write":
        golden.write_text(text + "\n", encoding="utf-8")
    expected = golden.read_text(encoding="utf-8")
    if comparable(text) != comparable(expected):
        pytest.fail("\n".join(difflib.unified_diff(expected.splitlines(), text.splitlines(), lineterm="")))
