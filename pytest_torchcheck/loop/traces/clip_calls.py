"""Clippings of a trace: those without effect, and those that get no parameter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...codes.training import used_up_near
from ...findings import Culprit, Finding
from ...verdicts import violated
from ..trace import Backward, Clip, OptimizerStep, Trace
from .wording import at, call

if TYPE_CHECKING:
    from collections.abc import Iterator


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
