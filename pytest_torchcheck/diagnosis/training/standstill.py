"""Why a training step leaves a parameter as it is, explained: its gradient, its learning rate, or the step itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ... import sources
from ...explanation import Reason, parameter
from ...findings import Culprit, Finding
from ...loop.recorder import trace_of
from ...loop.traces.copied_onto_itself import where_rebound
from ...probes.gradient.provenance import find_cut, find_zero_gradients
from ...probes.gradient.readers import readers_of
from ...record.tracing import find_line
from ...runs.training.steps import lost
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.optimizers import optimizers_of
from ...text.wording import counted, names_text
from ...verdicts import suspicious, violated
from ..gradient.cuts import CAUSES, fix_of, kind_at, names_around
from ..gradient.frozen_in_step import freezing, seen_in_step
from ..gradient.missing import missing as lost_gradients
from ..gradient.zero import causes_of_zero
from ..gradient.zero import zero as zeros
from .making import making
from .optimizers import leaving_break, optimizer_line, unapplied
from .parameter_groups import left_out

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ...findings import Location
    from ...probes.gradient.provenance import GraphCut
    from ...probes.gradient.zeros import ZeroGradient
    from ...runs.training.steps import Trajectory
    from ...subject import Subject
    from ...subject.gradients import Gradients


_Found = TypeVar("_Found")
_GRADLESS = "it gets no gradient in the declared training step"


def standstill(subject: Subject, names: list[str], made: Trajectory, total: int) -> Finding:
    """Explain trainable parameters that a training step does not move."""
    rebound = [name for name in names if name in made.rebound]
    line = where_rebound(subject, rebound[0]) if rebound else None
    reason = (
        _rebound(subject, rebound[0], line)
        if line is not None
        else _never_stepped(subject, names)
        or _switched_off(subject, names[0])
        or _without_gradient(subject, names, total)
        or _without_rate(subject, names, made)
        or _left_alone(subject, names, made)
    )
    culprits = [parameter(subject, name, "unchanged") for name in names]
    own = subject.contract.train_step is not None
    if own and reason.place is not None and "zero_grad" in reason.place.text:
        culprits.insert(0, Culprit("call", "zero_grad", "between backward and step", reason.place))
    return (suspicious if reason.doubtful else violated)(
        "weight-static",
        f"{names_text(names)} {'does' if len(names) == 1 else 'do'} not "
        f"{'learn once a step replaces it' if line is not None else f'change in {len(made.losses)} training steps'} "
        f"({len(names)} of {total} parameters)",
        culprits=[*culprits, *reason.culprits],
        location=reason.place,
        observed=f"max|after - before| = 0 over {len(made.losses)} steps"
        if line is None
        else f"{rebound[0]} is another tensor after {'a step' if made.rebound[rebound[0]] else 'the first step'}",
        cause=reason.cause,
        because=reason.because,
        fix=reason.fix,
        evidence={
            "parameters": list(names),
            "losses": list(made.losses),
            "rates": list(made.rates),
        },
    )


def _rebound(subject: Subject, name: str, line: Location) -> Reason:
    because = f"after line {line.line} no param_group holds the tensor that the model uses"
    if name in lost(subject):
        because += ", and the next step gives it the same values even when its gradient is negated"
    return Reason(
        place=line,
        cause=f"the step replaces {name} by a new Parameter, and the optimizer keeps the old one",
        because=because,
        fix="write to the parameter in place, under torch.no_grad(): .copy_(), .clamp_(), .mul_()",
        culprits=(Culprit("call", name, "is replaced here", line),),
    )


def _never_stepped(subject: Subject, names: list[str]) -> Reason | None:
    """Return that the optimizer of the parameters never steps in the user's own step, where another one does."""
    step = subject.contract.train_step
    if step is None:
        return None
    trace = trace_of(subject)
    stepped = {event.owner for event in trace.optimizer_steps()}
    for number, (key, held) in enumerate(trace.parameters.items(), 1):
        if stepped and key not in stepped and set(names) <= set(held):
            one = f"number {number} of {len(trace.parameters)} ({trace.classes[key]})"
            return Reason(
                place=sources.of_object(step),
                cause=f"the optimizer that holds it, {one}, is never stepped",
                because=f"in {counted(trace.steps, 'call')} of the step only other optimizers stepped",
                fix="call the step() of this optimizer too, after backward",
            )
    return None


