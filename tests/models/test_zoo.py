"""No red finding on small public models that plain torch does not confirm; each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.models.zoo import TRUE, ZOO
from tests.models.zoo.__main__ import load

load()
ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60
"""Processor time of one model, its import and its build included."""
ROWS: list[dict[str, Any]] = []


@pytest.fixture(scope="module", autouse=True)
def _table() -> Any:
    yield
    for row in sorted(ROWS, key=lambda row: -row["steps"]):
        red = ", ".join(code for _, _, code in row["red"])
        print(f"\n{row['name']}: {row['seconds']} s, {row['steps']} plain steps {red}", end="")


@pytest.mark.parametrize("name", sorted(ZOO))
def test_no_false_alarm(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.models.zoo", name, "--seconds", str(SECONDS)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if "ModuleNotFoundError" in done.stderr or "ImportError" in done.stderr:
        pytest.skip(done.stderr.strip().rpartition("\n")[2])
    assert done.returncode == 0, done.stderr[-2000:]
    # a library may print lines of its own before the row
    lines = done.stdout.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("{"))
    row, told = json.loads(lines[start]), "\n".join(lines[start + 1 :])
    ROWS.append(row)
    wrong = [red for red in row["red"] if red[2] not in TRUE.get(name, {})]
    assert not wrong, f"{wrong}\n{told}"
