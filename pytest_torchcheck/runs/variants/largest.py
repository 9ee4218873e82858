"""The model on one sample of the largest declared sizes: what fails only beyond a size is not seen at a typical one."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING

from ...late import Late
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...findings import Finding
    from ...subject import Subject

largest = Late("strategies.sequence:largest")
"""It reads the sizes; a run that draws none does not import it."""


def also_at_largest(
    subject: Subject,
    found: Iterator[Finding],
    check: Callable[[Subject], Finding],
    *,
    room: int = 0,
) -> Iterator[Finding]:
    """Iterate over what a check found at typical sizes; where it passed, over what is violated at the largest ones.

    A table, a window or a chunk of a fixed length is longer than a typical sequence: what a longer one does
    is decided elsewhere. What cannot be run or told there is not told.

    Args:
        subject: The model.
        found: The findings at typical sizes.
        check: Asked of a subject of which the base batch is one sample of the largest sizes; once.
        room: How far below the largest sizes to stay.
    """
    first = list(found)
    other = _at_largest(subject, room) if all(f.status == "passed" for f in first) else None
    more: Finding | None = None
    with contextlib.suppress(SubjectError):  # that sizes do not run is told by batch-sizes
        more = check(other) if other is not None else None
    if other is None or more is None or more.status != "violated":
        yield from first
        return
    sizes = ", ".join(f"{name}={size}" for name, size in other.batch().sizes.items())
    yield more.replace(because=f"{more.because}; seen at {sizes}, not at typical sizes")


def _at_largest(subject: Subject, room: int) -> Subject | None:
    """Return the subject with another base batch; None where no size may be larger, or it costs too much."""
    batch = largest(subject.source, subject.batch(), room)
    if batch is None:
        return None
    other = copy.copy(subject)  # the same model and state; what is known of the other batch is not
    other.cache = {
        ("batch", 0): subject.place(batch),
        ("batch", 1): subject.place(subject.source.distinct(batch, subject.seed + 1)),
    }
    return other
