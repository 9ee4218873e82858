"""Whole numbers that a narrow dtype cannot tell apart: 3 - 5 is 254 in uint8, and 257 is 256 in bfloat16."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...lean import dataclass
from ...objects.weak import ByTensor
from ..recorded.watch import readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...findings import Location

NARROW = (torch.uint8, torch.int8, torch.int16)
_ARITHMETIC = frozenset({"add", "sub", "rsub", "mul", "neg", "pow", "square", "diff", "abs"})


@dataclass(frozen=True, slots=True)
class Wrapped:
    """An operation whose results do not fit into their dtype.

    Attributes:
        op: Its name.
        location: The line.
        dtype: The dtype, such as ``uint8``.
        count: How many results are wrong, of ``size``.
        size: How many there are.
        meant: The first of them, as it is in int64.
        got: What it became.
        reader: What reads the results as indices, where that is what makes them wrong.
    """

    op: str
    location: Location | None
    dtype: str
    count: int
    size: int
    meant: int
    got: float
    reader: str = ""


def wrapped(
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
    result: Tensor,
    locate: Callable[[], Location | None],
) -> list[Wrapped]:
    """Do an operation on narrow whole numbers once more in int64; return it where its results are other ones."""
    name = func.__name__.strip("_")
    plain = name.removeprefix("r") if name.startswith("r") and name[1:] in _ARITHMETIC else name
    if plain not in _ARITHMETIC or func.__name__.endswith("_") != func.__name__.startswith("_"):
        return []  # what is done in place has overwritten its operands
    if func.__name__.startswith("__i"):
        return []
    wide_args, wide_kwargs = pytree.tree_map(_widened, (args, kwargs))
    meant = func(*wide_args, **wide_kwargs)
    wrong = meant != result.long()
    if not bool(wrong.any()):
        return []
    first = wrong.flatten().nonzero()[0]
    found = Wrapped(
        op=name,
        location=locate(),
        dtype=str(result.dtype).removeprefix("torch."),
        count=int(wrong.sum()),
        size=result.numel(),
        meant=int(meant.flatten()[first]),
        got=int(result.flatten()[first]),
    )
    return [found]


HALF = {torch.bfloat16: 256, torch.float16: 2048}
"""Up to which whole number each of these tells neighbours apart: its significand has 8, or 11, bits."""
_MOST_NUMBERS = 1_000_000
_FEW = 16


@dataclass(frozen=True, slots=True)
class Merged:
    """A run of whole numbers, as positions are, in a dtype in which neighbours become one number.

    Attributes:
        op: What took it to the dtype.
        location: The line.
        dtype: The dtype, such as ``bfloat16``.
        size: How many numbers the run has.
        left: How many of them are different ones in the dtype.
        most: Up to which whole number the dtype tells neighbours apart.
    """

    op: str
    location: Location | None
    dtype: str
    size: int
    left: int
    most: int


def merged(
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
    result: Tensor,
    locate: Callable[[], Location | None],
) -> list[Merged]:
    """Return what a call of a half-precision result makes of runs of whole numbers that it is given, or makes."""
    name = func.__name__
    if name == "arange":
        counts = args if all(isinstance(each, int) for each in args) else ()
        runs = [torch.arange(*counts)] if counts else []
    else:
        given = (a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, Tensor))
        runs = [t for t in given if t.dtype != result.dtype and readable(t) and t.numel()]
    found = []
    for run in runs:
        line = run.detach().squeeze()
        line = line[(0,) * (line.dim() - 1)]  # the first row tells of all
        if line.is_complex() or line.dtype == torch.bool or line.dim() != 1:
            continue
        if 2 < len(line) <= _MOST_NUMBERS and bool((line.diff() == 1).all()):
            dtype = str(result.dtype).removeprefix("torch.")
            left = len(line.to(result.dtype).unique())
            found.append(Merged(name, locate(), dtype, len(line), left, HALF[result.dtype]))
    return found[:1]


def _widened(value: Any) -> Any:
    whole = isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()
    return value.long() if whole else value


_CONVERSIONS = frozenset(
    {"to", "type", "type_as", "half", "bfloat16", "float", "byte", "char", "short", "int", "long"}
)
_RESHAPES = frozenset(
    {"view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "contiguous"}
)
_INDEXING = {
    "embedding": 0,
    "embedding_bag": 0,
    "__getitem__": 1,
    "take_along_dim": 1,
    "index_select": 2,
    "gather": 2,
}
"""Which argument of a function holds indices."""


class ChangedIndices:
    """Follows whole numbers that a conversion changes, such as 300 to 44 in uint8, to what reads them as indices."""

    def __init__(self) -> None:
        self._changed: ByTensor[Wrapped] = ByTensor()

    def called(
        self, name: str, args: Any, result: Any, locate: Callable[[], Location | None]
    ) -> list[Wrapped]:
        """See a call; return the conversion whose results it reads as indices."""
        if name in _INDEXING:
            given = args[_INDEXING[name]] if len(args) > _INDEXING[name] else None
            indices = given if isinstance(given, tuple | list) else (given,)
            known = (self._changed.get(t) for t in indices if isinstance(t, Tensor))
            return [replace(one, reader=name) for one in known if one is not None]
        if not args or not isinstance(args[0], Tensor) or not isinstance(result, Tensor):
            return []
        if (name in _CONVERSIONS or name in _RESHAPES) and (
            changed := self._changed.get(args[0]) or _changed(name, args[0], result, locate)
        ) is not None:
            self._changed[result] = changed
        return []


def _changed(
    name: str, given: Tensor, result: Tensor, locate: Callable[[], Location | None]
) -> Wrapped | None:
    """Return a conversion of whole numbers whose results are other numbers."""
    whole = not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool)
    if (
        not whole
        or given.dtype == result.dtype
        or given.shape != result.shape
        or result.is_complex()
    ):
        return None
    wrong = given.double() != result.double()
    if result.dtype == torch.bool or not bool(wrong.any()):
        return None
    first = wrong.flatten().nonzero()[0]
    got = float(result.flatten()[first])
    return Wrapped(
        op=name,
        location=locate(),
        dtype=str(result.dtype).removeprefix("torch."),
        count=int(wrong.sum()),
        size=result.numel(),
        meant=int(given.flatten()[first]),
        got=got,
    )


class Conversions:
    """Sees whole numbers that a dtype does not hold, changes, or cannot tell apart.

    Attributes:
        wrapped: Operations whose results do not fit, and conversions of indices that change them.
        merged: Runs of numbers in half precision.
    """

    def __init__(self) -> None:
        self.wrapped: list[Wrapped] = []
        self.merged: list[Merged] = []
        self._indices = ChangedIndices()

    def called(
        self,
        func: Callable[..., Any],
        args: Any,
        kwargs: Any,
        result: Any,
        locate: Callable[[], Location | None],
    ) -> None:
        """See one call outside of a backward, and its result."""
        if len(self.wrapped) < _FEW:
            name = getattr(func, "__name__", "")
            self.wrapped += self._indices.called(name, args, result, locate)
        if not isinstance(result, Tensor) or not result.numel():
            return
        if result.dtype in NARROW and len(self.wrapped) < _FEW:
            self.wrapped += wrapped(func, args, kwargs, result, locate)
        if result.dtype in HALF and len(self.merged) < _FEW:
            self.merged += merged(func, args, kwargs, result, locate)
