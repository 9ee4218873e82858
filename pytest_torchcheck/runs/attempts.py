"""Training on one batch: what an attempt showed, and the floor that its loss could reach."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ..subject import Subject

_SAMPLES = 8  # larger batches are cut to so many samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of training on one batch.

    Attributes:
        name: ``the user's optimizer`` or the learning rate.
        losses: Loss of every step.
        remaining: ``(best - floor) / (first - floor)``; NaN if nothing finite came out.
        falling: Whether the loss was still falling at the end.
        rates: The highest learning rate at the first and at the last step; NaN where it is not known.
    """

    name: str
    losses: tuple[float, ...]
    remaining: float
    falling: bool
    rates: tuple[float, float] = (math.nan, math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The lowest loss that any output could reach.

    Attributes:
        value: The loss; -inf where it has no lower bound.
        bounded: Whether free outputs settle.
        known: Whether it was found; False where outputs cannot be freed (a model that returns its own loss),
            and zero, which few losses go below, stands for it.
        scale: By how much the loss changes when the outputs are moved far, where it begins near its floor; else 1.
    """

    value: float
    bounded: bool
    known: bool = True
    scale: float = 1.0

    def __str__(self) -> str:
        """What is known of it, in words."""
        if not self.bounded:
            return "no floor: the loss has no lower bound"
        return f"floor {self.value:.3g}" if self.known else "floor unknown, 0 taken for it"


def small_batch(subject: Subject) -> Any:
    """Return the base batch, cut to a few samples where it is larger and has a batch axis."""
    batch = subject.batch()
    symbol = subject.source.batch_symbol
    if (
        symbol is None
        or batch.sizes.get(symbol, 0) <= 2 * _SAMPLES
        or subject.contract.train_step is not None
    ):
        return batch
    axes = subject.source.axes(symbol)
    if any(path not in axes for path in batch.tensors()):
        return batch
    return subject.source.rows(batch, torch.arange(2 * _SAMPLES))
