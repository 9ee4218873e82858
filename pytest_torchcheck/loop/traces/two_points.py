"""A step along the sum of gradients of two passes, between which the weights were moved along the first of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...findings import Culprit
from ...verdicts import suspicious
from ..recorder import record
from ..trace import Backward
from .wording import at, call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from ...findings import Finding
    from ...subject import Subject
    from ..trace import OptimizerStep, Trace

_PARALLEL = 0.99
"""Cosine between the change of the weights between the passes and the first gradient."""


def two_point_findings(subject: Subject, trace: Trace) -> Iterator[Finding]:
    """Yield a step whose gradients sum up two passes of one call, all of its weights moved uphill between them.

    Sharpness-aware minimisation moves the weights like this, and wants the second gradient alone.
    An adversarial term that is added to the loss wants the sum: that is why this is no more than
    suspicious. Where only some of the weights move, as in adversarial training of embeddings, it is
    not even that.
    """
    for step in trace.optimizer_steps():
        places = [p for p in step.fresh if trace.events[p].step == step.step]
        if step.closure or len(places) != 2:
            continue
        first, second = (trace.events[p] for p in places)
        both = step.sources[places[0]] & step.sources[places[1]]
        if not isinstance(second, Backward) or not both or not both <= second.moved:
            continue
        cosine = _uphill(subject, both, trace.backwards(step.step).index(second))
        if cosine is not None and cosine > _PARALLEL:
            yield _told(step, first, second, cosine)  # type: ignore[arg-type]
        return


def _told(step: OptimizerStep, first: Backward, second: Backward, cosine: float) -> Finding:
    wanted = f"{step.name.rpartition('.')[0] or 'optimizer'}.zero_grad"
    return suspicious(
        "gradients-of-two-points",
        f"{step.name}() applies the sum of two gradients, computed before and after the weights "
        "moved uphill",
        culprits=(
            call(second, "adds to the gradient computed before the weights moved"),
            Culprit("call", wanted, "none between the two passes", second.place),
            call(first, "its gradient is not cleared"),
        ),
        location=second.place,
        observed=f"gradient norm {first.norm:.4g} after {at(first.place)}, {second.norm:.4g} after {at(second.place)}",
        cause="the gradients are not cleared between the two passes, so the second one adds to "
            "them",
        because=f"between the passes the weights moved along the first gradient: cosine {cosine:.3g}",
        fix=f"call {wanted}() before the backward at {at(second.place)}, unless the sum is meant",
    )  # fmt: skip


@dataclass(slots=True)
class _Points:
    """The weights at the passes of a step, and the gradient after the first of the two that count."""

    names: frozenset[str]
    number: int
    weights: list[torch.Tensor]
    gradient: torch.Tensor | None = None

    def __call__(self, model: nn.Module) -> None:
        named = {n: p for n, p in model.named_parameters() if n in self.names}
        self.weights.append(torch.cat([p.detach().double().flatten() for p in named.values()]))
        if len(self.weights) == self.number and all(p.grad is not None for p in named.values()):
            self.gradient = torch.cat([p.grad.double().flatten() for p in named.values()])  # type: ignore[union-attr]


def _uphill(subject: Subject, names: frozenset[str], second: int) -> float | None:
    """Run a step once more and return the cosine of the weights' way before a pass with the gradient of the one before."""
    points = _Points(names=names, number=second, weights=[])
    record(subject, steps=1, after_backward=points)
    if points.gradient is None or len(points.weights) <= second:
        return None
    way = points.weights[second] - points.weights[second - 1]
    return float(torch.nn.functional.cosine_similarity(way, points.gradient, dim=0))
