"""Terms of a loss that are made of a derivative without a graph: they are added, and nothing learns from them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..recorded.recording import DERIVATIVE
from ..recorded.watch import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ..recorded.watch import Op

_SUMS = frozenset({"add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "__iadd__", "add_"})


@dataclass(frozen=True, slots=True)
class DeadTerm:
    """A number that is added to the loss and has no graph.

    Attributes:
        derivative: The call of ``torch.autograd.grad`` that it comes from.
        added: The operation that adds it.
    """

    derivative: Op
    added: Op


class DeadTerms:
    """Follows what is computed of derivatives without a graph; costs nothing where there is none.

    A weight or a perturbation that is made of a derivative is meant to be constant: only numbers
    that are added to others which carry a graph count.
    """

    def __init__(self) -> None:
        self.found: list[DeadTerm] = []
        self._constant: dict[int, tuple[weakref.ref[Tensor], Op]] = {}

    def see(
        self, name: str, bare: str, args: Any, kwargs: Any, result: Any, op: Callable[[], Op]
    ) -> None:
        """See one call and its result; ``op`` describes it where that is needed."""
        if name == DERIVATIVE:
            made: Op | None = None
            for tensor in tensors_in(result):
                if tensor.is_floating_point() and not tensor.requires_grad:
                    made = made or op()
                    self._constant[id(tensor)] = (weakref.ref(tensor), made)
            return
        if not self._constant:
            return
        given = list(tensors_in((args, kwargs)))
        source = next((one for tensor in given if (one := self._source(tensor)) is not None), None)
        if source is None:
            return
        for tensor in tensors_in(result):
            if not tensor.requires_grad:
                self._constant[id(tensor)] = (weakref.ref(tensor), source)
            elif bare in _SUMS and not tensor.dim():
                self.found.append(DeadTerm(source, op()))

    def _source(self, tensor: Tensor) -> Op | None:
        known = self._constant.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None
