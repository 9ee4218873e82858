"""Who holds a tensor: the chain of references to something with a name, and the line that fills it."""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import os
import re
import types
import weakref
from collections import deque
from collections.abc import Container
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ... import sources
from ...lean import dataclass
from ...objects import heap
from ...objects.peek import closed_over
from ...record.lines import traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ...findings import Location

_MOST_LINKS = 14
_MOST_OBJECTS = 20_000


@dataclass(frozen=True, slots=True)
class Link:
    """One holder in a chain.

    Attributes:
        text: What it is called, such as ``Net.history`` or ``list of 17``.
        name: The attribute, key or variable alone, where there is one.
        owner: What has that attribute or variable: a module, an object, a function, a module's globals.
    """

    text: str
    name: str = ""
    owner: Any = None


class Roots:
    """Follow references backwards to something with a name of its own: a module, a global, a function."""

    def __init__(self, module: nn.Module | None) -> None:
        self._modules = {} if module is None else {id(m): n for n, m in module.named_modules()}
        self._root_name = "" if module is None else type(module).__name__
        self._dicts: dict[int, tuple[str, Any]] = {}
        if module is not None:
            for name, part in module.named_modules():
                for mapping in (vars(part), part._buffers, part._parameters):
                    self._dicts[id(mapping)] = (self._module_name(name), part)

    def _module_name(self, name: str) -> str:
        return f"{self._root_name}.{name}" if name else self._root_name

    def chain(self, tensor: Tensor) -> list[Link]:
        """Return the shortest chain of holders that ends in something with a name; it begins with the tensor."""
        parents: dict[int, Any] = {id(tensor): None}
        things: dict[int, Any] = {id(tensor): tensor}
        level: list[Any] = [tensor]
        heap.thaw()
        ours = {id(self.__dict__), id(self), id(self._dicts), id(parents), id(things)}
        root: Any = None
        fallback: Any = None
        for _ in range(_MOST_LINKS):
            if not level or root is not None or len(things) > _MOST_OBJECTS:
                break
            members = {id(child): child for child in level}
            ours |= {id(level), id(members)}
            holders = gc.get_referrers(*level)
            ours.add(id(holders))
            following: list[Any] = []
            for holder in holders:
                if id(holder) in things or id(holder) in ours or _is_noise(holder):
                    continue
                child = next((r for r in gc.get_referents(holder) if id(r) in members), None)
                if child is None:
                    continue
                parents[id(holder)] = child
                things[id(holder)] = holder
                following.append(holder)
                if self._is_root(holder):
                    root = holder
                    break
                if fallback is None and self._is_weak_root(holder):
                    fallback = holder
            level = following
            del holders, members
        end = root if root is not None else fallback
        if end is None:
            end = level[0] if level else tensor
        path = [end]
        while (child := parents.get(id(path[-1]))) is not None:
            path.append(child)
        path.reverse()
        return self._words(path)

    def _is_root(self, thing: Any) -> bool:
        if id(thing) in self._modules or id(thing) in self._dicts:
            return True
        if isinstance(thing, types.ModuleType | type):
            return True
        return isinstance(thing, dict) and "__name__" in thing and "__loader__" in thing

    def _is_weak_root(self, thing: Any) -> bool:
        """Say whether it is a function or an object of the user's: where nothing better holds it, a frame does."""
        if isinstance(thing, types.FunctionType):
            return sources.rank(thing.__code__.co_filename) == 2
        place = sources.of_object(type(thing)) if hasattr(thing, "__dict__") else None
        return place is not None and sources.rank(place.file) == 2

    def _words(self, path: list[Any]) -> list[Link]:
        first = path[0]
        links = [Link(f"{str(first.dtype).removeprefix('torch.')} tensor {list(first.shape)}")]
        cells = [thing for thing in path if isinstance(thing, types.CellType)]
        for number, (child, thing) in enumerate(itertools.pairwise(path)):
            attributes: dict[str, Any] | None = getattr(thing, "__dict__", None)
            context = isinstance(thing, torch.autograd.function.BackwardCFunction)
            if number and type(attributes) is dict and attributes is child and not context:
                # the object says more than the dict of its attributes
                key, kind = _key_of(attributes, path[number - 1]), type(thing).__name__
                links[-1] = Link(f"{kind}.{key}", key, thing)
                continue
            links.append(self._word(cells[-1] if cells and type(child) is tuple else child, thing))
        return [link for link in links if link.text][:_MOST_LINKS]

    def _word(self, child: Any, thing: Any) -> Link:
        if id(thing) in self._dicts:
            name, part = self._dicts[id(thing)]
            key = _key_of(thing, child)
            return Link(f"{name}.{key}", key, part)
        if id(thing) in self._modules:
            key = _key_of(vars(thing), child)
            name = self._module_name(self._modules[id(thing)])
            return Link(f"{name}.{key}" if key else name, key, thing)
        if isinstance(thing, dict):
            key = _key_of(thing, child)
            if "__name__" in thing and "__loader__" in thing:
                return Link(f"global {key} of module {thing['__name__']}", key, thing)
            return Link(f"dict of {len(thing)}, under {key!r}", key, None)
        if isinstance(thing, types.CellType) or (
            type(thing) is tuple and thing and all(isinstance(c, types.CellType) for c in thing)
        ):
            return Link("")  # the function that a closure belongs to says more
        if isinstance(thing, deque):
            return Link(
                f"deque of {len(thing)}" + (f" (maxlen {thing.maxlen})" if thing.maxlen else "")
            )
        if isinstance(thing, list | tuple | set):
            return Link(f"{type(thing).__name__} of {len(thing)}")
        if isinstance(thing, types.FunctionType):
            return self._function_word(child, thing)
        if isinstance(thing, types.MethodType):
            return Link(f"method {thing.__qualname__}")
        if isinstance(thing, type):
            return Link(f"class {thing.__name__}", "", thing)
        if isinstance(thing, torch.autograd.function.BackwardCFunction):
            key = _key_of(vars(thing), child)
            return Link(f"ctx{'.' + key if key else ''} of {type(thing).__name__}", key, None)
        if isinstance(thing, Tensor):
            return Link(f"{str(thing.dtype).removeprefix('torch.')} tensor {list(thing.shape)}")
        key = _key_of(getattr(thing, "__dict__", {}), child)
        kind = type(thing).__name__
        return Link(f"{kind}.{key}" if key else kind, key, thing)

    def _function_word(self, child: Any, function: types.FunctionType) -> Link:
        name = function.__qualname__.rpartition("<locals>.")[2]
        for variable, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            if cell is child:
                return Link(f"variable {variable} in the closure of {name}", variable, function)
        for variable, held in closed_over(function).items():
            if held is child:
                return Link(f"variable {variable} in the closure of {name}", variable, function)
        return Link(f"function {name}", "", function)


