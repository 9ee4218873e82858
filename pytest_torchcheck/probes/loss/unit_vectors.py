"""Products of vectors that were made of length one, over another dimension than the one that the product sums over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ...lean import dataclass
from ...objects.weak import ByTensor
from ..recorded.watch import readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..recorded.watch import Op

_PRODUCTS: Final = frozenset({"matmul", "__matmul__", "__rmatmul__", "bmm", "mm"})
_NORMS: Final = frozenset({"norm", "vector_norm", "linalg_norm", "linalg_vector_norm"})
_GUARDS: Final = frozenset(
    {"clamp", "clamp_min", "clip", "add", "__add__", "maximum", "max", "detach"}
)
_QUOTIENTS: Final = frozenset({"div", "__truediv__", "true_divide", "divide"})
_COPIES: Final = frozenset(
    {"contiguous", "clone", "to", "float", "double", "half", "bfloat16", "detach", "reshape"}
)
_NEAR: Final = 0.02
"""How far the length of a vector may be from one: bfloat16 keeps two digits."""
_NOTHING: Final = 1e-6  # a vector of zeros stays one of zeros


@dataclass(frozen=True, slots=True)
class OtherAxis:
    """A product of unit vectors with vectors that have length one over another dimension.

    Attributes:
        made: What made these of length one.
        product: The operation that takes both.
        shape: Of what ``made`` gave, as the product takes it.
        over: The dimension over which it has length one.
        summed: The one over which the product sums.
        lengths: The smallest and largest length over that one.
        direct: Whether the product takes it as it was made: its dimensions are those of ``made``.
    """

    made: Op
    product: Op
    shape: tuple[int, ...]
    over: int
    summed: int
    lengths: tuple[float, float]
    direct: bool


class UnitVectors:
    """Follows what is made of length one through views and copies to a product; free where nothing is."""

    def __init__(self) -> None:
        self.found: list[OtherAxis] = []
        self._norms: ByTensor[bool] = ByTensor()
        self._known: ByTensor[Op] = ByTensor()

    def see(self, bare: str, args: Any, kwargs: Any, result: Any, op: Callable[[], Op]) -> None:
        """See one call and its result; ``op`` describes it where that is needed."""
        if bare == "normalize" and isinstance(result, Tensor):
            if kwargs.get("p", args[1] if len(args) > 1 else 2.0) == 2.0:
                self._known[result] = op()
        elif bare in _NORMS:
            given = args[0] if args else None
            if isinstance(given, Tensor) and isinstance(result, Tensor) and given.dim():
                kept = zip(given.shape, result.shape, strict=False)
                if result.dim() == given.dim() and sum(a != b for a, b in kept) == 1:
                    self._norms[result] = True
        elif self._norms and bare in _GUARDS and isinstance(result, Tensor) and args:
            if self._norms.get(args[0]) and result.shape == args[0].shape:
                self._norms[result] = True
        elif self._norms and bare in _QUOTIENTS and len(args) > 1 and self._norms.get(args[1]):
            if isinstance(result, Tensor) and result.shape == getattr(args[0], "shape", None):
                self._known[result] = op()
        elif self._known:
            self._follow(bare, args, result, op)

    def _follow(self, bare: str, args: Any, result: Any, op: Callable[[], Op]) -> None:
        if bare in _COPIES and args and isinstance(result, Tensor):
            if (made := self._maker(args[0])) is not None:
                self._known[result] = made
            return
        if (taken := _contracted(bare, args)) is None:
            return
        (first, one), (second, _) = taken
        makers = self._maker(first), self._maker(second)
        if makers[0] is None or makers[1] is None or first.shape[one] < 2:
            return
        if not (readable(first) and readable(second)):
            return
        lengths = [_lengths(tensor, dim) for tensor, dim in taken]
        unit = [_all_one(each) for each in lengths]
        if sum(unit) != 1:
            return  # both are, or the product is not one of cosines at all
        wrong = unit.index(False)
        (tensor, summed), made = taken[wrong], makers[wrong]
        over = [
            dim
            for dim in range(tensor.dim())
            if dim != summed and tensor.shape[dim] > 1 and _all_one(_lengths(tensor, dim))
        ]
        if len(over) == 1 and made is not None:
            each = lengths[wrong]
            ends, direct = (float(each.min()), float(each.max())), self._known.get(tensor) is made
            found = OtherAxis(made, op(), tuple(tensor.shape), over[0], summed, ends, direct)
            self.found.append(found)

    def _maker(self, value: Any) -> Op | None:
        """Return what made a tensor, or what it is a view of, of length one."""
        if not isinstance(value, Tensor):
            return None
        known = self._known.get(value)
        return known if known is not None or value._base is None else self._known.get(value._base)


def _contracted(bare: str, args: Any) -> tuple[tuple[Tensor, int], tuple[Tensor, int]] | None:
    """Return the two factors of a product, each with the dimension over which it sums; None for other calls."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    if len(tensors) < 2 or min(t.dim() for t in tensors[:2]) < 2:
        return None
    first, second = tensors[:2]
    if bare in _PRODUCTS:
        if bare == "__rmatmul__":
            first, second = second, first
        return (first, first.dim() - 1), (second, second.dim() - 2)
    if bare == "linear":
        return (first, first.dim() - 1), (second, second.dim() - 1)
    if bare != "einsum" or not isinstance(args[0], str) or len(tensors) != 2:
        return None
    letters, _, given = args[0].replace(" ", "").partition("->")
    parts = letters.split(",")
    if not given or len(parts) != 2 or "." in letters:
        return None
    summed = [letter for letter in parts[0] if letter in parts[1] and letter not in given]
    if len(summed) != 1 or any(len(p) != t.dim() for p, t in zip(parts, tensors, strict=True)):
        return None
    return (first, parts[0].index(summed[0])), (second, parts[1].index(summed[0]))


def _lengths(tensor: Tensor, dim: int) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(tensor.detach().float(), dim=dim)
    return lengths


def _all_one(lengths: Tensor) -> bool:
    """Say whether all vectors but those of zeros have length one, and there are any."""
    there = lengths[lengths > _NOTHING]
    return bool(there.numel()) and bool(((there - 1).abs() < _NEAR).all())
