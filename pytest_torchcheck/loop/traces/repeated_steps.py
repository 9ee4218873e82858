"""A step of an optimizer that applies no gradient but those which the one before it has applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...verdicts import violated
from ..trace import OptimizerStep
from .wording import at, call, few

if TYPE_CHECKING:
    from ...findings import Finding
    from ..trace import Event, Trace


def just_stepped(trace: Trace, step: OptimizerStep) -> OptimizerStep | None:
    """Return the step that this optimizer took since the last of its backward passes; None where it took none."""
    place = next(i for i, e in enumerate(trace.events) if e is step)
    since = trace.events[max(step.sources) : place]
    steps = [e for e in since if isinstance(e, OptimizerStep) and e.owner == step.owner]
    return steps[-1] if steps else None


def applied_twice(step: OptimizerStep, before: OptimizerStep, latest: Event) -> Finding:
    """Explain a step that applies no gradient but those which the one before it has applied."""
    other = "" if at(step.place) == at(before.place) else f" at {at(step.place)}"
    return violated(
        "step-repeated",
        f"{step.name}() applies gradients again that {before.name}() has just applied",
        culprits=(
            call(step, "applies gradients again"),
            call(before, "has applied them"),
            call(latest, "computes them"),
        ),
        location=step.place,
        observed=f"in call {step.step} of the step, the gradients of {len(step.stale)} parameters "
        f"({few(step.stale)}) have norm {step.norm:.4g} in both steps",
        cause="the optimizer steps twice with one gradient",
        because=f"no backward ran between {before.name}() at {at(before.place)} and {step.name}() at {at(step.place)}",
        fix=f"drop the second {step.name}(){other}",
    )
