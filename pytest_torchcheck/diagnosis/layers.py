"""What the entries on layers share: the layer's input, and the line that decides its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .building import Origin, building_line, size_origin

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
    return f"make {origin.argument} ({origin.expression}{line}) {wanted}"
