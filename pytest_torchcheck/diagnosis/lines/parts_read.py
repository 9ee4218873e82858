"""Buffers of which training and evaluation read different parts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from ...lean import dataclass
from ...probes.recorded.watch import Watch
from ...state import seed_everything

if TYPE_CHECKING:
    from torch import nn

    from ...findings import Location
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPart:
    """A part of a buffer that evaluation reads, and training does not, or less often.

    Attributes:
        name: Of the buffer.
        first: The first entry of the part, counted over the whole buffer.
        size: How many entries it has.
        wanted: The first entries of those parts that training reads, in its order.
        location: The line that reads it.
    """

    name: str
    first: int
    size: int
    wanted: tuple[int, ...]
    location: Location


def other_part(subject: Subject, names: list[str]) -> OtherPart | None:
    """Return the first part of some buffers that evaluation reads otherwise than training, or None.

    A mode that takes no part of a buffer, but all of it, reads nothing wrong, nor does one that takes the same entries
    in other parts.
    """
    trained, evaluated = (_reads(subject, names, train=train) for train in (True, False))
    for name in names:
        wanted = [part for part, _ in trained.get(name, ())]
        left = Counter(wanted)
        if _entries(wanted) == _entries([part for part, _ in evaluated.get(name, ())]):
            continue
        for part, location in evaluated.get(name, ()) if wanted else ():
            left[part] -= 1
            if left[part] < 0 and location is not None:
                starts = tuple(first for first, _ in wanted)
                return OtherPart(
                    name=name, first=part[0], size=part[1], wanted=starts, location=location
                )
    return None


def _entries(parts: list[tuple[int, int]]) -> Counter[int]:
    """Count how often each entry is read."""
    return Counter(entry for first, size in parts for entry in range(first, first + size))


class _Reads(Watch):
    """Notes which parts of some tensors are taken by an index, with the lines."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__(model)
        buffers = dict(model.named_buffers())
        self._names = {id(buffers[name]): name for name in names if name in buffers}
        self.found: dict[str, list[tuple[tuple[int, int], Location | None]]] = {}

    def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
        """Note a view of a part of one of them."""
        name = self._names.get(id(args[0])) if args else None
        if name is None or not isinstance(result, torch.Tensor) or result._base is None:
            return
        if result.numel() < args[0].numel() and result.is_contiguous():
            part = int(result.storage_offset() - args[0].storage_offset()), int(result.numel())
            self.found.setdefault(name, []).append((part, self.locate()))


def _reads(
    subject: Subject, names: list[str], *, train: bool
) -> dict[str, list[tuple[tuple[int, int], Location | None]]]:
    with subject.pristine(train=train) as model, torch.no_grad():
        seed_everything(subject.seed)
        watch = _Reads(model, names)
        with watch:
            subject.call(model, subject.batch().clone())
    return watch.found
