"""Processor times: what else runs on the machine does not count."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return that of a process which runs the tree that this file is in, as it runs once it is installed.

    Bytecode is written, to a place of its own, also where the machine forbids it: without it, all of
    the tree is compiled in each run.
    """
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    tree = str(Path(__file__).resolve().parents[1])
    return kept | {"PYTHONPATH": tree, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")} | more


def median(work: Callable[[], object], rounds: int = 3) -> float:
    """Return the median processor time of some calls, in seconds, after one that is not counted."""
    work()
    return statistics.median(_times(work, rounds))


def least(work: Callable[[], object], rounds: int) -> float:
    """Return the least processor time of some calls, in seconds."""
    return min(_times(work, rounds))


def _times(work: Callable[[], object], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return times
