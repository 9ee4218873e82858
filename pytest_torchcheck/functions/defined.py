"""Custom autograd functions that a module defines."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

import torch

from ..lean import dataclass
from ..sources import of_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..findings import Location


SIGNATURES = 8
"""Different calls of one Function whose values are kept."""


def short_name(function: Any) -> str:
    """Return a class's qualified name without the functions it is nested in."""
    return str(function.__qualname__).rpartition(".<locals>.")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Defined:
    """A Function or operator that a package defines.

    Attributes:
        name: Qualified name within its module, or the operator's.
        module: Module that defines it.
        kind: ``function`` or ``operator``.
        thing: The class or the operator definition.
        location: Its line.
    """

    name: str
    module: str
    kind: str
    thing: Any
    location: Location | None


def defined_in(packages: Iterable[str]) -> list[Defined]:
    """List the Functions and operators defined in packages.

    Every submodule is imported first; one that cannot be imported is left out.

    Args:
        packages: Top-level or dotted names.
    """
    names = tuple(packages)
    for package in names:
        _load(package)

    def inside(module: str) -> bool:
        return any(module == p or module.startswith(f"{p}.") for p in names)

    found = [
        Defined(
            name=short_name(cls),
            module=cls.__module__,
            kind="function",
            thing=cls,
            location=of_object(cls),
        )
        for cls in _subclasses(torch.autograd.Function)
        if inside(cls.__module__)
    ]
    for name, definition in sorted(torch._library.custom_ops.OPDEFS.items()):
        implementation = definition._init_fn
        if inside(getattr(implementation, "__module__", "")):
            found.append(
                Defined(
                    name=name,
                    module=implementation.__module__,
                    kind="operator",
                    thing=definition,
                    location=of_object(implementation),
                )
            )
    return sorted(found, key=lambda d: (d.module, d.location.line if d.location else 0, d.name))


def _subclasses(cls: Any) -> Iterator[Any]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _load(package: str) -> None:
    try:
        module = importlib.import_module(package)
    except Exception:  # a package may refuse to load in any way; what it defines is then not there
        return
    for info in pkgutil.walk_packages(getattr(module, "__path__", []), f"{package}."):
        if info.name.rpartition(".")[2] in ("__main__", "setup"):
            continue
        try:
            importlib.import_module(info.name)
        except Exception:  # an optional part that is not installed here
            continue
