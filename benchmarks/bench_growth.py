"""By how much a process grows that checks many contracts, beside one that runs as many empty tests.

``python -m pytest -q benchmarks/bench_growth.py`` prints both slopes, of the resident set, after a collection of garbage.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from timing import environment

if TYPE_CHECKING:
    from pathlib import Path

CONTRACTS = 120

PROBE = """
import gc
import os

done = [0]


def pytest_runtest_logfinish(nodeid, location):
    done[0] += 1
    if done[0] % 500 == 0:
        gc.collect()
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        print(f"@@ {done[0]} {held}", flush=True)
"""

MANY = f"""
import torch.nn.functional as F
from torch import nn
from pytest_torchcheck import Contract, Labels

contracts = [
    Contract(name=f"net_{{number}}", model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
             inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
    for number in range({CONTRACTS})
]
"""

EMPTY = """
def made(tests):
    def test(self):
        pass

    return type("Made", (), {f"test_{number}": test for number in range(tests)})


for number in range(CONTRACTS):
    globals()[f"TestMade{number}"] = made(TESTS)
"""


def slope(folder: Path, text: str, *arguments: str) -> tuple[int, float]:
    """Return how many tests ran, and by how many bytes each makes the process grow: from a third of them on."""
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(PROBE)
    (folder / "test_many.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *arguments],
        cwd=folder, env=environment(folder.parent), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if "@@" in line]
    points = [(int(one[-2]), int(one[-1])) for one in lines]
    (first, low), (last, high) = points[len(points) // 3], points[-1]
    return last, (high - low) / (last - first)


def test_growth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Print what a process grows by for each contract, and for as many empty tests."""
    if not sys.platform.startswith("linux"):
        pytest.skip("it reads the resident set from /proc")
    ran, ours = slope(tmp_path / "ours", MANY, "--torchcheck", "--torchcheck-checks=!overfit")
    each = ran / CONTRACTS
    head = f"CONTRACTS, TESTS = {CONTRACTS}, {round(each)}\n"
    _, bare = slope(tmp_path / "bare", head + EMPTY)
    with capsys.disabled():
        print(
            f"\na contract of {each:.0f} checks: the process grows by {ours * each / 1e6:.2f} MB; "
            f"as many empty tests: {bare * each / 1e6:.2f} MB; ratio {ours / bare:.2f}"
        )
