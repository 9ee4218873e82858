"""Weights that sum to one over the entries of one index, and are summed over those of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ...lean import dataclass
from ...objects.weak import ByTensor
from ..recorded.watch import readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...findings import Location

_PICKS: Final = frozenset({"__getitem__", "index_select", "gather"})
_DIVISIONS: Final = frozenset({"div", "__truediv__", "true_divide"})
_ADDS: Final = frozenset({"add", "__add__", "__radd__", "clamp", "clamp_min"})
_SHAPES: Final = frozenset({"unsqueeze", "view", "reshape", "expand", "expand_as", "dropout"})
_PRODUCTS: Final = frozenset({"mul", "__mul__", "__rmul__"})
_SUMS: Final = frozenset({"index_add", "index_add_", "scatter_add", "scatter_add_"})
SEEN: Final = _PICKS | _DIVISIONS | _ADDS | _SHAPES | _PRODUCTS | _SUMS
_NEAR: Final = 1e-3
_MOST: Final = 2**16
"""Entries of an index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouped:
    """A sum over groups of weights that sum to one in other groups.

    Attributes:
        module: Qualified name of the module in which it ran.
        entries: How many weights each head has.
        low, high: What the weights of a group that is summed add up to.
        made: The line that made the weights, in the function that sums them.
        location: The line of the sum.
    """

    module: str
    entries: int
    low: float
    high: float
    made: Location | None
    location: Location | None


@dataclass(frozen=True, slots=True)
class _Weights:
    values: Tensor
    index: Tensor
    lines: tuple[Location, ...]


class Groups:
    """Follows what is divided by a value of its group to the sum over groups that takes it.

    Attributes:
        found: Sums over other groups, of indices into the same number of entries.
    """

    def __init__(self) -> None:
        self.found: list[Regrouped] = []
        self._picked: ByTensor[Tensor] = ByTensor()
        self._known: ByTensor[_Weights] = ByTensor()

    def called(
        self,
        name: str,
        args: tuple[Any, ...],
        result: Any,
        module: str,
        lines: Callable[[], tuple[Location, ...]],
    ) -> None:
        """See a call of :data:`SEEN`."""
        if not isinstance(result, Tensor) or not args or not isinstance(args[0], Tensor):
            return
        if name in _PICKS:
            self._pick(args, result)
        if not self._picked:
            return
        if name in _ADDS and (index := self._picked.get(args[0])) is not None:
            self._picked[result] = index
        elif name in _DIVISIONS and len(args) > 1:
            index = self._picked.get(args[1])
            if index is not None and result.requires_grad and _sums(result, index) == (1.0, 1.0):
                made = _Weights(result.detach(), index, lines())
                self._known[result] = made
        elif name in _SHAPES or name in _PRODUCTS or name == "__getitem__":
            for given in args[:2]:
                if (known := self._known.get(given)) is not None:
                    self._known[result] = known
        elif name in _SUMS:
            self._sum(args, module, lines)

    def _pick(self, args: tuple[Any, ...], result: Tensor) -> None:
        """Note which entries a value was taken from, by an index along the first dimension."""
        index = args[-1] if len(args) > 1 else None
        if isinstance(index, tuple):
            index = index[0]
        if isinstance(index, Tensor) and index.dtype == torch.int64 and index.dim() in (1, 2):
            index = index if index.dim() == 1 else index[:, 0]
            if len(index) == len(result) and len(index) <= _MOST and readable(index):
                self._picked[result] = index

    def _sum(
        self, args: tuple[Any, ...], module: str, lines: Callable[[], tuple[Location, ...]]
    ) -> None:
        known = next((one for t in args[1:] if (one := self._known.get(t)) is not None), None)
        index = next(
            (t for t in args[1:] if isinstance(t, Tensor) and t.dtype == torch.int64), None
        )
        if known is None or index is None:
            return
        groups = index if index.dim() == 1 else index.flatten(1)[:, 0]
        if len(groups) != len(known.index) or not _alike(groups, known.index):
            return
        if (sums := _sums(known.values, groups)) == (1.0, 1.0):
            return
        at = lines()
        own = [line for line in known.lines if at and same_function(line, at[0])]
        self.found.append(
            Regrouped(
                module=module, entries=len(groups), low=sums[0], high=sums[1],
                made=next(iter(own or known.lines), None), location=at[0] if at else None,
            )
        )  # fmt: skip


def _alike(one: Tensor, two: Tensor) -> bool:
    """Say whether two indices are two rows of one tensor of edges: they lead into the same entries."""
    return (
        one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()
        and one.data_ptr() != two.data_ptr()
    )


def _sums(weights: Tensor, index: Tensor) -> tuple[float, float]:
    """Return the least and the largest sum of a group's weights, 1.0 for what rounding explains."""
    if not readable(weights) or len(weights) != len(index) or not len(index):
        return (0.0, 0.0)
    rows = weights.detach().double().reshape(len(index), -1)
    total = rows.new_zeros(int(index.max()) + 1, rows.shape[1]).index_add_(0, index, rows)
    held = torch.bincount(index, minlength=len(total)) > 0
    low, high = (float(v) for v in total[held].aminmax())
    return tuple(1.0 if abs(v - 1) < _NEAR else v for v in (low, high))  # type: ignore[return-value]


def same_function(one: Location | None, two: Location | None) -> bool:
    """Say whether two lines stand in one function."""
    if one is None or two is None:
        return False
    return (one.file, one.function) == (two.file, two.function)
