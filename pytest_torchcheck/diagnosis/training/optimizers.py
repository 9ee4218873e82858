"""What an optimizer leaves out, holds twice or moves by mistake, explained."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ... import sources
from ...culprits import parameter
from ...findings import Culprit, Finding, Location
from ...loop.traces.rebound_parameters import where_rebound
from ...probes.gradient.provenance import find_cut
from ...runs.training.steps import lost
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.optimizers import optimizers_of
from ...text.wording import have, names_text
from ...verdicts import inconclusive, violated
from ..gradient.cuts import CAUSES, fix_of, kind_at
from .making import Making, making
from .parameter_groups import left_out, spent_of

if TYPE_CHECKING:
    from ...probes.gradient.provenance import GraphCut
    from ...runs.training.steps import Coverage, Trajectory
    from ...subject import Subject
    from ...subject.gradients import Gradients


def optimizer_line(subject: Subject, name: str = "") -> Location | None:
    """Return the line that concerns a parameter as the user's optimizer is made, or the line that makes it."""
    function = subject.contract.optimizer
    if function is None:
        return None
    made = making(subject)
    tail = name.rpartition(".")[2]
    patterns = (rf"(?<!\w){re.escape(name)}\b", rf"[\"'.]{re.escape(tail)}\b") if name else ()
    for pattern in patterns:
        if found := made.matches(pattern):
            return found[0]
    if made.optimizers:
        return made.optimizers[-1]
    return sources.search(function, r"return") or sources.of_object(function)


def missing(subject: Subject, names: list[str], coverage: Coverage) -> Finding:
    """Explain trainable parameters that no optimizer holds."""
    parameters = subject.named_parameters()
    stale = [
        name
        for name in names
        if tuple(parameters[name].shape[1:]) in {s[1:] for s in coverage.foreign}
    ]
    place = optimizer_line(subject, names[0])
    made = making(subject)
    trainable = [p for p in parameters.values() if p.requires_grad]
    copied = len(names) == len(trainable) and sorted(coverage.foreign) == sorted(
        tuple(p.shape) for p in trainable
    )
    thawed = made.thawed.get(names[0])
    whole = copied or stale or thawed or coverage.foreign or names[0] in made.replaced
    out = None if whole else left_out(subject, names[0])
    given = out.culprits if out is not None else ()
    named = {(p.file, p.line) for p in made.matches(rf"(?<!\w){re.escape(names[0])}\b")}
    if out is not None and (place is None or (place.file, place.line) not in named):
        place = out.location
    foreign = (
        f"; it holds {len(coverage.foreign)} tensors that are not the model's, of shapes "
        f"{', '.join(str(list(shape)) for shape in coverage.foreign[:3])}"
        if coverage.foreign
        else ""
    )
    return violated(
        "optimizer-missing",
        (
            f"{names_text(names)} {have(names, 'is') if len(names) == 1 else 'are'} in no "
            "optimizer and will never be trained"
        ),
        culprits=[
            *(Culprit("parameter", name, "in no optimizer", place) for name in names),
            *given,
            *(c for c in _choices(made) if c.location not in {g.location for g in given}),
            *(_copies(made) if coverage.foreign else ()),
            *(
                Culprit("call", names[0], "is replaced here", line)
                for line in made.replaced.get(names[0], ())
            ),
            *(
                [Culprit("call", f"requires_grad of {names[0]}", "enabled only from here", thawed)]
                if thawed
                else []
            ),
        ],
        location=place,
        observed=f"{len(names)} trainable parameters are missing from "
        f"{', '.join(coverage.optimizers)}{foreign}",
        cause="the optimizer was built over another instance of the model: a copy, or one built "
        "again"
        if copied
        else (
            "the parameter was replaced after the optimizer was built, or the optimizer "
            "received an old one"
        )
        if stale
        else "it was frozen when the optimizer was built, and was unfrozen later"
        if thawed
        else "the optimizer received only a part of the parameters"
        + (
            f"; {out.words}"
            if out is not None and place == out.location != optimizer_line(subject)
            else ""
        ),
        because=f"{names[0]} requires a gradient, and no param_group holds this tensor",
        fix="build the optimizer from model.parameters() after the model is complete"
        if stale
        else out.fix
        if out is not None and out.fix
        else f"add {names[0]} to the optimizer, or freeze it with requires_grad_(False)",
        evidence={
            "parameters": list(names),
            "foreign": [list(shape) for shape in coverage.foreign],
        },
    )


