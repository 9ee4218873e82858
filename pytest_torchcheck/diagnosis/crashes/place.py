"""An operation of the user's forward that an explanation points to."""

from __future__ import annotations

from ...findings import Culprit, Location
from ...lean import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An operation of the user's forward.

    Attributes:
        op: Its name, such as ``Tensor.mean``.
        location: The user's line.
        module: Qualified name of the module in whose forward it runs.
        fact: What was measured there, as a clause.
        built: The line that builds the module, where its settings are all that the user wrote of it.
        constructed: The line of a function that ``built`` calls, where that constructs the module.
        settings: What the operation was told by constants: the line that makes a mask.
        cause: What the operation does that it must not, where that is known.
        fix: The edit that mends it, where that is known.
        module_class: Class of that module.
    """

    op: str = ""
    location: Location | None = None
    module: str = ""
    fact: str = ""
    built: Location | None = None
    constructed: Location | None = None
    settings: tuple[Culprit, ...] = ()
    cause: str = ""
    fix: str = ""
    module_class: str = ""

    @property
    def ran(self) -> str:
        """The operation with the module in which it ran: ``F.group_norm in blocks.0.norm (GroupNorm)``."""
        cls = f" ({self.module_class})" if self.module_class else ""
        return f"{self.op} in {self.module}{cls}" if self.op and self.module else self.op

    def culprits(self) -> list[Culprit]:
        """Return the module as a culprit, where there is one."""
        if not self.module and not self.op:
            return []
        if self.module:
            place = self.built or self.location
            first = Culprit("module", self.module, self.op, place)
        else:
            first = Culprit("call", self.op, self.op, self.location)
        within = self.constructed if self.module and self.built is not None else None
        made = [Culprit("call", within.function, "constructs it", within)] if within else []
        return [first, *made, *self.settings]
