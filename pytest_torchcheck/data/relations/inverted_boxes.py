"""Boxes whose corners an augmentation mirrors and does not exchange: in some reads their width is negative."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ...lean import dataclass
from ...record.tracing import find_line
from ...verdicts import violated
from ..contents import is_array
from ..describing import leaves
from ..explaining.returned_object import returned_name
from ..sample_lines import return_line
from ..snapshot import put_back
from ..validity import read, spread
from ..wording import dataset_culprit, line_ref, where

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from ...findings import Finding, Location
    from ..plan import Part
    from ..validity import Survey

_SAMPLES: Final = 12
_READS: Final = 5
_ROWS: Final = 12  # fewer boxes may be in any order by chance
_MIRRORED: Final = 3  # samples whose boxes are seen in both orders


@dataclass(frozen=True, slots=True)
class _Read:
    index: int
    seed: int
    shape: tuple[int, ...]
    sides: torch.Tensor  # width and height of each box that has an extent


@dataclass(frozen=True, slots=True, kw_only=True)
class Inverted:
    """Boxes that are mirrored along an axis (0 for x) in some reads, with their corners in the old order.

    ``usual`` and ``odd`` are reads of one sample, without and with that; ``count`` says in how many reads it is so.
    """

    name: str
    axis: int
    usual: _Read
    odd: _Read
    count: str


def inverted(survey: Survey) -> Inverted | None:
    """Read samples several times and return boxes in corner form that are mirrored in some reads; or None.

    In other forms (centre and size) a mirrored box does not have the same difference with another sign.
    """
    part, first = survey.part, survey.samples[0]
    for leaf in first.leaves:
        if leaf.kind not in ("tensor", "array") or leaf.shape[-1:] != (4,):
            continue
        own = returned_name(part, first.index, leaf.path, survey.seed)
        if "box" not in f"{leaf.path} {own}".lower():
            continue
        with put_back(part.dataset, spread(part.length or 0, _SAMPLES)):
            reads = list(_reads(survey, leaf.path))
        for axis in (0, 1):
            if pair := _mirrored(reads, axis):
                name = f"{own}, {where(leaf.path)}" if own else where(leaf.path)
                count = sum(_is_inverted(one.sides, axis) for one in reads)
                said = f"{count} of {len(reads)} reads"
                return Inverted(name=name, axis=axis, usual=pair[0], odd=pair[1], count=said)
    return None


def told(part: Part, found: Inverted) -> Finding:
    """Explain boxes of negative width or height."""
    x, side, one = "xy"[found.axis], ("width", "height")[found.axis], found.odd
    usual, odd = (float(each.sides[0, found.axis]) for each in (found.usual, one))
    with put_back(part.dataset, (one.index,)):
        place = _line(part, found.axis, one) or return_line(part, one.index, one.seed)
    return violated(
        "boxes-inverted",
        f"{part.prefix}{found.name} has boxes with {x}1 > {x}2 in {found.count}",
        culprits=[dataset_culprit(part, found.name, f"{x}1 > {x}2", place)],
        location=place,
        observed=f"every box has a negative {side} in {found.count}, and a positive one in the others",
        cause=f"both {x} coordinates of a box are mirrored, but {x}1 and {x}2 are not exchanged",
        because=f"sample {one.index} has a box of {side} {usual:g} in one read and {odd:g} in another",
        fix=f"exchange columns {found.axis} and {found.axis + 2} as they are mirrored, at {line_ref(place)}",
    )


def _sides(value: Any) -> torch.Tensor:
    rows = torch.tensor(value.tolist(), dtype=torch.float64).reshape(-1, 4)
    sides = rows[:, 2:] - rows[:, :2]
    return sides[(sides != 0).any(1)]


def _is_inverted(sides: torch.Tensor, axis: int) -> bool:
    return len(sides) > 0 and bool((sides[:, axis] < 0).all() and (sides[:, 1 - axis] > 0).all())


def _reads(survey: Survey, path: str) -> Iterator[_Read]:
    count = survey.part.length or 0
    for index in spread(count, _SAMPLES):
        for seed in range(survey.seed + index, survey.seed + index + _READS * count, count):
            for value in (
                v for p, v in leaves(read(survey.part.dataset, index, seed)) if p == path
            ):
                if is_array(value) and value.shape[-1:] == (4,) and len(sides := _sides(value)):
                    yield _Read(index, seed, tuple(value.shape), sides)


def _mirrored(reads: list[_Read], axis: int) -> tuple[_Read, _Read] | None:
    """Return a sample read in both orders, where each read is in one of them and all such pairs are mirrored."""
    usual = {one.index: one for one in reads if bool((one.sides > 0).all())}
    wrong = {one.index: one for one in reads if _is_inverted(one.sides, axis)}
    every = all(bool((one.sides > 0).all()) or _is_inverted(one.sides, axis) for one in reads)
    pairs = [(usual[i], wrong[i]) for i in wrong if i in usual]
    pairs = [(a, b) for a, b in pairs if len(a.sides) == len(b.sides)]
    if not every or len(pairs) < _MIRRORED or sum(len(one.sides) for one in reads) < _ROWS:
        return None
    mirrored = all(_is_mirror((b.sides / a.sides)[:, axis]) for a, b in pairs)
    return pairs[0] if mirrored else None


def _is_mirror(ratio: torch.Tensor) -> bool:
    """Say whether boxes have the same side with another sign; several may also be scaled, all by one factor."""
    wanted = ratio[0] if len(ratio) > 1 else -torch.ones_like(ratio[0])
    return torch.allclose(ratio, wanted.expand_as(ratio), rtol=1e-3)


def _line(part: Part, axis: int, one: _Read) -> Location | None:
    """Return the first line of a reading after which a variable holds the boxes, and they are inverted."""

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        known = frame.f_locals.values()
        held = [v for k in known for v in (k.values() if isinstance(k, dict) else (k,))]
        near = [v for v in held if is_array(v) and tuple(v.shape) == one.shape]
        return event != "call" and any(_is_inverted(_sides(v), axis) for v in near)

    return find_line(lambda: read(part.dataset, one.index, one.seed), watcher)
