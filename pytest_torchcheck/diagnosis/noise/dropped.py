"""Values that are dropped in training, and those that are kept, scaled so that their mean is another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import sources
from ...findings import Culprit
from ...probes.recorded.operations import record
from ...state import seed_everything
from ...verdicts import violated

if TYPE_CHECKING:
    from ...findings import Finding, Location
    from ...probes.recorded.operations import Trace
    from ...runs.variants.dropping import Dropping
    from ...subject import Subject

_CLOSE = 1e-3
_TRIES = 64


def scaled(subject: Subject, found: Dropping) -> Finding:
    """Explain a module that drops values, and scales those that it keeps by the wrong number.

    Args:
        subject: Whose model.
        found: What the module does.
    """
    name, kind = found.name or "the model", type(found.module).__name__
    location = _scaling_line(subject, found) or sources.of_object(type(found.module).forward)
    number = "the share that it keeps" if found.follows else f"{found.scale:.3g}"
    return violated(
        "dropout-scale",
        f"{name} multiplies what it keeps by {found.scale:.3g}, which gives {found.mean:.3g} times the mean "
        f"of its input",
        culprits=[Culprit("module", name, f"{kind} keeps {found.share:.3g} of all values", location)],
        location=location,
        observed=f"in training, {found.share:.3g} of all values are kept and multiplied by {number}: the "
        f"mean of output "
        f"over input is {found.mean:.3g}, with an error of {found.error:.1g}; in eval mode the output is the input",
        cause=f"kept values must be multiplied by 1 / {found.share:.3g}, the inverse of the kept share, so "
        f"that the next "
        "layer gets in training what it gets in evaluation",
        because="one input without zeros, given many times with other seeds: all values of the output are 0 "
        "or the input times one number",
        fix="divide by the kept share, mask.mean() or 1 - p, instead of multiplying by it"
        if found.follows or found.scale < 1
        else "multiply kept values by 1 / (1 - p), where p is the share that is dropped",
        evidence={"share": found.share, "scale": found.scale, "mean": found.mean},
    )  # fmt: skip


def _scaling_line(subject: Subject, found: Dropping) -> Location | None:
    """Return the line that computes the scale; else the first after which kept values are scaled."""
    with subject.pristine(train=True) as model, torch.no_grad():
        for number in range(_TRIES):
            lines = _scaling(found, subject.seed + number, model)
            if lines is not None:
                return lines[1] or lines[0]
    return None


def _scaling(
    found: Dropping, seed: int, model: torch.nn.Module
) -> tuple[Location | None, Location | None] | None:
    """Return the first line of a call that scales a mask or the input, and the one that computes the scale.

    None where everything is dropped in this call, or nothing is.
    """

    def run() -> object:
        seed_everything(seed)
        return found.call()

    trace = record(run, model)
    output = next((trace.values[place].values for place in trace.outputs), None)
    if output is None or output.shape != found.given.shape or bool((output == 0).all()):
        return None
    scale = float((output / found.given).max())
    if not bool((output == 0).any()):
        return None
    mask = output != 0
    applied = next(
        (s.op.location for s in trace.steps if any(_scales(trace, r, mask, scale, found) for r in s.results)), None
    )  # fmt: skip
    made = next(
        (s.op.location for s in trace.steps if any(_is_scale(trace, r, scale) for r in s.results)),
        None,
    )
    return applied, made


def _scales(trace: Trace, place: int, mask: torch.Tensor, scale: float, found: Dropping) -> bool:
    """Say whether a value is the mask, or the input, or both, times the scale."""
    values, given = trace.values[place].values, found.given
    if values is None or not values.is_floating_point() or values.numel() < 2:
        return False
    fits = values.dim() == given.dim() and all(
        size in (1, full) for size, full in zip(values.shape, given.shape, strict=True)
    )
    kept = mask.to(given.dtype)
    return fits and any(
        torch.allclose(values.expand_as(what), what * scale, rtol=_CLOSE, atol=0)
        for what in (kept, given, given * kept)
    )


def _is_scale(trace: Trace, place: int, scale: float) -> bool:
    """Say whether a value is one number: the scale or its inverse."""
    values = trace.values[place].values
    if values is None or values.numel() != 1 or not values.is_floating_point():
        return False
    number = float(values)
    return any(abs(number - wanted) <= _CLOSE * wanted for wanted in (scale, 1 / scale))
