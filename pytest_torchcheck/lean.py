"""Dataclasses whose functions are shared, or compiled at first use, where ``dataclasses`` compiles all of them at once.

That is a millisecond or so for each class, and a run in which everything passes has some 250 of them, half of which
it never makes an object of. What the classes do is what ``dataclasses`` documents; its ``fields``, ``replace`` and
``asdict`` take them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, FrozenInstanceError, fields
from reprlib import recursive_repr
from types import MethodType
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, order=False, **options):
        """Do what :func:`dataclasses.dataclass` does."""

        def made(cls):
            whole = order or "init" in options or "unsafe_hash" in options
            if whole or any(map(dataclasses.is_dataclass, cls.__mro__[1:])):
                return dataclasses.dataclass(cls, order=order, **options)
            return _made(cls, **options)

        return made if cls is None else made(cls)


def _made(
    cls: Any, *, eq: bool = True, repr: bool = True, frozen: bool = False, **options: Any
) -> Any:
    given = dict(vars(cls))
    cls = dataclasses.dataclass(cls, init=False, eq=False, repr=False, **options)
    shared: dict[str, Any] = {"__init__": _Init()}
    if repr:
        shared["__repr__"] = _repr
    if frozen:
        shared |= {"__setattr__": _set, "__delattr__": _delete}
        if options.get("slots", False):  # state is put back by assignments otherwise
            shared |= {"__getstate__": _state, "__setstate__": _put}
    if eq:
        shared["__eq__"] = _equal
        if given.get("__hash__") is None:
            shared["__hash__"] = _hash if frozen else None
    for name, value in shared.items():
        if name == "__hash__" or name not in given:
            setattr(cls, name, value)
    kept = cls.__dataclass_params__  # what a class that derives from it is compared with
    kept.init, kept.repr, kept.eq, kept.frozen = True, repr, eq, frozen
    return cls


class _Init:
    """Compiles ``__init__`` when it is first asked for, and puts that in its own place."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        home = next(c for c in owner.__mro__ if vars(c).get("__init__") is self)
        home.__init__ = compiled = _compiled(home)
        return compiled if instance is None else MethodType(compiled, instance)


class _Factory:
    """Stands for a value that a function makes."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Factory()


def _compiled(cls: Any) -> Any:
    """Return the ``__init__`` of a dataclass."""
    frozen = cls.__dataclass_params__.frozen
    names: dict[str, Any] = {"_set": object.__setattr__, "_made": _MADE}
    taken: dict[bool, list[str]] = {False: [], True: []}
    body = []
    for field in fields(cls):
        name, value = field.name, field.name
        if field.default_factory is not MISSING:
            names[f"_new_{name}"] = field.default_factory
            made = f"_new_{name}()"
            value = f"{made} if {name} is _made else {name}" if field.init else made
        elif not field.init:
            continue
        if field.init:
            default = ""
            if field.default is not MISSING:
                names[f"_default_{name}"], default = field.default, f"=_default_{name}"
            elif field.default_factory is not MISSING:
                default = "=_made"
            taken[bool(field.kw_only)].append(name + default)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    given = [*taken[False], *(["*", *taken[True]] if taken[True] else [])]
    exec(f"def __init__({', '.join(['self', *given])}):\n " + "\n ".join(body or ["pass"]), names)
    made = names["__init__"]
    made.__annotations__ = {f.name: f.type for f in fields(cls) if f.init} | {"return": None}
    made.__module__, made.__qualname__ = cls.__module__, f"{cls.__qualname__}.__init__"
    return made


def _set(self: Any, name: str, value: Any) -> None:
    if name in self.__dataclass_fields__ or "__dataclass_fields__" in vars(type(self)):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    if name in self.__dataclass_fields__ or "__dataclass_fields__" in vars(type(self)):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in fields(self)]


def _put(self: Any, state: list[Any]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _compared(self) == _compared(other)


def _hash(self: Any) -> int:
    return hash(_compared(self))


_NAMES: dict[type, tuple[str, ...]] = {}
"""By class: the fields that are compared."""


def _compared(value: Any) -> tuple[Any, ...]:
    cls = value.__class__
    if (names := _NAMES.get(cls)) is None:
        names = _NAMES[cls] = tuple(field.name for field in fields(cls) if field.compare)
    return tuple([getattr(value, name) for name in names])


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({shown})"
