"""What a dataset holds: its arrays, containers and random generators, by attribute path."""

from __future__ import annotations

import collections
import functools
import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Literal

import torch

from .. import sources
from ..findings import Location
from ..lean import dataclass
from ..objects import trees
from ..objects.peek import attribute, closed_over, names_in
from .generators import is_generator

_MOST_VISITED = 4096
_LONG_LIST = 512
_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, bytearray, range, type, types.ModuleType,
    types.BuiltinFunctionType, torch.dtype, torch.device, torch.Size,
)  # fmt: skip
_FOREIGN = frozenset(
    {"builtins", "threading", "_thread", "logging", "weakref", "_weakref", "io", "_io"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Something that a dataset keeps between reads.

    Attributes:
        path: How the user reaches it from the dataset: ``images``, ``transforms[2].rng``, or the
            name of a module's global.
        kind: What it is; an ``attribute`` is one that was bound anew.
        value: The tensor, array, generator or container itself.
        owner: The object that has it as an attribute, or the function that closes over it.
        attribute: Its name there.
    """

    path: str
    kind: Literal["array", "generator", "container", "attribute"]
    value: Any = field(repr=False)
    owner: Any = field(repr=False)
    attribute: str

    @property
    def location(self) -> Location | None:
        """The line that makes it, where it can be found."""
        return locate(self.owner, self.attribute)


def locate(owner: Any, attribute: str) -> Location | None:
    """Return the line that binds a name: in a class (``self.name = ...``), a function or a module."""
    if isinstance(owner, types.ModuleType):
        return sources.search(owner, rf"^{re.escape(attribute)}\s*[=:]")
    if isinstance(owner, types.FunctionType):
        return _enclosing_line(owner, attribute) or sources.of_object(owner)
    if owner is None:
        return None
    named = rf"['\"]{re.escape(attribute)}['\"]"  # as in setdefault("slow", {})
    return (
        sources.of_assignment(owner, attribute)
        or (sources.search(type(owner), named) if attribute else None)
        or sources.of_user_object(owner)
    )


def _enclosing_line(function: types.FunctionType, name: str) -> Location | None:
    """Find ``name = ...`` in the lines above a function, where its closure was made."""
    try:
        lines, _ = inspect.findsource(function)
    except (OSError, TypeError):
        return None
    for number in range(min(function.__code__.co_firstlineno, len(lines)), 0, -1):
        text = lines[number - 1].strip()
        if text.startswith((f"{name} =", f"{name}=", f"{name}:")):
            return Location(file=function.__code__.co_filename, line=number, text=text)
    return None


def is_array(value: Any) -> bool:
    """Say whether a value is a tensor, not a nested one, or a NumPy array of numbers."""
    if isinstance(value, torch.Tensor):
        return not value.is_nested
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc"


def is_of_objects(value: Any) -> bool:
    """Say whether a value is a NumPy array of Python objects, whose memory holds their addresses."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.hasobject


def raw_bytes(tensor: torch.Tensor) -> Any:
    """Return a strided tensor's elements as something that hashes; no copy where there is NumPy."""
    flat = trees.dense(tensor).cpu().contiguous().reshape(-1)
    if not flat.numel():
        return b""
    flat = flat.view(torch.uint8)
    try:
        return flat.numpy()
    except RuntimeError:  # torch without NumPy
        return bytes(flat.tolist())


class Contents:
    """Everything reachable from a dataset that reading it may change.

    Args:
        root: A dataset, a sampler, or any object.
        rows: Indices that will be read: of long lists only these elements are looked into, and of
            arrays too large to copy only these rows are kept.
        without: Objects that are not looked into.
    """

    def __init__(
        self, root: Any, rows: tuple[int, ...] = (), *, without: tuple[Any, ...] = ()
    ) -> None:
        self.root = root
        self.rows = rows
        self.held: list[Held] = []
        self.containers: list[Held] = []
        self.objects: list[Held] = []
        self._seen: set[int] = {id(one) for one in without}
        self._classes: set[type] = set()
        self._keep: list[Any] = []
        self._of_all: list[Held] = []
        self._walk()
        for held in self._of_all:
            if id(held.value) not in self._seen:
                self._seen.add(id(held.value))
                self.containers.append(held)

    @property
    def arrays(self) -> list[Held]:
        """Tensors and arrays of numbers."""
        return [held for held in self.held if held.kind == "array"]

    @property
    def generators(self) -> list[Held]:
        """Random generators, without those of the process."""
        return [held for held in self.held if held.kind == "generator"]

    def _walk(self) -> None:
        queue: collections.deque[tuple[str, Any, Any, str]] = collections.deque(
            [("", self.root, None, "")]
        )
        visited = 0
        while queue and visited < _MOST_VISITED:
            path, value, owner, attribute = queue.popleft()
            if isinstance(value, _ATOMS) or id(value) in self._seen:
                continue
            visited += 1
            self._seen.add(id(value))
            self._keep.append(value)
            if is_array(value) or is_generator(value):
                kind: Literal["array", "generator"] = "array" if is_array(value) else "generator"
                self.held.append(
                    Held(path=path, kind=kind, value=value, owner=owner, attribute=attribute)
                )
            else:
                queue.extend(self._children(path, value, owner, attribute))

    def _children(
        self, path: str, value: Any, owner: Any, attribute: str
    ) -> Iterator[tuple[str, Any, Any, str]]:
        here = Held(path=path, kind="container", value=value, owner=owner, attribute=attribute)
        if isinstance(value, Mapping):
            self.containers.append(here)
            if len(value) <= _LONG_LIST or not _only_atoms(value.values()):
                for place, (key, item) in enumerate(list(value.items())[:_MOST_VISITED]):
                    # a tensor or module as a key is named by its place
                    named = repr(key) if isinstance(key, (*_ATOMS, tuple)) else place
                    yield f"{path}[{named}]", item, owner, attribute
        elif isinstance(
            value, list | tuple | set | frozenset | collections.deque
        ) or is_object_array(value):
            self.containers.append(here)
            yield from self._elements(path, value, owner, attribute)
        elif isinstance(value, functools.partial):
            yield path, value.func, owner, attribute
            for position, item in enumerate(value.args):
                yield f"{path}.args[{position}]", item, owner, attribute
            for key, item in value.keywords.items():
                yield f"{path}.{key}", item, owner, attribute
        elif isinstance(value, types.MethodType):
            yield path, value.__self__, owner, attribute
            yield path, value.__func__, owner, attribute
        elif isinstance(value, types.FunctionType):
            yield from self._function(path, value)
        elif type(value).__module__.split(".")[0] not in _FOREIGN:
            yield from self._instance(path, value)

    def _elements(
        self, path: str, value: Any, owner: Any, attribute: str
    ) -> Iterator[tuple[str, Any, Any, str]]:
        if isinstance(value, set | frozenset):
            yield from ((path, item, owner, attribute) for item in list(value)[:_LONG_LIST])
            return
        places = range(len(value))
        if len(value) > _LONG_LIST:
            if _only_atoms(value):
                return
            places = [row for row in self.rows if row < len(value)] or range(_LONG_LIST)  # type: ignore[assignment]
        for place in places:
            yield f"{path}[{place}]", value[place], owner, attribute

    def _function(
        self, path: str, function: types.FunctionType
    ) -> Iterator[tuple[str, Any, Any, str]]:
        if not sources.rank(function.__code__.co_filename):
            return
        for name, value in closed_over(function).items():
            yield (f"{path}.{name}" if path else name), value, function, name
        for name, value in (function.__kwdefaults__ or {}).items():
            yield f"{path}.{name}", value, function, name
        for value in function.__defaults__ or ():
            yield path, value, function, function.__name__
        for name in names_in(function.__code__):
            value = function.__globals__.get(name)
            if is_array(value) or is_generator(value):
                yield name, value, sys.modules.get(function.__module__), name
            elif isinstance(value, dict):
                self._shared(name, value, sys.modules.get(function.__module__), name)

    def _shared(self, path: str, value: dict[Any, Any], owner: Any, attribute: str) -> None:
        """Count a dict of a class or module among the containers: reading may fill it. What it holds is not looked into."""
        self._of_all.append(
            Held(path=path, kind="container", value=value, owner=owner, attribute=attribute)
        )

    def _instance(self, path: str, value: Any) -> Iterator[tuple[str, Any, Any, str]]:
        attributes = attribute(value, "__dict__")
        dot = f"{path}." if path else ""
        if isinstance(attributes, dict):
            self.objects.append(
                Held(path=path, kind="attribute", value=value, owner=value, attribute="")
            )
            for name, item in attributes.items():
                if isinstance(value, torch.nn.Module) and name in (
                    "_parameters",
                    "_buffers",
                    "_modules",
                ):
                    yield from ((f"{dot}{key}", child, value, key) for key, child in item.items())
                else:
                    yield f"{dot}{name}", item, value, name
        for cls in type(value).__mro__:
            for name in getattr(cls, "__slots__", ()):
                if isinstance(name, str) and hasattr(value, name):
                    yield f"{dot}{name}", getattr(value, name), value, name
            if cls not in self._classes and cls.__module__ != "builtins":
                self._classes.add(cls)
                for name, item in vars(cls).items():
                    if (
                        isinstance(item, dict)
                        and not name.startswith("__")
                        and sources.is_own_class(cls)
                    ):
                        self._shared(f"{dot}{name}", item, value, name)
                    function = getattr(item, "__func__", item)
                    if isinstance(function, types.FunctionType):
                        yield dot[:-1], function, value, ""


def _only_atoms(values: Any) -> bool:
    return all(issubclass(kind, _ATOMS) for kind in set(map(type, values)))


def is_object_array(value: Any) -> bool:
    """Say whether a value is a NumPy array of Python objects."""
    numpy = sys.modules.get("numpy")
    return (
        numpy is not None
        and isinstance(value, numpy.ndarray)
        and value.dtype == object
        and value.ndim == 1
    )


def has_state(thing: Any) -> bool:
    """Say whether a checkpoint can hold the state of an object."""
    return (
        callable(attribute(thing, "state_dict"))
        and callable(attribute(thing, "load_state_dict"))
        and not isinstance(thing, type)
    )
