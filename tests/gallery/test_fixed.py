"""Every mended twin of the gallery passes what its bug fails."""

from __future__ import annotations

import pytest
from gallery import ENTRIES, HERE, run, told


@pytest.mark.parametrize("code", ENTRIES)
def test_fixed(code, monkeypatch):
    report = run(HERE / code / "fixed.py", monkeypatch)
    assert report.ok, str(report)
    assert told(report) == []
    assert any(report.with_status("passed"))
