"""Maps of labels between which a third one stands after resizing, or that a cast to whole numbers has cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F

from ...lean import dataclass
from ...objects import trees
from ...probes.recorded.watch import Watch, name_of
from ...record.passing import passing
from ...text.wording import counted
from ...verdicts import violated
from ..describing import is_under, leaves
from ..explaining.returned_object import returned_name
from ..snapshot import put_back
from ..validity import read
from ..wording import dataset_culprit, line_ref, where

if TYPE_CHECKING:
    from ...findings import Finding, Location
    from ...record.passing import Passed
    from ..plan import Part

_CLASSES: Final = 64  # more different whole numbers are measurements
_SAMPLES: Final = 8
_AROUND: Final = 2  # elements on each side
_MODE: Final = 3  # its place among the arguments of F.interpolate


@dataclass(frozen=True, slots=True, kw_only=True)
class Blended:
    """A resizing that gives fractions of whole numbers, which a label rounds to others.

    Attributes:
        location: The user's line.
        passed: The call that chooses the mode, where the line only hands it on.
        call: Such as ``F.interpolate``.
        index: Of the sample.
        kinds: The numbers before.
        between: A number that the label has where the map had only others around it.
        count: At how many places it has such a number.
    """

    location: Location | None
    passed: Passed | None
    call: str
    index: int
    kinds: tuple[int, ...]
    between: int
    count: int


def blended(part: Part, path: str) -> Blended | None:
    """Read some samples and return the resizing that made classes of their label out of other ones, or None.

    Args:
        part: Whose samples.
        path: Of the label, a map of whole numbers.
    """
    places = tuple(range(min(part.length or 0, _SAMPLES)))
    with put_back(part.dataset, places):
        for index in places:
            with _Resizing() as watch:
                sample = read(part.dataset, index, 0)
            if not watch.found:
                continue
            label = next((v for p, v in leaves(sample) if is_under(p, path)), None)
            if label is None or (found := _made_of(torch.as_tensor(label), watch.found)) is None:
                continue
            call, between, count = found
            return Blended(
                location=call.location, passed=call.passed, call=call.name, index=index, kinds=call.kinds,
                between=between, count=count,
            )  # fmt: skip
    return None


def told(part: Part, path: str, found: Blended) -> Finding:
    """Explain labels that stand for none of the classes around them."""
    name, line, passed = where(path), found.location, found.passed
    own = returned_name(part, found.index, path)
    place = line if passed is None else passed.location
    whole = ", ".join(map(str, found.kinds[:6]))
    detail = f"{found.between} between other classes"
    culprits = [dataset_culprit(part, own or name, detail, place)]
    if passed is not None:
        culprits.append(dataset_culprit(part, found.call, "is given the mode it was passed", line))
    return violated(
        "label-blended",
        f"{part.prefix}{found.call} averages the classes of {f'{own}, {name}' if own else name}",
        culprits=culprits,
        location=place,
        observed=f"sample {found.index}: {counted(found.count, 'element')} of a class that does not occur "
        f"nearby, such as {found.between}",
        cause="the mode averages neighbours, but the numbers of classes have no order",
        because=f"{found.call} was given the numbers {whole} and gave fractions, which the label rounds"
        + (f"; {line_ref(line)} takes its mode from this call" if passed is not None else ""),
        fix=f'pass {"mode" if passed is None else passed.name}="nearest" at {line_ref(place)}',
    )


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    location: Location | None
    passed: Passed | None
    kinds: tuple[int, ...]
    given: torch.Tensor
    result: torch.Tensor


class _Resizing(Watch):
    """Keeps the calls that give fractions of a map of a few whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[_Call] = []

    def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
        """Note a call that averages whole numbers."""
        given = args[0] if args else kwargs.get("input")
        if not name_of(func).endswith("interpolate") or not isinstance(given, torch.Tensor):
            return
        if given.dim() != 4 or given.shape[:2] != (1, 1):
            return
        kinds = torch.unique(given.detach())
        whole = bool((kinds == kinds.round()).all()) and len(kinds) <= _CLASSES
        whole = whole and bool(kinds[-1] - kinds[0] > 1)  # a class fits in between
        if whole and not torch.equal(result, result.round()):
            numbers = tuple(int(kind) for kind in kinds.tolist())
            both = given.detach().clone(), result.detach().clone()
            chosen = passing(self.frames(), "mode", _MODE)
            self.found.append(_Call(name_of(func), self.locate(), chosen, numbers, *both))


def _made_of(label: torch.Tensor, calls: list[_Call]) -> tuple[_Call, int, int] | None:
    """Return the call whose fractions a label rounds to classes that are not around, one of these, and how often."""
    if label.is_floating_point() or not label.numel():
        return None
    for call in calls:
        if call.result.numel() != label.numel():
            continue
        rounded = (
            cast(call.result) for cast in (torch.round, torch.trunc, torch.floor, torch.ceil)
        )
        made = label.reshape(call.result.shape).to(call.result.dtype)
        if not any(trees.same(made, one) for one in rounded):
            continue
        near = F.interpolate(call.given, size=made.shape[-2:], mode="nearest")
        around = F.unfold(F.pad(near, (_AROUND,) * 4, mode="replicate"), 2 * _AROUND + 1)
        strange = ~(around == made.flatten(1)[:, None]).any(1)[0]
        if bool(strange.any()):
            return call, int(made.flatten()[strange][0]), int(strange.sum())
    return None


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
