"""A loss, or a term of one, that trains nothing, explained: what cuts its graph, or what leaves it without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import sources
from ...explanation import Reason, counted, on_line
from ...findings import Culprit, Finding
from ...loop.recorder import trace_of
from ...record.tracing import find_line, line_of
from ...runs.again import forward_and_loss
from ...runs.losses.cancelled import CancelledTerm
from ...text.wording import have, names_text
from ...verdicts import violated
from ..gradient.cuts import CAUSES, fix_of, last_stop
from ..gradient.frozen_in_step import freezing, modules_of, owner_of, seen_in_step
from ..lines.passed_on import loss_returned
from .consumed import culprit, loss_line

if TYPE_CHECKING:
    from types import FrameType

    from ...findings import Location
    from ...probes.loss.terms import IdleTerm
    from ...probes.recorded.watch import Op
    from ...runs.losses.flat import FlatTerm
    from ...runs.losses.in_steps import LostLoss
    from ...subject import Subject


def idle_term(subject: Subject, term: IdleTerm) -> Finding:
    """Explain a term of a step's loss that trains nothing, beside one that does."""
    name, line = term.op.name.rpartition(".")[2], on_line(term.op.location)
    why = _ungraphed(subject, term) if not term.reached else _unapplied(subject, term)
    return violated(
        "term-idle",
        f"a term of the loss trains nothing: {name}{line}",
        culprits=[*why.culprits, Culprit("call", name, "computes the term", term.op.location)],
        location=why.place,
        observed="in a training step, a loss is a sum of terms of which this one moves no parameter",
        cause=why.cause,
        because=why.because,
        fix=why.fix,
        evidence={"reached": list(term.reached), "frozen": list(why.off)},
    )


def untaught_term(found: FlatTerm | CancelledTerm) -> Finding:
    """Explain a term of the declared loss whose gradient cancels out."""
    return _cancelled(found) if isinstance(found, CancelledTerm) else _flat(found)


def _cancelled(found: CancelledTerm) -> Finding:
    """Explain a term that follows the weights and trains nothing."""
    parts, line = found.parts, on_line(found.parts.location)
    name, (one, two) = parts.name.rpartition(".")[2], found.values
    value = "a parameter" if found.meets is None else f"the result of {found.meets}"
    value += "" if found.meets is None else on_line(found.meets.location)
    made = [found.made] if found.made is not None else []
    return violated(
        "term-cancels",
        f"a term of the loss trains nothing: its gradient cancels out in {name}{line}",
        culprits=[
            Culprit("tensor", _bound(parts), "passes opposite gradients on", parts.location),
            *(
                Culprit("call", op.name.rpartition(".")[2], "computes the term", op.location)
                for op in made
            ),
        ],
        location=parts.location,
        observed=f"the term is {one:.4g} at weights near these, and {two:.4g} at others; its gradient is 0 at both "
        "for all parameters",
        cause=f"{name}{line} depends on one value in two ways, whose gradients are equal and opposite",
        because=f"the gradients that leave {name}{line} are not zero, and those that arrive at {value} add up to zero "
        "(in float64)",
        fix=f"detach the operand{line} that should be a constant, such as the result of a straight-through estimator, "
        "or leave the term out",
    )


def _flat(found: FlatTerm) -> Finding:
    """Explain a term that is the same number at all weights, though it is computed from the outputs."""
    made, flattened = found.made.op, found.flattened.op
    name, line = flattened.name.rpartition(".")[2], on_line(flattened.location)
    again = [one.op for one in found.again if one.op.location != flattened.location]
    place = again[-1].location if len(again) > 1 else flattened.location
    return violated(
        "term-flat",
        f"a term of the loss is {found.value:.4g} whatever the weights are",
        culprits=[
            *(
                Culprit(
                    "tensor", _bound(one), f"is equal to the other operand of {name}", one.location
                )
                for one in again
            ),
            Culprit("tensor", _bound(flattened), "is the same at all weights", flattened.location),
            Culprit("call", made.name.rpartition(".")[2], "computes the term", made.location),
        ],
        location=place or made.location,
        observed=f"at other weights the term is {found.value:.4g} again, and its gradient is 0 up to rounding",
        cause=f"{name}{line} is given values that depend on the weights, and gives the same result for all weights"
        + ": its operands are equal, each computed by itself" * bool(again),
        because="the values before this operation differ between the two runs, and the values after it do not",
        fix=f"compare with a stored value, not with one that is computed again{on_line(place)}"
        if again
        else f"reduce over another dimension{line}, or leave the term out",
    )


