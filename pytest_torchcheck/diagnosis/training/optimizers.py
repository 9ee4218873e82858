"""What an optimizer leaves out, holds twice or moves by mistake, explained."""

from __future__ import annotations

import ast
import contextlib
import re
from typing import TYPE_CHECKING

import torch

from ... import sources
from ...explanation import Reason, on_line
from ...findings import Culprit, Finding, Location
from ...loop.recorder import trace_of
from ...loop.trace import Clip
from ...record.tracing import find_line, line_of
from ...subject.errors import SubjectError
from ...subject.optimizers import optimizers_of
from ...text.wording import counted, have, names_text
from ...verdicts import inconclusive, suspicious, violated
from .making import Making, constructions, making
from .parameter_groups import left_out, lost, skipped, spent_of

if TYPE_CHECKING:
    from types import FrameType

    from ...runs.training.steps import Trajectory
    from ...subject import Subject
    from ...subject.optimizers import Coverage


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


def leaving_break(subject: Subject) -> Location | None:
    """Return the one ``break`` that a step of a user's own optimizer runs; None where it runs none, or several."""
    found: dict[int, Location] = {}
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        made = subject.make_optimizer(model)
        if not isinstance(made, torch.optim.Optimizer) or not sources.is_own_class(type(made)):
            return None

        def watcher(frame: FrameType, event: str, line: int) -> bool:
            file = frame.f_code.co_filename
            if sources.rank(file) and isinstance(sources.statement(file, line), ast.Break):
                found[line] = line_of(frame.f_code, line)
            return False

        with contextlib.suppress(SubjectError):
            subject.passes(model, subject.batch().clone())
            find_line(made.step, watcher)
    return next(iter(found.values())) if len(found) == 1 else None


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
    dropped = None if whole else lost(subject, names[0]) or skipped(subject, names[0])
    out = None if whole else dropped or left_out(subject, names[0])
    given = out.culprits if out is not None else ()
    named = {(p.file, p.line) for p in made.matches(rf"(?<!\w){re.escape(names[0])}\b")}
    if out is not None and (
        place is None or dropped is not None or out.told or (place.file, place.line) not in named
    ):
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
            if out is not None
            and place == out.location
            and (out.told or place != optimizer_line(subject))
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


def twice(
    subject: Subject, names: list[str], coverage: Coverage, *, several: bool | None = None
) -> Finding:
    """Explain parameters that one optimizer holds more than once, or two that apply the same gradient."""
    spent = spent_of(subject, names[0])
    spent = spent if spent is not None and spent.tested else None
    place = spent.made if spent is not None else optimizer_line(subject)
    used = spent.culprits if spent is not None else ()
    why = f"; {spent.cause}" if spent is not None else ""
    several = len(coverage.optimizers) > 1 if several is None else several
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
        + (
            f"twice by {holders}"
            if not several
            else f"by {holders} and by another optimizer of the step"
            if len(coverage.optimizers) < 2
            else f"by more than one of {holders}"
        ),
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


def made_anew(subject: Subject, kinds: list[str]) -> Finding:
    """Explain a step that makes its optimizer in each call: what it gathers is lost with it."""
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        declared = subject.make_optimizer(model)
        with constructions(subject.contract.optimizer) as made:
            subject.train_step(model, declared, subject.batch().clone())
        gathers = any(
            not isinstance(one, torch.optim.SGD) or one.defaults.get("momentum")
            for one in optimizers_of(declared)
        )
    place = made.optimizers[0] if made.optimizers else None
    name = ", ".join(kinds)
    return (violated if gathers else suspicious)(
        "optimizer-remade",
        f"each call of the step makes a new {name}, and the declared optimizer never steps",
        culprits=[Culprit("optimizer", "optimizer", "is made in each call", place)],
        location=place,
        observed="in consecutive calls no optimizer steps twice",
        cause="momentum, averages of the gradients and schedules begin anew with every call",
        because="the optimizer that steps in a call is none that stepped in the call before, nor the declared one",
        fix=f"make it once, and let the step use the optimizer that it is given{on_line(place)}",
    )


def no_match(subject: Subject, promise: str, globs: list[str]) -> Finding:
    """Say that globs of a promise match nothing."""
    names = [name for name, _ in subject.model.named_parameters()]
    return inconclusive(
        f"{promise}({', '.join(map(repr, globs))}) matches no parameter or buffer; there are: {names_text(names, 6)}",
        code="no-match",
    )


_SHRUNK = 1e-3
"""Share of its norm after backward that a gradient has left, below which what shrinks it is named."""


def unapplied(
    subject: Subject, names: list[str], made: Trajectory, plain: str, suspect: Location | None
) -> Reason:
    """Explain a step of the user's own that has gradients, and leaves parameters bit-equal.

    Args:
        subject: Whose step.
        names: The parameters.
        made: Some steps.
        plain: The gradient that a plain step has, in words.
        suspect: The line of the step that looks wrong.
    """
    trace, still = trace_of(subject), f"{plain}, and the step leaves it bit-equal"
    step = next(iter(trace.optimizer_steps(step=0)), None)
    whole = max((backward.norm for backward in trace.backwards(0)), default=0.0)
    if step is not None and 0 < step.norm < _SHRUNK * whole:
        clip = next((clip for _, clip in trace.each(Clip, 0) if clip.limit <= whole), None)
        by = f"{clip.name} with the limit {clip.limit:g}" if clip else "what runs before the step"
        return Reason(
            place=clip.place if clip else suspect or step.place,
            cause=f"its gradient is too small to change its values: {by} leaves {step.norm / whole:.2g} of it",
            because=f"the norm of all gradients is {whole:.3g} after backward, and {step.norm:.3g} when {step.name}() "
            f"runs; {still}",
            fix=f"give {clip.name} a limit near the norms that occur, about {whole:.1g}"
            if clip
            else f"do not scale the gradients down before {step.name}()",
        )
    moved = sum(distance > 0 for name, distance in made.moved.items() if name not in names)
    cleared = all(name not in made.live for name in names)
    if cleared and suspect is not None and "zero_grad" in suspect.text:
        cause = "the gradients are cleared between backward and step"
    elif moved:
        cause = f"the declared training step moves {counted(moved, 'other parameter')}, and not this one"
    else:
        cause = "the declared training step does not apply the gradients"
    return Reason(
        place=suspect or sources.of_object(subject.contract.train_step),
        cause=cause,
        because=still,
        fix="order the calls as zero_grad, forward, backward, step"
        if cleared or not moved
        else f"let the step apply the gradient of {names[0]} as those of the others",
    )
