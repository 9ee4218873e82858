"""Processor times: what else runs on the machine does not count."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


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
