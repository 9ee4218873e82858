"""Samples that reach past the end of what they are cut from, and the table of starts that lets them."""

from __future__ import annotations

import ast
from collections import ChainMap
from typing import TYPE_CHECKING, Any

from ... import sources
from ...lean import dataclass
from ...record.tracing import find_line, line_of
from ...sources.slices import cuts
from ..snapshot import put_back
from ..validity import read
from .index_range import Bound, Source, behind, note

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from ...findings import Location
    from ..plan import Part
    from ..validity import Deviation


_FEW = 16
_MOST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CutShort:
    """A slice that only the odd samples cut short.

    Attributes:
        fact: What was measured.
        location: The slice's line.
        table: The dataset's table that gives the bounds; None where none was found.
        maker: Function and line that give the table an entry too many.
        ends: The assignments of what the table ends at, where there are several.
    """

    fact: str
    location: Location
    table: Source | None
    maker: Location | None
    ends: tuple[Location, ...] = ()


def find_cut_short(part: Part, odd: Deviation, seed: int) -> CutShort | None:
    """Return the slice that reading the odd samples cuts short and reading the usual ones does not; None for a stream.

    Args:
        part: The dataset, put back afterwards.
        odd: Which samples are unlike most.
        seed: Sample ``i`` is read after ``seed_process(seed + i)``.
    """
    if not part.is_map_style:
        return None
    usual: set[tuple[CodeType, int, str]] = set()
    found: list[tuple[str, list[Source]]] = []

    def look(index: int, *, wrong: bool) -> Location | None:
        bound: Bound = {}

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            note(bound, frame, event, line)
            if event == "call":
                return False
            file = frame.f_code.co_filename
            known = ChainMap(frame.f_locals, frame.f_globals)
            for cut in cuts(sources.statement(file, line), known):
                key = (frame.f_code, line, cut.text)
                if not wrong:
                    usual.add(key)
                elif key not in usual:
                    found.append((cut.fact, list(behind(frame, cut.bounds, bound))))
                    return True
            return False

        snapshot.restore()
        return find_line(lambda: read(part.dataset, index, seed + index), watcher)

    with put_back(part.dataset, (*odd.odd, *odd.alike)) as snapshot:
        for index in odd.alike:
            look(index, wrong=False)
        place = look(odd.index, wrong=True)
        if place is None or not found:
            return None
        fact, behind_it = found[0]
        table = next((one for one in behind_it if _is_bound(one.entry)), None)
        maker = None if table is None else _maker(table)
        ends = () if maker is None else _ends(maker)
        maker = ends[0] if len(ends) == 1 else maker
        return CutShort(fact=fact, location=place, table=table, maker=maker, ends=ends[:_MOST])


def _is_bound(entry: Any) -> bool:
    """Say whether an entry of a table may say where to cut: a number, a text, or a few of them."""
    if isinstance(entry, list | tuple):
        return 0 < len(entry) <= _FEW and all(map(_is_bound, entry))
    return isinstance(entry, int | float | str)


def _maker(table: Source) -> Location:
    """Return the line that decides how far a table of starts goes."""
    place, owner = table.location, table.owner
    made = sources.statement(place.file, place.line)
    value = getattr(made, "value", None)
    method = (
        getattr(owner, value.func.attr, None)
        if isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and ast.unparse(value.func.value) == "self"
        and not value.args
        and not value.keywords
        else None
    )
    bound: Bound = {}
    if method is not None and hasattr(method, "__func__"):
        code = method.__func__.__code__

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            note(bound, frame, event, line)
            return frame.f_code is code and any(
                _holds(value, table.entry) for value in frame.f_locals.values()
            )

        place = find_line(method, watcher) or sources.of_object(method) or place
    return _bounding(place, bound)


def _holds(value: Any, entry: Any) -> bool:
    plain = isinstance(entry, int | str | tuple)
    return plain and isinstance(value, list) and entry in value


def _ends(place: Location) -> tuple[Location, ...]:
    """Return the lines above a range that assign the variable at which it ends; none where it ends otherwise."""
    ranges = [n for n in sources.around(place.file, place.line, ast.Call) if sources.called(n) == "range"]  # fmt: skip
    if not ranges:
        return ()
    end = ranges[-1].args[:2][-1]
    while sources.called(end) in ("max", "min", "int") and isinstance(end, ast.Call) and end.args:
        end = next((a for a in end.args if not isinstance(a, ast.Constant)), end.args[0])
    function = sources.function_around(place.file, place.line)
    return tuple(
        sources.of_line(place.file, node.lineno, place.function)
        for node in sources.own_nodes(function)
        if isinstance(node, ast.stmt) and node.lineno < place.line
        if any(ast.unparse(t) == ast.unparse(end) for t, _ in sources.writes(node))
    )


def _bounding(place: Location, bound: Bound) -> Location:
    """Return the line that gives the innermost range around a line, or within its statement, its end."""
    statement = sources.statement(place.file, place.line)
    inside = (
        [n for n in ast.walk(statement) if isinstance(n, ast.comprehension)] if statement else []
    )
    loops = [each.iter for each in inside] or [
        node.iter for node in sources.around(place.file, place.line, ast.For)
    ]
    ranges = [each for each in loops if sources.called(each) == "range"]
    if not ranges:
        return place
    names = {n.id for n in ast.walk(ranges[-1]) if isinstance(n, ast.Name)}
    lines = {
        line_of(frame.f_code, line)
        for (frame, name), (_, line) in bound.items()
        if name in names and line is not None and frame.f_code.co_qualname == place.function
    }
    if len(lines) == 1:
        return lines.pop()
    return sources.of_line(place.file, ranges[-1].lineno, place.function)
