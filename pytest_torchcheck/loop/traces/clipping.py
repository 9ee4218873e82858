"""Read a trace for the norm of the gradients at every step, and for what clips them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...findings import Culprit, Finding
from ...verdicts import violated
from ..trace import Backward, Clip, OptimizerStep, Trace
from .clip_calls import clips_nothing
from .wording import at, call

if TYPE_CHECKING:
    from ..spent import SpentLoop

_SHRUNK = 0.5
"""Share of the clipped norm below which the gradients were divided after clipping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping:
    """How the norms at the steps compare with a threshold.

    Attributes:
        largest: Largest norm of a gradient after backward.
        clipped: Steps before which a larger gradient was brought below the threshold.
        finding: What is wrong, or None.
    """

    largest: float
    clipped: int = 0
    finding: Finding | None = None


def clipping_of(trace: Trace, limit: float) -> Clipping:
    """Compare the norm at every step with a threshold."""
    largest = 0.0
    clipped = 0
    for place, step in trace.each(OptimizerStep):
        passes = [e.norm for i, e in trace.each(Backward, step.step) if i < place]
        raw = max(passes, default=0.0)
        largest = max(largest, raw)
        if not math.isfinite(raw) or raw <= limit:
            continue
        if step.norm <= limit * (1 + 1e-4):
            if (rescaled := _rescaled(trace, place, step)) is not None:
                return Clipping(largest=largest, finding=rescaled)
            clipped += 1
            continue
        clips = [event for _, event in trace.each(Clip, step.step)]
        return Clipping(largest=largest, finding=_unclipped(trace, step, raw, limit, clips))
    return Clipping(largest=largest, clipped=clipped)


def _rescaled(trace: Trace, place: int, step: OptimizerStep) -> Finding | None:
    """Return the finding where what was clipped is divided afterwards, so that its threshold was another one."""
    before = [e for e in trace.events[:place] if e.step == step.step]
    last = next(
        (e for e in reversed(before) if isinstance(e, Clip | Backward | OptimizerStep)), None
    )
    held = frozenset(trace.parameters.get(step.owner, ()))
    if not isinstance(last, Clip) or last.by != "norm" or held != last.parameters:
        return None
    meant = min(last.own, last.limit)
    if last.own <= last.limit or not math.isfinite(last.own) or step.norm > _SHRUNK * meant:
        return None
    factor = meant / step.norm if step.norm else math.inf
    return violated(
        "clip-before-unscale",
        f"{last.name} clips gradients that are later divided by {factor:.4g}: every step is "
        "too small by this factor",
        culprits=(
            call(last, f"norm {last.norm:.4g} against {last.limit:g}"),
            call(step, f"norm {step.norm:.4g}"),
        ),
        location=last.place,
        observed=f"norm {last.own:.4g} before clipping, {meant:.4g} after it, {step.norm:.4g} "
        f"when {step.name}() ran",
        cause="gradients are clipped before they are unscaled",
        because=f"between {at(last.place)} and {at(step.place)} the gradient shrank by "
        f"{factor:.4g}, and no backward ran",
        fix=f"unscale the gradients before {at(last.place)}",
    )


def _unclipped(
    trace: Trace, step: OptimizerStep, raw: float, limit: float, clips: list[Clip]
) -> Finding:
    held = frozenset(trace.parameters.get(step.owner, ()))
    place = step.place
    culprits = [call(step, f"norm {step.norm:.4g}")]
    code = "not-clipped"
    cause = "no gradient is clipped before the step"
    fix = f"clip_grad_norm_(parameters, {limit:g}) before {at(place)}"
    because = f"no clip_grad_norm_ ran before {at(place)}"
    if clips and all(clip.given for clip in clips):
        return clips_nothing(clips[0])
    if clips:
        clip = clips[0]
        place = clip.place
        culprits.insert(0, call(clip, f"limit {clip.limit:g}, {len(clip.parameters)} parameters"))
        because = (
            f"{clip.name} ran at {at(place)} with limit {clip.limit:g} on "
            f"{len(clip.parameters)} of {len(held)} parameters"
        )
        missed = held - clip.parameters
        if clip.scaled:
            code = "clip-before-unscale"
            cause = "gradients are clipped before they are unscaled"
            fix = "call scaler.unscale_(optimizer) before clipping"
        elif not clip.pending:
            code, cause = "clip-after-step", "clipping is not between backward and step"
            place = trace.leading_to(clip, trace.following(clip) or step)
            fix = f"move {at(place)} after backward and before {at(step.place)}"
        elif clip.by == "value":
            code, cause = "clip-by-value", "elements are clipped, not the norm"
            fix = f"clip_grad_norm_(parameters, {limit:g})"
        elif missed:
            code, place = "clip-partial", clip.made or place
            cause = f"{len(missed)} parameters of the optimizer are not clipped"
            fix = "clip the parameters of the whole model at once"
            culprits += [Culprit("parameter", n, "not clipped") for n in sorted(missed)[:4]]
        elif len(clips) > 1:
            code = "clip-piecewise"
            cause = f"{len(clips)} calls clip parts of the gradient, not the total norm"
            fix = "clip all parameters in one call"
        elif clip.limit > limit:
            code = "clip-limit"
            cause = f"the threshold is {clip.limit:g}, but {limit:g} is promised"
            fix = f"clip_grad_norm_(parameters, {limit:g})"
        else:
            code = "clip-undone"
            cause = "the gradients grow again between clipping and step"
            fix = f"clip last, right before {at(step.place)}"
    return violated(
        code,
        f"{step.name}() runs with a gradient of norm {step.norm:.4g} where at most {limit:g} is promised",
        culprits=tuple(culprits),
        location=place,
        observed=f"norm {raw:.4g} after backward, {step.norm:.4g} when {step.name}() ran",
        cause=cause,
        because=because,
        fix=fix,
    )


def scales_nothing(found: Finding, spent: SpentLoop) -> Finding:
    """Explain gradients that are not clipped by a loop of the step that runs no turn."""
    place = spent.made or spent.loop
    return replace(
        found,
        location=place,
        culprits=(
            Culprit("call", spent.name, "used up before the loop", place),
            Culprit("call", "for", "runs no turn", spent.loop),
            *found.culprits,
        ),
        cause=f"the loop at {at(spent.loop)} runs no turn: {spent.name} yields its elements only once",
        because=f"{spent.name} had no element left after {at(spent.emptied)}",
        fix=f"keep a list{f' at {at(spent.made)}' if spent.made is not None else ''}: list(...)",
    )