def _switched_off(subject: Subject, name: str) -> Reason | None:
    """Return the call of the user's own step that freezes a parameter, where it is frozen whenever its module runs."""
    if subject.contract.train_step is None or (seen := seen_in_step(subject)) is None:
        return None
    if name not in seen.idle or (found := freezing(subject, name)) is None:
        return None
    return Reason(
        place=found.location,
        cause=f"{_GRADLESS}: {found.fact}",
        because=f"{name}.requires_grad is True before the step, and False whenever the step runs its module",
        fix=found.fix,
        culprits=found.culprits,
    )


def _without_gradient(subject: Subject, names: list[str], total: int) -> Reason | None:
    """Return what takes the gradient away, where none of the parameters has one."""
    stats = subject.gradients().stats
    none = [name for name in names if stats[name].kind == "none"]
    zero = [name for name in names if stats[name].kind == "zero"]
    if len(none) + len(zero) < len(names):
        return None
    reasons = (
        lost_gradients(subject, none, total) if none else zeros(subject, zero, total, rounding=[])
    )
    if (found := next(reasons)).status == "suspicious":  # that of others may be sure
        found = next((other for other in reasons if other.status == "violated"), found)
    return Reason(
        place=found.location,
        cause=f"it has {'no gradient' if none else 'a gradient of zero'}, so no optimizer can "
        f"change it: {found.cause}",
        because=found.because,
        fix=found.fix,
        culprits=tuple(c for c in found.culprits if c.kind != "parameter"),
        doubtful=found.status == "suspicious",
    )


def _without_rate(subject: Subject, names: list[str], made: Trajectory) -> Reason | None:
    """Return where a learning rate of 0 is set, where the parameters have one."""
    rate = max((r for r in made.rates if r == r), default=None)
    own = _rate_of(subject, names) if rate else rate
    if own != 0.0:
        return None
    group = f"the group of {names[0]}" if rate else "the optimizer"
    return Reason(
        place=optimizer_line(subject, names[0] if rate else ""),
        cause=f"the learning rate {'of its parameter group ' if rate else ''}is 0",
        because=f"the group that holds {names[0]} has lr=0, another one has {rate:g}"
        if rate
        else f"the learning rate was 0 in {len(made.rates)} steps",
        fix=f"give {group} a learning rate above 0",
        culprits=tuple(
            Culprit("optimizer", "lr", "is set to 0 here", line)
            for line in making(subject).zero_rates()[:2]
        ),
    )


def _left_alone(subject: Subject, names: list[str], made: Trajectory) -> Reason:
    """Return why an optimizer leaves parameters alone that have a gradient and a learning rate."""
    first, torchs = subject.gradients(), made.coverage.optimizers
    own = subject.contract.train_step is not None
    if all(name in made.coverage.missing for name in names) and (torchs or not own):
        out = None if made.coverage.foreign else left_out(subject, names[0])
        return Reason(
            place=out.location if out is not None else optimizer_line(subject, names[0]),
            cause=f"the optimizer does not {'hold' if torchs else 'update'} it",
            because="no param_group holds this tensor" if torchs else "its steps leave it as it is",
            fix=(out.fix if out is not None else "") or "add it to the optimizer",
            culprits=out.culprits if out is not None else (),
        )
    if own:
        return _own_step_cause(subject, names, made, first)
    name = next(n for n in names if first.stats[n].kind not in ("none", "zero"))
    gradless = sum(first.stats[n].kind in ("none", "zero") for n in names)
    others = f"; {gradless} others get no gradient" * bool(gradless)
    norm, size = first.stats[name].norm, made.sizes.get(name, 0.0)
    measured = f"gradient norm {norm:.3g}, largest weight {size:.3g}, learning rate {_rate_of(subject, names)}"
    place = optimizer_line(subject) or sources.of_parameter(subject.model, name)
    if wide := _moves_in_double(subject, name):
        return Reason(
            place=place,
            cause=f"the update of {name} is smaller than half a unit in the last place of the weight{others}",
            because=f"{measured}; in float64 a step changes it by {wide:.3g}",
            fix="raise the learning rate, or keep the weights in a wider dtype",
        )
    left = leaving_break(subject)
    ends = f"; its step leaves a loop by the break on line {left.line}" if left else ""
    return Reason(
        place=left or place,
        cause=f"the optimizer holds {name} and leaves it as it is{others}{ends}",
        because=measured,
        fix=f"look at what the optimizer's step does with {name}: its state, hooks and closures",
    )


