"""Whose file it is: the user's own, a package's, or one of torch, pytest and Python."""

from __future__ import annotations

import functools
import os
import site
import sysconfig
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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
