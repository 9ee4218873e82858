"""A focal weight of a batch's mean: ``(1 - exp(-ce)) ** gamma * ce``, where ``ce`` is one number for all samples.

The weight is meant for each element (Lin et al., Focal Loss for Dense Object Detection, 2017,
equation 5).
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..recorded.watch import Op

_CRITERIA = frozenset(
    {
        "F.cross_entropy", "F.nll_loss", "F.binary_cross_entropy", "F.binary_cross_entropy_with_logits",
    }
)  # fmt: skip
_PRODUCTS = frozenset({"mul", "__mul__", "__rmul__", "multiply"})

Form = Literal["mean", "negated", "certainty", "doubt"]


@dataclass(frozen=True, slots=True)
class FocalMean:
    """A focal weight that was taken of a mean.

    Attributes:
        criterion: The call that gave the mean.
        weighted: The product of weight and mean.
        elements: How many elements the mean is of.
    """

    criterion: Op
    weighted: Op
    elements: int


class FocalMeans:
    """Follows the mean of a cross entropy through ``1 - exp(-mean)`` to a product with itself."""

    def __init__(self) -> None:
        self.found: list[FocalMean] = []
        self._known: dict[int, tuple[weakref.ref[Tensor], Form, Op, int]] = {}

    def see(self, name: str, bare: str, args: Any, result: Any, op: Callable[[], Op]) -> None:
        """See one call and its result; ``op`` describes it where that is needed."""
        if not isinstance(result, Tensor) or result.dim():
            return
        if name in _CRITERIA:
            size = args[1].numel() if len(args) > 1 and isinstance(args[1], Tensor) else 0
            if size > 1:
                self._known[id(result)] = (weakref.ref(result), "mean", op(), size)
            return
        if not self._known:
            return
        given = [known for value in args if (known := self._of(value)) is not None]
        if not given:
            return
        forms = {form for form, _, _ in given}
        if bare in _PRODUCTS and forms == {"mean", "doubt"}:
            self.found.append(FocalMean(given[0][1], op(), given[0][2]))
            return
        (form, criterion, size), *others = given
        following = None if others else _next(form, bare, args)
        if following is not None:
            self._known[id(result)] = (weakref.ref(result), following, criterion, size)

    def _of(self, value: Any) -> tuple[Form, Op, int] | None:
        known = self._known.get(id(value))
        return known[1:] if known is not None and known[0]() is value else None


def _next(form: Form, bare: str, args: Any) -> Form | None:
    """Return what an operation with one such number makes of it, or None where it is something else."""
    numbers = [value for value in args if isinstance(value, int | float)]
    match form:
        case "mean" if bare in ("neg", "__neg__", "negative"):
            return "negated"
        case "mean" if bare in _PRODUCTS and numbers:
            return "mean" if numbers[0] > 0 else "negated"
        case "negated" if bare == "exp":
            return "certainty"
        case "certainty" if bare in ("rsub", "__rsub__") or (
            bare in ("sub", "__sub__") and 1 in numbers
        ):
            return "doubt"
        case "doubt" if bare in ("pow", "__pow__", "square", "sqrt") or (
            bare in _PRODUCTS and numbers
        ):
            return "doubt"
    return None
