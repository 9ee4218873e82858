"""Whole numbers in a narrow dtype that an operation wraps around: 3 - 5 is 254 in uint8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...lean import dataclass

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
    """

    op: str
    location: Location | None
    dtype: str
    count: int
    size: int
    meant: int
    got: int


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


def _widened(value: Any) -> Any:
    whole = isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()
    return value.long() if whole else value
