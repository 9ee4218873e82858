"""Whether a loss puts values in order of their size, and combines them with targets that stand as they came."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ...lean import dataclass
from ...objects import trees
from ...probes.recorded.watch import SORTS
from ...record.modes import Functions
from ...subject.errors import SubjectError
from ..facts import output_for_loss
from .order import loss_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...subject import Subject

_SAME = 1e-4
"""Relative change of a loss that the order of a sum explains, with a wide margin."""
_FEWEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A loss that sorts, with the positions of outputs and targets in two orders.

    Attributes:
        output, target: The two tensors, by name.
        change: By how much, relatively, the loss changes.
        first, second: Run the loss, in the order of the batch and in another.
    """

    output: str
    target: str
    change: float
    first: Callable[[], torch.Tensor]
    second: Callable[[], torch.Tensor]


def moved_positions(subject: Subject, output: Any) -> Moved | None:
    """Move positions of outputs and targets together, alike in every sample; None where the loss stays.

    Nothing is said where outputs or targets are several tensors that do not have the same positions, and where the
    targets rise or fall along some axis: what sorts its outputs may be given targets that are sorted.

    Args:
        subject: The model.
        output: That of the base batch, without a graph.
    """
    batch = subject.batch()
    outputs, targets = trees.floats(output), trees.tensors(batch.targets, "targets")
    shapes = {tuple(t.shape) for t in targets.values()}
    if len(outputs) != 1 or len(shapes) != 1 or any(map(_rises, targets.values())):
        return None
    ((path, leaf),), shape = outputs.items(), shapes.pop()
    dims = _places_in(tuple(leaf.shape), shape)
    axis = subject.contract.batch_dim
    if dims is None or axis not in (0, None):
        return None
    inner = tuple(range(1, len(shape)))
    if math.prod(shape[1:]) < _FEWEST:
        inner = tuple(range(len(shape)))
    count = math.prod(shape[d] for d in inner)
    if count < _FEWEST:
        return None

    def first() -> torch.Tensor:
        return loss_at(subject, output, batch)

    base, sorts = _watched(first)
    if not sorts or not math.isfinite(base):
        return None
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    made = {id(leaf): _taken(leaf, [dims[d] for d in inner], order)}
    given = {id(t): _taken(t, list(inner), order) for t in targets.values()}
    moved = replace(batch, targets=trees.substitute(batch.targets, given))

    def second() -> torch.Tensor:
        return loss_at(subject, trees.substitute(output, made), moved)

    change = abs(float(second()) - base) / max(abs(base), 1e-6)
    if not change > _SAME or abs(float(first()) - base) > _SAME * max(abs(base), 1e-6):
        return None
    return Moved(
        output=path,
        target=next(iter(targets)),
        change=change,
        first=first,
        second=second,
    )


def sorting_loss(subject: Subject) -> Moved | None:
    """As :func:`moved_positions`, for the output that the loss is made for; None where either cannot run."""
    try:
        return moved_positions(subject, output_for_loss(subject))
    except (SubjectError, RuntimeError):
        return None  # other checks explain it


def _rises(target: torch.Tensor) -> bool:
    """Say whether targets rise, or fall, along some axis in every line of it."""
    if target.is_complex() or target.dim() == 0:
        return True
    steps = [
        target.long().diff(dim=d) if target.dtype == torch.bool else target.diff(dim=d)
        for d in range(target.dim())
    ]
    return any(one.numel() and bool((one >= 0).all() or (one <= 0).all()) for one in steps)


def _places_in(leaf: tuple[int, ...], target: tuple[int, ...]) -> list[int] | None:
    """Return the dimension of an output for each one of its targets, where it has one more at most: that of classes."""
    if leaf == target:
        return list(range(len(leaf)))
    for axis in range(1, len(leaf)):
        if leaf[:axis] + leaf[axis + 1 :] == target:
            return [d for d in range(len(leaf)) if d != axis]
    return None


def _taken(tensor: torch.Tensor, dims: list[int], index: torch.Tensor) -> torch.Tensor:
    """Take the positions that some dimensions hold together in another order."""
    last = list(range(tensor.dim() - len(dims), tensor.dim()))
    moved = tensor.movedim(dims, last)
    flat = moved.flatten(tensor.dim() - len(dims))
    taken = flat.index_select(-1, index.to(tensor.device)).view(moved.shape)
    return taken.movedim(last, dims).contiguous()


def _watched(run: Callable[[], torch.Tensor]) -> tuple[float, bool]:
    """Return a loss, and whether its functions sort."""
    names: set[str] = set()

    def around(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        names.add(getattr(func, "__name__", ""))
        return func(*args, **kwargs)

    with Functions(around):
        loss = run()
    return (float(loss) if loss.numel() == 1 else math.nan), bool(names & SORTS)
