"""Does a dataset keep its first draw: a cache that is filled after the random augmentation, not before it?"""

from __future__ import annotations

import ast
import contextlib
import functools
import sys
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ... import sources
from ...findings import Culprit, Finding
from ...lean import dataclass
from ...record.tracing import find_line, line_of
from ...verdicts import suspicious, violated
from ..explaining.making_lines import files_of
from ..simulation import Workers
from ..wording import dataset_culprit, line_ref

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from ...findings import Location
    from ..contents import Held
    from ..plan import Part

_READS = 3  # of every item after its first
_MAKING = ("__init__", "__setstate__", "__post_init__")
_EMPTYING = ("clear", "pop", "popitem", "popleft", "zero_", "fill_", "fill", "update")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Items that are drawn once and then stay.

    Attributes:
        name: What keeps them: path of a container, array or attribute, or the name of a cached function.
        stored: The line that stores an item, or that makes the function a cached one.
        drawn: The line of the storing function that draws, itself or by what it calls; None where
            it is the storing one.
        items: How many items were read.
        certain: False where something may renew what is kept: a cache of limited size, one that an
            epoch empties.
        renewed: The line that may do so.
        held: What keeps them, where the dataset holds it.
    """

    name: str
    stored: Location | None
    drawn: Location | None
    items: int
    certain: bool = True
    renewed: Location | None = None
    held: Held | None = field(default=None, repr=False)


def is_judged(part: Part) -> bool:
    """Say whether what the dataset keeps stays for all epochs: workers that are started anew lose it."""
    return part.plan.num_workers == 0 or part.plan.persistent_workers


def find_kept(part: Part, declared: Location | None = None) -> Kept | None:
    """Read items until they should differ, and find what keeps them, by which line; None where nothing is drawn or kept."""
    workers = Workers(part)
    with workers.ready(0):
        before, first = workers.states(), workers.digests()
        drawn = workers.states()
        if drawn == before or None in first:
            return None
        workers.begin(1)
        for _ in range(_READS):
            if workers.digests() != first or workers.states() != drawn:
                return None
        changes = [one for one in workers.snapshot.changes() if one.held.kind != "generator"]
    if not changes:
        return None
    held = max(changes, key=lambda one: (one.held.kind != "attribute", one.elements)).held
    watcher = _Storing(workers, held)
    with workers.ready(0):
        stored = find_line(functools.partial(part.dataset.__getitem__, workers.indices[0]), watcher)
    renewed = _renewing_line(part, held.attribute, stored, watcher.ran, declared)
    return Kept(
        name=held.path,
        stored=stored,
        drawn=watcher.drawn,
        items=len(first),
        held=held,
        certain=renewed is None,
        renewed=renewed,
    )


class _Storing:
    """Says True at the line after which something is kept; knows then which line of the same function drew."""

    def __init__(self, workers: Workers, held: Held) -> None:
        self.workers, self.held = workers, held
        self.drawn: Location | None = None
        self.ran: set[str] = set()
        self._states: dict[FrameType, dict[str, bytes]] = {}
        self._drew: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, line: int) -> bool:
        self.ran.add(frame.f_code.co_name)
        now = self.workers.states()
        if event != "call" and self._states.get(frame, now) != now:
            self._drew[frame] = line
        self._states[frame] = now
        if event == "call" or not self._changed():
            return False
        place = self._drew.get(frame)
        self.drawn = line_of(frame.f_code, place) if place not in (None, line) else None
        self._states.clear()
        self._drew.clear()
        return True

    def _changed(self) -> bool:
        snapshot = self.workers.snapshot
        if self.held.kind == "attribute":
            return any(one.held.path == self.held.path for one in snapshot.changes())
        return snapshot.changed(self.held)


def _renewing_line(
    part: Part, attribute: str, stored: Location | None, ran: set[str], declared: Location | None
) -> Location | None:
    """Return a line that empties, or replaces, what an attribute keeps: in a method of the dataset, or from outside of it."""
    own = {one.__name__ for one in type(part.own).__mro__}
    for file in files_of(part, declared):
        tree = sources.tree_of(file)
        for function, cls in _functions(tree) if tree is not None else ():
            if (cls is not None and cls not in own) or function.name in _MAKING:
                continue
            for node in ast.walk(function):
                here = (file, getattr(node, "lineno", 0))
                if stored is not None and here == (stored.file, stored.line):
                    continue
                if _renews(node, attribute, by_entry=function.name not in ran):
                    return sources.of_line(*here, function.name)
    return None


def _functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str | None]]:
    """Yield the functions of a file, with the class that they are methods of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from ((one, node.name) for one in node.body if isinstance(one, ast.FunctionDef))
    methods = {
        id(one) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for one in node.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and id(node) not in methods:
            yield node, None


def _renews(node: ast.AST, attribute: str, *, by_entry: bool) -> bool:
    """Say whether a node replaces an attribute, empties it, or (``by_entry``) writes an entry of it."""

    def is_it(value: Any) -> bool:
        return isinstance(value, ast.Attribute) and value.attr == attribute

    if is_it(node) and not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
        return True
    if isinstance(node, ast.Subscript) and is_it(node.value):
        return isinstance(node.ctx, ast.Del) or (by_entry and isinstance(node.ctx, ast.Store))
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _EMPTYING
        and is_it(node.func.value)
    )


