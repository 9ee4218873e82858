"""What is timed of a contract, with the device's work awaited, and how the time of a step grows with a symbol."""

from __future__ import annotations

import contextlib
import math
import random
import time
from typing import TYPE_CHECKING, Any, Final

import torch

from ..probes.memory.fake import Unmeasurable
from ..state import isolated, seed_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ..batches import Batch
    from ..declared.speeds import Kind
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
