"""Read a trace for calls of a training step that are missing, or stand in the wrong place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import sources
from ...findings import Culprit, Finding
from ...verdicts import violated
from ..replay import lines_of_step, where_loss_is_made_anew
from ..trace import Backward, Event, Forward, OptimizerStep, Trace
from .clipping import clips
from .kept_states import loads_itself
from .repeated_steps import applied_twice, just_stepped
from .wording import at, call, condition, few

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...subject import Subject


_CALLS = 2
"""So many calls in a row show a rule."""


def protocol_findings(subject: Subject, trace: Trace) -> Iterator[Finding]:
    """Yield what is wrong with the order of a step's calls, each fact once."""
    early = tuple(_step_before_backward(trace))
    # where every call steps first, what stands between backward and the next call's step is in its
    # place
    yield from early or _zero_grad_between(trace)
    yield from _last_pass_lost(subject, trace)
    yield from _zero_grad_missing(trace)
    yield from _loss_made_anew(subject, trace)
    yield from _leaks(trace)
    yield from _counted_twice(trace)
    yield from _scaled(trace)
    yield from clips(trace)
    yield from loads_itself(trace)


def _zero_grad_between(trace: Trace) -> Iterator[Finding]:
    """Gradients are thrown away after backward and before the step."""
    for step in trace.optimizer_steps():
        if not step.empty or step.cleared is None:
            continue
        cleared = trace.events[step.cleared]
        backward = trace.latest(Backward, step.cleared)
        yield violated(
            "zero-grad-before-step",
            f"{cleared.name}() clears the gradients between backward and {step.name}(): they "
            "are never applied",
            culprits=(
                call(cleared, "clears gradients before they are applied"),
                call(step, "finds no gradient"),
            ),
            location=trace.leading_to(cleared, step),
            observed=f"gradient norm {backward.norm:.4g} after backward, 0 when {step.name}() runs"
            if backward is not None
            else f"every gradient is None or 0 when {step.name}() runs",
            cause="zero_grad is between backward and step",
            because=f"it ran at {at(cleared.place)}, after "
            f"{at(backward.place if backward else None)} and before {at(step.place)}",
            fix=f"move {cleared.name}() before the forward, or after {step.name}()",
        )
        return


def _last_pass_lost(subject: Subject, trace: Trace) -> Iterator[Finding]:
    """The last backward pass of each call comes after its last step, and the next call clears what it has computed."""
    lost: list[tuple[Backward, Event]] = []
    for number in range(trace.steps - 1):
        steps, passes = trace.each(OptimizerStep, number), trace.each(Backward, number)
        cleared = next(trace.of("zero-grad", step=number + 1), None)
        later = trace.each(Backward, number + 1)
        if not steps or not passes or cleared is None or any(e.closure for _, e in steps):
            return
        if not passes[0][0] < steps[-1][0] < passes[-1][0] or not passes[-1][1].touched:
            return  # none is left over, or every pass comes after the step, which is told otherwise
        if not later or cleared[0] > later[0][0]:
            return  # it is added to the passes of the next call
        lost.append((passes[-1][1], cleared[1]))
    if len(lost) < _CALLS:
        return
    backward, clearing = lost[0]
    step = trace.optimizer_steps(step=backward.step)[-1]
    line = trace.leading_to(step, backward)
    ran = lines_of_step(subject, line.file) if line is not None else frozenset()
    deciding = sources.deciding_lines(line) if line is not None else []
    deciding = [one for one in deciding if one.line in ran]
    yield violated(
        "pass-lost",
        f"the gradients of the last {backward.name}() of each call are cleared before any step applies them",
        culprits=(
            call(backward, "computes them"),
            call(clearing, "clears them in the next call"),
            call(step, "came before"),
            *(
                Culprit(
                    "call", sources.assigned_name(one) or "condition", "decides when it steps", one
                )
                for one in deciding
            ),
        ),
        location=condition(deciding, frozenset()) or line,
        observed=f"in {len(lost)} calls the last backward pass came after the last optimizer step",
        cause="the condition for a step is False after the last pass" * bool(deciding)
        or "no step comes after the last pass",
        because=f"{at(backward.place)} ran after {at(step.place)}, and {at(clearing.place)} ran next",
        fix=f"step after the last backward pass too, at {at(step.place)}",
    )


