"""Read a trace for what a step leaves behind: eval mode, gradients off, statistics moved by an evaluation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torch import nn

from ... import sources
from ...findings import Culprit, Finding
from ...verdicts import suspicious, violated
from ..replay import where_gradients_go_off, where_mode_is_left
from ..trace import Backward, Forward, Mode, Trace
from .reseeding import reseeding_findings
from .rounded_weights import rounding_findings
from .wording import at, few

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...subject import Subject

_EVALUATES = re.compile(r"(?i)valid|eval|test|score|metric|accuracy")
_IS_EVALUATION = re.compile(
    r"(?i)(^|_)(val|valid|validate|validation|eval|evaluate|evaluation)(_|$)"
)
"""Unambiguous names; a score or a test may use training mode on purpose."""


def mode_findings(subject: Subject, trace: Trace) -> Iterator[Finding]:
    """Yield what an evaluation inside the step leaves behind."""
    left = list(_left_in_eval(subject, trace))
    yield from left or _trains_in_eval(subject, trace)
    yield from _gradients_off(subject, trace)
    yield from _statistics(trace)
    yield from rounding_findings(trace)
    yield from reseeding_findings(subject, trace)


def training_forwards(trace: Trace) -> dict[int, list[Forward]]:
    """Return the forwards of each call that a backward pass goes through whose gradients a step applies.

    One that only serves a gradient to the inputs, as an adversarial attack makes it, trains nothing. Where
    the steps do not show which gradients they apply, every backward pass counts.
    """
    steps = trace.optimizer_steps()
    applied = {place for step in steps for place in step.sources}
    unknown = not applied or any(step.closure for step in steps)
    found: dict[int, list[Forward]] = {}
    for number in range(trace.steps + 1):
        passes = [e for place, e in trace.each(Backward, number) if unknown or place in applied]
        through = {place for one in passes for place in one.through}
        if passes:
            found[number] = [
                e for place, e in trace.each(Forward, number) if e.grad and place in through
            ]
    return found


def _left_in_eval(subject: Subject, trace: Trace) -> Iterator[Finding]:
    """A later training forward runs with modules in eval mode that were in training mode at first."""
    seen: dict[str, frozenset[str]] = {}
    for number, forwards in training_forwards(trace).items():
        for forward in forwards:
            first = seen.setdefault(forward.module, forward.frozen)
            stuck = (forward.frozen - first) | _evaluated(subject, trace, forward)
            if not stuck:
                continue
            yield _stuck(subject, trace, number, forward, stuck)
            return


def _evaluated(subject: Subject, trace: Trace, forward: Forward) -> frozenset[str]:
    """Return the modules that train in eval mode because an evaluation of the same call put them there.

    A part may be kept in eval mode on purpose. One that a function switches to run it without gradients,
    and that another function then trains, was meant to come back.
    """
    before = trace.events[: trace.events.index(forward)]
    here = forward.place.function if forward.place is not None else ""
    found: set[str] = set()
    for number, event in enumerate(before):
        if not isinstance(event, Mode) or event.training or event.place is None:
            continue
        function = event.place.function
        if event.step != forward.step or function == here:
            continue
        used = any(
            isinstance(later, Forward)
            and not later.grad
            and later.place is not None
            and later.place.function == function
            for later in before[number + 1 :]
        )
        if used:
            found |= {name for name in forward.frozen if _within(name, event.module)}
    modules = dict(subject.model.named_modules())
    return frozenset(
        name
        for name in found
        if name in modules and all(p.requires_grad for p in modules[name].parameters())
    )


def _stuck(
    subject: Subject, trace: Trace, number: int, forward: Forward, stuck: frozenset[str]
) -> Finding:
    before = trace.events.index(forward)
    setter = next(
        (
            e
            for e in reversed(trace.events[:before])
            if isinstance(e, Mode)
            and not e.training
            and any(_within(name, e.module) for name in stuck)
        ),
        None,
    )
    place = None
    if setter is not None and setter.place is not None:
        place = where_mode_is_left(
            subject, setter.module, setter.place.function, before=setter.step
        )
    name = setter.name if setter is not None else "model.training = False"
    layers = (
        frozenset(
            n for n in stuck if n and not any(o != n and o.startswith(f"{n}.") for o in stuck)
        )
        or stuck
    )
    restore = f"{name.removesuffix('.eval')}.train()"
    return violated(
        "eval-mode-left",
        f"{name}() is not undone: from {'the first call' if not number else f'call {number}'} "
        "of the step on, training runs in eval mode",
        culprits=(
            Culprit("call", name, "not undone", setter.place if setter else None),
            *(Culprit("module", n, "in eval mode during training") for n in sorted(layers)[:3]),
        ),
        location=place or (setter.place if setter else None),
        observed=f"{len(stuck)} modules ({few(layers)}) were in training mode "
        f"{'before the step' if not number else 'in the first call'} "
        f"and train in eval mode in call {number}",
        cause="dropout is off and statistics are not updated after the first evaluation",
        because=f"{name}() ran at {at(setter.place if setter else None)}"
        + (f", and {at(place)} returns without train()" if place else ""),
        fix=f"call {restore} before {at(place)}"
        if place
        else f"call {restore} after the evaluation",
        evidence={"modules": sorted(stuck)},
    )


def _trains_in_eval(subject: Subject, trace: Trace) -> Iterator[Finding]:
    """Every call of the step puts the whole model into eval mode before the forward that it trains.

    A part that is kept in eval mode is kept so on purpose; with the whole model that is rare.
    """
    seen: list[tuple[Mode, Forward]] = []
    for number, forwards in training_forwards(trace).items():
        forward = next((f for f in forwards if not f.module and "" in f.frozen), None)
        before = () if forward is None else trace.events[: trace.events.index(forward)]
        here = [e for e in before if isinstance(e, Mode) and not e.module and e.step == number]
        if forward is None or not here or here[-1].training:
            return
        seen.append((here[-1], forward))
    if not seen:
        return
    setter, forward = seen[0]
    acting = [
        name
        for name, module in subject.model.named_modules()
        if _differs_by_mode(module) and not subject.is_promised("Frozen", f"{name}.running_mean")
    ]
    if not acting:
        return
    restore = setter.name.removesuffix(".eval")
    yield suspicious(
        "trains-in-eval",
        f"every step trains in eval mode: {few(tuple(acting))} "
        f"{'has' if len(acting) == 1 else 'have'} no effect",
        culprits=(
            Culprit("call", setter.name, "before the training forward", setter.place),
            *(Culprit("module", name, "in eval mode during training") for name in acting[:3]),
        ),
        observed=f"the training forward runs in eval mode in each of {len(seen)} calls; the model "
            "was passed in training mode",
        cause="dropout is off and statistics are not updated in training",
        because=f"{setter.name}() ran at {at(setter.place)}, before the forward at "
            f"{at(forward.place)}",
        fix=f"call {restore}.train() at {at(setter.place)}, or set only the frozen modules to "
            "eval mode",
        evidence={"modules": acting},
    )  # fmt: skip


def _differs_by_mode(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    return getattr(module, "running_mean", None) is not None


def _within(name: str, owner: str) -> bool:
    return not owner or name == owner or name.startswith(f"{owner}.")


def _gradients_off(subject: Subject, trace: Trace) -> Iterator[Finding]:
    if trace.grad_left_off is None:
        return
    place = where_gradients_go_off(subject, before=trace.grad_left_off)
    yield violated(
        "gradients-left-off",
        "the step leaves gradients disabled: no later step can train",
        culprits=(Culprit("call", "set_grad_enabled", "not undone", place),),
        observed=f"torch.is_grad_enabled() is False after call {trace.grad_left_off} of the step",
        cause="gradients are disabled for an evaluation and not enabled again",
        because=f"they are disabled after {at(place)}",
        fix="use `with torch.no_grad():` around the evaluation",
    )


def _statistics(trace: Trace) -> Iterator[Finding]:
    """An evaluation in training mode moves running statistics."""
    for _, event in trace.each(Forward):
        if event.grad or not event.statistics or event.place is None:
            continue
        function = event.place.function.rpartition(".")[2]
        if not _EVALUATES.search(function):
            continue
        make = violated if _IS_EVALUATION.search(function) else suspicious
        off = event.off or sources.line_above(event.place, r"^[^#]*set_grad_enabled\(False")
        before = off or event.place
        yield make(
            "evaluation-updates-statistics",
            f"{function} runs the model in training mode: {few(event.statistics)} change",
            culprits=(
                Culprit("call", event.name, "in training mode", event.place),
                *(
                    [Culprit("call", "eval", "missing before it", off)]
                    if off is not None and off != event.place
                    else ()
                ),
                *(Culprit("buffer", name, "moved") for name in event.statistics[:3]),
            ),
            location=event.place,
            observed=f"{len(event.statistics)} buffers changed in a forward without gradients",
            cause="the evaluation does not call eval() first, so its data changes the running "
            "statistics",
            because=f"the model was in training mode at {at(event.place)}",
            fix=f"call {event.name}.eval() before {at(before)}, and {event.name}.train() after the evaluation",
        )
        return
