"""Probabilities of one dimension that weigh log-probabilities of another."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..recorded.watch import Op

_PRODUCTS: Final = frozenset({"mul", "__mul__", "__rmul__", "multiply"})
_KEEPING: Final = frozenset(
    {"detach", "clone", "contiguous", "to", "float", "double", "neg", "__neg__", "data"}
)


@dataclass(frozen=True, slots=True)
class Crossed:
    """A product of probabilities with log-probabilities that are normalised over another dimension.

    Attributes:
        probabilities: The softmax.
        logs: The log-softmax.
        product: The operation that takes both.
        shape: Of both.
        over: The dimension over which the probabilities sum to one.
        logs_over: The one over which those of the logarithms do.
    """

    probabilities: Op
    logs: Op
    product: Op
    shape: tuple[int, ...]
    over: int
    logs_over: int


class CrossedAxes:
    """Follows the results of softmax and log-softmax to a product of the two; free where there is none."""

    def __init__(self) -> None:
        self.found: list[Crossed] = []
        self._known: dict[int, tuple[weakref.ref[Tensor], str, int, Op]] = {}

    def see(
        self, name: str, bare: str, args: Any, kwargs: Any, result: Any, op: Callable[[], Op]
    ) -> None:
        """See one call and its result; ``op`` describes it where that is needed."""
        if not isinstance(result, Tensor) or not args:
            return
        if bare in ("softmax", "log_softmax"):
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if isinstance(dim, int) and result.dim():
                self._known[id(result)] = (weakref.ref(result), bare, dim % result.dim(), op())
            return
        if not self._known:
            return
        if bare in _KEEPING or name.endswith("Tensor.data.__get__"):
            if (known := self._of(args[0])) is not None:
                self._known[id(result)] = (weakref.ref(result), *known)
        elif bare in _PRODUCTS or bare == "kl_div":
            self._product(args, op)

    def _product(self, args: Any, op: Callable[[], Op]) -> None:
        given = [known for value in args[:2] if (known := self._of(value)) is not None]
        if len(given) != 2 or args[0].shape != args[1].shape:
            return
        probabilities, logs = sorted(given, key=lambda known: known[0] == "log_softmax")
        if (probabilities[0], logs[0]) == ("softmax", "log_softmax") and probabilities[1] != logs[
            1
        ]:
            made = Crossed(
                probabilities[2], logs[2], op(), tuple(args[0].shape), probabilities[1], logs[1]
            )
            self.found.append(made)

    def _of(self, value: Any) -> tuple[str, int, Op] | None:
        known = self._known.get(id(value))
        return known[1:] if known is not None and known[0]() is value else None
