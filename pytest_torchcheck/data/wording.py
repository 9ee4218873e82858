"""Words that the findings on data share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import sources
from ..findings import Culprit, Location

if TYPE_CHECKING:
    from .plan import Part


def dataset_culprit(
    part: Part, name: str, detail: str = "", location: Location | None = None
) -> Culprit:
    """Name something of a dataset, with its role where there are several."""
    return Culprit("dataset", f"{part.prefix}{name}", detail, location)


def own_line(part: Part, pattern: str) -> Location | None:
    """Return the first line of the dataset's class that matches; none of torch's own classes."""
    place = sources.search(type(part.own), pattern)
    return place if place is not None and sources.rank(place.file) else part.class_line


def line_ref(location: Location | None) -> str:
    """Return ``data.py:12``, or ``__getitem__`` where no line is known."""
    return (
        "__getitem__" if location is None else f"{location.file.rpartition('/')[2]}:{location.line}"
    )


def where(path: str) -> str:
    """Name a leaf of a sample: ``sample[0]``, ``sample['image']``."""
    parts = [f"[{part}]" if part.isdigit() else f"[{part!r}]" for part in path.split(".") if part]
    return "sample" + "".join(parts)


def called(function: object) -> str:
    """Return the name of a function, or of the class of an object that is called as one."""
    return str(getattr(function, "__name__", type(function).__name__))


def few(values: Any) -> str:
    """Return the first values of a sequence, and how many more there are."""
    shown = list(values)
    return ", ".join(str(value) for value in shown[:4]) + (
        f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    )