def _copies(made: Making) -> list[Culprit]:
    """Return the lines that ran as the optimizer was made and that copy a model or a tensor."""
    return [
        Culprit("optimizer", "optimizer", "a copy", line)
        for line in made.matches(r"\b(deep)?copy\(|\.clone\(")[:4]
    ]


_CHOICE = re.compile(
    r"(parameters|modules|children)\(.*\bif\b|\bif (not )?isinstance\(|\bfilter\(|requires_grad|(starts|ends)with\(|\bif\b.*\bin\b|\bin\b.*\bname\b"
)


def _choices(made: Making) -> list[Culprit]:
    """Return the lines that ran as the optimizer was made and that choose parameters by a condition."""
    lines = [place for place in made.lines if _CHOICE.search(place.text)]
    return [Culprit("call", "parameters", "a condition chooses", line) for line in lines[:4]]


def twice(subject: Subject, names: list[str], coverage: Coverage) -> Finding:
    """Explain parameters that one optimizer holds more than once, or two that apply the same gradient."""
    spent = spent_of(subject, names[0])
    spent = spent if spent is not None and spent.tested else None
    place = spent.made if spent is not None else optimizer_line(subject)
    used = spent.culprits if spent is not None else ()
    why = f"; {spent.cause}" if spent is not None else ""
    several = len(coverage.optimizers) > 1
    where = (
        "two optimizers that apply the same gradient" if several else "the optimizer more than once"
    )
    detail = "in two optimizers" if several else "held twice"
    holders = ", ".join(coverage.optimizers)
    return violated(
        "optimizer-twice",
        f"{names_text(names)} {'stands' if len(names) == 1 else 'stand'} in {where}",
        culprits=[*used, *(Culprit("parameter", name, detail, place) for name in names)],
        location=place,
        observed=f"{len(names)} parameters are held "
        + (f"by more than one of {holders}" if several else f"twice by {holders}"),
        cause=(
            "both optimizers apply the gradient of the same backward pass, so it is applied twice"
            if several
            else "two parameter groups overlap, so the update and the weight decay are applied twice"
        )
        + why,
        because="within one step, both optimizers stepped with gradients of the same backward pass"
        if several
        else "the same tensor occurs more than once in param_groups",
        fix=spent.fix
        if spent is not None
        else f"give each parameter to one {'optimizer' if several else 'group'} only",
    )


def standstill(subject: Subject, names: list[str], made: Trajectory, total: int) -> Finding:
    """Explain trainable parameters that a training step does not move."""
    first = subject.gradients()
    uncovered = [name for name in names if name in made.coverage.missing]
    gradless = [name for name in names if first.stats[name].kind == "none"]
    zero = [name for name in names if first.stats[name].kind == "zero"]
    own = subject.contract.train_step is not None
    rate = max((r for r in made.rates if r == r), default=None)
    own_rate = _rate_of(subject, names) if rate else rate
    place: Location | None = None
    given: tuple[Culprit, ...] = ()
    rebound = [name for name in names if name in lost(subject)]
    line = where_rebound(subject, rebound[0]) if rebound else None
    if line is not None:
        cause = (
            f"the step replaces {rebound[0]} by a new Parameter, and the optimizer keeps the "
            "old one"
        )
        because = (
            f"after line {line.line} no param_group holds the tensor that the model uses, and "
            "the next step gives it the same values even when its gradient is negated"
        )
        fix = "write to the parameter in place, under torch.no_grad(): .copy_(), .clamp_(), .mul_()"
        place = line
    elif len(gradless) + len(zero) == len(names):
        cause = f"it has {'no gradient' if gradless else 'a gradient of zero'}, so no optimizer can change it"
        because = f"its gradient is {'None' if gradless else 'zero'}"
        fix = "make the loss depend on it first (gradients-exist names the cut)"
        place = sources.of_parameter(subject.model, names[0])
    elif rate == 0.0:
        cause = "the learning rate is 0"
        because = f"the learning rate was 0 in {len(made.rates)} steps"
        fix = "give the optimizer a learning rate above 0"
        place = optimizer_line(subject)
    elif own_rate == 0.0:
        cause = "the learning rate of its parameter group is 0"
        because = f"the group that holds {names[0]} has lr=0, another one has {rate:g}"
        fix = f"give the group of {names[0]} a learning rate above 0"
        place = optimizer_line(subject, names[0])
    elif uncovered and len(uncovered) == len(names):
        cause, because = "the optimizer does not hold it", "no param_group holds this tensor"
        fix = "add it to the optimizer"
        place = optimizer_line(subject, names[0])
        if not made.coverage.foreign and (out := left_out(subject, names[0])) is not None:
            place, given, fix = out.location, out.culprits, out.fix or fix
    elif own:
        place, cause, because, fix = _own_step_cause(subject, names, made, first)
    else:
        small = next(n for n in names if n not in gradless and n not in zero)
        size, norm = made.sizes.get(small, 0.0), first.stats[small].norm
        cause = f"the update of {small} is smaller than half a unit in the last place of the weight"
        cause += f"; {len(gradless + zero)} others get no gradient" * bool(gradless + zero)
        because = f"gradient norm {norm:.3g}, largest weight {size:.3g}, learning rate {own_rate}"
        fix = "raise the learning rate, or keep the weights in a wider dtype"
        place = optimizer_line(subject) or sources.of_parameter(subject.model, names[0])
    culprits = [parameter(subject, name, "unchanged") for name in names]
    culprits += given
    if line is not None:
        culprits.append(Culprit("call", rebound[0], "is replaced here", line))
    if 0.0 in (rate, own_rate):
        culprits += [
            Culprit("optimizer", "lr", "is set to 0 here", line)
            for line in making(subject).zero_rates()[:2]
        ]
    if own and place is not None and "zero_grad" in place.text:
        culprits.insert(
            0,
            Culprit("call", "zero_grad", "between backward and step", place),
        )
    return violated(
        "weight-static",
        f"{names_text(names)} {'does' if len(names) == 1 else 'do'} not "
        f"{'learn once a step replaces it' if line is not None else f'change in {len(made.losses)} training steps'} "
        f"({len(names)} of {total} parameters)",
        culprits=culprits,
        location=place,
        observed=f"max|after - before| = 0 over {len(made.losses)} steps"
        if line is None
        else f"{rebound[0]} is another tensor after {'the first step' if not made.rebound[rebound[0]] else 'a step'}",
        cause=cause,
        because=because,
        fix=fix,
        evidence={
            "parameters": list(names),
            "losses": list(made.losses),
            "rates": list(made.rates),
        },
    )


