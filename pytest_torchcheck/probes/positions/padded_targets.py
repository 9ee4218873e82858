"""Targets that hold padded values, and a mask or lengths that say which: what of the padding a loss reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ...lean import dataclass
from ...objects import trees

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..loss.slopes import LossOfOutput

_REACH: Final = 2
"""Padded positions beside the border that a shift may let in."""
_ROWS: Final = 3
"""Rows that are asked, all of which must show the same."""
_DISTINCT: Final = 8
_RARE: Final = 0.1
"""Share of real values that may be the padding's: numbers that are mostly 0, or flags, tell nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded:
    """A target whose rows end, or begin, with one number, and what marks these places.

    Attributes:
        path: Of the values, ``[B, T, ...]`` or ``[B, ..., T]``.
        marks: Path of the mask or the lengths.
        kind: ``mask`` or ``lengths``.
        dim: Dimension of time of the values.
        distance: int64, ``[B, T]``: how many places a padded one lies behind the border; 0 for real ones.
    """

    path: str
    marks: str
    kind: str
    dim: int
    distance: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPadding:
    """A padded place beside a real one that the loss compares an output with.

    Attributes:
        padded: The target.
        place: The place, along time.
        output: Path of the output.
        at: The position of the output that is pulled to it.
        reach: How many padded places of a row are read.
        rows: In how many rows that were asked.
    """

    padded: Padded
    place: int
    output: str
    at: int
    reach: int
    rows: int


def padded_targets(targets: Mapping[str, torch.Tensor]) -> Iterator[Padded]:
    """Find the padded values among targets, with the mask or the lengths beside them."""
    for path, values in targets.items():
        if not values.is_floating_point() or values.dim() < 2 or not trees.computable(values):
            continue
        for marks, told in targets.items():
            if marks == path or not trees.computable(told):
                continue
            for dim in sorted({1, values.dim() - 1}):
                kind, first = _first_side(told, len(values), values.shape[dim])
                if first is None:
                    continue
                for padding in (~first, first):
                    if _is_padding(values.movedim(dim, 1), padding):
                        yield Padded(
                            path=path, marks=marks, kind=kind, dim=dim, distance=_distance(padding)
                        )


def _first_side(told: torch.Tensor, samples: int, length: int) -> tuple[str, torch.Tensor | None]:
    """Return where rows have what they begin with, bool ``[B, T]``; None where nothing says it by runs or lengths."""
    if told.dim() == 1 and not told.is_floating_point() and told.dtype != torch.bool:
        fits = len(told) == samples and bool((told >= 1).all()) and bool((told <= length).all())
        first = torch.arange(length, device=told.device) < told[:, None]
        return "lengths", first if fits and not bool(first.all()) else None
    mask = told.squeeze(-1) if told.dim() == 3 and told.shape[-1] == 1 else told
    if mask.shape != (samples, length) or length < 2 or mask.is_complex():
        return "mask", None
    on = mask != 0
    if not bool(((mask == 0) | (mask == 1)).all()):
        return "mask", None
    falls, rises = on[:, :-1] & ~on[:, 1:], ~on[:, :-1] & on[:, 1:]
    if bool(falls.any()) == bool(rises.any()):
        return "mask", None  # no runs of which each row has one at its start
    first = on if bool(falls.any()) else ~on
    return "mask", first if bool((falls | rises).sum(1).le(1).all()) else None


def _is_padding(values: torch.Tensor, padding: torch.Tensor) -> bool:
    """Say whether places hold one number throughout, which hardly stands elsewhere, where many others do."""
    inside, real = values[padding], values[~padding]
    if not inside.numel() or not real.numel() or not bool((inside == inside.flatten()[0]).all()):
        return False
    same = float((real == inside.flatten()[0]).float().mean())
    return same <= _RARE and len(real.unique()) >= _DISTINCT


def _distance(padding: torch.Tensor) -> torch.Tensor:
    """Return how far a padded place is from the next real one of its row; 0 for real ones, and for rows without any."""
    number = padding.long()
    ahead = number.cumsum(1)  # counted from the border where the padding is at the end
    behind = number.flip(1).cumsum(1).flip(1)
    ends = padding[:, -1:] & ~padding[:, :1]
    begins = padding[:, :1] & ~padding[:, -1:]
    return (ahead * ends + behind * begins) * number


def read_padding(loss: LossOfOutput, padded: Padded) -> ReadPadding | None:
    """Return the padding beside the border that a loss reads as real values, though it ignores the rest.

    None where it ignores all of it, reads more of it, or compares an output with several places.

    Raises:
        SubjectError: The loss refuses other targets.
    """
    distance = padded.distance
    far = distance > _REACH
    rows = [n for n in range(len(distance)) if bool(far[n].any())][:_ROWS]
    if not rows:
        return None
    target = loss.targets()[padded.path]
    base, again = (float(loss.run()[0]) for _ in range(2))
    number = 1 + 2 * max(map(trees.scale, (target, *loss.outputs.values())))

    def changed(where: torch.Tensor, value: float) -> torch.Tensor:
        other = target.clone()
        other.movedim(padded.dim, 1)[where] = value
        return other

    def value(where: torch.Tensor) -> float:
        return float(loss.run(loss.with_targets(target, changed(where, number)))[0])

    if base != again or value(far) != base or value(distance == 1) == base:
        return None
    reach = _REACH if value(distance == _REACH) != base else 1
    found = set()
    for row in rows:
        border = int((distance[row] == 1).nonzero()[0])
        step = 1 if int(distance[row, -1]) else -1
        pulled = []
        for place in (border, border - step):
            where = torch.zeros_like(far)
            where[row, place] = True
            ways = [
                loss.slopes(loss.with_targets(target, changed(where, v))) for v in (number, -number)
            ]
            if ways[0] is None or ways[1] is None:
                return None
            pulled.append(_pulled(ways[0].by_output, ways[1].by_output, row, place))
        if pulled[0] is None or pulled[0] != pulled[1]:
            return None
        found.add(pulled[0])
    if len(found) != 1:
        return None
    output, offset = found.pop()
    place = int((distance[rows[0]] == 1).nonzero()[0])
    return ReadPadding(
        padded=padded, place=place, output=output, at=place + offset, reach=reach, rows=len(rows)
    )


def _pulled(
    high: Mapping[str, torch.Tensor], low: Mapping[str, torch.Tensor], row: int, place: int
) -> tuple[str, int] | None:
    """Return the one output that a high target pulls up and a low one down, and how far from its place it is."""
    found = []
    for path in high.keys() & low.keys():
        moved = ((high[path] < 0) & (low[path] > 0)).nonzero()
        if not len(moved):
            continue
        if not bool((moved[:, 0] == row).all()):
            return None
        dims = [d for d in range(1, moved.shape[1]) if len(moved[:, d].unique()) == 1]
        places = [int(moved[0, d]) - place for d in dims if high[path].shape[d] > 1]
        found += [(path, min(places, key=abs))] if places else [(path, place), (path, -place)]
    return found[0] if len(found) == 1 else None
