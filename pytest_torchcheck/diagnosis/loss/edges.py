"""A loss that raises for samples of some labels, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...explanation import on_line
from ...findings import Culprit, Finding
from ...subject.errors import SubjectError
from ...verdicts import explained
from ..crashes.explain import explain_error
from ..crashes.scene import Scene

if TYPE_CHECKING:
    from ...probes.loss.slopes import LossOfOutput
    from ...subject import Subject


def refuses_target(
    subject: Subject, path: str, refused: LossOfOutput, taken: LossOfOutput
) -> Finding:
    """Explain a loss that takes a sample of one label by itself, and raises for one of another."""
    bad, good = (case.targets()[path] for case in (refused, taken))
    try:
        refused.slopes()
    except SubjectError as error:
        known = explain_error(
            error.error,
            phase=error.phase,
            model=subject.model,
            batch=refused.batch,
            rerun=error.rerun,
        )
        name = _name(Scene(error.error, phase=error.phase), bad)
    label, other = _shown(bad), _shown(good)
    values = {*bad.flatten().tolist(), *good.flatten().tolist()}
    as_places = known.code == "index-range" and values <= {0, 1}
    told, detail = f"{name} ({path})" if name else path, f"raises where it is {label}"
    return explained(
        known,
        code="edge-targets-raise",
        summary=f"the loss raises for a sample alone whose {told} is {label}"
        + f": {known.summary}" * (not as_places),
        culprits=(
            *[Culprit("tensor", name, detail, known.location)] * bool(name),
            Culprit("target", path, detail, known.location),
            *known.culprits,
        ),
        observed=f"a sample whose {told} is {other} gives a loss by itself; {known.observed}",
        because=f"with {other} in place of {label} this sample gives a loss too, and with {label} the other one "
        f"raises; {known.because}",
        cause=f"{told} holds flags of an integer type, which are taken for places of samples"
        if as_places
        else known.cause,
        fix=f"select with a mask{on_line(known.location)}: {name or path}.bool()"
        if as_places
        else known.fix,
    )


def _name(scene: Scene, target: torch.Tensor) -> str:
    """Return what the function that raises calls a target, or a new order of it; empty where that is not one name."""
    frame, values = scene.frame, target.flatten().sort().values
    names = [
        name
        for name, held in ({} if frame is None else frame.f_locals).items()
        if isinstance(held, torch.Tensor)
        and held.dtype == target.dtype
        and torch.equal(held.detach().flatten().sort().values, values)
    ]
    return names[0] if len(names) == 1 else ""


def _shown(target: torch.Tensor) -> str:
    values = target.flatten().tolist()
    return str(values[0]) if len(values) == 1 else str(values[:4])
