"""Lines of a dataset's code that make what is wrong with a sample."""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, Any

from .. import sources
from ..lean import dataclass
from ..probes.numbers.finiteness import find_nonfinite
from ..record.tracing import find_line, line_of
from ..state import isolated
from .contents import Contents, Held, is_array
from .describing import Leaf, describe_leaf, leaves, target_path
from .snapshot import Snapshot, put_back
from .validity import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    from ..findings import Location
    from .plan import Part
    from .validity import Deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a bad value comes from.

    Attributes:
        line: The user's line after which it is there, or that returns it.
        held: The stored array that holds it already, or None.
        computed: The operation of torch's that computes it from finite numbers, as a clause; empty
            where none is known to.
    """

    line: Location | None
    held: Held | None = field(default=None, repr=False)
    computed: str = ""


def find_value(part: Part, index: int, seed: int, is_bad: Callable[[Leaf], bool]) -> Origin:
    """Find the stored array, or the first line of the reading, that has a bad value."""
    contents = Contents(part.dataset, (index,))
    snapshot = Snapshot(contents)
    stored = None
    for held in contents.arrays:
        row = held.value
        if len(row.shape) and len(row) == part.length:
            row = row[index]
        if is_bad(describe_leaf("", row)):
            stored = held
            break

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        return event != "call" and any(
            (is_array(value) or isinstance(value, float)) and is_bad(describe_leaf("", value))
            for value in frame.f_locals.values()
        )

    with isolated():
        try:
            line = find_line(lambda: read(part.dataset, index, seed), watcher)
            snapshot.restore()
            made = (
                find_nonfinite(lambda: read(part.dataset, index, seed)) if stored is None else None
            )
        finally:
            snapshot.restore()
    if made is not None and made.origin == "computed" and made.location is not None:
        return Origin(line=made.location, computed=f"{made.op.name}: {made.fact}")
    return Origin(line=line or return_line(part, index, seed), held=stored)


def label_map_line(part: Part, index: int, wrong: Callable[[Any], Any]) -> Location | None:
    """Return the first line of a reading after which a label map holds a wrong label, or None.

    Args:
        part: Whose sample.
        index: Of a sample whose labels are an array.
        wrong: Says of an array where it is wrong.

    A local array counts that has as many dimensions longer than one as the label; images have one more.
    """

    def sizes(value: Any) -> int:
        return sum(size > 1 for size in value.shape)

    with put_back(part.dataset, (index,)) as snapshot:
        sample = read(part.dataset, index, index)
        target = target_path(sample)
        label = next((v for p, v in leaves(sample) if target is not None and p == target), None)
        if not is_array(label) or sizes(label) < 2 or not bool(wrong(label).any()):
            return None
        dims = sizes(label)

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            return event != "call" and any(
                is_array(value) and sizes(value) == dims and bool(wrong(value).any())
                for value in frame.f_locals.values()
            )

        snapshot.restore()
        return find_line(lambda: read(part.dataset, index, index), watcher)


def unlike_line(part: Part, usual: int, odd: int, seed: int) -> Location | None:
    """Return the first line of reading a sample after which an array has another number of dimensions than in a usual sample.

    Args:
        part: The dataset.
        usual: Index of a sample like most.
        odd: Index of the other one.
        seed: Sample ``i`` is read after ``seed_process(seed + i)``.
    """
    ranks: dict[tuple[Any, str], set[int]] = {}

    def arrays(frame: FrameType) -> Iterator[tuple[tuple[Any, str], int]]:
        for name, value in frame.f_locals.items():
            if is_array(value):
                yield (frame.f_code, name), len(value.shape)

    def recorder(frame: FrameType, event: str, line: int) -> bool:
        for key, rank in arrays(frame):
            ranks.setdefault(key, set()).add(rank)
        return False

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        return event != "call" and any(
            key in ranks and rank not in ranks[key] for key, rank in arrays(frame)
        )

    with put_back(part.dataset, (usual, odd)) as snapshot:
        find_line(lambda: read(part.dataset, usual, seed + usual), recorder)
        snapshot.restore()
        return find_line(lambda: read(part.dataset, odd, seed + odd), watcher)


_HEADING = re.compile(r"(?:if|elif|else|while|for|with|try|match|case)\b")


def own_line(part: Part, odd: Deviation, seed: int) -> Location | None:
    """Return the line that reading the odd samples runs, and reading the usual ones does not; None for a stream.

    Of several the last one in the function that ends first: what it leaves is what the sample has.

    Args:
        part: The dataset.
        odd: Which samples are unlike most.
        seed: Sample ``i`` is read after ``seed_process(seed + i)``.
    """
    if not part.is_map_style:
        return None

    def lines(index: int) -> dict[tuple[CodeType, int], None]:
        ran: dict[tuple[CodeType, int], None] = {}

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            if event != "call":
                ran.setdefault((frame.f_code, line))
            return False

        snapshot.restore()
        find_line(lambda: read(part.dataset, index, seed + index), watcher)
        return ran

    with put_back(part.dataset, (*odd.odd, *odd.alike)) as snapshot:
        theirs = {line for index in odd.alike for line in lines(index)}
        ran = [lines(index) for index in odd.odd]
    own = [key for key in ran[0] if key not in theirs and all(key in other for other in ran[1:])]
    places = [line_of(code, line) for code, line in own if code is own[0][0]]
    statements = [place for place in places if not _HEADING.match(place.text)]
    return next(reversed(statements or places), None)


def length_lines(part: Part) -> tuple[Location, ...]:
    """Return the line by which the dataset's ``__len__`` answers, and those that set variables which it reads."""
    ran: list[Location] = []

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event != "call" and frame.f_code.co_name == "__len__":
            ran.append(line_of(frame.f_code, line))
        return event == "return" and frame.f_code.co_name == "__len__"

    end = find_line(lambda: len(part.dataset), watcher)
    if end is None:
        return ()
    read = sources.names_read(end.file, end.line)
    return (end, *(at for at in ran if at.line != end.line and sources.assigned_name(at) in read))