def _moves_in_double(subject: Subject, name: str) -> float:
    """Return by how much a step in float64 changes a parameter, 0.0 where it does not or cannot run."""
    try:
        with subject.in_double() as model:
            model.train()
            seed_everything(subject.seed)
            made = subject.make_optimizer(model)
            known = dict(model.named_parameters())[name]
            before = known.detach().clone()
            subject.train_step(model, made, subject.batch().to(dtype=torch.float64).clone())
            return float((known.detach() - before).abs().max())
    except SubjectError:
        return 0.0


def _own_step_cause(
    subject: Subject, names: list[str], made: Trajectory, first: Gradients
) -> Reason:
    """Return why the user's own step leaves a parameter as it is."""
    plain = (
        f"a plain forward, loss and backward gives {names[0]} a gradient of norm "
        f"{first.stats[names[0]].norm:.3g}"
    )
    if (cut := _cut_in_step(subject, names[0])) is not None:
        kind = kind_at(cut.kind, cut.region or cut.location)
        if kind in ("detach", "data") and (
            read := _read_again(subject, names[0], cut, kind, plain)
        ):
            return read
        return Reason(
            place=cut.region or cut.location,
            cause=f"{_GRADLESS}: {CAUSES.get(kind, 'the graph is cut')}",
            because=f"{cut.fact}; {plain}" if cut.fact else plain,
            fix=fix_of(kind, cut.location).format(names=repr(names[0])),
        )
    if (dead := _dies_in_step(subject, names[0])) is not None:
        where, cause, fix = causes_of_zero(dead)
        return Reason(
            place=where,
            cause=f"its gradient is zero in the declared training step: {cause}",
            because=f"{dead.fact}; {plain}",
            fix=fix,
            doubtful=dead.kind == "at-rest",
        )
    if (undone := _undone(subject, names[0])) is not None:
        return Reason(
            place=undone,
            cause="the step puts it back to what it was, over what the optimizer did",
            because=f"{names[0]} has other values before this line runs, and its first ones after it",
            fix="do not write earlier values to parameters after the optimizer's step",
        )
    return unapplied(subject, names, made, plain, _suspect(subject))


def _undone(subject: Subject, name: str) -> Location | None:
    """Return the line of the user's own step that gives a parameter its first values back, once it had others."""

    def find(step: Callable[[], object], model: nn.Module, _: Any) -> Location | None:
        parameter, moved = dict(model.named_parameters())[name], [False]
        first = parameter.detach().clone()

        def watcher(*_: Any) -> bool:
            moved[0] |= not (same := torch.equal(parameter, first))
            return same and moved[0]

        return find_line(step, watcher)

    return _in_step(subject, find)


