"""Norms of derivatives that a loss is made of: over which of their dimensions they are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from ...lean import dataclass
from ...objects.weak import ByTensor
from ...record.modes import Observer
from ..recorded.recording import DERIVATIVE
from ..recorded.watch import name_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..recorded.watch import Op

_TOTALS: Final = ("SumBackward0", "MeanBackward0")


_NORMS = frozenset({"norm", "vector_norm"})
"""They reduce a dimension of size one too: an image may have one channel."""


@dataclass(frozen=True, slots=True)
class PartialNorm:
    """A derivative of one number per sample that is reduced to more numbers than there are samples.

    Attributes:
        derivative: The call of ``torch.autograd.grad``.
        reduced: The operation that reduces what it gave.
        number: Which call of ``torch.autograd.grad`` of the run it was, from 0.
        place: Which of its results.
        shape: Of this result; samples first.
        left: Shape after the reduction.
    """

    derivative: Op
    reduced: Op
    number: int
    place: int
    shape: tuple[int, ...]
    left: tuple[int, ...]


class PartialNorms:
    """Follows derivatives by inputs, where the function has one number per sample; free where there is none."""

    def __init__(self) -> None:
        self.found: list[PartialNorm] = []
        self._calls = 0
        self._known: ByTensor[tuple[Op, int, int, tuple[int, ...]]] = ByTensor()

    def see(self, name: str, args: Any, kwargs: Any, result: Any, op: Callable[[], Op]) -> None:
        """See one call and its result; ``op`` describes it where that is needed."""
        if name == DERIVATIVE:
            self._differentiated(args, kwargs, result, op)
            self._calls += 1
        if not self._known or not isinstance(result, Tensor):
            return
        for tensor in tensors_in((args, kwargs)):
            if (known := self._known.get(tensor)) is None:
                continue
            derivative, number, place, shape = known
            whole = tensor.numel()
            lost = result.dim() < tensor.dim() and name.rpartition(".")[2] in _NORMS
            if result.numel() == whole and not lost:
                self._known[result] = known
            elif shape[0] < result.numel() <= whole:
                made = PartialNorm(derivative, op(), number, place, shape, tuple(result.shape))
                self.found.append(made)
            return

    def _differentiated(self, args: Any, kwargs: Any, result: Any, op: Callable[[], Op]) -> None:
        inputs = list(tensors_in(args[1] if len(args) > 1 else kwargs.get("inputs")))
        values = values_of(args[0] if args else kwargs.get("outputs"))
        for place, (given, made) in enumerate(zip(inputs, tensors_in(result), strict=False)):
            by_sample = made.dim() > 2 and made.shape[0] == values
            if by_sample and made.requires_grad and not isinstance(given, nn.Parameter):
                self._known[made] = (op(), self._calls, place, tuple(made.shape))


def values_of(outputs: Any) -> int:
    """Return how many numbers of a function are differentiated; of a sum or mean, those that it is of."""
    tensors = list(tensors_in(outputs))
    if len(tensors) != 1 or tensors[0].numel() != 1:
        return tensors[0].numel() if len(tensors) == 1 else 0
    node = tensors[0].grad_fn
    if node is None or node.name() not in _TOTALS:
        return 1
    count = 1
    for size in node._saved_self_sym_sizes:  # type: ignore[attr-defined]
        count *= int(size)
    return count


class Turned(Observer):
    """Changes what one derivative of a run gives, and notes the loss of the backward that follows.

    Args:
        found: Which derivative.
        change: Is given it, returns another tensor of its shape.
    """

    def __init__(self, found: PartialNorm, change: Callable[[Tensor], Tensor]) -> None:
        self._left, self._place, self._change = found.number, found.place, change
        self.loss: float | None = None

    def around(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        """Call the function; exchange its result where it is the one."""
        name = name_of(func)
        if name == "Tensor.backward" and self._left < 0 and self.loss is None:
            self.loss = float(args[0].detach().sum())
        result = func(*args, **kwargs)
        if name == DERIVATIVE:
            self._left -= 1
            if self._left == -1 and isinstance(result, tuple):
                result = tuple(
                    self._change(one) if place == self._place else one
                    for place, one in enumerate(result)
                )
        return result


def reflected(tensor: Tensor, dim: int | None) -> Tensor:
    """Reflect the vectors along a dimension, or each sample as one vector for None: their norms remain."""
    rows = tensor.flatten(1) if dim is None else tensor.movedim(dim, -1)
    generator = torch.Generator().manual_seed(rows.shape[-1])
    axis = torch.randn(rows.shape[-1], generator=generator).to(rows.device, rows.dtype)
    axis = axis / axis.norm()
    made: Tensor = rows - 2 * (rows @ axis)[..., None] * axis
    return made.reshape(tensor.shape) if dim is None else made.movedim(-1, dim)
