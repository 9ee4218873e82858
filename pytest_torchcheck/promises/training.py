"""Promises about the training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .base import Promise, PromiseError


@dataclass(frozen=True, slots=True)
class Accumulates(Promise):
    """``n`` micro-batches through ``micro_step`` give the full batch's gradient.

    Attributes:
        n: How many micro-batches.
        micro_step: ``(model, inputs, targets, ...)`` of the user's loop, or None to use ``train_step``.
    """

    n: int
    micro_step: Callable[..., Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 2:
            raise PromiseError(f"Accumulates(n) must be an int of at least 2; got {self.n!r}")
        if self.micro_step is not None and not callable(self.micro_step):
            raise PromiseError(
                f"Accumulates(micro_step=) must be callable; got {self.micro_step!r}"
            )


@dataclass(frozen=True, slots=True)
class Schedule(Promise):
    """The learning rate meant for each step: a function of the step from 0, or a sequence."""

    lr: Callable[[int], float] | Iterable[float]

    def __post_init__(self) -> None:
        if callable(self.lr):
            return
        values = (
            tuple(self.lr) if isinstance(self.lr, Iterable) and not isinstance(self.lr, str) else ()
        )
        if not values or not all(isinstance(v, int | float) for v in values):
            raise PromiseError(
                f"Schedule(lr) must be a function step -> lr or a non-empty sequence of numbers; got {self.lr!r}"
            )
        object.__setattr__(self, "lr", values)


@dataclass(frozen=True, slots=True)
class ClipsGradients(Promise):
    """The total norm of the gradients is at most ``max_norm`` when the optimizer steps."""

    max_norm: float

    def __post_init__(self) -> None:
        if (
            isinstance(self.max_norm, bool)
            or not isinstance(self.max_norm, int | float)
            or self.max_norm <= 0
        ):
            raise PromiseError(
                f"ClipsGradients(max_norm) must be a positive number; got {self.max_norm!r}"
            )


@dataclass(frozen=True, slots=True)
class SkipsNonFinite(Promise):
    """A gradient that is NaN or infinite never reaches the weights: the step is skipped, or raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingAverage(Promise):
    """After every step, one part of the model is the moving average of another one.

    Attributes:
        target: Qualified name of the averaged module.
        source: Qualified name of the module that trains.
        decay: Share of its old value that the average keeps.
    """

    target: str
    source: str
    decay: float

    def __post_init__(self) -> None:
        for field_, name in (("target", self.target), ("source", self.source)):
            if not isinstance(name, str) or not name:
                raise PromiseError(
                    f"MovingAverage({field_}=) must be a module's qualified name; got {name!r}"
                )
        if (
            isinstance(self.decay, bool)
            or not isinstance(self.decay, int | float)
            or not 0 <= self.decay < 1
        ):
            raise PromiseError(f"MovingAverage(decay=) must be in [0, 1); got {self.decay!r}")
