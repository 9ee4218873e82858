"""What is timed of a contract, with the device's work awaited: by size of a symbol, or by turns with another model."""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
import time
from typing import TYPE_CHECKING, Any, Final

import torch

from ..lean import dataclass
from ..probes.memory.fake import Unmeasurable
from ..state import isolated, seed_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ..batches import Batch
    from ..declared.limits import Kind
    from ..subject import Subject


@contextlib.contextmanager
def repeated(subject: Subject, kind: Kind) -> Iterator[Callable[..., Any]]:
    """Give what is to be repeated, on the base batch or on one that is given; the model is put back afterwards.

    Args:
        subject: Whose model, on its device and dtype.
        kind: ``forward`` in training mode with a graph, ``inference`` in evaluation mode without one, or
            ``training-step``: the contract's own, else forward, loss, backward and the optimizer's step.

    Raises:
        SubjectError: The model cannot be built, or the batch not made.
    """
    with isolated(), subject.pristine(steps=True) as model:
        base = subject.batch().clone()
        seed_everything(subject.seed)
        model.train(kind != "inference")
        optimizer = subject.make_optimizer(model) if kind == "training-step" else None

        def once(batch: Batch = base) -> None:
            if optimizer is not None:
                subject.train_step(model, optimizer, batch)
            else:
                with torch.set_grad_enabled(kind == "forward"):
                    subject.call(model, batch)
            if subject.device.type != "cpu":
                torch.accelerator.synchronize(subject.device)

        yield once


_TURNS: Final = 7
_SECONDS: Final = 20.0
_UPPER: Final = (
    3  # the largest sizes, between which the power is taken: at small ones calls cost most
)


def seconds_at(
    subject: Subject, symbol: str, sizes: Sequence[int], kind: Kind, at: Mapping[str, int]
) -> tuple[float, ...]:
    """Return the least seconds of a repeat at each size of a symbol, after one that is not counted.

    Sizes take turns in random order, so that other load meets all of them; 20 seconds at most are measured.

    Raises:
        Unmeasurable: A batch of one of the sizes cannot be made.
        SubjectError: The model raises.
    """
    batches = []
    for size in sizes:
        batch = subject.at(**{**at, symbol: size})
        if batch is None:
            raise Unmeasurable(f"no batch of {symbol}={size} can be derived")
        batches.append(batch.clone())
    least = [math.inf] * len(sizes)
    chance = random.Random(subject.seed)
    with repeated(subject, kind) as once:
        for batch in batches:
            once(batch)
        start = time.perf_counter()
        for turn in range(_TURNS):
            for index in chance.sample(range(len(sizes)), len(sizes)):
                began = time.perf_counter()
                once(batches[index])
                least[index] = min(least[index], time.perf_counter() - began)
            if turn >= 2 and time.perf_counter() - start > _SECONDS:
                break
    return tuple(least)


def upper_power(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return the power by which values grow between the third largest size and the largest, in tenths."""
    first, last = -min(_UPPER, len(sizes)), -1
    if min(values[first], values[last]) <= 0:
        return 0.0
    return round(math.log(values[last] / values[first]) / math.log(sizes[last] / sizes[first]), 1)


CONFIDENCE: Final = 0.9995
"""Of each interval; a comparison looks at most a dozen times, so that all of them hold in 99 of 100."""
_FIRST_LOOK: Final = 16
_MORE: Final = 1.5  # times as many pairs before the next look
_SHORTEST_S: Final = 5e-4  # of one measured stretch: timers and calls cost a thousandth of it
_PAIRS: Final = 5  # of each, of which the least counts, where they are short
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
    turns = max(1, min(_PAIRS, round(_LONG_S / stretch)))
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