def _zero_grad_missing(trace: Trace) -> Iterator[Finding]:
    """Gradients that were applied are applied again."""
    for step in trace.optimizer_steps():
        if not step.stale or step.closure:
            continue
        latest = trace.events[max(step.sources)]
        if not step.fresh and (before := just_stepped(trace, step)) is not None:
            yield applied_twice(step, before, latest)
            return
        earlier = next(e for e in trace.optimizer_steps() if e.owner == step.owner)
        owner = step.name.rpartition(".")[0] or "optimizer"
        held = trace.parameters.get(step.owner, ())
        part = len(step.stale) < len(held)
        others = _clearing_others(trace, step)
        wanted = f"{owner}.zero_grad"
        seen = (
            f"; {others[0].name}() at {at(others[0].place)} does not reach them" if others else ""
        )
        passes = len(step.sources)
        forward = next(
            (
                e
                for place, e in reversed(trace.each(Forward, latest.step))
                if e.grad and place < max(step.sources)
            ),
            None,
        )
        place = latest.place
        named = sources.uncalled(place, "zero_grad") if place is not None else None
        twice = others[0] if others and _clears_twice(trace, others[0]) else None
        yield violated(
            "zero-grad-missing",
            f"{wanted}() is missing: {step.name}() applies the gradients of {passes} backward passes where "
            f"{passes - len(step.fresh)} had been applied before",
            culprits=(
                Culprit("call", wanted, "missing" if named is None else "named and not called", named or place),
                call(step, "applies gradients again"),
                *((call(forward, "the gradients are still there"),) if forward is not None and at(forward.place) != at(latest.place) else ()),
                *(Culprit("call", e.name, "clears other gradients", e.place) for e in others[:1]),
                *(Culprit("parameter", n, "stale gradient") for n in (sorted(step.stale)[:4] if part else ())),
            ),
            observed=f"in call {step.step} of the step, the gradients of {len(step.stale)} of "
                f"{len(held)} parameters ({few(step.stale)}) still contain an earlier pass; "
                f"norm {step.norm:.4g}, {earlier.norm:.4g} in call {earlier.step}",
            location=twice.place if twice is not None and named is None else None,
            cause="gradients accumulate from step to step" + (f": {at(named)} names zero_grad and does not call it" if named is not None
                else f": {at(twice.place)} clears what is cleared again before its next backward pass" if twice is not None else ""),
            because=f"gradients applied at {at(earlier.place)} were not cleared before "
                f"{at(latest.place)} added more{seen}",
            fix=f"add the parentheses at {at(named)}: {wanted}()" if named is not None
            else f"call {wanted}() before the backward at {at(latest.place)}",
            evidence={"parameters": sorted(step.stale)},
        )  # fmt: skip
        return


def _clearing_others(trace: Trace, step: OptimizerStep) -> list[Event]:
    """Return the calls of zero_grad, which leave a step's gradients alone: the nearest before its last pass first."""
    found = list(trace.of("zero-grad"))
    before = [e for place, e in found if place < max(step.sources)]
    return [*before[::-1], *(e for place, e in found if place > max(step.sources))]


def _clears_twice(trace: Trace, event: Event) -> bool:
    """Say whether the next call with the optimizer clears its gradients again, and the one before has applied them."""
    place = next(i for i, e in enumerate(trace.events) if e is event)
    own = [
        (i, e.kind) for i, e in trace.of("zero-grad", "optimizer-step") if e.owner == event.owner
    ]
    before = [kind for i, kind in own if i < place]
    after = [kind for i, kind in own if i > place]
    return before[-1:] == ["optimizer-step"] and after[:1] == ["zero-grad"]


def _step_before_backward(trace: Trace) -> Iterator[Finding]:
    """Every call of the step updates first and computes gradients afterwards."""
    wrong: list[tuple[OptimizerStep, Backward]] = []
    for number in range(trace.steps):
        steps, passes = trace.each(OptimizerStep, number), trace.each(Backward, number)
        if not steps or not passes or any(e.closure for _, e in steps):
            return
        if any(j < steps[0][0] for j, _ in passes):
            return
        wrong.append((steps[0][1], passes[0][1]))
    if not wrong:
        return
    step, backward = wrong[0]
    never = len(wrong) > 1 and all(one.empty for one, _ in wrong)
    uses = (
        "it finds no gradient, so nothing is trained"
        if never
        else "each update uses the gradients of the previous batch"
    )
    found = "each time" if never else "in the first one"
    yield violated(
        "step-before-backward",
        f"{step.name}() runs before {backward.name}(): {uses}",
        culprits=(call(step, "runs first"), call(backward, "runs afterwards")),
        location=step.place,
        observed=f"{'in the one call' if len(wrong) == 1 else f'in all {len(wrong)} calls'} of "
        f"the step {step.name}() came first; {found} it found no gradient",
        cause="the update is before the backward pass",
        because=f"{at(step.place)} ran before {at(backward.place)}",
        fix=f"move {step.name}() after {at(backward.place)}",
    )


def _loss_made_anew(subject: Subject, trace: Trace) -> Iterator[Finding]:
    """Backward starts from a leaf: no gradient reaches the model."""
    for backward in trace.backwards():
        if not backward.leaf:
            continue
        name, place = where_loss_is_made_anew(subject)
        name = name or backward.name.rpartition(".")[0] or "loss"
        yield violated(
            "loss-recreated",
            f"{name} is a new tensor without a graph: {backward.name}() gives no parameter a gradient",
            culprits=(
                Culprit("loss", name, "a leaf, grad_fn is None", place),
                call(backward, "reaches no parameter"),
            ),
            location=place or backward.place,
            observed=f"{backward.name}() changed the gradient of {len(backward.touched)} parameters",
            cause="the loss is rebuilt from its value (torch.tensor, .item(), .data), which cuts "
            "the graph",
            because=f"{name} requires a gradient but has grad_fn=None after {at(place)}",
            fix="call backward on the loss that the loss function returned",
        )
        return


