"""Over which dimension softmax weights sum to one, and over which the product that takes them sums."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...findings import Location

_PRODUCTS = frozenset({"matmul", "__matmul__", "__rmatmul__", "bmm"})
_KEEPING = frozenset({"dropout", "contiguous", "clone", "to"})
WATCHED = _PRODUCTS | _KEEPING | {"softmax", "einsum"}

Product = tuple[Tensor, int, int, "Location | None"]


class Weights:
    """Follows the results of softmax to the product that takes them, through dropout and copies."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], int, Location | None]] = {}

    def called(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
        locate: Callable[[], Location | None],
    ) -> Product | None:
        """See a call of :data:`WATCHED`; return the weights of a product, and its two dimensions."""
        if name == "softmax":
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if isinstance(dim, int) and isinstance(result, Tensor) and result.dim():
                self._known[id(result)] = weakref.ref(result), dim % result.dim(), locate()
        elif name in _KEEPING:
            if args and (known := self._of(args[0])) is not None and isinstance(result, Tensor):
                self._known[id(result)] = weakref.ref(result), *known
        elif name == "einsum":
            return self._summed(args)
        elif len(args) > 1:
            first, second = args[:2] if name != "__rmatmul__" else (args[1], args[0])
            for weights, offset in ((first, 1), (second, 2)):
                known = self._of(weights)
                if known is not None and known[0] >= weights.dim() - 2 >= 0:
                    return weights, known[0], weights.dim() - offset, known[1]
        return None

    def _summed(self, args: tuple[Any, ...]) -> Product | None:
        """Return the same of an ``einsum`` of weights and values that sums over one letter."""
        letters, _, given = str(args[0]).replace(" ", "").partition("->")
        parts = letters.split(",")
        if not given or len(parts) != 2 or len(args) != 3 or "." in letters:
            return None
        for weights, own, other in zip(args[1:], parts, reversed(parts), strict=True):
            known = self._of(weights)
            summed = [n for n, letter in enumerate(own) if letter not in given and letter in other]
            if known is None or len(summed) != 1 or len(own) != weights.dim():
                continue
            if known[0] == summed[0] or own[known[0]] not in other:
                return weights, known[0], summed[0], known[1]
        return None

    def _of(self, tensor: Any) -> tuple[int, Location | None] | None:
        known = self._known.get(id(tensor))
        return known[1:] if known is not None and known[0]() is tensor else None
