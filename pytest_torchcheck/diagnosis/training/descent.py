"""Why a loss does not change along its gradient by what the gradient says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding
from ...probes.gradient.frozen_in_step import frozen_in_step
from ...probes.gradient.hooked import Hooks
from ...probes.gradient.provenance import GraphCut, find_stops
from ...probes.gradient.surrogates import wrong_way_round
from ...runs.again import forward_and_loss
from ...runs.losses.followed import SURE
from ...runs.losses.slopes import surrogates
from ...verdicts import inconclusive, not_applicable, suspicious, violated
from ..gradient.cuts import CAUSES, fix_of, kind_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...findings import Location
    from ...probes.gradient.frozen_in_step import Frozen
    from ...probes.recorded.watch import Op
    from ...runs.losses.followed import Descent
    from ...subject import Subject

_CUTS = ("detach", "data", "no-grad", "item", "numpy", "recreated", "derivative")

_MOVED = 6  # so many parameters are moved one by one


def differs(subject: Subject, found: Descent, ratio: float, shown: dict[str, Any]) -> Finding:
    """Explain a slope that is not what the gradient says.

    Args:
        subject: Whose loss.
        found: What was measured.
        ratio: The measured slope as a share of the promised one.
        shown: Evidence of the finding.
    """
    shown = {**shown, "ratios": {name: round(r, 4) for name, r in found.wrong.items()}}
    steps = [slope.step for slope in found.compared]
    observed = (
        f"along the gradient the loss changes by {ratio:.4g} of what the gradient says, at relative steps of "
        f"{max(steps):g} and {min(steps):g} in float64"
    )
    if ops := surrogates(subject, list(found.wrong)[:_MOVED]):
        return _surrogate(subject, ops[0], observed, shown)
    if found.nodes:
        return inconclusive(
            f"{observed}; the custom {', '.join(found.nodes[:3])} on the way is judged by gradcheck",
            evidence=shown,
        )
    with subject.pristine() as model:
        stops = find_stops(forward_and_loss(subject), model, numbers=True)
        off = frozen_in_step(forward_and_loss(subject), model)
    if cut := _explicit(stops, set(found.wrong)) or _switched(off, found.wrong):
        return _cut(subject, found, cut, observed, shown)
    if (hooks := _watched(subject)).written is not None:
        return _written(hooks, observed, shown)
    if meant := _meant(subject, stops, hooks):
        return inconclusive(f"{observed}; {meant}", evidence=shown)
    if found.random:
        return inconclusive(
            f"{observed}; the forward draws random numbers, whose gradient need not follow one seed",
            evidence=shown,
        )
    if abs(ratio - 1) < SURE:
        return inconclusive(f"{observed}; nothing was seen that explains it", evidence=shown)
    names = list(found.wrong)
    return violated(
        "gradient-wrong",
        "the gradient is not the derivative of the loss",
        culprits=[
            Culprit(
                "parameter",
                name,
                f"the loss changes by {share:.3g} of what its gradient says",
                sources.of_parameter(subject.model, name),
            )
            for name, share in found.wrong.items()
        ],
        observed=observed,
        cause="an operation of forward or loss has a wrong derivative, or backward uses other values "
        "than forward did" + (f"; it shows in {names[0]}" if names else ""),
        because="two steps of different length agree, from both sides: neither rounding nor "
        "curvature explains it",
        fix="compare the parts of the loss one by one by torch.autograd.gradcheck",
        evidence=shown,
    )


def _watched(subject: Subject) -> Hooks:
    hooks = Hooks(subject.model)
    with subject.pristine(), hooks:
        forward_and_loss(subject, backward=True)()
    return hooks


def _written(hooks: Hooks, observed: str, shown: dict[str, Any]) -> Finding:
    place = None if hooks.written is None else hooks.written.location
    name = hooks.written.name if hooks.written is not None else "the hook"
    return violated(
        "gradient-wrong",
        "a hook changes the gradient that it is given to look at",
        culprits=[
            Culprit("call", hooks.name, f"calls {name} on its argument", place),
        ],
        location=place,
        observed=observed,
        cause=f"the hook {hooks.name} writes to its argument and returns nothing; all that backward computes "
        "behind it is computed from what it wrote",
        because=f"{name} on line {place.line if place else '?'} wrote to the gradient within backward",
        fix=f"work on a copy in {hooks.name}, by the function without the underscore; to change a gradient, "
        "return the new one",
        evidence=shown,
    )


def _surrogate(subject: Subject, held: Op, observed: str, shown: dict[str, Any]) -> Finding:
    """Leave a surrogate gradient be, unless a straight-through estimator has the value that it was to replace."""
    with subject.pristine() as model:
        op = wrong_way_round(forward_and_loss(subject), model)
    if op is None:
        return not_applicable(
            f"the gradient is a surrogate of a forward that is constant by pieces: "
            f"{held.name}{on_line(held.location)} keeps its value while its operands move ({observed})",
            evidence=shown,
        )
    owner = f" of {op.module}" if op.module else ""
    culprit = Culprit("call", op.name, "adds (z - a).detach() to a", op.location)
    if op.module:
        culprit = replace(culprit, kind="module", name=op.module)
    return violated(
        "estimator-swapped",
        f"the straight-through estimator{owner} has the value that it was to replace",
        culprits=[culprit],
        location=op.location,
        observed=observed,
        cause="a + (z - a).detach() has the value of z and the gradient of a; here a is computed from z, as a "
        "quantised value is",
        because="what follows gets z as if nothing had been computed of it, and no gradient of it comes to z",
        fix="exchange the two: z + (a - z).detach()",
        evidence=shown,
    )


def _explicit(stops: tuple[GraphCut, ...], wrong: set[str]) -> GraphCut | None:
    """Return the stop that the user wrote and that parameters with a wrong slope lie behind."""
    explicit = [
        stop
        for stop in stops
        if stop.kind in _CUTS
        and (stop.region or stop.location) is not None
        and (stop.kind != "no-grad" or stop.region is not None)
    ]
    behind = [stop for stop in explicit if wrong.intersection(stop.parameters)]
    return next(iter(behind or explicit), None)


def _switched(off: Frozen, wrong: Iterable[str]) -> GraphCut | None:
    """Return the line that switches the gradient of a parameter off for a part of the forward."""
    found = ((name, off.freezing(name)) for name in wrong)
    name, switch = next(((n, one) for n, one in found if one is not None), ("", None))
    if switch is None:
        return None
    return GraphCut(
        kind="frozen",
        parameters=switch.names,
        location=switch.location,
        fact=f"requires_grad of {name} is set to False at this line, and is True before the forward",
    )


def _fix(cut: GraphCut, place: Location | None) -> str:
    if cut.kind == "frozen":
        return f"do not change requires_grad{on_line(place)}"
    return fix_of(kind_at(cut.kind, place), place).format(names="...")


def _cut(
    subject: Subject, found: Descent, cut: GraphCut, observed: str, shown: dict[str, Any]
) -> Finding:
    place = cut.region or cut.location
    name = cut.op.name if cut.op is not None else "requires_grad_"
    behind = [n for n in found.wrong if n in cut.parameters]
    culprits = [Culprit("call", name, CAUSES[cut.kind], place)]
    culprits += [
        Culprit(
            "parameter",
            n,
            "acts on the loss by this way too",
            sources.of_parameter(subject.model, n),
        )
        for n in behind[:6]
    ]
    return suspicious(
        "gradient-partial",
        "the gradient leaves out a part of the loss",
        culprits=culprits,
        location=place,
        observed=observed,
        cause="requires_grad is switched off on the way to the loss"
        if cut.kind == "frozen"
        else f"{CAUSES[kind_at(cut.kind, place)]}, and the loss uses what it gives",
        because=cut.fact,
        fix=f"{_fix(cut, place)}; if the stop is meant, skip this check with that reason",
        evidence=shown,
    )


def _meant(subject: Subject, stops: tuple[GraphCut, ...], hooks: Hooks) -> str:
    """Name what changes a gradient on purpose, within torch or by a hook; or nothing."""
    inside = next((stop for stop in stops if stop.kind in _CUTS), None)
    if inside is not None:
        return f"{inside.op.name if inside.op else inside.kind} within torch stops a gradient"
    if any(stop.kind == "sampling" for stop in stops):
        return "a draw has no gradient; sampling-paths judges it"
    for name, module in subject.model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.scale_grad_by_freq:
            return f"{name or 'the model'} scales its gradient by frequency"
        if module._backward_hooks or module._backward_pre_hooks:
            return f"a backward hook of {name or 'the model'} sees the gradient"
    return f"a hook{on_line(hooks.found.location)} sees the gradient" if hooks.found else ""