def _read_again(subject: Subject, name: str, cut: GraphCut, kind: str, plain: str) -> Reason | None:
    """Return which statement reads a value that is cut for another one; None where one statement alone reads it."""
    if cut.op is None or cut.location is None:
        return None
    op = cut.op
    found = _in_step(
        subject,
        lambda step, model, made: readers_of(
            step, model, op, dict(model.named_parameters())[name], optimizers_of(made)
        ),
    )
    if found is None:
        return None
    at_fault, line = found.at_fault, cut.location.line
    lines = [place.line for place in found.locations]
    culprits = [Culprit("call", op.name, "cuts the graph", cut.location)]
    for place in found.locations:
        detail = (
            "for the pass that trains it"
            if place == at_fault
            else "for another pass" * (at_fault is not None)
        )
        culprits.append(
            Culprit("call", place.text, f"reads the value that is cut {detail}".strip(), place)
        )
    listed = f"lines {', '.join(map(str, lines))} read what line {line} cuts from the graph"
    if at_fault is None:
        return Reason(
            place=cut.location,
            cause=f"{_GRADLESS}: {CAUSES[kind]}, and several statements read what it gives",
            because=f"{cut.fact}; {listed}; {plain}",
            fix=f"let the loss that is to train it read the value from before line {line}",
            culprits=tuple(culprits),
        )
    others = ", ".join(str(each) for each in lines if each != at_fault.line)
    before, after = names_around(cut.location)
    names_it = before and after in sources.names_read(at_fault.file, at_fault.line)
    value = f"{after}," if names_it else "a value"
    renamed = None if names_it else sources.alias_above(at_fault)
    if renamed is not None:
        culprits.append(Culprit("tensor", "value", "gets another name", renamed))
    return Reason(
        place=renamed or at_fault,
        cause=f"{_GRADLESS}: {'this line' if renamed is None else f'line {at_fault.line}'} reads {value} "
        f"which line {line} cuts from the graph; line {others} reads it too, for another pass",
        because=f"{cut.fact}; {plain}",
        fix=f"write {before} for {after} on line {at_fault.line}"
        if names_it
        else f"read the value from before line {line} on line {at_fault.line}",
        culprits=tuple(culprits[::-1]),
    )


def _cut_in_step(subject: Subject, name: str) -> GraphCut | None:
    """Return where a parameter loses its gradient within the user's own step; None where one comes to it."""
    found = _in_step(
        subject,
        lambda step, model, _: find_cut(step, model, {name: dict(model.named_parameters())[name]}),
    )
    return (found or {}).get(name)


def _dies_in_step(subject: Subject, name: str) -> ZeroGradient | None:
    """Return where the gradient of a parameter becomes zero within the user's own step; None where it does not."""
    found = _in_step(subject, lambda step, model, _: find_zero_gradients(step, model, [name]))
    return (found or {}).get(name)


def _in_step(
    subject: Subject, find: Callable[[Callable[[], object], nn.Module, Any], _Found | None]
) -> _Found | None:
    """Look for something in a run of the user's own step, given its optimizers too; None where it raises."""
    with subject.pristine(steps=True, train=True) as model:
        made = subject.make_optimizer(model)
        batch = subject.batch().clone()
        seed_everything(subject.seed)
        try:
            return find(lambda: subject.train_step(model, made, batch), model, made)
        except SubjectError:
            return None  # the check that met the error reports it


def _rate_of(subject: Subject, names: list[str]) -> float | None:
    """Return the largest learning rate of the groups that hold these parameters, as the optimizer is made."""
    with subject.pristine(steps=True) as model:
        known = dict(model.named_parameters())
        wanted = {id(known[name]) for name in names if name in known}
        rates = [
            float(group["lr"])
            for optimizer in optimizers_of(subject.make_optimizer(model))
            for group in optimizer.param_groups
            if group.get("lr") is not None and wanted.intersection(map(id, group["params"]))
        ]
    return max(rates, default=None)


def _suspect(subject: Subject) -> Location | None:
    """Return the zero_grad of a user's step that stands after its backward and before its step."""
    step = subject.contract.train_step
    if step is None:
        return None
    patterns = (r"zero_grad\(", r"\.backward\(", r"\.step\(")
    zero, backward, stepping = (sources.search(step, pattern) for pattern in patterns)
    if zero is not None and backward is not None and zero.line > backward.line:
        return zero
    return stepping or backward
