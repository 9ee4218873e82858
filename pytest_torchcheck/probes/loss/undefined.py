"""Functions of a loss that are not defined for numbers they are given: a NaN made there, from finite numbers.

Where the loss is finite all the same, something put the NaN away. That is right for a branch that ``torch.where``
does not choose, and for places that do not count; it is a mistake where entries of an output are lost by it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ...lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..recorded.watch import Op

_FAR: Final = 1e-3
"""Of the largest magnitude: a number this far outside of where a function is defined is there by no rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undefined:
    """A function of the loss that gave NaN for finite numbers; plain data.

    Attributes:
        op: The call.
        count: For how many numbers.
        total: Of how many.
        extreme: The one that is farthest from 0.
    """

    op: Op
    count: int
    total: int
    extreme: float


class UndefinedValues:
    """Notes the functions of one tensor with a gradient that give NaN for finite numbers.

    Attributes:
        found: What was seen.
        hooked: Whether gradients are taken as they pass, in a backward that the user runs.
    """

    def __init__(self) -> None:
        self.found: list[Undefined] = []
        self.hooked = False
        self._idle: set[int] = set()

    def without_pull(self) -> list[Undefined]:
        """Return those that a backward sent a gradient of 0, at all the numbers that they are not defined for."""
        return [one for i, one in enumerate(self.found) if i in self._idle]

    def _sent(self, index: int, where: Tensor, gradient: Tensor) -> None:
        if not bool(gradient[where].any()):
            self._idle.add(index)

    def see(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, op: Callable[[], Op]
    ) -> None:
        """See one call; the function is asked again a little beside the numbers, which may be rounded ones."""
        given = args[0] if args else None
        if not (isinstance(given, Tensor) and isinstance(result, Tensor)) or result is given:
            return
        if not (given.requires_grad and result.shape == given.shape and given.numel()):
            return
        if not (given.is_floating_point() and result.is_floating_point()):
            return
        if any(isinstance(value, Tensor) for value in (*args[1:], *kwargs.values())):
            return
        with torch.no_grad():
            made = result.isnan()
            if not bool(made.any()):
                return
            values = given.detach()
            made = made & values.isfinite()
            scale = float(values[values.isfinite()].abs().max()) if bool(made.any()) else 0.0
            for shift in (_FAR * scale, -_FAR * scale):
                made = made & func(values + shift, *args[1:], **kwargs).isnan()
            if bool(made.any()):
                worst = values[made]
                extreme = float(worst[worst.abs().argmax()])
                count, total = int(made.sum()), given.numel()
                if self.hooked:
                    given.register_hook(functools.partial(self._sent, len(self.found), made))
                self.found.append(Undefined(op=op(), count=count, total=total, extreme=extreme))
