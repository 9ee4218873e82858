"""Mistakes between output, loss and targets, explained."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import torch

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding, Location
from ...loop.closures import functions_of
from ...objects import trees
from ...objects.peek import attribute
from ...probes.recorded.watch import version_of
from ...record.tracing import find_line
from ...sources import edits
from ...state import seed_everything
from ...verdicts import suspicious, violated
from ..lines.passed_on import forward_returned, loss_returned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...probes.gradient.penalties import PartialNorm
    from ...probes.gradient.surrogates import DeadTerm
    from ...probes.loss.axes import FocalMean
    from ...probes.loss.consumption import Broadcast
    from ...probes.loss.directions import Direction
    from ...runs.losses.consumption import LossEvidence
    from ...subject import Subject


def loss_line(subject: Subject) -> Location | None:
    """Return the line of the user's loss that returns.

    Of a loss of torch's own it is the line of the training step that calls it, or the one at which
    the model's forward gives what it is computed from; where neither can be seen, the declaration.
    """
    return own_loss_line(subject) or forward_returned(subject) or subject.contract.location


def declared_loss_line(subject: Subject) -> Location | None:
    """Return the line of the user's loss that returns or is called, else the one that declares which loss it is."""
    return own_loss_line(subject) or subject.contract.location


def own_loss_line(subject: Subject) -> Location | None:
    """Return the line of the user's own code that computes the loss; None where the contract names torch's."""
    loss = subject.contract.loss
    if loss is None or isinstance(loss, str):
        return sources.of_object(type(subject.model).forward)
    function = type(loss).forward if isinstance(loss, torch.nn.Module) else loss
    place = sources.of_object(function)
    if place is None or not sources.rank(place.file):
        name = type(loss).__name__ if isinstance(loss, torch.nn.Module) else _name_of(loss)
        return next(
            (
                line
                for step in functions_of(subject.contract.train_step)
                for line in sources.matches(step, rf"\b{re.escape(name)}\(")
            ),
            None,
        )
    ways = sources.matches(function, r"^\s*return\b")
    if len(ways) > 1 and (taken := loss_returned(subject)) is not None:
        return taken
    return ways[0] if ways else place


def _name_of(loss: object) -> str:
    return str(attribute(loss, "__name__", type(loss).__name__))


def culprit(subject: Subject, detail: str, place: Location | None = None) -> Culprit:
    """Return the loss as a culprit, with its line."""
    loss = subject.contract.loss
    name = "loss" if isinstance(loss, str) or loss is None else _name_of(loss)
    return Culprit("loss", name.replace("<lambda>", "loss"), detail, place or loss_line(subject))


def not_scalar(subject: Subject, shape: tuple[int, ...]) -> Finding:
    """Explain a loss that is no scalar."""
    return violated(
        "loss-not-scalar",
        f"the loss has shape {list(shape)}; backward needs a scalar loss",
        culprits=[culprit(subject, f"shape {list(shape)}")],
        observed=f"loss of shape {list(shape)}",
        cause="the loss is not reduced over the batch",
        because="backward() without a gradient is defined for scalars only",
        fix="reduce it: loss.mean(), or reduction='mean'",
    )


def dead_term(subject: Subject, term: DeadTerm) -> Finding:
    """Explain a term of the loss that is made of a derivative without a graph."""
    place, added = term.derivative.location, term.added.location
    line = on_line(place)
    return violated(
        "derivative-without-graph",
        (f"a term of the loss comes from autograd.grad without create_graph=True{line}: it gives "
        "no gradient"),
        culprits=[
            Culprit("call", "create_graph", "not passed to autograd.grad", place),
            Culprit("call", term.added.name, "adds the term", added),
        ],
        observed="the term has no graph, and is added to a loss that has one",
        cause="without create_graph=True the derivative that autograd.grad returns is a constant",
        because=f"the result of autograd.grad{line} has requires_grad=False"
        + (f", and line {added.line} adds a number computed from it" if added is not None else ""),
        fix=f"pass create_graph=True to autograd.grad{line}",
    )  # fmt: skip


def partial_norm(found: PartialNorm, over: int) -> Finding:
    """Explain a penalty that takes the norm of each part of a sample's gradient, not of the whole."""
    place = found.reduced.location or found.derivative.location
    name = (place.function if place is not None else "").rpartition(".")[2] or found.reduced.name
    shape, left = list(found.shape), list(found.left)
    many = math.prod(found.left) // found.shape[0]
    return violated(
        "penalty-in-parts",
        f"{name} penalises {many} norms for each sample, not the norm of the sample's gradient",
        culprits=[
            Culprit("function", name, f"takes the norm over dimension {over} alone", place),
            Culprit("call", found.reduced.name, f"{shape} -> {left}", place),
        ],
        observed=f"a gradient of shape {shape} of one number per sample is reduced to {left}",
        cause=f"the norm is taken over dimension {over}, so each of {many} parts of a sample is "
        "pushed towards the norm that the whole gradient is to have",
        because="the loss keeps its value when the gradient is reflected along dimension "
        f"{over}, and changes when all entries of a sample are reflected, which keeps the "
        "sample's norm",
        fix="flatten the gradient before the norm: gradient.flatten(1).norm(2, dim=1)",
    )


