"""Names that are resolved when they are used: what a lower layer calls of a higher one, and what few runs need.

Imports in this package lead one way, from what is rendered down to what is declared. Where a value
of a lower layer offers a shortcut upwards (a contract that checks itself, a finding that prints
itself), or where an explanation is needed only after something failed, the target is written as
``"module:name"``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .lean import dataclass


def resolve(name: str) -> Any:
    """Import a module of this package and return what it calls by a name.

    Args:
        name: ``"module:name"``, the module relative to this package, such as ``"runner:run_contract"``.

    Raises:
        ImportError: There is no such module.
        AttributeError: The module has no such name.
    """
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"{__package__}.{module}"), attribute)


@dataclass(frozen=True)
class Late:
    """A function that is imported when it is called.

    Attributes:
        target: ``"module:function"``, relative to this package.
    """

    target: str

    @property
    def function(self) -> Any:
        """The function itself, imported now."""
        return resolve(self.target)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Import the function and call it."""
        return self.function(*args, **options)
