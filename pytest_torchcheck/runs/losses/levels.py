"""Levels of quantiles: which one each entry of an output is pulled to, beside the numbers that the loss holds."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from ... import sources
from ...lean import dataclass
from ...loop.closures import functions_of
from ...objects.peek import attribute, attributes, closed_over
from ...probes.recorded.watch import Watch
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...findings import Location
    from ...probes.loss.slopes import LossOfOutput

_NEAR: Final = 0.02
_MOST: Final = 32
"""Entries of an output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Quantiles to which a loss pulls the entries of an output.

    Attributes:
        path: Of the output.
        held: The levels that the loss holds.
        measured: The level at which each entry's loss is lowest.
        place: The line that first subtracts, or that calls its function with ``crossed`` arguments.
        crossed: That function, where what stands for one of its parameters has the name of another.
    """

    path: str
    held: tuple[float, ...]
    measured: tuple[float, ...]
    place: Location | None
    crossed: str = ""

    @property
    def turned(self) -> bool:
        """Whether they are one minus those that the loss holds."""
        return not _alike(self.measured, self.held)


def levels_of(loss: LossOfOutput, declared: Any) -> Levels | None:
    """Return an output whose entries are pulled to the levels that its loss holds, or to one minus them, all of them.

    A loss that rises by ``a`` for each unit above a target and by ``b`` below it is lowest at the quantile of
    level ``b / (a + b)`` (Koenker and Bassett, Regression Quantiles, 1978).

    Args:
        loss: Of the model's output.
        declared: The loss that was declared.

    Cost: nothing where the loss holds no numbers between 0 and 1, one for each entry of the last dimension; else
    four calls of the loss for each of them.
    """
    held = [numbers for numbers in _numbers(declared) if 1 < len(numbers) <= _MOST]
    for path, output in loss.outputs.items():
        fitting = [n for n in held if output.dim() > 1 and len(n) == output.shape[-1]]
        fitting = [n for n in fitting if not _alike(n, [1 - q for q in n])]
        if not fitting:
            continue
        try:
            measured = _levels(loss, path)
        except SubjectError:
            return None
        for numbers in fitting:
            if measured is None:
                continue
            turned = _alike(measured, [1 - q for q in numbers])
            if turned or _alike(measured, numbers):
                place, crossed = _line(loss) if turned else (None, "")
                shown = {"held": tuple(numbers), "measured": tuple(measured)}
                return Levels(path=path, place=place, crossed=crossed, **shown)
    return None


def _levels(loss: LossOfOutput, path: str) -> list[float] | None:
    """Return the level of each entry of an output's last dimension; None where the loss is not linear far away."""
    output = loss.outputs[path]
    scale = [output, *(t for t in loss.targets().values() if t.is_floating_point())]
    far = 100.0 * (1.0 + max(float(t.detach().abs().max()) for t in scale if t.numel()))
    found = []
    for entry in range(output.shape[-1]):
        rises = []
        for by in (far, -far):
            values = [
                float(loss.shifted(path, k * by, (output.dim() - 1, entry)).run()[0].detach())
                for k in (1, 2, 3)
            ]
            first, second = values[1] - values[0], values[2] - values[1]
            if not first > 0 or abs(second - first) > _NEAR * first:
                return None
            rises.append(first)
        above, below = rises
        found.append(below / (above + below))
    return found


def _alike(one: Sequence[float], two: Sequence[float]) -> bool:
    return all(abs(a - b) < _NEAR for a, b in zip(one, two, strict=True))


def _numbers(loss: Any) -> Iterator[list[float]]:
    """Yield the rows of numbers between 0 and 1 that a loss holds, as attributes or in its closure."""
    for value in _held(loss):
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() == 1:
            value = value.tolist()
        plain = isinstance(value, list | tuple) and all(isinstance(n, float) for n in value)
        if plain and value and all(0 < n < 1 for n in value):
            yield list(value)


def _held(loss: Any) -> Iterator[Any]:
    if isinstance(loss, nn.Module):
        for module in loss.modules():
            yield from vars(module).values()
            yield from module._buffers.values()
        return
    if isinstance(loss, functools.partial):
        yield from (*loss.args, *loss.keywords.values())
    if (owner := attribute(loss, "__self__")) is not None or not callable(loss):
        yield from attributes(owner).values()
    for function in functions_of(loss):
        yield from function.__defaults__ or ()
        yield from closed_over(function).values()
        yield from (function.__globals__.get(name) for name in function.__code__.co_names)


def _line(loss: LossOfOutput) -> tuple[Location | None, str]:
    watch = _Differences()
    with torch.enable_grad(), watch:
        loss.run()
    return watch.first, watch.crossed


class _Differences(Watch):
    """Notes the line of the first difference of two tensors, or the call of its function with crossed arguments."""

    first: Location | None = None
    crossed = ""

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """See one call."""
        name = getattr(func, "__name__", "").strip("_")
        both = len(args) > 1 and all(isinstance(a, Tensor) for a in args[:2])
        if self.first is None and both and name in ("sub", "rsub"):
            self.first = self.locate()
            own = [f for f in self.frames() if sources.rank(f.f_code.co_filename) == 2][:2]
            if len(own) == 2 and (line := sources.crossed_call(*own)) is not None:
                self.first, self.crossed = line, own[0].f_code.co_name
