"""Weighted sums over windows, divided by counts: do equal predictions come out as they are?"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import sources
from ..lean import dataclass
from ..probes.recorded.watch import Watch, name_of
from ..sources.averages import Average, averages_in
from ..state import seed_everything
from ..subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import nn

    from ..batches import Batch
    from ..findings import Location
    from ..subject import Subject

_PRODUCTS = frozenset({"mul", "__mul__", "__rmul__", "multiply"})
_ADDS = frozenset({"add_", "__iadd__"})
_DIVIDES = frozenset({"div", "div_", "__truediv__", "__itruediv__", "true_divide", "divide"})
_SEEN = _ADDS | _DIVIDES
_UNEVEN = 0.01
"""By which share a quotient of equal numbers must differ from place to place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncounted:
    """An average over windows whose weights its divisor does not hold.

    Attributes:
        average: The sum and the count.
        added, counted, divided: Their lines.
        windows: How many windows were added.
        number: What the divisor adds for each place of one.
        low, high: The quotient of predictions that are 1 everywhere, where equally many windows meet.
        certain: Whether most windows meet there. Where only fewer do, at the borders, weights may sum to
            one number further inside, and the borders be cut off.
    """

    average: Average
    added: Location
    counted: Location
    divided: Location
    windows: int
    number: float
    low: float
    high: float
    certain: bool


def uncounted_weights(subject: Subject) -> Uncounted | None:
    """Return the weighted sum of windows that an evaluation divides by plain counts; None where there is none.

    The fixed weights of each window, other ones at each place of it, count where the same number is
    added to the divisor everywhere. With ones in the place of what they weigh, the quotient must be
    one number wherever equally many windows meet. Learnt weights need not sum to anything.

    Cost: nothing where no function of the model's files averages so; else 3 F.
    """
    for file in _files(subject):
        for average in averages_in(file):
            try:
                if (found := _measured(subject, file, average)) is not None:
                    return found
            except SubjectError:
                return None  # another batch, or ones, do not run
    return None


def _files(subject: Subject) -> list[str]:
    """Return the user's own files in which the model's classes are, and the functions that these files import."""
    classes = dict.fromkeys(type(m) for m in subject.model.modules())
    homes = dict.fromkeys(cls.__module__ for cls in classes if sources.is_own_class(cls))
    modules = [sys.modules[home] for home in homes if home in sys.modules]
    functions = (f for m in modules for f in list(vars(m).values()) if inspect.isfunction(f))
    files = [
        *(getattr(m, "__file__", None) for m in modules),
        *(f.__code__.co_filename for f in functions),
    ]
    return [f for f in dict.fromkeys(files) if f is not None and sources.rank(f) == 2]


def _measured(subject: Subject, file: str, average: Average) -> Uncounted | None:
    first = _run(subject, subject.batch(), file, average)
    if (
        not first.added
        or len(first.added) != len(first.counts)
        or not all(map(_plain, first.counts))
    ):
        return None
    if all(one.factors is None for one in first.added):
        return None
    second = _run(subject, subject.batch(1), file, average)
    if len(second.added) != len(first.added):
        return None
    weights = {}
    for one, other in zip(first.added, second.added, strict=True):
        weight = _weight(one, other)
        if weight is None or one.number is None:
            return None
        weights[one.number] = weight
    last = _run(subject, subject.batch(), file, average, weights)
    if last.quotient is None or not last.quotient[0].is_floating_point():
        return None
    if (uneven := _uneven(*last.quotient)) is None:
        return None
    certain, low, high = uneven
    lines = (first.lines[key] for key in ("added", "counted", "divided"))
    added, counted, divided = lines
    return Uncounted(
        average=average, added=added, counted=counted, divided=divided,
        windows=len(first.added), number=_number(first.counts[0]), low=low, high=high,
        certain=certain,
    )  # fmt: skip


def _uneven(quotient: Tensor, count: Tensor) -> tuple[bool, float, float] | None:
    """Return the range of a quotient over places of one count, if any, and whether that is the largest count."""
    for place, one in enumerate(count.unique().flip(0)):
        met = quotient[(count == one).expand_as(quotient)].double()
        met = met[met.isfinite()]
        if not met.numel():
            continue
        low, high = (float(each) for each in met.aminmax())
        if high - low > _UNEVEN * max(abs(low), abs(high)):
            return not place, low, high
    return None