def focal_mean(found: FocalMean) -> Finding:
    """Explain a focal weight that is one number for the whole batch."""
    place, product = found.criterion.location, found.weighted.location
    line = on_line(place)
    name = found.criterion.name
    return violated(
        "focal-of-mean",
        (f"the focal weight is one number for {found.elements} elements: it is computed from the "
        f"mean that {name} returns"),
        culprits=[
            Culprit("call", name, "reduces to a mean before the weight", place),
            Culprit("call", found.weighted.name, "weights the mean", product),
        ],
        observed=(f"{name} gave one number for {found.elements} elements, and 1 - exp(-mean) weights "
            "that number"),
        cause=("the criterion's reduction is 'mean', so hard and easy elements receive the same "
            "weight"),
        because=f"the mean{line} was multiplied by 1 - exp(-mean)"
        + on_line(product),
        fix=f"pass reduction='none' to {name}{line}, and take the mean after weighting",
    )  # fmt: skip


def broadcast(subject: Subject, seen: Broadcast, evidence: LossEvidence) -> Finding:
    """Explain an output and a target that are stretched against each other."""
    place = seen.op.location or forward_returned(subject) or _producer_line(evidence)
    place = place or subject.contract.location
    output_is_longer = len(seen.output) > len(seen.target)
    longer = seen.output if output_is_longer else seen.target
    axis = next((i for i, size in enumerate(longer) if size == 1), len(longer) - 1)
    ones = len(longer) - min(len(seen.output), len(seen.target))
    compares = seen.op.name.startswith("F.") or "sub" in seen.op.name
    verb = "compared with the targets of" if compares else "combined with what belongs to"
    return violated(
        "loss-broadcast",
        f"output {list(seen.output)} and {seen.other} {list(seen.target)} broadcast to {list(seen.result)} in the loss",
        culprits=[
            culprit(
                subject, f"{seen.op.name} of {list(seen.output)} and {list(seen.target)}", place
            )
        ],
        location=place,
        observed=f"{seen.op.name}: {list(seen.output)} against {list(seen.target)} gives {list(seen.result)}",
        cause=f"every sample is {verb} all samples",
        because="both were broadcast: neither has the shape of the result",
        fix=_made_equal(seen, axis if ones == 1 else None),
    )


def _made_equal(seen: Broadcast, axis: int | None) -> str:
    """Return how two shapes are made equal, in the words of the line that combines them where it names both.

    Args:
        seen: The shapes.
        axis: The one dimension of size 1 that one has more than the other; None where there are several.
    """
    words, named = _operands(seen)
    line, shapes = on_line(seen.op.location), [seen.output, seen.target]
    if len(seen.output) <= len(seen.target):
        words.reverse()
        shapes.reverse()
    long, short = words
    if axis is None:
        shape = [size for size in shapes[0] if size > 1]
        how = f"write {long}.flatten() for {long}{line}" if named else f"flatten {long}"
        return f"{how}, so that it has the shape {shape} of {short}"
    if named:
        return f"write {long}.squeeze({axis}) for {long}{line}, or {short}.unsqueeze({axis}) for {short}"
    return f"make the shapes equal: squeeze({axis}) on {long}, or unsqueeze({axis}) on {short}"


def _operands(seen: Broadcast) -> tuple[list[str], bool]:
    """Return what stands for output and target: the code that combines them, else words; and which it is."""
    other = seen.other == "output"
    texts = edits.operand_texts(seen.op.location, seen.op.name)
    if texts is None or max(seen.order) > 1 or other:
        return ["the output", "the other output" if other else f"the {seen.other}"], False
    return [texts[at] for at in seen.order], True


def stretched(
    subject: Subject, seen: Broadcast, evidence: LossEvidence, *, several: bool
) -> Finding:
    """Explain an output or a target that is stretched to the other's shape.

    Args:
        subject: Whose loss.
        seen: The shapes.
        evidence: What the loss was given.
        several: Whether one output is fitted to targets that differ, which torch warns of.
    """
    place = seen.op.location or _producer_line(evidence) or subject.contract.location
    outputs, targets = math.prod(seen.output), math.prod(seen.target)
    each = targets // outputs if several else 0
    words, _ = _operands(seen)
    return (violated if several else suspicious)(
        "loss-stretched",
        f"output {list(seen.output)} and target {list(seen.target)} have different shapes in {seen.op.name}",
        culprits=[culprit(subject, f"{list(seen.output)} against {list(seen.target)}", place)],
        location=place,
        observed=f"{seen.op.name} broadcasts to {list(seen.result)}",
        cause=f"each output is fitted to {each} targets at once, which differ"
        if several
        else "one side is repeated to fit the other, which may not be intended",
        because=f"{outputs} outputs are compared with {targets} targets",
        fix="make the shapes equal: reduce what makes the target over the other dimension, or give an output for each"
        if several
        else f"use expand_as where {words[0]} and {words[1]} meet, if this is intended",
    )


