"""Which contracts were declared while somebody keeps count, so that one that nothing refers to can be named."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
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
            self.declarations.append(Declaration(contract, location))

    def use(self, contract: object) -> None:
        """Note that a contract is run or collected."""
        for declaration in self.declarations:
            if declaration.is_of(contract):
                declaration.used = True


LOG: Final = Log()
