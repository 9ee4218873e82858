"""Where recorded gradients die on the paths from values to the loss, in one pass for all values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ...lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from torch import Tensor

    from ..recorded.values import Call, Value

_AMPLIFIED = 30
"""What layers between the parameter and the operation may make of the rounding that it leaves."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The end of a walk: ``call`` got a gradient of rms ``reached`` for ``output`` and gave ``value`` none.

    ``users`` are the calls that read the value and have a gradient to give.
    """

    call: Call
    value: Value
    output: Value
    reached: float
    users: tuple[Call, ...]

    @property
    def uses(self) -> int:
        """How many calls have a gradient to give to the value."""
        return len(self.users)


@dataclass(frozen=True, slots=True)
class _Found:
    """What the paths from one value to the loss hold.

    Attributes:
        finite: Whether every gradient on them is.
        live: Whether one of them is not zero.
        best: Where a gradient dies on them, with the order in which such places count.
    """

    finite: bool
    live: bool
    best: tuple[tuple[bool, float], Stopped] | None


class Ahead:
    """The differentiable values through which values reach the loss; each is looked at once for all that ask.

    Args:
        behind: The values from which the loss was computed.
    """

    def __init__(self, behind: Collection[Value]) -> None:
        self._behind = behind
        self._found: dict[Value, _Found] = {}
        self._sizes: dict[Value, float] = {}

    def vanishes(self, parameter: Value) -> bool:
        """Say whether nothing but rounding is left of a gradient that is larger on the way to the parameter."""
        if not parameter.tensor.requires_grad:
            return False
        found = self._look(parameter)
        if not found.finite or not found.live:
            return False
        if not _norm(parameter):
            return True
        small = _AMPLIFIED * _rounding(parameter.tensor)
        return any(self._share(parameter, each) <= small for each in self._path(parameter))

    def stopped(self, parameter: Value) -> Stopped | None:
        """Return where the gradient dies on the paths from a parameter to the loss."""
        if not parameter.tensor.requires_grad:
            return None
        best = self._look(parameter).best
        return None if best is None else best[1]

    def following(self, value: Value) -> list[Value]:
        """Return the differentiable values that are computed directly from one."""
        return [
            output
            for call in value.consumers
            if not call.shape_only
            for output in call.outputs
            if output is not value and output in self._behind and output.nodes
        ]

    def _path(self, start: Value) -> Iterator[Value]:
        """Iterate over the values that have a gradient on the paths to the loss."""
        seen, stack = {start}, [start]
        while stack:
            value = stack.pop()
            if _norm(value):
                yield value
            for output in self.following(value):
                if output not in seen:
                    seen.add(output)
                    stack.append(output)

    def _look(self, start: Value) -> _Found:
        """Look at everything ahead of a value, the last ones first."""
        stack = [(start, iter(self.following(start)))]
        open_ = {start}
        while stack:
            value, following = stack[-1]
            output = next((o for o in following if o not in self._found and o not in open_), None)
            if output is not None:
                open_.add(output)
                stack.append((output, iter(self.following(output))))
                continue
            stack.pop()
            if value not in self._found:
                self._found[value] = self._join(value)
        return self._found[start]

    def _join(self, value: Value) -> _Found:
        """Join what is ahead of a value with what is seen of the value itself."""
        following = self.following(value)
        known = [self._found[output] for output in following if output in self._found]
        places = [found.best for found in known if found.best is not None]
        if (own := self._dies_at(value, following)) is not None:
            places.append(own)
        return _Found(
            finite=math.isfinite(_norm(value)) and all(found.finite for found in known),
            live=_norm(value) != 0 or any(found.live for found in known),
            best=max(places, key=lambda place: place[0], default=None),
        )

    def _dies_at(
        self, value: Value, following: list[Value]
    ) -> tuple[tuple[bool, float], Stopped] | None:
        """Say what a value's uses leave of their gradients, where that is no more than rounding."""
        ahead = set(following)
        alive = [
            (norm, call, output)
            for call in dict.fromkeys(value.consumers)
            for output in call.outputs
            if output in ahead and (norm := _norm(output)) > 0
        ]
        if not alive:
            return None
        reached, _, largest = max(alive, key=lambda entry: entry[0])
        share = self._share(value, largest)
        if share > _rounding(value.tensor):
            return None
        # the latest use is where the branches of a cancellation meet
        _, call, output = max(alive, key=lambda entry: (entry[1].op.index, entry[0]))
        users = tuple({id(use): use for _, use, _ in alive}.values())
        order = (share == 0.0, reached if share == 0.0 else -share)
        return order, Stopped(call, value, output, output.rms or 0.0, users)

    def _share(self, value: Value, later: Value) -> float:
        """Return what share of a later value's gradient is left at a value.

        A layer that scales by c scales the gradient by 1/c, which loses nothing. So the share counts of
        the gradients, or of the gradients times the values, whichever is larger.
        """
        plain = _norm(value) / _norm(later)
        if not plain:
            return plain
        here, there = self._size(value), self._size(later)
        return max(plain, plain * here / there) if here and there else plain

    def _size(self, value: Value) -> float:
        if value not in self._sizes:
            self._sizes[value] = _size(value)
        return self._sizes[value]


def _norm(value: Value) -> float:
    """Return the Euclidean norm of the gradient: a mean of n keeps it at 1/sqrt(n), not at 1/n."""
    return (value.rms or 0.0) * math.sqrt(value.tensor.numel())


def _size(value: Value) -> float:
    tensor = value.tensor.detach()
    if not tensor.is_floating_point() or not tensor.numel():
        return 0.0
    size = float(tensor.double().square().mean().sqrt())
    return size if math.isfinite(size) else 0.0


def _rounding(tensor: Tensor) -> float:
    """Return what share of a gradient rounding may leave where exact arithmetic leaves nothing.

    Measured in float32: 3e-8 behind a weight divided by itself, 2e-7 behind a normalisation.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    return min(64 * torch.finfo(tensor.dtype).eps, 0.02)
