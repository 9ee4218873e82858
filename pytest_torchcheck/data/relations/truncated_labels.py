"""Labels that a cast to whole numbers has cut off: a mask divided by 255, then made ``long``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...probes.recorded.watch import Watch, name_of
from ..reading import read
from ..snapshot import put_back

if TYPE_CHECKING:
    from ...findings import Location
    from ..plan import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """A cast that gives one whole number for several fractions.

    Attributes:
        location: The user's line.
        call: Such as ``Tensor.long``.
        low, high: Of the fractions.
        kinds: How many different fractions there were.
    """

    location: Location | None
    call: str
    low: float
    high: float
    kinds: int


def truncation_of(part: Part, shape: tuple[int, ...]) -> Truncation | None:
    """Read the first sample and return the cast that made its label constant, or None where none did.

    Args:
        part: Whose sample.
        shape: Of its label; only a result of as many elements can be it.
    """
    watch = _Casts(int(torch.Size(shape).numel()))
    with put_back(part.dataset, (0,)), watch:
        read(part.dataset, 0, 0)
    return watch.found


class _Casts(Watch):
    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements = elements
        self.found: Truncation | None = None

    def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
        """Note a cast of varying fractions to one whole number."""
        given = args[0] if args else None
        if not isinstance(result, torch.Tensor) or not isinstance(given, torch.Tensor):
            return
        if not given.is_floating_point() or result.is_floating_point() or result.is_complex():
            return
        if result.dtype == torch.bool or result.shape != given.shape:
            return
        if result.numel() != self.elements or not result.numel():
            return
        with torch._C.DisableTorchFunction():
            cut = torch.equal(result.to(given.dtype), given.trunc())
            kinds = torch.unique(given)
            if cut and len(kinds) > 1 and bool((result == result.reshape(-1)[0]).all()):
                self.found = Truncation(
                    location=self.locate(),
                    call=name_of(func),
                    low=float(kinds[0]),
                    high=float(kinds[-1]),
                    kinds=len(kinds),
                )
