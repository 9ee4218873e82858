"""What the entries on losses share: the call of the loss, with its live input and target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..findings import Culprit
from .origins import target_culprits

if TYPE_CHECKING:
    from ..findings import Location
    from .scene import Scene


def loss_call(
    scene: Scene, names: tuple[str, ...]
) -> tuple[str, torch.Tensor | None, torch.Tensor | None, dict[str, Any]]:
    """Return the loss function's name, its input and its target, live where the frame is there."""
    for name in names:
        frame = scene.called(name)
        if frame is None:
            continue
        given, target = frame.get("input"), frame.get("target")
        return (
            name,
            given if isinstance(given, torch.Tensor) else None,
            target if isinstance(target, torch.Tensor) else None,
            dict(frame),
        )
    return "", None, None, {}


def on_line(scene: Scene) -> str:
    """Return the user's line of the error as the end of a sentence."""
    place = scene.location
    return f" on line {place.line}" if place else ""


def target_culprit(detail: str, place: Location | None, scene: Scene) -> tuple[Culprit, ...]:
    """Return the targets as the culprit, and the lines that hand them over where these can be read."""
    files = [frame.f_code.co_filename for frame, _ in reversed(scene.frames)]
    made = target_culprits(*files, scene.model)
    first = place or (made[0].location if made else None)
    return (
        Culprit(kind="target", name="targets", detail=detail, location=first),
        *(culprit for culprit in made if culprit.location != first),
    )
