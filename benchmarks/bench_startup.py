"""What the plugin costs a project that does not use it, and what its imports cost one that does.

``tox -e bench`` prints pytest's start, each unrelated test, and imports as ratios to ``import torch``; the plugin must be installed, so that ``-p no:torchcheck`` takes it away. Times are of
the processor, in subprocesses that alternate, so that a busy machine does not matter.
"""

from __future__ import annotations

import importlib.metadata
import resource
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from timing import environment

if TYPE_CHECKING:
    from pathlib import Path

PAIRS, SUITE_PAIRS, ROUNDS = 15, 5, 3
FILES, TESTS = 30, 100


def installed() -> bool:
    """Say whether pytest loads the plugin by itself."""
    return "torchcheck" in importlib.metadata.entry_points(group="pytest11").names


def seconds(folder: Path, *arguments: str, status: int) -> float:
    """Time of the processor, of the user and the system, that one pytest takes in a folder."""
    return process(
        folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, status=status
    )


def process(folder: Path, *arguments: str, status: int = 0) -> float:
    """The same of any Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(folder.parent),
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == status, done.stdout + done.stderr
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def pairs(folder: Path, *arguments: str, status: int, count: int) -> tuple[float, float]:
    """Medians with the plugin and without it, of runs that alternate after one of each that does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(count + 1):
        for which, without in enumerate(((), ("-p", "no:torchcheck"))):
            took = seconds(folder, *arguments, *without, status=status)
            if number:
                times[which].append(took)
    return statistics.median(times[0]), statistics.median(times[1])


@pytest.mark.skipif(not installed(), reason="the plugin is not installed")
def test_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Print what ``pytest --co -q`` takes in an empty folder, with the plugin and without it."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ours, bare = pairs(tmp_path, "--co", status=5, count=PAIRS)
    with capsys.disabled():
        print(
            f"\nstart of pytest in an empty folder: {ours * 1e3:.0f} ms with the plugin, {bare * 1e3:.0f} ms without, "
            f"{(ours - bare) * 1e3:+.1f} ms, ratio {ours / bare:.3f} (medians of {PAIRS} pairs)"
        )


@pytest.mark.skipif(not installed(), reason="the plugin is not installed")
def test_unrelated_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Print what each test of a suite that knows nothing of the plugin takes longer with it."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    body = "".join(f"def test_{n}():\n    pass\n\n" for n in range(TESTS))
    for number in range(FILES):
        (tmp_path / f"test_empty_{number}.py").write_text(body)
    ours, bare = pairs(tmp_path, status=0, count=SUITE_PAIRS)
    total = FILES * TESTS
    with capsys.disabled():
        print(
            f"\n{total} empty tests: {ours:.2f} s with the plugin, {bare:.2f} s without, "
            f"{(ours - bare) / total * 1e3:+.4f} ms per test, ratio {ours / bare:.3f} (medians of {SUITE_PAIRS} pairs)"
        )


SMALL = """
import torch.nn.functional as F
from torch import nn
from pytest_torchcheck import Labels, contract

@contract(inputs="B 4", targets=Labels("B", classes=3), loss=F.cross_entropy)
def perceptron():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
"""


@pytest.mark.skipif(not installed(), reason="the plugin is not installed")
def test_a_small_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Print what all checks of one small contract take beside ``import torch``, and beside its collection."""
    folders = {name: tmp_path / name for name in ("contract", "bare")}
    for name, text in (("contract", SMALL), ("bare", "import torch\n\ndef test(): pass\n")):
        folders[name].mkdir()
        (folders[name] / "pytest.ini").write_text("[pytest]\n")
        (folders[name] / "test_small.py").write_text(text)
    ours, bare = folders["contract"], folders["bare"]
    without = ("-p", "no:torchcheck", "-p", "no:hypothesispytest")
    ways = {
        "import torch": lambda: process(ours, "-c", "import torch"),
        "pytest and torch without the plugin": lambda: seconds(bare, *without, status=0),
        "collection": lambda: seconds(ours, "--torchcheck", "--co", status=0),
        "all checks": lambda: seconds(ours, "--torchcheck", status=0),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(ROUNDS + 1):
        for way, work in ways.items():
            took = work()
            times[way] += [took] if number else []
    found = {way: statistics.median(each) for way, each in times.items()}
    first = found["import torch"]
    with capsys.disabled():
        for way, took in found.items():
            print(
                f"\none small contract, {way}: {took:.2f} s of the processor, {took - first:+.2f}",
                end="",
            )
        print(f" (medians of {ROUNDS} runs)")


def imported(folder: Path) -> dict[str, float]:
    """Return what a run of a small contract spends on importing torch, this package and Hypothesis, in seconds.

    A module's own time counts, not what it imports in turn, so that nothing is counted twice; of
    torch all counts that it imports.
    """
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "importtime",
            "-m",
            "pytest",
            "-p",
            "torchcheck",
            "-q",
            "-s",  # imports are told on stderr, which pytest captures
            "--torchcheck",
            "-p",
            "no:cacheprovider",
        ],
        cwd=folder,
        # other plugins import what they like
        env=environment(folder.parent, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    times = {"torch": 0.0, "pytest_torchcheck": 0.0, "hypothesis": 0.0}
    for line in done.stderr.splitlines():
        parts = line.removeprefix("import time:").split("|")
        if not line.startswith("import time:") or not parts[0].strip().isdigit():
            continue
        name = parts[2].strip()
        if name == "torch":
            times["torch"] = int(parts[1]) * 1e-6
        elif (package := name.partition(".")[0]) in ("pytest_torchcheck", "hypothesis"):
            times[package] += int(parts[0]) * 1e-6
    return times


@pytest.mark.skipif(not installed(), reason="the plugin is not installed")
def test_imports_of_a_small_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Print imports of this package and of Hypothesis in a run where everything passes, as ratios to torch's."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_small.py").write_text(SMALL)
    rounds = [imported(tmp_path) for _ in range(ROUNDS)]
    ours, theirs = (
        statistics.median(each[name] / each["torch"] for each in rounds)
        for name in ("pytest_torchcheck", "hypothesis")
    )
    with capsys.disabled():
        print(
            f"\nimports of a small contract, as ratios to import torch: {ours:.2f} of this package, "
            f"{theirs:.2f} of Hypothesis, {ours + theirs:.2f} together (medians of {ROUNDS} runs)"
        )
