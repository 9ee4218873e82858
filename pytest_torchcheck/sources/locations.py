"""Whose file it is, and the user's line behind a frame, a traceback, an error or an object."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import site
import sys
import sysconfig
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from ..findings import Location
from ..objects.peek import attribute
from ..objects.weak import by_class

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType, FrameType, TracebackType


_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TOOLS = (
    "torch",
    "_pytest",
    "pytest",
    "pluggy",
    "hypothesis",
    "xdist",
    "execnet",
    "numpy",
    "functorch",
)


@functools.cache
def _standard_library() -> tuple[str, ...]:
    paths = {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        os.path.dirname(os.__file__),
    }
    return tuple(os.path.realpath(path) + os.sep for path in paths if path)


@functools.cache
def _site_packages() -> tuple[str, ...]:
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    return tuple(os.path.realpath(path) + os.sep for path in paths if path)


_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_OWN: set[str] = set()


def count_as_own(packages: Iterable[str]) -> None:
    """Let these installed packages, and no others, count as the user's own code; findings name their lines."""
    _OWN.clear()
    _OWN.update(packages)
    rank.cache_clear()


@functools.cache
def rank(filename: str) -> int:
    """Say how much a file is the user's own: 2 own code, 1 an installed package, 0 a tool."""
    if filename.startswith("<"):
        return 0
    path = os.path.realpath(filename)
    if path.startswith(_HERE + os.sep):
        return 0
    root = next((root for root in _site_packages() if path.startswith(root)), None)
    if root is None:  # those of another interpreter, put on the path of this one
        root = next(
            (path[: path.rindex(name) + len(name)] for name in _PACKAGES if name in path), None
        )
    if root is not None:
        top = path[len(root) :].split(os.sep, 1)[0]
        if top.removesuffix(".py") in _OWN:
            return 2
        return 0 if top in _TOOLS or top.split(".")[0] in _TOOLS else 1
    if any(path.startswith(root) for root in _standard_library()):
        return 0
    return 2


def is_installed(path: str) -> bool:
    """Say whether a real path belongs to an installed package or to the standard library."""
    return path.startswith((*_site_packages(), *_standard_library())) or any(
        name in path for name in _PACKAGES
    )


_normal = functools.lru_cache(maxsize=4096)(os.path.abspath)


def of_line(filename: str, line: int, function: str = "") -> Location:
    """Return a line of a file, with its text."""
    text = linecache.getline(filename, line).strip()
    file = _normal(filename) if os.path.isabs(filename) else os.path.abspath(filename)
    return Location(file=file, line=line, text=text, function=function)


def _best(frames: Iterable[tuple[CodeType, int]]) -> Location | None:
    """Pick the innermost frame of the user's own code, else of an installed package."""
    best: tuple[int, CodeType, int] | None = None
    for code, line in frames:  # from the outermost to the innermost
        value = rank(code.co_filename)
        if value and (best is None or value >= best[0]):
            best = (value, code, line)
    if best is None:
        return None
    _, code, line = best
    return of_line(code.co_filename, line, getattr(code, "co_qualname", code.co_name))


def of_traceback(traceback: TracebackType | None) -> Location | None:
    """Return the user's innermost line of a traceback, or None if it holds none."""
    return _best((frame.f_code, line) for frame, line in walk_tb(traceback))


def of_error(error: BaseException) -> Location | None:
    """Return the user's innermost line of an exception, following causes where it has none."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if (found := of_traceback(current.__traceback__)) is not None:
            return found
        current = current.__cause__ or current.__context__
    return None


def of_frame(
    frame: FrameType | None = None, *, skip: int = 0, until: FrameType | None = None
) -> Location | None:
    """Return the user's innermost line of the running stack.

    Args:
        frame: Where to start; the caller's frame by default.
        skip: How many frames to leave out first.
        until: The outermost frame to look at, such as the one that started a probe.
    """
    current: FrameType | None = frame if frame is not None else sys._getframe(1 + skip)
    fallback: tuple[CodeType, int] | None = None
    while current is not None:
        value = rank(current.f_code.co_filename)
        if value == 2:
            return of_line(
                current.f_code.co_filename,
                current.f_lineno,
                getattr(current.f_code, "co_qualname", ""),
            )
        if value == 1 and fallback is None:
            fallback = (current.f_code, current.f_lineno)
        current = None if current is until else current.f_back
    return (
        None
        if fallback is None
        else of_line(fallback[0].co_filename, fallback[1], fallback[0].co_name)
    )


def of_object(thing: Any) -> Location | None:
    """Return where a function, method or class is defined, or None for builtins."""
    if not callable(thing):
        thing = type(thing)
    elif attribute(thing, "__wrapped__") is not None:
        thing = inspect.unwrap(thing)
    if isinstance(thing, functools.partial):
        thing = thing.func
    if not inspect.isroutine(thing) and not inspect.isclass(thing):
        thing = type(thing)
    try:
        filename = inspect.getsourcefile(thing)
        _, line = inspect.getsourcelines(thing)
    except (TypeError, OSError):
        return None
    if filename is None:
        return None
    return of_line(filename, max(line, 1), getattr(thing, "__qualname__", ""))


def of_user_object(thing: Any) -> Location | None:
    """Return where a function, method or class is defined, or None where that is in torch or another tool."""
    place = of_object(thing)
    return place if place is not None and rank(place.file) else None


def of_own_class(model: Any) -> Location | None:
    """Return where the class of a model, else of the first of its modules that the user wrote, is defined."""
    for module in (model, *model.modules()):
        place = of_object(type(module))
        if place is not None and rank(place.file) == 2:
            return place
    return None


def is_own_class(cls: type) -> bool:
    """Say whether a class is written in the user's own files, and its objects have attributes."""
    return _is_own_class(cls)


@by_class
def _is_own_class(cls: type) -> bool:
    if cls.__module__ == "builtins" or not hasattr(cls, "__dict__"):
        return False
    home = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if home is not None and rank(home) != 2:
        return False  # to find the line of a class takes long
    place = of_object(cls)
    return place is not None and rank(place.file) == 2 and "__dict__" in dir(cls)