def _leaks(trace: Trace) -> Iterator[Finding]:
    """A pass meant for one optimizer, and applied by it, is left in the gradients of another."""
    places = trace.each(OptimizerStep)
    for place, step in places:
        if len(step.fresh) < 2 or step.closure:
            continue
        last = step.fresh[-1]
        for source in step.fresh[:-1]:
            other = next(
                (
                    e
                    for i, e in places
                    if e.owner != step.owner
                    and source < i < last
                    and i < place
                    and source in e.sources
                ),
                None,
            )
            if other is None:
                continue
            yield _leak(trace, step, other, source, last)
            return


def _leak(
    trace: Trace, step: OptimizerStep, other: OptimizerStep, source: int, last: int
) -> Finding:
    leaking, own = trace.events[source], trace.events[last]
    owner = step.name.rpartition(".")[0]
    names = step.sources[source]
    return violated(
        "gradient-leak",
        f"{step.name}() also applies the gradients of {leaking.name}() at "
        f"{at(leaking.place)}, which belong to {other.name}()",
        culprits=(
            call(leaking, f"leaves gradients in the parameters of {owner}"),
            call(step, "applies them too"),
            *(Culprit("parameter", name, "holds both gradients") for name in sorted(names)[:4]),
        ),
        location=leaking.place,
        observed=f"{len(names)} parameters of {owner} ({few(names)}) contain the passes of "
        f"{at(leaking.place)} and {at(own.place)}; norm {step.norm:.4g}",
        cause=f"the first pass reaches the parameters of {owner}, and nothing clears them before "
        "the second",
        because=f"{other.name}() had applied that pass at {at(other.place)} before "
        f"{at(own.place)} ran",
        fix=f"call {owner}.zero_grad() before {at(own.place)}, or detach() the output of "
        f"{owner}'s model for {at(leaking.place)}",
        evidence={"parameters": sorted(names)},
    )


def _counted_twice(trace: Trace) -> Iterator[Finding]:
    """A loss that was differentiated is a term of a later one, and both gradients are applied."""
    for step in trace.optimizer_steps():
        for place in step.fresh:
            later = trace.events[place]
            if not isinstance(later, Backward) or later.repeats not in step.fresh:
                continue
            earlier = trace.events[later.repeats]
            names = step.sources[place] & step.sources[later.repeats]
            if not names or not isinstance(earlier, Backward):
                continue
            first = earlier.name.rpartition(".")[0]
            yield violated(
                "loss-counted-twice",
                f"{later.name}() adds the gradient of {first} a second time, after its own "
                "backward pass",
                culprits=(
                    call(later, f"goes through {first} again"),
                    call(earlier, "its gradients are not cleared"),
                    *(
                        Culprit("parameter", name, "holds both gradients")
                        for name in sorted(names)[:4]
                    ),
                ),
                location=later.place,
                observed=f"{len(names)} parameters ({few(names)}) contain both passes when "
                f"{step.name}() runs; norm {earlier.norm:.4g} after the first, "
                f"{later.norm:.4g} after the second",
                cause=f"{first} is a term of the second loss, and nothing clears its gradient in "
                "between",
                because=f"the graph of the pass at {at(later.place)} contains the tensor on which "
                f"{at(earlier.place)} was called",
                fix=f"call backward once, on the sum: drop {earlier.name}() at {at(earlier.place)}",
                evidence={"parameters": sorted(names)},
            )
            return


def _scaled(trace: Trace) -> Iterator[Finding]:
    """The optimizer steps along gradients that are still scaled."""
    for step in trace.optimizer_steps():
        if not step.scaled:
            continue
        scale = next((e for _, e in trace.of("scale")), None)
        scaler = scale.name.rpartition(".")[0] if scale is not None else "scaler"
        factor = max((b.scale for b in trace.backwards()), default=1.0)
        yield violated(
            "scaled-step",
            f"{step.name}() applies gradients that are still multiplied by the scaler's factor {factor:g}",
            culprits=(
                call(step, "bypasses the scaler"),
                *((call(scale),) if scale is not None else ()),
            ),
            location=step.place,
            observed=f"gradient norm {step.norm:.4g} at the step, {step.norm / factor:.4g} unscaled",
            cause="the loss is scaled, but the optimizer is stepped directly instead of through "
            f"{scaler}.step",
            because=f"no {scaler}.unscale_ and no {scaler}.step ran before {at(step.place)}",
            fix=f"{scaler}.step(optimizer); {scaler}.update()",
        )
        return