def _own_step_cause(
    subject: Subject, names: list[str], made: Trajectory, first: Gradients
) -> tuple[Location | None, str, str, str]:
    """Return why the user's own step leaves a parameter as it is."""
    step = subject.contract.train_step
    plain = (
        f"a plain forward, loss and backward gives {names[0]} a gradient of norm "
        f"{first.stats[names[0]].norm:.3g}"
    )
    if (cut := _cut_in_step(subject, names[0])) is not None:
        kind = kind_at(cut.kind, cut.region or cut.location)
        return (
            cut.region or cut.location,
            f"it gets no gradient in the declared training step: {CAUSES.get(kind, 'the graph is cut')}",
            f"{cut.fact}; {plain}" if cut.fact else plain,
            fix_of(kind, cut.location).format(names=repr(names[0])),
        )
    place = _suspect(subject)
    cleared = all(name not in made.live for name in names)
    cause = (
        "the gradients are cleared between backward and step"
        if cleared and place is not None and "zero_grad" in place.text
        else "the declared training step does not apply the gradients"
    )
    because = f"{plain}, and the step leaves it bit-equal"
    fix = "order the calls as zero_grad, forward, backward, step"
    place = place or sources.of_object(step)
    return place, cause, because, fix


def _cut_in_step(subject: Subject, name: str) -> GraphCut | None:
    """Return where a parameter loses its gradient within the user's own step; None where one comes to it."""
    with subject.pristine(steps=True) as model:
        model.train()
        made = subject.make_optimizer(model)
        batch = subject.batch().clone()
        seed_everything(subject.seed)
        parameters = {name: dict(model.named_parameters())[name]}
        try:
            cut = find_cut(lambda: subject.train_step(model, made, batch), model, parameters)
        except SubjectError:
            return None  # the check that met the error reports it
    return cut.get(name)


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
    found = {
        word: sources.search(step, pattern)
        for word, pattern in (
            ("zero", r"zero_grad\("),
            ("backward", r"\.backward\("),
            ("step", r"\.step\("),
        )
    }
    zero, backward = found["zero"], found["backward"]
    if zero is not None and backward is not None and zero.line > backward.line:
        return zero
    return found["step"] or backward


def no_match(subject: Subject, promise: str, globs: list[str]) -> Finding:
    """Say that globs of a promise match nothing."""
    names = [name for name, _ in subject.model.named_parameters()]
    return inconclusive(
        f"{promise}({', '.join(map(repr, globs))}) matches no parameter or buffer; there are: {names_text(names, 6)}",
        code="no-match",
    )
