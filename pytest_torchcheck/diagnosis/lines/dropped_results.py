"""Statements of a constructor whose result nothing keeps, and which cannot change what they are called on."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ... import sources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from ...findings import Location

_COPIES = frozenset(
    {"clone", "detach", "to", "float", "double", "half", "bfloat16", "contiguous", "expand", "t", "abs"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A call whose result is dropped.

    Attributes:
        method: What is called, such as ``embedding.from_pretrained``.
        location: The line.
        why: Why the call alone changes nothing, as a clause.
    """

    method: str
    location: Location
    why: str


def dropped_result(model: nn.Module, name: str) -> Dropped | None:
    """Return the statement that calls a parameter, or a module around it, and drops what that returns.

    A class method or a static one returns something new and leaves the instance as it is; so do the
    methods by which a tensor is copied or converted.

    Args:
        model: The model.
        name: Qualified name of a parameter.
    """
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        owner = model.get_submodule(".".join(parts[:depth]))
        held = getattr(owner, parts[depth], None)
        for cls in type(owner).__mro__:
            if not sources.is_own_class(cls):
                continue
            for call, line in _statements(cls, parts[depth]):
                if why := _idle(held, call):
                    return Dropped(method=f"{parts[depth]}.{call}", location=line, why=why)
    return None


def _statements(cls: type, attribute: str) -> Iterator[tuple[str, Location]]:
    """Iterate over the statements ``self.attribute.method(...)`` of a class: the method, and the line."""
    init = vars(cls).get("__init__")
    place = sources.of_object(init) if init is not None else None
    function = None if place is None else sources.function_around(place.file, place.line)
    if place is None or function is None:
        return
    for node in ast.walk(function):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            continue
        called = node.value.func
        if (
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Attribute)
            and called.value.attr == attribute
            and isinstance(called.value.value, ast.Name)
            and called.value.value.id == "self"
        ):
            yield called.attr, sources.of_line(place.file, node.lineno)


def _idle(held: Any, method: str) -> str:
    """Say why a method cannot change the thing that it is called on; empty where it may."""
    if isinstance(held, torch.Tensor):
        return f"Tensor.{method} returns another tensor" if method in _COPIES else ""
    found = inspect.getattr_static(type(held), method, None)
    if isinstance(found, classmethod | staticmethod):
        kind = "class" if isinstance(found, classmethod) else "static"
        made = f"{type(held).__name__}.{method}"
        return f"{made} is a {kind} method: it returns a new object and does not change the old one"
    return ""