def _key_of(mapping: Mapping[Any, Any], child: Any) -> str:
    for key, value in mapping.items():
        if value is child:
            return str(key) if isinstance(key, str | int) else f"a {type(key).__name__}"
    return ""


def _is_noise(thing: Any) -> bool:
    """Say whether a reference is ours, the interpreter's or a frame's, which keeps nothing for long."""
    if isinstance(thing, types.FrameType | types.GeneratorType | weakref.ref | types.TracebackType):
        return True
    if isinstance(thing, types.FunctionType):
        if _is_runners(thing.__module__):
            return True
        return sources.rank(thing.__code__.co_filename) == 0 and not thing.__closure__
    if isinstance(thing, dict) and "__loader__" in thing and _is_runners(thing.get("__name__")):
        return True
    return type(thing).__module__.startswith("pytest_torchcheck.probes")


def _is_runners(module: object) -> bool:
    """Say whether a module is the test runner's: it holds the test itself, for as long as that runs."""
    return isinstance(module, str) and module.partition(".")[0] in ("_pytest", "pluggy")


Lines = Container[tuple[str, int]]
"""The user's lines that a step ran, by file and number."""


@contextlib.contextmanager
def lines_run() -> Iterator[set[tuple[str, int]]]:
    """Collect the user's lines that run inside, in this thread; the tracer of a debugger or of coverage is put back."""
    found: set[tuple[str, int]] = set()

    def local(frame: types.FrameType, event: str, _: Any) -> Any:
        if event == "line":
            found.add((frame.f_code.co_filename, frame.f_lineno))
        return local

    def enter(frame: types.FrameType, event: str, _: Any) -> Any:
        return local if event == "call" and sources.rank(frame.f_code.co_filename) else None

    try:
        with traced(enter):
            yield found
    finally:
        found.update([(os.path.abspath(file), line) for file, line in found])


