"""What the entries on layers share: the layer's input, and the line that decides its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..findings import Culprit
from .building import Origin, building_line, size_origin
from .size_values import value_lines

if TYPE_CHECKING:
    from ..findings import Location
    from .history import Fact
    from .scene import Scene


def input_of(scene: Scene) -> torch.Tensor | None:
    """Return the tensor that the innermost running module was called with."""
    for value in scene.arguments().values():
        if isinstance(value, torch.Tensor):
            return value
    found = scene.argument("input", "x")
    return found if isinstance(found, torch.Tensor) else None


def input_fact(scene: Scene) -> Fact | None:
    """Return the history of the failing call's first tensor."""
    op = scene.failing_op
    return op.inputs[0] if op is not None and op.inputs else None


def where_decided(scene: Scene, value: int | None = None) -> tuple[Location | None, Origin | None]:
    """Return the line that decides the innermost module's input size, and how it is written there."""
    name = scene.path_of(scene.module)
    origin = size_origin(scene.model, name, value=value)
    return (origin.location if origin else building_line(scene.model, name)), origin


def edit(
    scene: Scene, origin: Origin | None, place: Location | None, wanted: int, default: str
) -> str:
    """Return the fix as one edit of the line that decides a size."""
    line = f" on line {place.line}" if place else ""
    if origin is None:
        return f"{default}{line}"
    if origin.constant:
        return f"write {origin.argument}={wanted} instead of {origin.expression}{line}"
    return (
        f"make {origin.argument} ({origin.expression}{line}) {wanted}{computed(size_values(scene))}"
    )


def size_values(
    scene: Scene, path: str = "", beside: Location | None = None
) -> tuple[Culprit, ...]:
    """Return the lines that assign what a module's size is computed from, where there is one or two of them.

    Args:
        scene: The error.
        path: Qualified name of the module; the innermost running one by default.
        beside: A line that is named already.
    """
    path = path or scene.path_of(scene.module)
    return tuple(
        Culprit(kind="call", name=place.text, detail="gives the size its value", location=place)
        for place in value_lines(scene.model, path)
        if beside is None or (place.file, place.line) != (beside.file, beside.line)
    )


def computed(values: tuple[Culprit, ...]) -> str:
    """Return in brackets from which lines a size comes; empty for none."""
    lines = [str(c.location.line) for c in values if c.location is not None]
    return f" (its value comes from line {' or '.join(lines)})" if lines else ""
