"""Calls of declarations that do not fit: what was given, what is allowed, and the call that would do."""

from __future__ import annotations

import inspect
from functools import cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Final

from .wording import unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EXAMPLES: Final[Mapping[str, str]] = {
    "a": '"embed.weight"',
    "b": '"head.weight"',
    "checkpoint": '"old.pt"',
    "classes": "10",
    "decay": "0.99",
    "functions": '("Round",)',
    "high": "10",
    "ids": '"ids"',
    "load": "load",
    "longest": '"T"',
    "lr": "lambda step: 1e-3",
    "max_norm": "1.0",
    "n": "4",
    "nodes": '"N"',
    "of": '"x"',
    "reason": '"why"',
    "reference": "Net",
    "run": "run",
    "save": "save",
    "source": '"student"',
    "target": '"teacher"',
    "than": "Net",
    "vocab": "1000",
}
"""What an argument that must be given may be, in the example of a call."""


class Declaring(type):
    """The class of classes whose instances users declare: a call that does not fit is refused in words.

    A class says in ``_refuses`` what it raises.
    """

    _refuses: ClassVar[type[Exception]] = TypeError

    if not TYPE_CHECKING:  # what is checked is the class's own __init__

        @property
        def __signature__(cls) -> inspect.Signature:
            """The arguments, as ``help`` and editors show them."""
            return _signature(cls)

        def __call__(cls, *args: Any, **fields: Any) -> Any:
            """Make an instance, or raise what the class refuses with."""
            try:
                _signature(cls).bind(*args, **fields)
            except TypeError:
                raise cls._refuses(misfit(cls, args, fields)) from None
            try:
                made = super().__call__(*args, **fields)
            except TypeError:
                if told := wrong_kind(cls, args, fields):
                    raise cls._refuses(told) from None
                raise
            if told := wrong_kind(cls, args, fields):
                raise cls._refuses(told)
            return made


_KINDS: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    "None": ("None", lambda value: value is None),
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "int": ("an int", lambda value: isinstance(value, Integral) and not isinstance(value, bool)),
    "float": ("a number", lambda value: isinstance(value, Real) and not isinstance(value, bool)),
    "str": ("a str", lambda value: isinstance(value, str)),
    "tuple[int, ...]": (
        "a tuple of ints",
        lambda value: isinstance(value, tuple | list) and all(isinstance(n, int) for n in value),
    ),
}
"""By what an argument's annotation says: its words, and whether a value is of that kind."""


def wrong_kind(cls: type, args: tuple[Any, ...], fields: Mapping[str, Any]) -> str | None:
    """Say which argument is of a kind that its annotation does not allow; None where none is.

    Annotations of other types say nothing here, nor do those of a project's own classes.
    """
    if not cls.__module__.startswith("pytest_torchcheck."):
        return None
    taken = _signature(cls)
    for name, value in taken.bind(*args, **fields).arguments.items():
        parts = str(taken.parameters[name].annotation).split(" | ")
        kinds = [_KINDS[part] for part in parts if part in _KINDS]
        if (
            len(kinds) < len(parts)
            or taken.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        ):
            continue
        if not any(fits(value) for _, fits in kinds):
            allowed = " or ".join(words for words, _ in kinds)
            return f"{cls.__name__}({name}=) must be {allowed}; got {value!r}"
    return None


@cache
def _signature(cls: type) -> inspect.Signature:
    """Return the arguments of a class, without ``self``."""
    whole = inspect.signature(cls.__init__)  # type: ignore[misc]  # the class's own is meant
    return whole.replace(parameters=list(whole.parameters.values())[1:])


def misfit(cls: type, args: tuple[Any, ...], fields: Mapping[str, Any]) -> str:
    """Say what is wrong with the arguments of a call, with the call that would do.

    Args:
        cls: What is called.
        args: What is given by position.
        fields: What is given by name.
    """
    owner, taken = cls.__name__, _signature(cls).parameters
    for name in fields:
        if name not in taken:
            return unknown(f"{owner}()", name, taken)
    several = any(p.kind is p.VAR_POSITIONAL for p in taken.values())
    single = [p for p in taken.values() if p.kind is not p.VAR_POSITIONAL]
    by_place = [p.name for p in single if p.kind is p.POSITIONAL_OR_KEYWORD]
    given = dict(zip(by_place, args, strict=False))
    left = [p.name for p in single if p.name not in given and p.name not in fields]
    extra = {} if several else dict(zip(left, args[len(by_place) :], strict=False))
    shown = {**given, **extra, **fields}
    lacking = [p.name for p in single if p.default is p.empty and p.name not in shown]
    parts = [f"{name}={value!r}" for name, value in shown.items()]
    parts += [f"{name}={EXAMPLES.get(name, '...')}" for name in lacking]
    if several:
        parts[:0] = [repr(value) for value in args] or ['"encoder.*"']
    if twice := [name for name in given if name in fields]:
        problem = f"got {_and(twice)} twice"
    elif not several and len(args) > len(by_place):
        problem = "takes its arguments by name" if single else "takes no arguments"
        if by_place:
            problem = f"takes only {_and(by_place)} by position"
    else:
        problem = f"needs {_and(lacking)}"
    arguments = f" (arguments: {_listed(cls)})" if taken else ""
    return f"{owner}() {problem}; write {owner}({', '.join(parts)}){arguments}"


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def _listed(cls: type) -> str:
    """Return the arguments of a class with their defaults."""
    return ", ".join(
        f"{'*' if p.kind is p.VAR_POSITIONAL else ''}{p.name}"
        + ("" if p.default is p.empty else f"={p.default!r}")
        for p in _signature(cls).parameters.values()
    )
