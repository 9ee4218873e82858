"""Why the targets of an output do not train the part of a model that decides it by choosing among codes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import torch

from ... import sources
from ...explanation import parameter
from ...findings import Culprit, Finding, Location
from ...objects import trees
from ...probes.recorded.recording import Recorder
from ...runs.again import forward_and_loss
from ...runs.liveness.choices import FLAT, terms_of
from ...text.wording import have, names_text
from ...verdicts import violated
from ..lines.passed_on import handed_on
from .unused_results import picking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...probes.recorded.values import Call, Value
    from ...probes.recorded.watch import Op
    from ...runs.liveness.choices import Choice
    from ...subject import Subject


def blind(subject: Subject, choice: Choice) -> Finding:
    """Explain parameters that decide an output in jumps, and whose gradients heed no target."""
    names = list(choice.parameters)
    owners = sorted({name.split(".")[0] for name in names})
    op, summed = _choosing(subject, choice)
    place, line = _lines(subject, op) if summed is None else (summed, None)
    culprits = [Culprit("module", name, "heeds no target") for name in owners]
    culprits += [parameter(subject, name, "heeds no target") for name in names[:8]]
    if op is not None:
        culprits.insert(0, Culprit("call", op.name, "chooses", op.location))
    if line is not None and line != place:
        culprits.append(Culprit("tensor", "the chosen", "has no gradient to them", line))
    chosen = "" if op is None else f" through {op.name}"
    same, lost, fix = (
        "bit-equal",
        "no gradient is passed straight through",
        "pass the gradient straight through",
    )
    fix += "" if place is None else f" on line {place.line}"
    if choice.cancels:
        same, lost = (
            "equal in float64",
            "a sum adds what chose it and takes it off again, so its gradients cancel",
        )
    if summed is not None:
        fix = f"detach the difference on line {summed.line}"
    return violated(
        "choice-untrained",
        f"{names_text(owners)} {have(owners, 'decides')} {choice.output}{chosen}, and its targets do not train "
        + ("it" if len(owners) == 1 else "them"),
        culprits=culprits,
        location=place,
        observed=f"other targets leave the gradients of {len(names)} parameters {same}, and change those of others",
        cause=f"what is chosen is constant between jumps, and {lost}: only other "
        "terms of the loss train what chooses",
        because=f"{choice.output} is {same} where they move by 1e-5 of their size, differs where they move "
        "by 3 times it, and no gradient of it comes to any input",
        fix=f"{fix}: z + (chosen - z).detach(), or choose by softmax weights",
        evidence={"parameters": names},
    )


def _choosing(subject: Subject, choice: Choice) -> tuple[Op | None, Location | None]:
    """Return the first operation on the way to the output whose result takes no gradient by its nature.

    The line beside it is that of a sum on the way whose terms cancel.
    """
    with subject.pristine(train=True, seeded=True) as model, Recorder(model) as recorder:
        with torch.enable_grad():
            output = subject.call(model, subject.batch().clone())
        try:
            parameters = dict(model.named_parameters())
            starts = [recorder.value_of(parameters[name]) for name in choice.parameters]
            end = recorder.value_of(trees.tensors(output)[choice.output])
            behind = {id(call): call for call in _before(end)}
            found = [call.op for call in _after(starts) if _jumps(call) and id(call) in behind]
            nodes = [(c.op, v.tensor.grad_fn) for c in behind.values() for v in c.outputs]
            sums = [
                op for op, node in nodes if node is not None and not all(terms_of(node).values())
            ]
            place = max(sums, key=lambda op: op.index).location if choice.cancels and sums else None
            return min(found, key=lambda op: op.index, default=None), place
        finally:
            recorder.release()


def _jumps(call: Call) -> bool:
    made = [value.tensor for value in call.outputs]
    if call.op.name.rpartition(".")[2].rstrip("_") in {name.lower() for name in FLAT}:
        return True
    whole = [t for t in made if not (t.is_floating_point() or t.is_complex())]
    return bool(whole) and any(v.tensor.is_floating_point() for v in call.inputs)


def _after(starts: list[Value]) -> Iterator[Call]:
    """Iterate over the calls that read what is computed from some values."""
    seen: set[int] = set()
    pending = list(starts)
    while pending:
        for call in pending.pop().consumers:
            if id(call) not in seen:
                seen.add(id(call))
                yield call
                pending += call.outputs


def _before(end: Value) -> Iterator[Call]:
    """Iterate over the calls that a value is computed from."""
    seen: set[int] = set()
    pending = [end]
    while pending:
        call = pending.pop().maker
        if call is not None and id(call) not in seen:
            seen.add(id(call))
            yield call
            pending += call.read


def _lines(subject: Subject, op: Op | None) -> tuple[Location | None, Location | None]:
    """Return the line to change, and the one that turns the choice into numbers again.

    The first is the one that gives the chosen another name as it is, where there is one.
    """
    if op is None:
        return sources.of_object(type(subject.model).forward), None
    users = [user.location for user in picking(subject, op) if user.location is not None]
    line = users[0] if users else op.location
    if line is None:
        return None, None
    with subject.pristine():
        _, on = handed_on(line, forward_and_loss(subject))
    renamed = on is not None and isinstance(sources.statement(on.file, on.line), ast.Assign)
    return on if renamed else line, line
