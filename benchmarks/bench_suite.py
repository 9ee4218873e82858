"""What a suite of twenty small contracts takes with two workers of xdist, beside one process.

``tox -e bench`` prints it. Elapsed times say whether workers pay; processor times hold also where the machine is busy.
Runs alternate, after one of each that does not count.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from timing import environment

if TYPE_CHECKING:
    from pathlib import Path

CONTRACTS, FILES, ROUNDS = 20, 4, 3
WAYS = {"one process": (), "-n 2": ("-n2",), "-n 2 --dist loadscope": ("-n2", "--dist=loadscope")}

HEAD = """
import torch.nn.functional as F
from torch import nn
from pytest_torchcheck import Labels, contract
"""

CONTRACT = """
@contract(inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net_{number}():
    return nn.Sequential(nn.Linear(6, {width}), nn.Tanh(), nn.Linear({width}, 3))
"""


def took(folder: Path, *arguments: str) -> tuple[float, float]:
    """Return the elapsed and the processor time of one pytest in a folder, in seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment(folder.parent),
        capture_output=True,
        text=True,
        check=False,
    )
    elapsed = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    return elapsed, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def test_twenty_contracts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Print both times of each way, and their ratios to those of one process."""
    pytest.importorskip("xdist")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for file in range(FILES):
        each = range(file, CONTRACTS, FILES)
        text = "".join(CONTRACT.format(number=number, width=8 + number) for number in each)
        (tmp_path / f"test_models_{file}.py").write_text(HEAD + text)
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number in range(ROUNDS + 1):
        for way, arguments in WAYS.items():
            found = took(tmp_path, "--torchcheck", *arguments)
            if number:
                times[way].append(found)
    medians = {
        way: tuple(statistics.median(kind) for kind in zip(*found, strict=True))
        for way, found in times.items()
    }
    elapsed, processor = medians["one process"]
    with capsys.disabled():
        for way, (wall, used) in medians.items():
            print(
                f"\n{CONTRACTS} contracts, {way}: {wall:.1f} s elapsed ({wall / elapsed:.2f}), "
                f"{used:.1f} s of the processor ({used / processor:.2f})"
            )
