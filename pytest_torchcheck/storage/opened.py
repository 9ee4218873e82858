"""Which files this process opens, as Python's audit events tell."""

from __future__ import annotations

import os
import sys
from typing import Any

_open: list[Opened] = []  # those that record now: an audit hook cannot be taken away again
_hooked: list[bool] = []


class Opened:
    """Records the paths that are opened, from :meth:`start` to :meth:`stop`.

    Attributes:
        read: Absolute paths that were opened for reading.
        written: Absolute paths that were opened for writing too.
    """

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.written: set[str] = set()

    def start(self) -> None:
        """Record from now on."""
        if not _hooked:
            _hooked.append(True)
            sys.addaudithook(_audit)
        _open.append(self)

    def stop(self) -> None:
        """Record no more."""
        if self in _open:
            _open.remove(self)

    def _see(self, path: Any, mode: Any, flags: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor
        name = os.path.abspath(os.fsdecode(path))
        writes = (
            any(letter in mode for letter in "wax+")
            if isinstance(mode, str)
            else bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        )
        (self.written if writes else self.read).add(name)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _open:
        for one in _open:
            one._see(*arguments[:3])
