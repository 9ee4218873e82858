"""Terms of a loss that have a graph, and are the same number whatever the weights are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import GradientEdge

from ...lean import dataclass
from ...objects import trees
from ...probes.gradient.resting import LARGER
from ...probes.loss.terms import one_of, summands
from ...probes.recorded.operations import Snapshot, Step, Trace, aligned, changed, record
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ..variants.woken import jitter
from .cancelled import CancelledTerm, cancelled_term

if TYPE_CHECKING:
    from ...batches import Batch
    from ...subject import Subject

_NOTHING = 1e-6
"""Of the largest gradient of the whole loss: what rounding leaves of a gradient that cancels out."""
_SAME = 1e-5
"""Relative: what rounding changes in a number that depends on nothing."""
_SAMPLES = 3
_LARGER = LARGER | {"amax", "amin"}
_SUMS = ("add", "radd", "sub", "rsub")
_REDUCTIONS = ("sum", "mean")
_SCALES = ("mul", "rmul", "div", "truediv", "neg")


@dataclass(frozen=True, slots=True)
class FlatTerm:
    """A term that is one number at all weights.

    Attributes:
        value: The number.
        made: The operation that computes it.
        flattened: The last operation on the way to it whose operands follow the weights while its result does not.
        again: Of operands that are equal, what computed each, in order; empty where they are not.
    """

    value: float
    made: Step
    flattened: Step
    again: tuple[Step, ...] = ()


def untaught_term(subject: Subject) -> FlatTerm | CancelledTerm | None:
    """Return a term of the declared loss whose gradient cancels out: one that other weights do not change, or do.

    What flattens it must reduce what it is given, or take several values whose changes cancel: a hinge, a maximum
    or a clamp of one value may be at rest. Cost: 1 forward of a few samples and 1 backward for each term, and 2 to 4
    forwards more where one of them gives no gradient.
    """
    batch = subject.few(subject.batch(), _SAMPLES, aligned=True) or subject.batch()
    try:
        if not _cancels(subject, batch):
            return None
        flat = _unmoved(*(_recorded(subject, batch, other=other) for other in (False, True)))
        return flat or cancelled_term(subject, batch)
    except SubjectError:
        return None  # too few samples for it, or no loss at other weights


def _cancels(subject: Subject, batch: Batch) -> bool:
    """Say whether the gradient of a term of the loss, beside others, is nothing but rounding."""
    with subject.pristine(train=True, seeded=True) as model, torch.enable_grad():
        clear_gradients(model)
        given = batch.clone()
        loss = subject.compute_loss(subject.call(model, given), given)
        if loss.dim() or loss.grad_fn is None:
            return False
        terms = [node for node, is_sum in summands(loss.grad_fn) if not is_sum]
        parameters = [p for p in model.parameters() if p.requires_grad]
        if len(terms) < 2 or not parameters:
            return False
        with subject.phase("backward", batch):
            sizes = [
                _largest(
                    torch.autograd.grad(
                        [GradientEdge(node, 0)],
                        parameters,
                        [one_of(node)],
                        retain_graph=True,
                        allow_unused=True,
                    )
                )
                for node in terms
            ]
    return any(size < _NOTHING * max(sizes) for size in sizes)


def _largest(gradients: tuple[torch.Tensor | None, ...]) -> float:
    return max((trees.scale(g) for g in gradients if g is not None), default=0.0)


def _recorded(subject: Subject, batch: Batch, *, other: bool) -> Trace:
    """Record a forward and its loss, at the weights as they are or at ones that are moved a little."""
    given = batch.clone()
    with subject.pristine(steps=True, train=True, seeded=True) as model, torch.enable_grad():
        if other:
            jitter(model, seed=subject.seed)
        return record(lambda: subject.compute_loss(subject.call(model, given), given), model)


def _unmoved(base: Trace, moved: Trace) -> FlatTerm | None:
    """Return a term that is the same number in two runs, and what flattens it."""
    steps = dict(_pairs(base, moved))
    if len(steps) != len(base.steps):
        return None
    for place in _terms(base):
        made, snapshot = base.makers.get(place), base.values[place]
        if made is None or snapshot.shape or snapshot.values is None or not snapshot.values:
            continue
        if not _stays(base, moved, made, steps[id(made)]):
            continue
        held = _holding(base, moved, made, steps)
        flattened = [s for s in held if _flattens(base, moved, s, steps[id(s)])]
        if flattened and not any(_may_rest(base, step) for step in held):
            again = _equal(base, flattened[0])
            return FlatTerm(float(snapshot.values), made, flattened[0], again)
    return None


def _pairs(base: Trace, moved: Trace) -> list[tuple[int, Step]]:
    return [
        (id(one), two) for one, two in aligned(base, moved) if one is not None and two is not None
    ]


def _equal(trace: Trace, step: Step) -> tuple[Step, ...]:
    """Return what computed a step's two operands, where these are equal; else nothing."""
    if len(step.operands) != 2:
        return ()
    one, two = (trace.values[place].values for place in step.operands)
    makers = [trace.makers.get(place) for place in step.operands]
    if one is None or two is None or one.shape != two.shape or not torch.allclose(one, two):
        return ()
    return tuple(sorted(filter(None, makers), key=lambda made: made.op.index))


