"""How stored bytes move a sample: little beside its values where they are scaled twice, up and down where they wrap."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from ...codes import gradients
from ...lean import dataclass
from ...probes.numbers.wrapping import Wrapped
from ...record.tracing import find_line, line_of
from ...verdicts import violated
from ..contents import Contents
from ..describing import leaves
from ..explaining.returned_object import given_line
from ..snapshot import put_back
from ..validity import read
from ..wording import dataset_culprit, line_ref, where
from .wrapped_bytes import saw_tooth, wraps

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ...findings import Finding, Location
    from ..validity import Survey

_SEEDS: Final = 3
"""An augmentation with a probability of a half is missed with one seed of two, and with three of them once in eight."""
_FAINT: Final = 0.05
"""Share of the values below which the range is faint: normalised data reach from below zero to above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faint:
    """A field of a sample that stored bytes hardly move.

    Attributes:
        path: Of the field.
        stored: Attribute of the dataset that holds the bytes.
        moved: By how much the field changes when its bytes all go from 0 to 255.
        size: Its largest magnitude.
        place: The line after which the values are so.
    """

    path: str
    stored: str
    moved: float
    size: float
    place: Location | None


def misread(survey: Survey) -> Faint | Wrapped | None:
    """Read a sample with the bytes that it is made of all 0, and all 255; None where nothing is wrong.

    Cost: six reads under a line tracer, where the dataset holds bytes of at least two dimensions for each sample;
    37 more where a line wraps them around.
    """
    part = survey.part
    if not part.is_map_style or not survey.samples or survey.count is None:
        return None
    index = survey.samples[0].index
    with put_back(part.dataset, (index,)):
        for held in Contents(part.dataset, (index,)).arrays:
            row = _bytes(held.value, index, survey.count, alone=held.path.endswith(f"[{index}]"))
            seeds = range(survey.seed + index, survey.seed + index + _SEEDS)
            for seed in seeds if row is not None else ():
                try:
                    found = _misread(partial(_read, part.dataset, row, index, seed), held.path)
                except Exception:  # the user's own code may refuse an image of one colour
                    break
                if found is not None:
                    return found
    return None


def _misread(read_all: Callable[[int], dict[str, Tensor]], stored: str) -> Faint | Wrapped | None:
    """Compare the fields of a sample whose bytes are all 0 with those where they are all 255.

    A line that wraps them around, more or less in one of the two, counts where the sample does not follow them.
    """
    (low, dark), (high, bright) = (wraps(partial(read_all, value)) for value in (0, 255))
    lines = [one for one in (*bright, *dark) if not (one in dark and one in bright)]
    if lines and saw_tooth([read_all(value) for value in range(0, 256, 7)]):
        return lines[0]
    for path, first in low.items():
        moved, size = _apart(first, high.get(path))
        if 0 < moved < _FAINT * size:
            place = _line(read_all)
            return Faint(path=path, stored=stored, moved=moved, size=size, place=place)
    return None


def _bytes(value: Any, index: int, count: int, *, alone: bool) -> Any:
    """Return the bytes of one sample as a view that can be written to; None where an array holds something else."""
    if "uint8" not in str(getattr(value, "dtype", "")):
        return None
    if not isinstance(value, Tensor) and not value.flags.writeable:
        return None
    if alone:
        return value if value.ndim > 1 else None
    return value[index] if value.ndim > 2 and len(value) == count else None


def _read(dataset: Any, row: Any, index: int, seed: int, value: int) -> dict[str, Tensor]:
    """Return the floating-point fields of a sample whose bytes are all one value."""
    row[...] = value
    sample = read(dataset, index, seed)
    return {path: made for path, leaf in leaves(sample) if (made := _floats(leaf)) is not None}


def _floats(value: Any) -> Tensor | None:
    """Return an array or tensor of several floating-point numbers as a tensor; None for anything else."""
    if not isinstance(value, Tensor):
        if not str(getattr(value, "dtype", "")).startswith("float"):
            return None
        value = torch.tensor(value.tolist(), dtype=torch.float64)
    several = value.is_floating_point() and value.numel() > 1
    return value.detach().double().clone() if several else None


def _apart(first: Tensor, second: Tensor | None) -> tuple[float, float]:
    """Return the largest difference of two fields, and their largest magnitude; zeros where they have no one shape."""
    if second is None or first.shape != second.shape:
        return 0.0, 0.0
    size = max(float(first.abs().max()), float(second.abs().max()))
    return float((first - second).abs().max()), size


def _line(read_all: Callable[[int], object]) -> Location | None:
    """Return the first line after which a variable holds values that bytes hardly move."""
    seen: list[list[tuple[Location, str, Tensor]]] = []

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        made = ((name, _floats(value)) for name, value in frame.f_locals.items())
        place = line_of(frame.f_code, line)
        seen[-1].extend((place, name, value) for name, value in made if value is not None)
        return False

    for value in (0, 255):
        seen.append([])
        find_line(partial(read_all, value), watcher)
    for one, other in zip(seen[0], seen[1], strict=False):
        if one[:2] != other[:2]:
            return None  # the bytes decide what runs
        moved, size = _apart(one[2], other[2])
        if 0 < moved < _FAINT * size:
            return one[0]
    return None


def told(survey: Survey, found: Faint | Wrapped) -> Finding:
    """Explain a field that stored bytes hardly move, or arithmetic on them that wraps around."""
    if isinstance(found, Wrapped):
        because = "the same call with its operands in int64 gives other numbers"
        more = "as stored bytes rise from 0 to 255, the sample rises and falls"
        return gradients.wrapped(found).replace(because=f"{because}; {more}")
    part, index = survey.part, survey.samples[0].index
    place = found.place or given_line(part, index, found.path, survey.seed + index)
    return violated(
        "sample-faint",
        f"{part.prefix}{where(found.path)} changes by {found.moved:.3g} between bytes of 0 and of 255, at values "
        f"of {found.size:.3g}",
        culprits=(
            dataset_culprit(part, where(found.path), "hardly depends on what is stored", place),
        ),
        location=place,
        observed=f"{found.stored} holds bytes; with all of a sample's at 0, and all at 255, the "
        f"largest difference is {found.moved:.3g}",
        cause=f"the bytes are scaled to a range of {found.moved:.3g}, and a constant of another scale is subtracted or "
        "added: one of the two was likely divided once too often, or not at all",
        because=f"{found.moved / found.size:.1%} of its size is all that an image can change; once "
        "scaled and normalised it is more than 100%",
        fix="scale the bytes once, and normalise with statistics of the same scale"
        + ("" if place is None else f", at {line_ref(place)}"),
    )