def _producer_line(evidence: LossEvidence) -> Location | None:
    return None if evidence.producer is None else evidence.producer.op.location


def wrong_sign(
    subject: Subject,
    observed: str,
    place: Location | None,
    *,
    opposed: bool = False,
    weighed: str | None = None,
) -> Finding:
    """Explain a loss whose decrease makes the fit worse; one term of it, where another pulls the right way.

    Args:
        subject: Whose loss.
        observed: What was seen.
        place: The line of the call.
        opposed: Whether another term pulls the right way.
        weighed: The target whose sign decides which way the loss pulls.
    """
    line = loss_line(subject) or place
    if weighed is not None:
        return suspicious(
            "loss-sign",
            f"the loss falls when the output moves away from the target, with {weighed} as its weight",
            culprits=[culprit(subject, "wrong sign", place or line)],
            location=place or line,
            observed=observed,
            cause=f"the sign of the loss is wrong, unless {weighed} holds costs and no rewards",
            because=f"with negative values in {weighed} the loss pulls the other way",
            fix="negate the loss where it weighs a log-likelihood by rewards, or skip the check with the reason",
        )
    if opposed:
        return suspicious(
            "loss-sign",
            "one term of the loss falls when the output moves away from the target",
            culprits=[culprit(subject, "wrong sign", place or line)],
            location=place or line,
            observed=observed,
            cause="the sign of this term is wrong, unless the model is to forget what it compares",
            because="another term of the loss pulls towards its targets",
            fix=f"negate the term{on_line(place)}, or skip the check with the reason",
        )
    return violated(
        "loss-sign",
        "the loss falls when the output moves away from the target",
        culprits=[culprit(subject, "wrong sign", line)],
        location=line,
        observed=observed,
        cause="the sign of the loss is wrong: training would maximise the error",
        because="the slope of the loss towards the target is positive",
        fix="negate the loss",
    )


def turned(subject: Subject, seen: Direction) -> Finding:
    """Explain a loss that a model or a step computes, and that falls as outputs move away from labels."""
    place = seen.place or loss_line(subject)
    scores = f"the cross entropy of what {seen.function} receives"
    compared = scores if seen.function.endswith("softmax") else seen.function
    if not seen.alone:
        return suspicious(
            "loss-sign",
            f"the loss falls when what {seen.function} compares with the labels moves away from them",
            culprits=[Culprit("loss", seen.function, "pulls away from the labels", place)],
            observed=f"its gradient points away from the labels for all of {seen.counted}, and no "
            "other loss of torch's pulls towards them",
            cause="the sign of this term is wrong, unless an opponent is trained by it",
            because="a step against the gradient moves the outputs away from the labels",
            fix=f"negate the term{on_line(place)}, or skip the check with the reason",
        )
    return violated(
        "loss-sign",
        "the loss falls when the output moves away from the target",
        culprits=[Culprit("loss", seen.function, "wrong sign", place)],
        observed=f"the loss equals minus {compared}; its gradient points away from all of "
        f"{seen.counted} targets",
        cause="the sign of the loss is wrong: training would maximise the error",
        because="a step against the gradient moves the outputs away from the labels",
        fix="negate the loss",
    )


def changed_arguments(
    subject: Subject, changed: tuple[str, ...], sizes: Sequence[float], values: Sequence[float]
) -> Finding:
    """Explain a loss that writes to its targets or to the output, so that it gives another value next time."""
    name = changed[0]
    target = name.startswith("targets")
    place = _mutating_line(subject, name)
    at = on_line(place)
    before, after, last = sizes
    make = violated if target else suspicious
    return make(
        "target-mutated" if target else "output-mutated",
        f"the loss modifies {name} in place: a second call gives another loss",
        culprits=[
            *(
                Culprit(
                    "target" if one.startswith("targets") else "output",
                    one,
                    "changed by the loss",
                    place if one == name else None,
                )
                for one in changed[:4]
            ),
            culprit(subject, "writes to its argument"),
        ],
        location=place or loss_line(subject),
        observed=f"loss {values[0]:.4g}, then {values[1]:.4g} with the same arguments; the largest "
        f"element of {name} is "
        f"{before:.4g}, {after:.4g} after one call, {last:.4g} after two",
        cause=f"an operation{at} writes to a tensor that the caller passed",
        because="with fresh arguments of the same values both calls give the same loss",
        fix=f"create a new tensor{at}: x = x * y instead of x *= y, or clone it first",
    )


def _mutating_line(subject: Subject, path: str) -> Location | None:
    """Return the line of the user's code that first writes to a target or to the output."""
    batch = subject.batch().clone()
    output = subject.forward(batch, train=True)
    tensor = (trees.tensors(batch.targets, "targets") | trees.tensors(output))[path]
    version = version_of(tensor)
    seed_everything(subject.seed)
    with torch.no_grad():
        return find_line(
            lambda: subject.compute_loss(output, batch),
            lambda frame, event, line: event != "call" and version_of(tensor) != version,
        )
