"""What the comparison asks of the other version, wherever that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..probes.recorded.operations import Trace
    from .running import Outcome, Way
    from .tree import Tree


class UnavailableError(Exception):
    """The other version cannot be had; the message says why, as a clause.

    Attributes:
        code: ``contract-new``, or ``reference-failed``.
    """

    def __init__(self, message: str, *, code: str = "reference-failed") -> None:
        super().__init__(message)
        self.code = code


class Version(Protocol):
    """A contract as it was."""

    @property
    def tree(self) -> Tree:
        """Its files."""

    def description(self) -> Mapping[str, Any]:
        """Return what :func:`~.snapshot.describe` returned.

        Raises:
            UnavailableError: There is no such contract, or its code failed.
        """

    def outcome(self, way: Way) -> Outcome:
        """Run it in one way."""

    def trace(self, way: Way) -> Trace:
        """Record one way of running it."""

    def noise(self) -> dict[str, list[float]]:
        """Return what :func:`~.running.noise` returns."""