def _one_that_ran(found: Iterable[Location], ran: Lines) -> Location | None:
    """Return the first place that a step ran; the first of all where none is known to have run."""
    places = list(found)
    return next((p for p in places if (p.file, p.line) in ran), places[0] if places else None)


def blame(
    links: list[Link], code: tuple[Callable[..., Any], ...], ran: Lines = ()
) -> tuple[str, Location | None]:
    """Return the name of what holds the tensors, and the line that puts them there: one that ran, where several could."""
    for link in links:
        if link.name and link.owner is not None:
            return link.text, _one_that_ran(_keeping_lines(link, code), ran)
    return (links[-1].text if len(links) > 1 else ""), None


def _keeping_lines(link: Link, code: tuple[Callable[..., Any], ...]) -> Iterator[Location]:
    """Find the lines that fill an attribute or a variable, by its name, in the code that can; the likeliest first."""
    name = re.escape(link.name)
    owner = link.owner
    functions: list[Any] = []
    if isinstance(owner, types.FunctionType):
        functions = _sharing(owner, link.name)
        start = rf"\b{name}"
    elif isinstance(owner, dict):  # the globals of a module
        for thing in owner.values():
            functions += _functions_of(thing)
        start = rf"\b{name}"
    else:
        for cls in type(owner).__mro__:
            functions += _functions_of(cls)
        start = rf"\.{name}"
    functions += [f for thing in code for f in _functions_of(thing)]
    for pattern in (
        rf"{start}\.(append|extend|add|appendleft|update|setdefault|insert)\(",
        rf"{start}\[[^\]]*\]\s*(=[^=]|\+=)",
        rf"{start}\[[^\]]*\]\.append\(",
        rf"{start}\s*(\+=|\|=)",
        rf"{start}\s*=[^=].*{start}\b",
        rf"{start}\s*=[^=]",
    ):
        for function in functions:
            if function.__name__ == "__init__" and pattern.endswith("=[^=]"):
                continue  # where it begins, not where it grows
            if _is_users(function):
                yield from sources.matches(function, pattern)


def _functions_of(thing: Any) -> list[Any]:
    if isinstance(thing, types.FunctionType):
        return [thing]
    if isinstance(thing, types.MethodType | staticmethod | classmethod):
        return _functions_of(thing.__func__)
    if isinstance(thing, property):
        return _functions_of(thing.fget)
    if isinstance(thing, type):
        return [
            f
            for member in vars(thing).values()
            if not isinstance(member, type)
            for f in _functions_of(member)
        ]
    return []


def _sharing(function: types.FunctionType, variable: str) -> list[Any]:
    """Return the functions that close over the same variable, the given one first."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cell = cells.get(variable)
    heap.thaw()
    others = [
        thing
        for thing in gc.get_objects()
        if type(thing) is types.FunctionType
        and thing is not function
        and any(other is cell for other in thing.__closure__ or ())
    ]
    return [function, *others]


def _is_users(code: Any) -> bool:
    try:
        filename = inspect.getsourcefile(code)
    except TypeError:
        return False
    return filename is not None and sources.rank(filename) > 0


def hook_line(module: nn.Module | None, name: str, ran: Lines = ()) -> Location | None:
    """Find the line that registers a hook, in the classes of the model, its owner's first: one that ran, if any did."""
    return None if module is None else _one_that_ran(_hook_lines(module, name), ran)


def _hook_lines(module: nn.Module, name: str) -> Iterator[Location]:
    owners = [module]
    for part in name.split("."):
        following = getattr(owners[-1], part, None)
        if not isinstance(following, nn.Module):
            break
        owners.append(following)
    seen: set[type] = set()
    for owner in (*reversed(owners), *module.modules()):
        for cls in type(owner).__mro__:
            if cls in seen or cls in (object, nn.Module) or not _is_users(cls):
                continue
            seen.add(cls)
            yield from sources.matches(cls, r"\.register_[a-z_]*hook\(")
