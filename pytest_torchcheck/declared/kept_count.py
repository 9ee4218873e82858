"""Which contracts were declared while somebody keeps count, so that one that nothing refers to can be named."""

from __future__ import annotations

import dataclasses
import inspect
import linecache
import sys
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

    from ..contracts import Contract
    from ..findings import Location


class Declaration:
    """One contract: where it was declared, and whether it was run or collected since.

    Attributes:
        location: The line that declares it.
        used: Whether somebody has done anything with it.
    """

    __slots__ = ("_contract", "location", "used")

    def __init__(self, contract: Contract, location: Location) -> None:
        self._contract = weakref.ref(contract)
        self.location = location
        self.used = False

    def is_of(self, thing: object) -> bool:
        """Say whether a thing is this contract."""
        return self._contract() is thing


class Log:
    """The contracts declared while the log is kept; it holds none of them alive."""

    def __init__(self) -> None:
        self.kept = False
        self.declarations: list[Declaration] = []

    def note(self, contract: Contract, location: Location | None) -> None:
        """Note a contract that was declared."""
        if self.kept and location is not None:
            self.declarations.append(Declaration(contract, _at_import(location)))

    def use(self, contract: object) -> None:
        """Note that a contract is run or collected."""
        for declaration in self.declarations:
            if declaration.is_of(contract):
                declaration.used = True


def _at_import(location: Location) -> Location:
    """Return the line of a module or class body that has a contract declared, be it by a function of the user's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # a function
        frame = frame.f_back
    if frame is None or (frame.f_code.co_filename, frame.f_lineno) == (
        location.file,
        location.line,
    ):
        return location
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()
    return dataclasses.replace(location, file=file, line=line, text=text, function="")


LOG: Final = Log()
