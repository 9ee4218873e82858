"""Which of two pieces of work takes longer: run by turns in one process, judged by paired differences."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIDENCE: Final = 0.9995
"""Of each interval; a comparison looks at most a dozen times, so that all of them hold in 99 of 100."""
_FIRST_LOOK: Final = 16
_MORE: Final = 1.5  # times as many pairs before the next look
_SHORTEST_S: Final = 5e-4  # of one measured stretch: timers and calls cost a thousandth of it
_TURNS: Final = 5  # of each, of which the least counts, where they are short
_LONG_S: Final = 0.05  # a stretch that a scheduler interrupts anyway: one turn tells as much


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """What two pieces of work take beside each other.

    Attributes:
        ratio: Median of the first one's time over the second one's, over pairs.
        low, high: Confidence interval of that median, by order statistics: no distribution is assumed.
        pairs: How many pairs were measured.
        first_s, second_s: Median seconds of each.
    """

    ratio: float
    low: float
    high: float
    pairs: int
    first_s: float
    second_s: float

    def within(self, limit: float) -> bool | None:
        """Say whether the ratio is at most ``limit``; None where the interval holds it."""
        if self.high <= limit:
            return True
        return False if self.low > limit else None


def compare(
    first: Callable[[], object],
    second: Callable[[], object],
    limit: float,
    *,
    seconds: float = 20.0,
    seed: int = 0,
) -> Paired:
    """Time two pieces of work by turns until their ratio is known to be below or above a limit.

    A pair holds some turns of both in random order; the least time of each counts, which other work on
    the machine disturbs least, and what disturbs both for a while cancels.

    Args:
        first: Work, called many times; it waits for its device itself.
        second: Other work.
        limit: The ratio of the first one's time to the second one's that decides.
        seconds: How long to measure at most.
        seed: Decides the order of turns.
    """
    chance = random.Random(seed)
    start = time.perf_counter()
    calls = [_calibrated(work) for work in (first, second)]
    stretch = max(count * took for count, took in calls)
    turns = max(1, min(_TURNS, round(_LONG_S / stretch)))
    works = [(first, calls[0][0]), (second, calls[1][0])]
    times: list[tuple[float, float]] = []
    look, found = _FIRST_LOOK, None
    collecting = gc.isenabled()
    try:
        gc.disable()
        while found is None or time.perf_counter() - start < seconds:
            times.append(_pair(works, turns, chance))
            if len(times) % 64 == 0:
                gc.collect()  # between pairs, where it takes nobody's time
            if len(times) >= look or time.perf_counter() - start >= seconds:
                found = _interval(times)
                look = math.ceil(look * _MORE)
                if found.within(limit) is not None and len(times) >= _FIRST_LOOK:
                    return found
    finally:
        if collecting:
            gc.enable()
    return _interval(times)


def _calibrated(work: Callable[[], object]) -> tuple[int, float]:
    """Warm up; return how many calls make a stretch that can be timed, and the seconds of one call."""
    took = math.inf
    for _ in range(3):
        took = min(took, _timed(work, 1))
    count = max(1, math.ceil(_SHORTEST_S / took))
    return count, min(took, _timed(work, count) / count)


def _timed(work: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        work()
    return max(time.perf_counter() - start, 1e-9)


def _pair(
    works: list[tuple[Callable[[], object], int]], turns: int, chance: random.Random
) -> tuple[float, float]:
    """Return the least seconds of one call of each, over some turns in random order."""
    least = [math.inf, math.inf]
    for _ in range(turns):
        for which in chance.sample((0, 1), 2):
            work, count = works[which]
            least[which] = min(least[which], _timed(work, count) / count)
    return least[0], least[1]


def _interval(times: list[tuple[float, float]]) -> Paired:
    """Return the median ratio and its interval; with too few pairs for one, the interval is unbounded."""
    ratios = sorted(a / b for a, b in times)
    count = len(ratios)
    below = _rank(count)
    return Paired(
        ratio=statistics.median(ratios),
        low=ratios[below] if below >= 0 else 0.0,
        high=ratios[count - 1 - below] if below >= 0 else math.inf,
        pairs=count,
        first_s=statistics.median(a for a, _ in times),
        second_s=statistics.median(b for _, b in times),
    )


def _rank(count: int) -> int:
    """Return the place of the value below which the median is with at most half of 1 - CONFIDENCE."""
    allowed, chance, below = (1 - CONFIDENCE) / 2, 0.0, -1
    for k in range(count // 2):
        logarithm = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        chance += math.exp(logarithm - count * math.log(2))
        if chance > allowed:
            break
        below = k
    return below
