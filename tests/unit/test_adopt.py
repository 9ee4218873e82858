"""Every block of ``docs/adopt.md`` runs, in its order, as a reader would paste it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_runs_from_its_first_block_to_its_last(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "adopt.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.S | re.M)
    assert {kind for kind, _ in blocks} == {"python", "sh", "text"}
    (tmp_path / "shop").mkdir()
    printed = ""
    for kind, block in blocks:
        if kind == "python":
            (tmp_path / "shop" / "models.py").write_text(block)
        elif kind == "sh":
            printed += run(block, tmp_path)
        elif block.startswith("torchcheck: "):
            assert block in printed
    assert (tmp_path / "known_findings.txt").is_file()
    written = (tmp_path / "tests" / "test_contracts.py").read_text()
    assert 'inputs="B 5",' in written


def run(command: str, folder: Path) -> str:
    """Run one line as a shell would, with this interpreter."""
    (line,) = command.strip().splitlines()
    program, *arguments = shlex.split(line)
    known = {"pytest": ["-m", "pytest", "-p", "no:cacheprovider"], "python": []}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    done = subprocess.run(
        [sys.executable, *known[program], *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout
