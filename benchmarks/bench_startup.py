"""What the plugin costs a project that does not use it: pytest's start, and each unrelated test.

``tox -e bench`` prints both; the plugin must be installed, so that ``-p no:torchcheck`` takes it away. Times are of
the processor, in subprocesses that alternate, so that a busy machine does not matter.
"""

from __future__ import annotations

import importlib.metadata
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

PAIRS, SUITE_PAIRS = 15, 5
FILES, TESTS = 30, 100


def installed() -> bool:
    """Say whether pytest loads the plugin by itself."""
    return "torchcheck" in importlib.metadata.entry_points(group="pytest11").names


def seconds(folder: Path, *arguments: str, status: int) -> float:
    """Time of the processor, of the user and the system, that one pytest takes in a folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
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
