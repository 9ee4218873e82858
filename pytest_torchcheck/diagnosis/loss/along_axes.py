"""A constant that a loss spreads along the axis of the targets, where another one of its size holds the outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...explanation import on_line
from ...findings import Culprit
from ...lean import dataclass
from ...objects import trees
from ...probes.recorded.operations import record
from ...probes.recorded.orders import Both
from ...state import seed_everything
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...findings import Finding
    from ...probes.recorded.operations import Step, Trace
    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class AlongTargets:
    """A constant that differs along the axis of the targets.

    Attributes:
        step: What combines it.
        shape: Of what it meets.
        constant: Its own.
        targets, outputs: The dimensions of ``shape`` along which targets and outputs stand.
    """

    step: Step
    shape: tuple[int, ...]
    constant: tuple[int, ...]
    targets: int
    outputs: int


def told_along(subject: Subject, made: Finding, path: str, name: str) -> Finding:
    """Return a finding of misplaced targets with such a constant as its cause, where there is one."""
    try:
        found = along_targets(subject, path, name)
    except (SubjectError, RuntimeError):
        found = None
    if found is None:
        return made
    op = found.step.op
    line = on_line(op.location)
    return made.replace(
        location=op.location,
        culprits=(
            Culprit("call", op.name, "spreads a constant along the targets", op.location),
            *made.culprits,
        ),
        cause=f"{op.name}{line} spreads a constant {list(found.constant)} along dimension {found.targets} of "
        f"{list(found.shape)}, that of the targets; the outputs are in dimension {found.outputs}, of the same size",
        because=f"targets in another order reorder what it reads along dimension {found.targets}, outputs in another "
        f"order along {found.outputs}; the constant differs along {found.targets}",
        fix=f"if it belongs to the outputs, give it a last dimension of size 1{line}: [:, None]",
    )


def along_targets(subject: Subject, path: str, name: str) -> AlongTargets | None:
    """Record the loss with the last axis of targets, and that of outputs, in another order; find such a constant.

    Args:
        subject: Whose loss.
        path: The output.
        name: The targets.
    """
    batch, output = subject.batch(), subject.forward()
    leaf, target = trees.tensors(output)[path], trees.tensors(batch.targets, "targets")[name]
    if leaf.dim() < 2 or target.dim() < 2 or leaf.shape[-1] != target.shape[-1]:
        return None
    order = torch.arange(leaf.shape[-1]).roll(1)

    def run(of_output: torch.Tensor, of_target: torch.Tensor) -> Callable[[], torch.Tensor]:
        given = trees.substitute(output, {id(leaf): of_output})
        changed = replace(batch, targets=trees.substitute(batch.targets, {id(target): of_target}))

        def loss() -> torch.Tensor:
            seed_everything(subject.seed)
            with torch.no_grad():
                return subject.compute_loss(given, changed.clone())

        return loss

    with subject.pristine():
        base = record(run(leaf, target))
        by_target = Both(base, record(run(leaf, target[..., order])))
        by_output = Both(base, record(run(leaf[..., order], target)))
    for step in base.steps:
        for place in dict.fromkeys(step.operands):
            first, second = (_axis(both, place, order) for both in (by_target, by_output))
            if first is None or second is None or first == second:
                continue
            constant = _constant(base, step, place, first, (by_target, by_output))
            if constant is not None:
                return AlongTargets(
                    step=step,
                    shape=tuple(base.values[place].shape),
                    constant=constant,
                    targets=first,
                    outputs=second,
                )
    return None


def _axis(both: Both, place: int, order: torch.Tensor) -> int | None:
    """Return the one dimension along which a value is reordered in the second run."""
    one, two = both.pair(place)
    if one is None or two is None or one.shape != two.shape or torch.equal(one, two):
        return None
    dims = [d for d, size in enumerate(one.shape) if size == len(order)]
    found = [d for d in dims if torch.equal(one.index_select(d, order.to(one.device)), two)]
    return found[0] if len(found) == 1 else None


def _constant(
    base: Trace, step: Step, place: int, dim: int, runs: tuple[Both, Both]
) -> tuple[int, ...] | None:
    """Return the shape of an operand that neither run changes, and that differs along a dimension of another one."""
    shape = base.values[place].shape
    for other in dict.fromkeys(step.operands):
        values = base.values[other].values
        back = len(shape) - dim
        if other == place or values is None or values.dim() < back or values.shape[-back] == 1:
            continue
        kept = all(
            t is not None and torch.equal(values, t) for t in (r.pair(other)[1] for r in runs)
        )
        wide = [d for d, size in enumerate(values.shape) if size > 1]
        if kept and wide == [values.dim() - back] and bool((values != values.flatten()[0]).any()):
            return tuple(values.shape)
    return None
