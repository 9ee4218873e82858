"""Read what an object of the user's holds without running its code, whatever its special methods do."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import types
from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NONE: Final[dict[str, Any]] = {}
"""What an object without attributes of its own holds; never written to."""
PLAIN: Final = (bool, int, float, str, type(None))
"""Classes of values that hold nothing else; by far the most that a model's attributes are."""


MOST_ITEMS: Final = 500
"""How many items of a mapping that is no dict are looked at."""
_ENTERED: Final = (tuple, list, frozenset, set, deque)


def attributes(thing: Any) -> dict[str, Any]:
    """Return the live ``__dict__`` of an instance; empty where it has none.

    ``__getattr__``, ``__getattribute__`` and properties are not run. A class, a function or a
    module has none.

    Args:
        thing: Any object.
    """
    if isinstance(thing, type | types.ModuleType | types.FunctionType):
        return NONE
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return NONE
    return found if type(found) is dict else NONE


def opaque(thing: Any) -> bool:
    """Say whether not even the class of an object can be asked for or hashed, so that nothing is known of it.

    Args:
        thing: Any object.
    """
    try:
        hash(type(thing))
        return not isinstance(thing.__class__, type)
    except Exception:  # a __getattribute__ or a metaclass of the user's may raise what it likes
        return True


def slots(thing: Any) -> dict[str, Any]:
    """Return the values of an instance's ``__slots__`` that are set, by name.

    Classes of C and of the standard library have none: what those keep there is a cache of their own.

    Args:
        thing: Any object.
    """
    found: dict[str, Any] = {}
    for cls in type(thing).__mro__:
        root = (cls.__module__ or "").partition(".")[0]
        if "__slots__" not in cls.__dict__ or root in sys.stdlib_module_names:
            continue
        for name, member in cls.__dict__.items():
            if isinstance(member, types.MemberDescriptorType):
                try:
                    found[name] = member.__get__(thing)
                except AttributeError:  # declared, never assigned
                    continue
    return found


def cells(function: Any) -> dict[str, types.CellType]:
    """Return the variables of the functions around it that a function uses, by name, as far as they are bound."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            _ = cell.cell_contents
            found[name] = cell
    return found


def closed_over(function: Any) -> dict[str, Any]:
    """Return what these variables hold, by name."""
    return {name: cell.cell_contents for name, cell in cells(function).items()}


def entries(thing: Any) -> Iterator[Any]:
    """Iterate over a list, tuple, deque or set, whatever its class makes of ``len()`` and ``iter()``.

    Args:
        thing: An instance of one of them, or of a subclass whose ``__len__`` may raise.
    """
    kind: Any = next(k for k in _ENTERED if isinstance(thing, k))
    found: Iterator[Any] = kind.__iter__(thing)
    return found


def tuple_like(value: Any, items: Iterable[Any]) -> Any:
    """Return a tuple of the class of ``value`` that holds other items, without a call of a ``__new__`` of its own.

    Args:
        value: A tuple, a named tuple, or one that torch returns.
        items: What the new one holds.
    """
    items = tuple(items)
    try:
        made = tuple.__new__(type(value), items)
    except TypeError:  # of C: what torch.max returns
        return type(value)(items)
    attributes(made).update(attributes(value))
    return made


def length(thing: Any) -> int:
    """Return how many entries a container has, without any code of a subclass; 0 for what is none."""
    kinds: tuple[type, ...] = (list, tuple, dict, set, frozenset, deque)
    kind = next((k for k in kinds if isinstance(thing, k)), None)
    return 0 if kind is None else int(kind.__len__(thing))  # type: ignore[attr-defined]


def pairs(thing: Any) -> list[tuple[Any, Any]]:
    """Return the items of a mapping, of a dict without any code of a subclass; none where they cannot be had.

    Of another mapping so many at most as :data:`MOST_ITEMS`: it may have no end.
    """
    try:
        if isinstance(thing, dict):
            return list(dict.items(thing))
        return list(itertools.islice(thing.items(), MOST_ITEMS))
    except Exception:  # an items() of the user's may raise what it likes
        return []


def attribute(thing: Any, name: str, default: Any = None) -> Any:
    """Return ``getattr(thing, name)``, or the default where that raises anything at all.

    Args:
        thing: Any object, such as a module with a ``__getattr__`` of its own.
        name: The attribute.
        default: What stands for it where it cannot be had.
    """
    try:
        return getattr(thing, name, default)
    except Exception:  # a __getattr__ or property of the user's may raise what it likes
        return default


def signature_of(function: Any, *, follow_wrapped: bool = True) -> inspect.Signature | None:
    """Return the signature of a callable, None where it has none that can be read: a ``__getattr__`` may raise.

    Args:
        function: Any callable.
        follow_wrapped: Take that of the function that it wraps.
    """
    try:
        return inspect.signature(function, follow_wrapped=follow_wrapped)
    except Exception:  # of a builtin, or of an object with attributes of its own making
        return None


def names_in(value: Any) -> set[str]:
    """Return the names that a function, and the functions inside it and those it wraps, look up.

    Args:
        value: Code, or what a class holds: a function, a property, a static method, anything else.
    """
    found: set[str] = set()
    stack, seen = [value], set()
    while stack:
        thing = stack.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, types.CodeType):
            found.update(thing.co_names)
            stack += [one for one in thing.co_consts if isinstance(one, types.CodeType)]
        elif isinstance(thing, types.FunctionType):
            held = list(closed_over(thing).values())
            stack += [thing.__code__, *(f for f in held if isinstance(f, types.FunctionType))]
        elif isinstance(thing, property):
            stack += [thing.fget, thing.fset]
        elif isinstance(thing, staticmethod | classmethod):
            stack.append(thing.__func__)
    return found