def label_line(
    part: Part, index: int, wrong: Callable[[float], bool], seed: int = 0
) -> Location | None:
    """Return the line that gave a number which ``__getitem__`` returns its last value, or None.

    Args:
        part: Whose sample.
        index: Of a sample with a wrong label.
        wrong: Whether a number is a wrong label.
        seed: For the reading.
    """
    given: dict[str, tuple[float, Location]] = {}
    found: list[Location] = []

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event == "call" or frame.f_code.co_name not in ("__getitem__", "__iter__", "__next__"):
            return False
        for name, value in frame.f_locals.items():
            number = number_of(value)
            if number is not None and (name not in given or given[name][0] != number):
                given[name] = (number, line_of(frame.f_code, line))
        text = line_of(frame.f_code, line).text
        if event == "return":
            found[:] = [
                place
                for name, (number, place) in given.items()
                if wrong(number) and re.search(rf"\b{name}\b", text) and place.line != line
            ]
        return False

    with put_back(part.dataset, (index,)):
        find_line(lambda: read(part.dataset, index, seed), watcher)
    return found[0] if found else None


def number_of(value: Any) -> float | None:
    """Return a number, or the one element of an array, as a float; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if is_array(value) and len(value.reshape(-1)) == 1:
        return float(value)
    return None


def return_line(part: Part, index: int, seed: int = 0) -> Location | None:
    """Return the line by which ``__getitem__`` returns this sample."""
    depth: dict[FrameType, bool] = {}

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event == "call":
            depth[frame] = frame.f_code.co_name in ("__getitem__", "__iter__", "__next__")
            return False
        return event == "return" and depth.get(frame, False)

    with put_back(part.dataset, (index,)):
        found = find_line(lambda: read(part.dataset, index, seed), watcher)
    return found or part.class_line