def _holding(base: Trace, moved: Trace, made: Step, steps: dict[int, Step]) -> list[Step]:
    """Return the steps that keep a result from following the weights: the last ones behind it given values that do."""
    seen, held, stack = {id(made)}, set(), [made]
    while stack:
        step = stack.pop()
        for a, b in zip(step.operands, steps[id(step)].operands, strict=False):
            if _differ(base.values[a], moved.values[b]):
                held.add(id(step))
            elif (before := base.makers.get(a)) is not None and id(before) not in seen:
                seen.add(id(before))
                stack.append(before)
    return [step for step in base.steps if id(step) in held]


def _may_rest(trace: Trace, step: Step) -> bool:
    """Say whether a step may give another result at other weights: a bound that holds each value, or a maximum."""
    larger = step.op.name.rpartition(".")[2] in _LARGER
    return larger or (len(step.operands) == 1 and not _reduces(trace, step))


def _reduces(trace: Trace, step: Step) -> bool:
    given, made = (
        max((math.prod(trace.values[p].shape) for p in places), default=0)
        for places in (step.operands, step.results)
    )
    return made < given


def _flattens(base: Trace, moved: Trace, one: Step, two: Step) -> bool:
    """Say whether several floating operands differ between the runs, or one is reduced, while the results do not."""
    differ = [
        _differ(base.values[a], moved.values[b], unknown=False)
        for a, b in zip(one.operands, two.operands, strict=False)
        if base.values[a].dtype.is_floating_point
    ]
    several = sum(differ) > 1 or (any(differ) and _reduces(base, one))
    return several and _stays(base, moved, one, two)


def _stays(base: Trace, moved: Trace, one: Step, two: Step) -> bool:
    """Say whether a step has floating results, which are the same in both runs."""
    found = [
        _differ(base.values[a], moved.values[b])
        for a, b in zip(one.results, two.results, strict=False)
        if base.values[a].dtype.is_floating_point
    ]
    return bool(found) and not any(found)


def _differ(one: Snapshot, two: Snapshot, *, unknown: bool = True) -> bool:
    """Say whether two values differ by more than rounding; ``unknown`` where they cannot be compared."""
    found = changed(one, two, _SAME)
    return unknown if found is None else bool(torch.as_tensor(found).any())


def _terms(trace: Trace) -> list[int]:
    """Return the places of the numbers that a loss is the sum of, without their factors."""
    found, stack, seen = [], list(trace.outputs[:1]), set()
    while stack:
        place = stack.pop()
        if place in seen:
            continue
        seen.add(place)
        made = trace.makers.get(place)
        name = "" if made is None else made.op.name.rpartition(".")[2].strip("_")
        if made is not None and (name in _SUMS or (name in _SCALES and len(made.operands) == 1)):
            stack += made.operands
        elif made is not None and name in _REDUCTIONS and (given := _stacked(trace, made)):
            stack += given
        else:
            found.append(place)
    return found


def _stacked(trace: Trace, made: Step) -> tuple[int, ...]:
    """Return the places of the numbers that a sum or a mean is given stacked."""
    before = trace.makers.get(made.operands[0]) if len(made.operands) == 1 else None
    stacks = before is not None and before.op.name.rpartition(".")[2] in ("stack", "cat")
    given = before.operands if before is not None and stacks else ()
    return given if all(math.prod(trace.values[p].shape) == 1 for p in given) else ()
