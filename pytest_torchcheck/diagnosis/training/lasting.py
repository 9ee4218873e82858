"""Why what steps learn does not last: weights put back or decayed, copies that stay behind."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import listed, on_line, parameter
from ...findings import Culprit, Finding
from ...probes.gradient.provenance import find_cut
from ...record.tracing import find_line
from ...runs.again import forward_and_loss
from ...runs.training.enduring import MANY, after_many
from ...runs.training.forgetting import dropped_by_steps, own_optimizers
from ...runs.training.strides import move, sampled
from ...subject.errors import SubjectError
from ...text.wording import counted, names_text
from ...verdicts import suspicious, violated
from ..gradient.cuts import CAUSES
from ..outputs.eval_lines import keeping_lines
from .optimizers import leaving_break, optimizer_line

if TYPE_CHECKING:
    from ...findings import Location
    from ...runs.training.left import Left
    from ...runs.training.stale_copies import StaleCopy
    from ...subject import Subject


def put_back(subject: Subject, names: list[str]) -> Finding:
    """Explain parameters that a training forward sets to their first values."""
    place = _writing_line(subject, names[0]) or _in_forward(
        subject, names[0], rf"\b{re.escape(names[0].rpartition('.')[2])}\b.*(copy_|=|data)"
    )
    return violated(
        "weight-put-back",
        f"a forward in training mode sets {names_text(names)} back to the first values",
        culprits=[parameter(subject, name, "set back by the forward") for name in names[:8]],
        location=place,
        observed=f"after a few steps {names[0]} differs from its first values; one forward later it is bit-equal to them",
        cause="the forward writes stored values to the parameter, over what the optimizer did",
        because="no optimizer runs in that forward",
        fix="write initial values once, in __init__; do not assign to parameters in forward",
        evidence={"parameters": names},
    )


def overwritten(subject: Subject, names: list[str]) -> Finding:
    """Explain parameters to which each training forward gives values of its own."""
    lines = {name: _writing_line(subject, name) for name in names[:8]}
    culprits = [parameter(subject, name, "overwritten by the forward") for name in lines]
    culprits += [
        Culprit("call", f"write to {n}", "in each forward", at) for n, at in lines.items() if at
    ]
    return violated(
        "weight-put-back",
        f"each forward in training mode overwrites {names_text(names)}",
        culprits=culprits,
        location=next((at for at in lines.values() if at is not None), None),
        observed=f"after a few steps {names[0]} was moved to one side and to the other; a training forward "
        "gives it the same values from either",
        cause="the forward writes values that do not depend on the parameter, over what the optimizer did",
        because="no optimizer runs in these forwards, and the gradient of the parameter is not zero",
        fix="write initial values once: keep a flag, in a buffer, that the first forward sets",
        evidence={"parameters": names},
    )


def _writing_line(subject: Subject, name: str) -> Location | None:
    """Return the line of the second training forward after which a parameter has other values."""
    with subject.pristine(steps=True, train=True, seeded=True) as model, torch.no_grad():
        subject.call(model, subject.batch().clone())
        move(model, [name], 1.0)
        moved = sampled(model)[name]

        def watcher(frame: Any, event: str, line: int) -> bool:
            return event != "call" and not torch.equal(sampled(model)[name], moved)

        return find_line(lambda: subject.call(model, subject.batch().clone()), watcher, least=1)


def stale_state(subject: Subject, names: list[str]) -> Finding:
    """Explain a state dict that holds earlier values than the parameters have."""
    owners = [m for m in subject.model.modules() if sources.is_own_class(type(m))]
    methods = [
        method
        for owner in owners
        for name in ("state_dict", "_save_to_state_dict")
        if (method := vars(type(owner)).get(name)) is not None
    ]
    place = sources.of_object(methods[0]) if methods else sources.of_own_class(subject.model)
    return violated(
        "state-stale",
        f"state_dict() after training still holds the first values of {names_text(names)}",
        culprits=[parameter(subject, name, "saved as it was before") for name in names[:8]],
        location=place,
        observed=f"{counted(len(names), 'entry is', 'entries are')} bit-equal to the values before the steps; the parameters have moved",
        cause="what saves the state keeps what it returned before",
        because="state_dict() was called before the steps and again after them",
        fix="return the present values of the parameters each time that state_dict() is called",
        evidence={"parameters": names},
    )


def remembered(subject: Subject, left: Left) -> Finding:
    """Explain outputs in evaluation mode that depend on what training calls left in attributes."""
    kept = [c for c in keeping_lines(subject, train=True) if c.name in left.by]
    place = kept[0].location if kept else sources.of_own_class(subject.model)
    numbers = set(left.by) <= set(left.numbers)
    one = len(left.by) == 1
    return (suspicious if numbers else violated)(
        "training-remembered",
        f"{listed(list(left.by))}, which training calls write and no state_dict holds, "
        f"{'changes' if one else 'change'} outputs in evaluation mode",
        culprits=[
            *kept,
            *(
                Culprit("tensor", name, "written in training", place)
                for name in left.by
                if name not in {c.name for c in kept}
            ),
        ],
        location=place,
        observed=f"with {listed(list(left.by))} as before the steps, {left.remembered[0]} of the trained model is another one",
        cause="the model evaluates with what it met in training, besides its weights and buffers",
        because="weights, buffers, inputs and seed are the same in both evaluations",
        fix="compute the output from inputs and saved state; what must be kept belongs in a buffer",
        evidence={"attributes": list(left.by)},
    )


def stale_copy(subject: Subject, found: StaleCopy) -> Finding:
    """Explain a copy of a weight that evaluation reads and no step brings up to date."""
    place = sources.of_parameter(subject.model, found.copy)
    return (suspicious if found.methods else violated)(
        "copy-stale",
        f"evaluation reads {found.copy}, a copy of {found.original} that training does not change",
        culprits=[
            Culprit("buffer", found.copy, "stays as it was built", place),
            parameter(subject, found.original, "is trained, and not read in evaluation"),
        ],
        location=place,
        observed=f"{found.original} moved by up to {found.moved:.3g}; {found.copy} is bit-equal to its first values",
        cause=f"{found.copy} is copied from {found.original} once"
        + (f"; {listed(list(found.methods[:3]))} may update it" if found.methods else ""),
        because=f"in evaluation mode a change of {found.copy} changes the output, and one of {found.original} does not",
        fix=f"use {found.original} in evaluation too, or update the copy in each training step",
    )


def stops_training(subject: Subject, names: list[str], numbers: tuple[str, ...]) -> Finding:
    """Explain parameters that get no gradient after some calls, whatever the weights are."""
    tail = re.escape(numbers[0].rpartition(".")[2])
    guard = _in_forward(subject, names[0], rf"\b{tail}\b.*(<|>|==|%)|(<|>|==|%).*\b{tail}\b")
    cut = None
    with contextlib.suppress(SubjectError), after_many(subject) as model:
        wanted = {name: model.get_parameter(name) for name in names[:1]}
        cut = find_cut(forward_and_loss(subject), model, wanted).get(names[0])
    place = None if cut is None else cut.region or cut.location
    by = f"; {CAUSES[cut.kind]}{on_line(place)}" if cut is not None and place is not None else ""
    return violated(
        "weight-stops",
        f"{names_text(names)} {'receives' if len(names) == 1 else 'receive'} no gradient after {MANY} training steps",
        culprits=[
            *([Culprit("call", cut.op.name, "cuts the graph", place)] if cut and cut.op else []),
            Culprit("tensor", numbers[0], "counts calls", guard),
            *(parameter(subject, name, "no longer trained") for name in names[:8]),
        ],
        location=place or guard,
        observed=f"with the first weights put back after {MANY} steps, the gradient that the first step had is gone",
        cause=f"whether {'it is' if len(names) == 1 else 'they are'} trained depends on {numbers[0]}, which changes "
        f"from call to call{by}",
        because="weights, statistics, batch and seed are those of the first step",
        fix="let a gradient depend on weights and data; to freeze a part on purpose, call requires_grad_(False)",
        evidence={"parameters": names},
    )


def fades(subject: Subject, names: list[str]) -> Finding:
    """Explain parameters that nearly stop moving after the first step."""
    return violated(
        "weight-stops",
        f"{names_text(names)} {'moves' if len(names) == 1 else 'move'} in the first training step, and next to nothing after it",
        culprits=[parameter(subject, name, "moves once") for name in names[:8]],
        location=_optimizer_class(subject) or optimizer_line(subject, names[0]),
        observed=f"each of the steps 2 to {MANY} moves less than a ten-thousandth of what the first one does",
        cause="the optimizer takes another step once it has a state, or a learning rate is lost",
        because="the gradients of later steps are not much smaller than the first one, and no schedule is declared",
        fix="apply the same learning rate in each step; a schedule belongs in a scheduler",
        evidence={"parameters": names},
    )


def decays_alone(subject: Subject, names: list[str]) -> Finding:
    """Explain parameters that weight decay shrinks and no gradient moves."""
    left = leaving_break(subject)
    return violated(
        "weight-only-decays",
        f"{names_text(names)} only {'shrinks' if len(names) == 1 else 'shrink'} in training steps: no gradient is applied",
        culprits=[parameter(subject, name, "decays, and is not trained") for name in names[:8]],
        location=left or _optimizer_class(subject) or optimizer_line(subject, names[0]),
        observed=f"each step multiplies all of {names[0]} by one number below 1",
        cause="the optimizer decays it and does not use its gradient"
        + (f": its step leaves a loop by the break on line {left.line}" if left else ""),
        because="its gradient is not zero, and parameters of no larger gradient follow theirs",
        fix="let the optimizer apply the gradient of every parameter that it holds",
        evidence={"parameters": names},
    )


def unused_call(subject: Subject, call: int, numbers: tuple[str, ...]) -> Finding:
    """Explain a call of the step from which nothing is learned."""
    step = subject.contract.train_step
    place = None
    if step is not None:
        tail = re.escape(numbers[0].rpartition(".")[2]) if numbers else r"step\(\)"
        place = sources.search(step, rf"if\b.*\b{tail}") or sources.search(step, r"zero_grad")
        place = place or sources.of_object(step)
    return violated(
        "batch-unused",
        f"call {call + 1} of the training step learns nothing from its batch",
        culprits=[Culprit("call", "train_step", "drops a gradient", place)],
        observed=f"another batch in call {call + 1} gives other gradients there, and bit-equal weights after {MANY} calls",
        cause="the gradient is computed, not applied, and cleared by the next call",
        because="only the batch of this call was changed; gradients that accumulate would change later steps",
        fix="step the optimizer in each call, or clear gradients only after it has stepped",
    )


def undone(subject: Subject, names: list[str], after: int) -> Finding:
    """Explain an optimizer that undoes its own steps."""
    with subject.pristine(steps=True) as model:
        kinds = [type(one) for one in own_optimizers(subject.make_optimizer(model))]
    own = [kind for kind in kinds if sources.is_own_class(kind)]
    what = (own or kinds)[0].__name__
    lost = dropped_by_steps(subject, after)
    return violated(
        "weight-put-back",
        f"after {after} steps {what} sets {names_text(names)} back to the first values",
        culprits=[
            *(
                [Culprit("call", lost.text, "is computed and dropped", lost.location)]
                if lost
                else []
            ),
            *(parameter(subject, name, "set back by the optimizer") for name in names[:8]),
        ],
        location=lost.location
        if lost
        else sources.of_object(own[0].step)
        if own
        else optimizer_line(subject, names[0]),
        observed=f"after {after} training steps {names[0]} is bit-equal to its first values; after fewer it differs",
        cause="the optimizer writes values that it kept over what its steps have learned"
        + (f"; nothing reads the result of {lost.text}" if lost else ""),
        because=f"{after} steps of the optimizer alone, with one gradient that is nowhere zero, end where they began",
        fix="let the kept values move first, and copy them into the parameters afterwards"
        + (f"; {lost.op} returns a new tensor{on_line(lost.location)}" if lost else ""),
        evidence={"parameters": names, "steps": after},
    )


def undone_by_step(subject: Subject, after: int) -> Finding:
    """Explain a training step that takes earlier updates back."""
    step = subject.contract.train_step
    place = None if step is None else sources.of_object(step)
    return violated(
        "weight-put-back",
        f"call {after} of the training step sets the parameters back to values from before earlier calls",
        culprits=[Culprit("call", "train_step", "undoes updates", place)],
        location=place,
        observed=f"after {after} calls every parameter is bit-equal to what it was before an earlier one, "
        "which moved it",
        cause="the step writes values that it kept over what was learned since",
        because="the loss did not rise from the call before to this one: nothing had to be taken back",
        fix="keep what is learned; write kept values back only where an update is rejected",
    )


def late_inputs(subject: Subject) -> Finding:
    """Explain a step that trains the targets of one batch on the inputs of an earlier one."""
    step = subject.contract.train_step
    place = None if step is None else sources.of_object(step)
    return violated(
        "batch-unused",
        "from its second call on, the training step puts its targets beside inputs of an earlier batch",
        culprits=[Culprit("call", "train_step", "keeps inputs for a later call", place)],
        observed="other inputs alone leave every gradient of that call bit-equal; other targets alone do not",
        cause="the step holds inputs of a batch back, and not the targets that belong to them",
        because="in the first call other inputs change the gradients; after a call the step holds its inputs",
        fix="hold inputs and targets of a batch back together, or use both at once",
    )


def blind_direction(subject: Subject) -> Finding:
    """Explain a step with gradients that the data do not direct."""
    step = subject.contract.train_step
    place = None
    if step is not None:
        place = sources.search(step, r"\.grad\b.*=|grad\.") or sources.of_object(step)
    return violated(
        "gradient-without-data",
        "the direction of the gradients that the step applies does not depend on the batch",
        culprits=[Culprit("call", "train_step", "replaces the gradients", place)],
        observed="a batch that holds its first sample only has gradients of the same direction, for every parameter",
        cause="the step puts something else in place of the gradients that backward computed",
        because="both steps began at the same weights with the same seed",
        fix="apply the gradients of the loss: leave p.grad as backward() made it, but for clipping and scaling",
    )


def _in_forward(subject: Subject, name: str, pattern: str) -> Location | None:
    """Return the line of a forward of the user's that matches, from a parameter's owner up, else the class."""
    parts = name.split(".")[:-1]
    for depth in range(len(parts), -1, -1):
        module = subject.model.get_submodule(".".join(parts[:depth]))
        own = sources.is_own_class(type(module))
        if own and (found := sources.search(type(module).forward, pattern)):
            return found
    return sources.of_own_class(subject.model)


def _optimizer_class(subject: Subject) -> Location | None:
    """Return the step of an optimizer class of the user's own."""
    with subject.pristine(steps=True) as model:
        made = subject.make_optimizer(model)
        kind = type(made)
    return sources.of_object(kind.step) if sources.is_own_class(kind) else None