def _bound(op: Op) -> str:
    """Return the name that a result gets, or the function that computes it."""
    name = sources.assigned_name(op.location) if op.location is not None else ""
    return name or op.name.rpartition(".")[2]


def lost_loss(found: LostLoss) -> Finding:
    """Explain a loss that is replaced before anything reads it."""
    line, loop = found.location.line, found.again is None
    again = found.location if found.again is None else found.again
    culprits = [Culprit("call", found.location.text, "is computed and not read", found.location)]
    if found.again is not None:
        culprits.append(Culprit("call", again.text, "binds the name again", again))
    return violated(
        "result-unread",
        f"of {found.calls} losses that line {line} computes {found.lost} {'are' if found.lost > 1 else 'is'} lost"
        if loop
        else f"the loss of line {line} is lost: line {again.line} replaces it",
        culprits=culprits,
        location=again,
        observed=f"in one step, nothing reads {found.lost} of the {counted(found.calls, 'result')} of line {line}, "
        "no backward pass either",
        cause="each turn of the loop replaces the loss of the one before"
        if loop
        else "the variable is bound again",
        because="these are numbers with a gradient that the step itself computes, and they are gone unread",
        fix=f"add it to the loss on line {again.line}, or call backward() on it before it is replaced",
    )


def _unapplied(subject: Subject, term: IdleTerm) -> Reason:
    """Return why the gradients of a term move nothing."""
    name, line = term.op.name.rpartition(".")[2], on_line(term.op.location)
    place = (term.cut or term.op).location
    at = on_line(place)
    cut, names = term.cut is not None, _modules(term)
    before = f" ({names_text(names)})" if names else ""
    cause = "its gradients reach only what no optimizer applies after this backward"
    why = "the optimizers that step afterwards hold none of it, and what another term of this loss reaches"
    if term.cleared:
        cause = "its gradients reach only parameters whose gradients are cleared before an optimizer applies them"
        why = f"{_clearing(subject, term)} clears these gradients, and the weights after further steps are the same "
        why += "with the gradient of this term multiplied by -3"
    return Reason(
        place=place,
        cause=cause + f": what comes before{before} is detached{at}" * cut,
        because=f"the gradient of {name}{line} reaches {names_text(list(term.reached))}; "
        + (
            "backward(inputs=...) computes none of it, but what another term of this loss reaches"
            if term.limited
            else why
        ),
        fix=f"drop .detach(){at}, or leave the term out"
        if cut
        else "let the term depend on what this optimizer trains, or step the optimizer that holds what it reaches",
        culprits=(
            *(Culprit("module", name, "learns nothing from it") for name in names),
            *(Culprit("call", "detach", "cuts the graph", place),) * cut,
        ),
    )


def _clearing(subject: Subject, term: IdleTerm) -> str:
    """Return the call that clears the gradients of a term, with its line where it is known."""
    trace = trace_of(subject)
    for step in trace.optimizer_steps():
        held = trace.parameters.get(step.owner, ())
        if step.cleared is not None and not set(term.reached).isdisjoint(held):
            event = trace.events[step.cleared]
            return f"{event.name}(){on_line(event.place)}"
    return "the step"


def _modules(term: IdleTerm) -> list[str]:
    """Return the outermost modules from whose parameters the detached values were computed."""
    return list(dict.fromkeys(name.partition(".")[0] for name in term.before))[-3:]