def _run(
    subject: Subject,
    batch: Batch,
    file: str,
    average: Average,
    weights: Mapping[int, Tensor] | None = None,
) -> _Sums:
    with subject.pristine() as model, torch.enable_grad():  # learnt weights have a graph
        model.eval()
        given = batch.clone()
        seed_everything(subject.seed)
        watch = _Sums(model, file, average, weights or {})
        with watch:
            subject.call(model, given)
    return watch


def _plain(count: Any) -> bool:
    """Say whether what is added to a divisor is one number everywhere."""
    if isinstance(count, Tensor):
        return count.numel() > 0 and bool((count == count.flatten()[0]).all())
    return isinstance(count, int | float)


def _number(count: Any) -> float:
    return float(count.flatten()[0] if isinstance(count, Tensor) else count)


def _weight(one: _Added, other: _Added) -> Tensor | None:
    """Return the factor that does not depend on the batch, where it is fixed and varies within the window."""
    if one.factors is None or other.factors is None:
        return None
    same = [
        a.shape == b.shape and torch.equal(a, b)
        for a, b in zip(one.factors, other.factors, strict=True)
    ]
    if sum(same) != 1:
        return None
    weight = one.factors[same.index(True)]
    if weight.requires_grad:
        return None
    whole = weight.expand(one.shape).detach()
    varies = [
        d for d in one.partial if not torch.equal(whole, whole.narrow(d, 0, 1).expand_as(whole))
    ]
    return weight.detach() if varies else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Added:
    """What is added to a part of a sum.

    Attributes:
        factors: Of which it is the product; None where it is none.
        number: Of this product among those of the run.
        shape: Of the part.
        partial: The dimensions along which it is a part.
    """

    factors: tuple[Tensor, Tensor] | None
    number: int | None
    shape: tuple[int, ...]
    partial: tuple[int, ...]


class _Sums(Watch):
    """Sees what a run adds to a sum and to its count, and their quotient; ``weights`` take the place of products."""

    def __init__(
        self, model: nn.Module, file: str, average: Average, weights: Mapping[int, Tensor]
    ) -> None:
        super().__init__(model)
        self._file, self._average, self._weights = file, average, weights
        self._products: dict[int, tuple[Tensor, int, tuple[Tensor, Tensor]]] = {}
        self._number = 0
        self.added: list[_Added] = []
        self.counts: list[Any] = []
        self.lines: dict[str, Location] = {}
        self.quotient: tuple[Tensor, Tensor] | None = None

    def around(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a call; give a weight alone in the place of its product with what is weighed."""
        result = super().around(func, types, args, kwargs)
        if name_of(func).rpartition(".")[2] in _PRODUCTS:
            number, self._number = self._number, self._number + 1
            if isinstance(weight := self._weights.get(number), Tensor):
                return weight.expand_as(result).to(result.dtype).clone()
            if len(args) == 2 and all(isinstance(a, Tensor) for a in args):
                self._products[id(result)] = result, number, args
        return result

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """See a sum, a count or a quotient grow or be made."""
        bare = name_of(func).rpartition(".")[2]
        if bare not in _SEEN or len(args) < 2 or not isinstance(args[0], Tensor):
            return
        place = self.locate()
        if place is None or place.file != self._file:
            return
        average = self._average
        if bare in _DIVIDES:
            if _within(place, average.divided) and isinstance(args[1], Tensor):
                self.quotient = result.detach(), args[1].detach()
                self.lines["divided"] = place
        elif _within(place, average.added):
            self._add(args[0], args[1])
            self.lines["added"] = place
        elif _within(place, average.counted):
            self.counts.append(args[1].detach().clone() if isinstance(args[1], Tensor) else args[1])
            self.lines["counted"] = place

    def _add(self, part: Tensor, given: Any) -> None:
        known = self._products.get(id(given))
        whole = part._base
        alike = whole is not None and whole.dim() == part.dim()
        sizes = zip(part.shape, whole.shape, strict=True) if alike and whole is not None else ()
        self.added.append(
            _Added(
                factors=known[2] if known is not None else None,
                number=known[1] if known is not None else None,
                shape=tuple(part.shape),
                partial=tuple(d for d, (a, b) in enumerate(sizes) if a < b),
            )
        )


def _within(place: Location, lines: tuple[range, ...]) -> bool:
    return any(place.line in one for one in lines)