def find_cached_function(part: Part) -> Kept | None:
    """Find a method or function under ``functools.lru_cache`` without which the items are random; all is put back."""
    workers = Workers(part)
    for owner, name, cached in _cached_functions(type(part.own)):
        plain = cached.__wrapped__
        with workers.ready(0), _replaced(owner, name, plain):
            first, second = workers.digests(), workers.digests()
        if first != second:
            return Kept(name=name, stored=_decorator_line(plain), drawn=None, items=len(first))
    return None


def _cached_functions(cls: type) -> Iterator[tuple[Any, str, Any]]:
    modules = [sys.modules.get(one.__module__) for one in cls.__mro__]
    for owner in (*cls.__mro__, *modules):
        for name, value in list(vars(owner).items()) if owner is not None else ():
            if hasattr(value, "cache_info") and hasattr(value, "__wrapped__"):
                place = sources.of_object(value.__wrapped__)
                if place is not None and sources.rank(place.file) == 2:
                    yield owner, name, value


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _decorator_line(function: Any) -> Location | None:
    return sources.search(function, r"@.*cache") or sources.of_object(function)


def kept(part: Part, found: Kept, *, promised: bool) -> Finding:
    """Random items that are drawn once: where augmentation is promised, every epoch sees the first draw."""
    make = violated if promised and found.certain and part.plan.declared else suspicious
    place = found.stored or (found.held.location if found.held is not None else None)
    again = f"; unless {line_ref(found.renewed)} refreshes it" if found.renewed is not None else ""
    return make(
        "augmentation-fixed" if promised else "sample-drawn-once",
        f"{part.prefix}items of {part.name} are drawn once, and {found.name} keeps them"
        + (
            ": every epoch uses the first draw, although random augmentation is promised"
            if promised
            else " for all epochs"
        ),
        culprits=(
            dataset_culprit(part, found.name, "keeps the drawn value", place),
            *(
                (Culprit("call", found.drawn.text, "draws the kept value", found.drawn),)
                if found.drawn
                else ()
            ),
        ),
        location=place,
        observed=f"{found.items} items were read {_READS + 1} times; the first read draws, the "
        "others are equal to it and draw nothing"
        if found.held is not None
        else (
            f"{found.items} items were read repeatedly and are equal; without the cache they differ"
        ),
        cause=f"{found.name} is filled after the random augmentation" + again,
        because=f"{line_ref(place)} stores the drawn value",
        fix=f"at {line_ref(place)} keep only values that are not random, and augment the values "
        f"read from {found.name}",
    )
