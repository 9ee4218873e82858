"""Second derivatives taken of all components of a first derivative at once: sums over the rows of a Hessian."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from ... import sources
from ...lean import dataclass
from ...objects.weak import ByTensor
from ...record.modes import Observer
from ..recorded.recording import DERIVATIVE
from ..recorded.watch import name_of, tensors_in
from .penalties import values_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...findings import Location
    from ..recorded.watch import Op, Watch

_PICKS: Final = frozenset(
    ("sum", "getitem", "__getitem__", "select", "unbind", "split", "chunk", "narrow")
)
"""What takes the columns of a tensor one by one, or adds them up."""
_VIEWS: Final = frozenset(("reshape", "view", "flatten", "squeeze", "unsqueeze", "contiguous"))
_COLUMNS: Final = 4
"""Columns of which the second derivative is taken by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSum:
    """A sum over the rows of a Hessian of which single columns, or the sum of all, are used.

    Attributes:
        location: The line that gave it and not the first derivative, where one function gives both.
        used: The operation that takes its columns.
        number: Which call of ``torch.autograd.grad`` of the run it was, from 0.
        rows: How many numbers the first derivative is of.
        columns: How many components it has for each of them.
    """

    location: Location | None
    used: Op
    number: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _First:
    """A first derivative: by what, of how many numbers, and the lines that ran."""

    by: weakref.ref[Tensor]
    rows: int
    lines: tuple[Location, ...]


class RowSums:
    """Follows derivatives of derivatives by one tensor; free where there are none.

    Args:
        watch: Describes the operations.
    """

    def __init__(self, watch: Watch) -> None:
        self.found: list[RowSum] = []
        self._watch = watch
        self._calls = 0
        self._first: ByTensor[_First] = ByTensor()
        self._second: ByTensor[tuple[Location | None, int, int, int]] = ByTensor()

    def see(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """See one call and its result."""
        if name == DERIVATIVE:
            self._differentiated(args, kwargs, result)
            self._calls += 1
            return
        if not self._first or not args:
            return
        bare = name.rpartition(".")[2]
        known = self._first.get(args[0])
        if known is not None and isinstance(result, Tensor):
            total = bare == "sum" and result.dim() == 0
            if total or (bare in _VIEWS and result.numel() == args[0].numel()):
                self._first[result] = known
        second = self._second.get(args[0])
        if second is not None and bare in _PICKS and _takes_columns(args[0], result):
            line, number, rows, columns = second
            used = self._watch.op(name)
            self.found.append(
                RowSum(location=line, used=used, number=number, rows=rows, columns=columns)
            )

    def _differentiated(self, args: Any, kwargs: Any, result: Any) -> None:
        outputs = list(tensors_in(args[0] if args else kwargs.get("outputs")))
        inputs = list(tensors_in(args[1] if len(args) > 1 else kwargs.get("inputs")))
        made = list(tensors_in(result))
        if len(outputs) != 1 or len(inputs) != 1 or len(made) != 1:
            return
        given = list(tensors_in(args[2] if len(args) > 2 else kwargs.get("grad_outputs")))
        known = self._first.get(outputs[0])
        by = inputs[0]
        if not made[0].requires_grad or isinstance(by, nn.Parameter):
            return
        if known is None or known.by() is not by:
            if _splits(by, rows := values_of(outputs[0])):
                lines = self._watch.user_lines()
                self._first[made[0]] = _First(by=weakref.ref(by), rows=rows, lines=lines)
        elif all(bool((t == t.flatten()[0]).all()) for t in given):
            line = _told(self._watch.user_lines(), known.lines)
            self._second[made[0]] = line, self._calls, known.rows, by.numel() // known.rows


def _told(lines: tuple[Location, ...], first: tuple[Location, ...]) -> Location | None:
    """Return the line of a second derivative: not one of a function that gave the first too, where there is another."""
    own = [line for line in lines if line not in first]
    named = [line for line in lines if sources.assigned_name(line)]
    return next(iter(own or named or lines), None)


def _splits(tensor: Tensor, rows: int) -> bool:
    """Say whether the first dimensions of a tensor count so many rows, each of several numbers."""
    if rows == 0 or tensor.numel() < 2 * rows:
        return False
    if rows == 1:  # one point, not one number of many
        return tensor.dim() == 1 or tensor.shape[0] == 1
    return any(math.prod(tensor.shape[:dims]) == rows for dims in range(tensor.dim()))


def _takes_columns(tensor: Tensor, result: Any) -> bool:
    """Say whether a result holds fewer numbers of each row than a tensor does."""
    parts = list(tensors_in(result))
    if not parts or parts[0].numel() >= tensor.numel():
        return False
    return tensor.dim() < 2 or parts[0].dim() == 0 or parts[0].shape[0] == tensor.shape[0]


class Apart(Observer):
    """Takes the second derivative of single components where a run takes that of all at once.

    Args:
        found: Which derivative of the run.

    Attributes:
        off: Largest difference between what the run got for a component and the component's own second derivative.
        size: Largest second derivative that was seen.
    """

    def __init__(self, found: RowSum) -> None:
        self._left, self._found = found.number, found
        self._made: list[tuple[Tensor, Tensor]] = []
        self.off = self.size = 0.0

    def around(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        """Call the function; look at its result where it is the one."""
        result = func(*args, **kwargs)
        if name_of(func) == DERIVATIVE:
            self._left -= 1
            if self._left == -1:
                self._compare(args, kwargs, result)
            made = list(tensors_in(result))
            inputs = list(tensors_in(args[1] if len(args) > 1 else kwargs.get("inputs")))
            self._made += [(made[0], inputs[0])] if len(made) == len(inputs) == 1 else []
        return result

    def _compare(self, args: Any, kwargs: Any, result: Any) -> None:
        (by,) = tensors_in(args[1] if len(args) > 1 else kwargs.get("inputs"))
        (made,) = tensors_in(result)
        given = list(tensors_in(args[2] if len(args) > 2 else kwargs.get("grad_outputs")))
        weight = float(given[0].flatten()[0]) if given else 1.0
        whole = next(
            (g for g, x in reversed(self._made) if x is by and g.numel() == by.numel()), None
        )
        if whole is None or not weight:
            return
        rows, columns = self._found.rows, self._found.columns
        for k in range(min(columns, _COLUMNS)):
            one = whole.reshape(rows, columns)[:, k].sum()
            (apart,) = torch.autograd.grad(one, by, retain_graph=True, allow_unused=True)
            apart = torch.zeros_like(by) if apart is None else apart
            own = apart.reshape(rows, columns)[:, k]
            got = made.detach().reshape(rows, columns)[:, k] / weight
            self.off = max(self.off, float((got - own).abs().max()))
            self.size = max(self.size, float(own.abs().max()), float(got.abs().max()))
