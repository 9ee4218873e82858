"""What the checks of one Function share: a reference run and how far another may be from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .lines import gradient_line

if TYPE_CHECKING:
    from ..findings import Location
    from .calls import Call, Run
    from .target import Target

EXACT = 1e-9
"""Relative difference allowed in float64 between two ways to compute the same thing (CHECKS R2)."""

MEANT = "declare promises.StraightThrough"
"""What to do where a gradient differs on purpose."""

Grads = Mapping[int, Tensor | None]


def tolerance(target: Target) -> float:
    """Return what two runs of the same mathematics may differ by, relative to the largest entry."""
    return EXACT if target.dtype == torch.float64 else 1e-3


def line_of(target: Target, index: int) -> Location | None:
    """Return the line of backward that computes the gradient of a flat argument."""
    return gradient_line(target.function, target.position(index))


def reference_of(target: Target) -> tuple[Run, dict[int, Tensor], Grads]:
    """Run once, draw the upstream gradient, and return both with the gradients."""
    run = target.call.run()
    upstream = target.upstream(run)
    return run, upstream, run.grads({i: g.clone() for i, g in upstream.items()})


def passes_values(target: Target, call: Call, index: int) -> bool:
    """Say whether forward returns this input as it is, but for bounds: such a Function is written for its gradient."""
    if len(target.chosen) != 1:
        return False
    output, value = call.run().outputs[target.chosen[0]].detach(), call.values[index]
    if output.shape != value.shape:
        return False
    kept = output == value
    return bool(kept.any()) and output[~kept].unique().numel() <= 2


def only_passes_on(target: Target, call: Call) -> bool:
    """Say whether every output is one of the inputs as it is: such a Function does nothing but to gradients."""
    run = call.run()
    given = [v for v in call.values if isinstance(v, Tensor)]
    return all(
        any(value.dtype == output.dtype and torch.equal(value, output.detach()) for value in given)
        for output in (run.outputs[i] for i in target.chosen)
    )