def _ungraphed(subject: Subject, term: IdleTerm) -> Reason:
    """Return why a term has no graph: the values that it is computed from, or the modules that compute it."""
    name, line = term.op.name.rpartition(".")[2], on_line(term.op.location)
    because = (
        f"the result of {name}{line} has requires_grad=False, and is added to one with a graph"
    )
    place = (term.cut or term.op).location
    at = on_line(place)
    detach = Culprit("call", "detach", "cuts the graph", place)
    if term.drawn:
        return _drawn(place, because)
    off = _off(subject, term)
    if not off:
        return Reason(
            place=place,
            cause=f"it is computed from values that are detached{at}, so it is a constant",
            because=because,
            fix=f"drop .detach(){at}, or leave the term out",
            culprits=(detach,),
        )
    modules = modules_of(subject, off)
    of = f"of {modules[0]}" if len(modules) == 1 else "of theirs"
    seen = seen_in_step(subject)
    frozen = [n for n in subject.named_parameters() if owner_of(n) in off]
    computed = f"{names_text(modules)} {have(modules, 'computes')} it"
    because = f"no parameter of {names_text(modules)} requires a gradient then; {because}"
    if seen is None or not any(n in seen.stepped for n in frozen):
        return Reason(
            place=place,
            cause=f"it is computed from values that are detached{at}, by {names_text(modules)}, which "
            f"{'is' if len(modules) == 1 else 'are'} frozen: it is a constant",
            because=because,
            fix=f"drop .detach(){at}, or leave the term out",
            culprits=(detach,),
            off=tuple(modules),
        )
    culprits = tuple(Culprit("module", n, "no parameter requires a gradient") for n in modules)
    found = next(filter(None, (freezing(subject, n) for n in frozen)), None)
    if found is None:
        return Reason(
            place=term.op.location,
            cause=f"{computed} from values that are detached{at}, and no parameter {of} requires a "
            "gradient, so it is a constant",
            because=because,
            fix=f"let the parameters of {names_text(modules)} require gradients, or drop .detach(){at} if the "
            "term is to train what comes before",
            culprits=culprits,
            off=tuple(modules),
        )
    return Reason(
        place=found.location,
        cause=f"{computed}, and no parameter {of} requires a gradient then: {found.fact}",
        because=because,
        fix=found.fix,
        culprits=(*culprits, *found.culprits),
        off=tuple(modules),
    )


def _drawn(place: Location | None, because: str) -> Reason:
    at = on_line(place)
    return Reason(
        place=place,
        cause=f"it is computed from values that are drawn without a gradient{at}, so it is a constant",
        because=f"the mean of the draw{at} has a graph, its result has none; {because}",
        fix=f"draw with rsample() in place of sample(){at}",
        culprits=(Culprit("call", "sample", "cuts the graph", place),),
    )


def _off(subject: Subject, term: IdleTerm) -> list[str]:
    """Return the modules that compute a term, where all that have parameters run frozen whenever the step runs them."""
    seen = seen_in_step(subject)
    within = sorted(term.through & seen.ran) if seen is not None else []
    return within if seen is not None and set(within) <= seen.off else []


def recreated(subject: Subject) -> Finding:
    """Explain a loss that is a new leaf."""
    place = _made_line(subject)
    return violated(
        "loss-recreated",
        "the loss is a new tensor without the model's graph",
        culprits=[culprit(subject, "a leaf", place)],
        location=place,
        observed="loss.is_leaf is True and it requires a gradient",
        cause="the loss is rebuilt from its value, which cuts the graph",
        because="its grad_fn is None: torch.tensor(...) and requires_grad_() cut the graph "
        "without an error",
        fix="return the computed tensor itself",
    )


def _made_line(subject: Subject) -> Location | None:
    """Return the line that first holds the tensor which the loss gives back; None where none does."""
    first: dict[int, tuple[object, Location]] = {}
    made: list[object] = []

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event != "call":
            for value in frame.f_locals.values():
                if isinstance(value, torch.Tensor) and id(value) not in first:
                    first[id(value)] = (value, line_of(frame.f_code, line))
        return False

    with subject.pristine():
        run = forward_and_loss(subject)
        find_line(lambda: made.append(run()), watcher)
    held = first.get(id(made[0])) if made else None
    return loss_returned(subject) if held is None else held[1]


def disconnected(subject: Subject) -> Finding:
    """Explain a loss that requires no gradient by the last operation that loses one on the way to it."""
    cut = last_stop(subject)
    place = None if cut is None else cut.region or cut.location
    culprits = [culprit(subject, "requires_grad=False")]
    if cut is not None and cut.op is not None:
        culprits.insert(
            0,
            Culprit("call", cut.op.name, "cuts the graph", cut.location),
        )
    return violated(
        "loss-disconnected",
        "the loss does not depend on the model's parameters",
        culprits=culprits,
        location=place or loss_line(subject),
        observed="loss.requires_grad is False, though parameters require gradients",
        cause="the graph is cut between the parameters and the loss"
        if cut is None
        else CAUSES[cut.kind],
        because="the loss has no grad_fn" if cut is None else cut.fact,
        fix="drop .detach(), .item(), argmax or no_grad between output and loss"
        if cut is None
        else fix_of(cut.kind, cut.location).format(names="..."),
        evidence={} if cut is None else {"kind": cut.kind},
    )
