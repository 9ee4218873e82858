"""Distributions over one dimension multiplied with those over another, and focal weights of a batch's mean.

A focal weight, as in ``(1 - exp(-ce)) ** gamma * ce``, is meant for each element (Lin et al., Focal Loss for Dense
Object Detection, 2017, equation 5); here ``ce`` is one number for all samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor

from ...lean import dataclass
from ...objects.weak import ByTensor
from ..recorded.watch import readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..recorded.watch import Op

_PRODUCTS: Final = frozenset({"mul", "__mul__", "__rmul__", "multiply"})
PRODUCTS: Final = _PRODUCTS | {"__imul__", "div", "divide", "true_divide", "__truediv__"}
_KEEPING: Final = frozenset(
    {"detach", "clone", "contiguous", "to", "float", "double", "neg", "__neg__", "data"}
)
_VIEWS: Final = frozenset({"view", "reshape", "flatten", "unflatten"})
_SHAPES: Final = _VIEWS | {"permute", "transpose", "movedim", "swapaxes", "mT", "moveaxis"}
_FOLLOWED: Final = _KEEPING - {"neg", "__neg__"} | _SHAPES | {"exp"}
_REDUCTIONS: Final = frozenset({"max", "amax", "min", "amin", "sum", "mean", "logsumexp"})
_SCALES: Final = frozenset({"sub", "__sub__", "subtract", "div", "__truediv__", "true_divide"})
_ONE: Final = 1e-3
"""How far a sum of probabilities may be from one."""


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


@dataclass(frozen=True, slots=True)
class Scattered:
    """A product of probabilities with a one-hot target that is one-hot over no dimension any more.

    Attributes:
        view: The operation after which it was not.
        given, made: Shapes before and after it.
        product: The operation that takes both.
        over: The dimension of the product over which the probabilities sum to one.
        sums: How far the target's sums over it lie apart.
    """

    view: Op
    given: tuple[int, ...]
    made: tuple[int, ...]
    product: Op
    over: int
    sums: tuple[float, float]


@dataclass(frozen=True, slots=True)
class OfOtherRows:
    """A square tensor of which each column is given the number of the row with its index.

    Attributes:
        reduced: The operation that made one number of each row, without ``keepdim``.
        taken: The one that subtracts them, or divides by them, along the columns.
        shape: Of the square tensor.
    """

    reduced: Op
    taken: Op
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _View:
    """A view of a one-hot tensor over no dimension of which it sums to one."""

    op: Op
    given: tuple[int, ...]
    made: tuple[int, ...]


class CrossedAxes:
    """Follows the results of softmax, log-softmax and one-hot to a product of two of them; free where there is none."""

    def __init__(self) -> None:
        self.found: list[Crossed] = []
        self.scattered: list[Scattered] = []
        self.of_rows: list[OfOtherRows] = []
        self._rows: ByTensor[tuple[str, Op]] = ByTensor()
        self._known: ByTensor[tuple[str, int, Op]] = ByTensor()
        self._shares: ByTensor[tuple[str, _View | None]] = ByTensor()

    def see(
        self, name: str, bare: str, args: Any, kwargs: Any, result: Any, op: Callable[[], Op]
    ) -> None:
        """See one call and its result; ``op`` describes it where that is needed."""
        if bare in _REDUCTIONS and args:
            self._reduce(bare, args[0], result, op)
        if not isinstance(result, Tensor) or not args:
            return
        if self._rows:
            self._of_rows(bare, args, result, op)
        if bare == "one_hot":
            self._shares[result] = (bare, None)
            return
        if bare in ("softmax", "log_softmax"):
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if isinstance(dim, int) and result.dim():
                self._known[result] = (bare, dim % result.dim(), op())
            self._shares[result] = (bare, None)
            return
        if self._shares:
            self._share(bare, args, result, op)
        if not self._known:
            return
        if bare in _KEEPING or name.endswith("Tensor.data.__get__"):
            if (known := self._known.get(args[0])) is not None:
                self._known[result] = known
        elif bare in _PRODUCTS or bare == "kl_div":
            self._product(args, op)

    def every(self) -> tuple[Crossed | Scattered | OfOtherRows, ...]:
        """Return what was found, of all kinds."""
        return (*self.found, *self.scattered, *self.of_rows)

    def _reduce(self, bare: str, given: Any, result: Any, op: Callable[[], Op]) -> None:
        """Keep what makes one number of each row of a square tensor, without ``keepdim``."""
        made = result[0] if isinstance(result, tuple) else result
        if not (isinstance(given, Tensor) and isinstance(made, Tensor) and _is_square(given)):
            return
        if made.shape == given.shape[:1] and _equal(_reduced(bare, given, 1), made):
            self._rows[made] = (bare, op())

    def _of_rows(self, bare: str, args: Any, result: Tensor, op: Callable[[], Op]) -> None:
        """Follow the numbers of rows to where the same rows are combined with them along the columns."""
        if bare in _KEEPING and bare not in ("neg", "__neg__"):
            if (known := self._rows.get(args[0])) is not None:
                self._rows[result] = known
        elif bare in _SCALES and len(args) > 1 and isinstance(args[0], Tensor):
            known, square = self._rows.get(args[1]), args[0]
            if known is None or not _is_square(square) or square.shape[:1] != args[1].shape:
                return
            reduced, made = known
            of_rows, of_columns = (_reduced(reduced, square, dim) for dim in (1, 0))
            if _equal(of_rows, args[1]) and not _equal(of_columns, args[1]):
                self.of_rows.append(OfOtherRows(made, op(), tuple(square.shape)))

    def _share(self, bare: str, args: Any, result: Tensor, op: Callable[[], Op]) -> None:
        """Follow distributions through copies and views to a product of probabilities and a one-hot target."""
        if bare in _PRODUCTS:
            alive = [known for value in args[:2] if (known := self._shares.get(value)) is not None]
            kinds = [kind for kind, _ in alive]
            if sorted(kinds) == ["one_hot", "softmax"] and args[0].shape == args[1].shape:
                target = kinds.index("one_hot")
                if (view := alive[target][1]) is not None:
                    self._scatter(args[1 - target], args[target], view, op)
            return
        known = self._shares.get(args[0]) if bare in _FOLLOWED else None
        if known is None:
            return
        kind, view = known
        if bare == "exp":
            if kind != "log_softmax":
                return
            kind = "softmax"
        if kind == "one_hot" and view is None and bare in _VIEWS and not _sums_to_one(result):
            view = _View(op(), tuple(args[0].shape), tuple(result.shape))
        self._shares[result] = (kind, view)

    def _scatter(
        self, probabilities: Tensor, target: Tensor, view: _View, op: Callable[[], Op]
    ) -> None:
        over = _sums_to_one(probabilities.detach())
        if len(over) == 1:
            sums = target.detach().sum(over[0]).double()
            apart = (float(sums.min()), float(sums.max()))
            self.scattered.append(Scattered(view.op, view.given, view.made, op(), over[0], apart))

    def _product(self, args: Any, op: Callable[[], Op]) -> None:
        given = [known for value in args[:2] if (known := self._known.get(value)) is not None]
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


def _is_square(values: Tensor) -> bool:
    """Say whether a tensor is a plain floating matrix with as many rows as columns, and more than one."""
    whole = values.dim() == 2 and 1 < values.shape[0] == values.shape[1]
    return whole and values.is_floating_point() and readable(values)


def _reduced(bare: str, values: Tensor, dim: int) -> Tensor:
    found = getattr(torch, bare)(values.detach(), dim=dim)
    return found[0] if isinstance(found, tuple) else found  # type: ignore[no-any-return]


def _equal(one: Tensor, other: Tensor) -> bool:
    other = other.detach()
    return one.dtype == other.dtype and bool(torch.allclose(one, other, rtol=1e-5, atol=0.0))


def _sums_to_one(values: Tensor) -> list[int]:
    """Return the dimensions over which a tensor sums to one everywhere."""
    if values.layout != torch.strided or values.is_nested or values.is_meta or not values.numel():
        return list(range(values.dim()))
    wide = values.detach().double()
    return [d for d in range(wide.dim()) if bool(((wide.sum(d) - 1).abs() < _ONE).all())]


_CRITERIA = frozenset(
    {
        "F.cross_entropy", "F.nll_loss", "F.binary_cross_entropy", "F.binary_cross_entropy_with_logits",
    }
)  # fmt: skip


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
        self._known: ByTensor[tuple[Form, Op, int]] = ByTensor()

    def see(self, name: str, bare: str, args: Any, result: Any, op: Callable[[], Op]) -> None:
        """See one call and its result; ``op`` describes it where that is needed."""
        if not isinstance(result, Tensor) or result.dim():
            return
        if name in _CRITERIA:
            size = args[1].numel() if len(args) > 1 and isinstance(args[1], Tensor) else 0
            if size > 1:
                self._known[result] = ("mean", op(), size)
            return
        if not self._known:
            return
        given = [known for value in args if (known := self._known.get(value)) is not None]
        if not given:
            return
        forms = {form for form, _, _ in given}
        if bare in _PRODUCTS and forms == {"mean", "doubt"}:
            self.found.append(FocalMean(given[0][1], op(), given[0][2]))
            return
        (form, criterion, size), *others = given
        following = None if others else _next(form, bare, args)
        if following is not None:
            self._known[result] = (following, criterion, size)


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


def crosses(a: Tensor, b: Tensor) -> bool:
    """Say whether one of two tensors holds a number for each entry of its only dimension, the other one of its first.

    ``[B]`` and ``[B, 1]``, or ``[B, 1, 1]``, broadcast to each number of one beside each of the other.
    """
    row, column = (a, b) if a.dim() <= b.dim() else (b, a)
    if row.dim() != 1 or column.dim() < 2 or len(row) != len(column) or len(row) < 2:
        return False
    if column.numel() != len(column) or not (readable(row) and readable(column)):
        return False
    return row.is_floating_point() and column.is_floating_point()
