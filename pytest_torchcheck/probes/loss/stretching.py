"""Give a softmax or sigmoid of the loss other values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...record.modes import Observer
from ..recorded.watch import name_of
from .consumption import SQUASHING

if TYPE_CHECKING:
    from collections.abc import Callable


class Stretched(Observer):
    """Spread what one call of a softmax or sigmoid is given, around its mean.

    Args:
        number: Which call of a squashing function, from 0, as in :class:`LogOf`.
        span: From the lowest to the highest value.
    """

    def __init__(self, number: int, span: float) -> None:
        self._left, self._span = number, span

    def around(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        """Call the function, with its first argument spread where it is the one."""
        if name_of(func).rpartition(".")[2] in SQUASHING:
            self._left -= 1
            if self._left == -1 and args and isinstance(args[0], Tensor):
                given = args[0]
                centred = given - given.mean()
                reach = float(centred.abs().max())
                args = (centred * (self._span / reach) if reach else given, *args[1:])
        return func(*args, **kwargs)
