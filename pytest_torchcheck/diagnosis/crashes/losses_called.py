"""What the entries on losses share: the call of the loss, with its live input and target."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit
from ...probes.loss.consumption import is_criterion
from ..lines.assigned import assigned
from ..loss.target_origins import target_culprits

if TYPE_CHECKING:
    from ...findings import Location
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


def target_culprit(detail: str, place: Location | None, scene: Scene) -> tuple[Culprit, ...]:
    """Return the targets as the culprit, and the lines that hand them over where these can be read."""
    files = [frame.f_code.co_filename for frame, _ in reversed(scene.frames)]
    made = target_culprits(*files, scene.model)
    first = place or (made[0].location if made else None)
    return (
        Culprit("target", "targets", detail, first),
        *(culprit for culprit in made if culprit.location != first),
    )


def criterion_of(scene: Scene) -> str:
    """Return the class of the loss module of torch's that was running (``BCELoss``), or an empty string."""
    name = type(scene.module).__name__
    return name if is_criterion(name) else ""


def criterion_built(scene: Scene, near: Location | None) -> tuple[Culprit, ...]:
    """Return the only line of a file that can have made the loss module which was running and that no line calls.

    One that passes an ``ignore_index`` made no module that has the default one.

    Args:
        scene: The error.
        near: A line of the file to look into.
    """
    cls = criterion_of(scene)
    if not cls or near is None or scene.location is not None:
        return ()
    lines = sources.file_matches(near.file, rf"\b{cls}\(")
    default = getattr(scene.module, "ignore_index", -100) == -100
    lines = [
        place
        for place in lines
        if not place.text.startswith("class ") and not (default and "ignore_index" in place.text)
    ]
    if len(lines) != 1:
        return ()
    return (Culprit("loss", cls, "is created", lines[0]),)


def criterion_culprits(place: Location | None, cls: str) -> tuple[Culprit, ...]:
    """Return the line that makes the loss module which a line calls as a culprit; none where it is that very line.

    Args:
        place: The line that calls it.
        cls: Its class, as :func:`criterion_of` says.
    """
    if place is None or not cls:
        return ()
    for call in sources.around(place.file, place.line, ast.Call):
        if isinstance(call.func, ast.Call):
            continue
        name = ast.unparse(call.func)
        made = assigned(place, name, made=cls)
        if made is None or made.location.line == place.line:
            continue
        if any(sources.called(node) == cls for node in ast.walk(made.value)):
            return (Culprit("loss", cls, f"creates {name}", made.location),)
    return ()
