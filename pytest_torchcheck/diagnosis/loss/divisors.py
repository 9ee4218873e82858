"""What a loss divides by, and where that was made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...probes.recorded.watch import Op, Watch, name_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable


class Divisors(Watch):
    """Keeps each tensor that something was divided by, with the operation that made it.

    Attributes:
        divided: By division: a copy of the divisor, and what made it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._makers: dict[int, tuple[torch.Tensor, Op]] = {}
        self.divided: list[tuple[torch.Tensor, Op]] = []

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """Keep who made each number; look at divisors."""
        op = self.op(name_of(func))
        if "div" in op.name.rpartition(".")[2] and len(args) > 1:
            by = args[1]
            maker = self._makers.get(id(by))
            if isinstance(by, torch.Tensor) and maker is not None:
                self.divided.append((by.detach().clone(), maker[1]))
        for tensor in tensors_in(result):
            self._makers[id(tensor)] = (tensor, op)

    @property
    def zero(self) -> Op | None:
        """What made the first divisor that is 0 somewhere."""
        return next((op for by, op in self.divided if bool((by == 0).any())), None)
