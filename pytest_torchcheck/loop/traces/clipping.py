"""Read a trace for the norm of the gradients at every step, for what clips them, and clips nothing."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ... import sources
from ...codes.training import used_up_near
from ...findings import Culprit, Finding
from ...lean import dataclass
from ...record.tracing import find_line, line_of
from ...state import seed_everything
from ...subject.gradients import clear_gradients
from ...verdicts import violated
from ..naming import is_spent, iterator_lines
from ..trace import Backward, Clip, OptimizerStep, Trace
from .wording import at, call

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from ...findings import Location
    from ...subject import Subject

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


def clips(trace: Trace) -> Iterator[Finding]:
    """A clipping that clips nothing, or the wrong thing."""
    for place, event in trace.each(Clip):
        if not math.isfinite(event.limit):
            continue
        before = [e for e in trace.events[:place] if e.step == event.step]
        stepped = next((e for e in reversed(before) if isinstance(e, OptimizerStep)), None)
        if event.scaled:
            yield violated(
                "clip-before-unscale",
                f"{event.name} clips gradients that are still multiplied by the scaler's factor",
                culprits=(call(event, f"norm {event.norm:.4g} against {event.limit:g}"),),
                location=event.place,
                observed=f"gradient norm {event.norm:.4g} at the clipping, limit {event.limit:g}",
                cause="the threshold is compared with scaled gradients, so almost all of the "
                "gradient is clipped",
                because=f"no scaler.unscale_ ran before {at(event.place)}",
                fix=f"call scaler.unscale_(optimizer) before {at(event.place)}",
            )
            return
        if event.used_up:
            yield clips_nothing(event)
            return
        if event.given:
            continue  # a group that happens to be empty has nothing to clip
        latest = next(
            (e for e in reversed(before) if isinstance(e, Backward | OptimizerStep)), None
        )
        if event.pending or isinstance(latest, Backward):
            continue  # what a backward gave may be zero, or cleared since: its order is right
        backward = trace.following(event)
        if latest is None and backward is None:
            continue  # the gradients are set by hand
        where = f"after {stepped.name}()" if stepped is not None else "before backward"
        yield violated(
            "clip-after-step" if stepped is not None else "clip-before-backward",
            f"{event.name} runs {where}: the clipped gradients are not applied",
            culprits=(call(event, where), *((call(stepped),) if stepped is not None else ())),
            location=trace.leading_to(event, stepped or backward),
            observed="no clipped gradient is applied afterwards"
            + (
                f"; {stepped.name}() ran with norm {stepped.norm:.4g}"
                if stepped is not None
                else ""
            ),
            cause="clipping is not between backward and step",
            because=f"{at(event.place)} ran {where}"
            + (f" at {at(stepped.place)}" if stepped is not None else ""),
            fix="clip after backward and before the optimizer's step",
        )
        return


def clips_nothing(clip: Clip) -> Finding:
    """Explain a clipping that was given no parameter: most often an iterator that something else has used up."""
    word = "an exhausted iterator" if clip.used_up else "empty"
    itself = clip.reader is not None and clip.place is not None and clip.reader == clip.place
    by = f": {at(clip.reader)} reads it first" if clip.reader is not None and not itself else ""
    by = " in an earlier call" if itself else by
    repair = f" at {at(clip.made)}" if clip.made is not None else ""
    near = (
        used_up_near(clip.place, frozenset()) if clip.place is not None and not clip.used_up else []
    )
    spent = next((u for u in near if u.tested), None)
    return violated(
        "clip-nothing",
        f"{clip.name} receives no parameters: {clip.given} is {word}",
        culprits=(
            call(clip, "0 parameters"),
            *(spent.culprits if spent is not None else ()),
            *(
                Culprit("call", clip.given, detail, place)
                for detail, place in (("created here", clip.made), ("read here first", clip.reader))
                if place is not None and place != clip.place
            ),
        ),
        location=spent.made if spent is not None else clip.made or clip.place,
        observed=f"0 parameters at {at(clip.place)}, while the gradients have norm {clip.norm:.4g}",
        cause=f"an iterator yields its elements only once, and they were consumed earlier{by}"
        if clip.used_up
        else spent.cause
        if spent is not None
        else "there is nothing in it",
        because=f"{clip.given} was empty when {at(clip.place)} ran",
        fix=f"keep a list{repair}: list(...)"
        if clip.used_up
        else spent.fix
        if spent is not None
        else f"pass model.parameters() to {clip.name}",
    )


@dataclass(frozen=True, slots=True)
class SpentLoop:
    """A ``for`` over an iterator without elements left.

    Attributes:
        name: Of the iterator.
        loop: The line of the ``for``.
        emptied: The line that took the last element.
        made: The line that makes the iterator, or None where no line, or more than one, could be.
    """

    name: str
    loop: Location
    emptied: Location
    made: Location | None


def spent_loop(subject: Subject) -> SpentLoop | None:
    """Run one step line by line; return the first loop over an iterator that was used up before."""
    emptied: dict[tuple[int, str], Location] = {}
    found: list[SpentLoop] = []

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event == "call":
            return False
        file, here = frame.f_code.co_filename, line_of(frame.f_code, line)
        ran = sources.statement(file, line)
        if isinstance(ran, ast.For) and isinstance(ran.iter, ast.Name) and ran.lineno == line:
            name = ran.iter.id
            by = emptied.get((id(frame), name))
            if by is not None and by != here:
                made, _ = iterator_lines(file, name, frame.f_locals.get(name))
                found.append(SpentLoop(name, here, by, made))
                return True
        for name, value in frame.f_locals.items():
            if is_spent(value):
                emptied.setdefault((id(frame), name), here)
        return False

    with subject.pristine(steps=True, train=True) as model:
        made = subject.make_optimizer(model)
        clear_gradients(model)
        seed_everything(subject.seed)
        find_line(lambda: subject.train_step(model, made, subject.batch().clone()), watcher)
    return found[0] if found else None
