"""Which paths a program asks about without opening them: whether they exist, and what a folder holds."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import sysconfig
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

THERE: Final = "whether there is "
NAMES: Final = "the names in "
"""How a question is written, before the path."""
LISTINGS: Final = ("os.listdir", "os.scandir")
"""The audit events of folders that are listed."""
_STATS: Final = ("stat", "lstat")
_TOOLS: Final = ("_pytest", "pytest", "pluggy", "xdist", "execnet", "pytest_benchmark", "coverage")
_SUPPORTS: Final = ("supports_dir_fd", "supports_fd", "supports_follow_symlinks")


class Stats:
    """Hands on ``os.stat`` and ``os.lstat``, of which Python has no audit event, with a note of their paths.

    Args:
        note: Called with each path that code other than of tools and of the import system asks about.
    """

    def __init__(self, note: Callable[[Any], None]) -> None:
        self._note = note
        self._before: dict[str, Any] = {}

    def start(self) -> None:
        """Put the functions in place."""
        for name in _STATS:
            before = self._before[name] = getattr(os, name)
            noting = self._noting(before)
            for supporting in (getattr(os, each) for each in _SUPPORTS):
                if before in supporting:
                    supporting.add(noting)
            setattr(os, name, noting)

    def stop(self) -> None:
        """Put the former ones back."""
        for name, before in self._before.items():
            for supporting in (getattr(os, each) for each in _SUPPORTS):
                supporting.discard(getattr(os, name))
            setattr(os, name, before)
        self._before.clear()

    def _noting(self, before: Any) -> Any:
        @functools.wraps(before)
        def noting(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(path, int) and asked_by_program(1):
                self._note(path)
            return before(path, *args, **kwargs)

        return noting


def asked_by_program(above: int) -> bool:
    """Say whether code runs that belongs neither to a tool nor to the import system.

    Args:
        above: How many frames above the caller the question is asked.
    """
    frame: Any = sys._getframe(above + 1)
    while frame is not None:
        whose = _whose(frame.f_code.co_filename)
        if whose != "library":
            return whose == "program"
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=4096)
def _whose(filename: str) -> str:
    """Return whose a file is: a ``tool``'s, the ``program``'s, or the ``library``'s, which asks for either."""
    if filename.startswith("<frozen importlib"):
        return "tool"
    if filename.startswith("<"):
        return "library"
    if filename.startswith(_HERE):
        return "tool"
    for site in _SITES:
        if site in filename:
            top = filename.rpartition(site)[2].partition(os.sep)[0]
            return "tool" if top in _TOOLS else "program"
    return "library" if filename.startswith(_LIBRARY) else "program"


_HERE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SITES: Final = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_LIBRARY: Final = tuple({sysconfig.get_path("stdlib"), os.path.dirname(os.__file__)})


def questions(
    stated: Iterable[str], listed: Iterable[str], root: str, leave: Callable[[str], bool]
) -> set[str]:
    """Return what was asked below a folder, as keys for :func:`answer`.

    Args:
        stated: Absolute paths that were asked about.
        listed: Folders that were listed.
        root: The folder.
        leave: Says which real paths do not count.
    """
    top = os.path.realpath(root) + os.sep
    asked = [(THERE, path) for path in stated] + [(NAMES, path) for path in listed]
    real = ((kind, os.path.realpath(path)) for kind, path in asked)
    return {
        f"{kind}{path}"
        for kind, path in real
        if f"{path}{os.sep}".startswith(top) and not leave(path)
    }


def answer(question: str) -> str | None:
    """Return what a question is answered by now; None for a key that is none."""
    if question.startswith(THERE):
        path = question.removeprefix(THERE)
        return "folder" if os.path.isdir(path) else "file" if os.path.exists(path) else "nothing"
    if question.startswith(NAMES):
        try:
            names = os.listdir(question.removeprefix(NAMES))
        except OSError:
            return "nothing"
        shown = sorted(n for n in names if not n.startswith(".") and n != "__pycache__")
        return hashlib.sha256("\n".join(shown).encode(errors="replace")).hexdigest()
    return None
