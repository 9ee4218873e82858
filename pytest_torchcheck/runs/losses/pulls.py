"""Where a loss pulls the outputs: towards their targets, or away from them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ...objects import trees
from ...state import seed_everything
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from ...batches import Batch
    from ...subject import Subject


def share_away(subject: Subject, output: Any, batch: Batch) -> dict[str, float]:
    """Share of samples whose loss falls when the output moves away from a float target of its shape.

    Each output is cut free first: where one is computed from another (a score from an image), the
    slope through the model says nothing of the loss. An output is left out where its target is no goal
    of it: a margin, a weight, a sign that all samples share.
    """
    found: dict[str, float] = {}
    goals = goals_of(output, batch) or _cut_goals(subject, output, batch)
    for path, goal in goals.items():
        tensor = trees.tensors(output)[path]
        slope = _slope(subject, output, batch, path)
        if slope is None:
            continue
        towards = goal - trees.dense(tensor)
        if bool(((goal == 0) | (goal == 1)).all()):
            if bool((goal == goal.flatten()[0]).all()):
                continue
            towards = 2 * goal - 1
        elif not _extreme(subject, output, batch, path, goal):
            continue
        work = (slope * towards).flatten(1).sum(1) if tensor.dim() > 1 else slope * towards
        moved = work != 0
        share = float((work[moved] > 0).float().mean()) if bool(moved.any()) else math.nan
        # where few samples have a slope at all, it is the choice of samples that is wrong, not the sign
        if share <= 0.95 or 2 * int(moved.sum()) >= moved.numel() > 0:
            found[path] = share
    return found


def goals_of(output: Any, batch: Batch) -> dict[str, torch.Tensor]:
    """Return, by the output's path, the one float target of its shape."""
    targets = [t for t in trees.floats(batch.targets).values() if not t.is_complex()]
    goals: dict[str, torch.Tensor] = {}
    for path, tensor in trees.floats(output).items():
        fitting = [t for t in targets if t.shape == tensor.shape and t is not tensor]
        if tensor.requires_grad and not tensor.is_complex() and tensor.dim() and len(fitting) == 1:
            goals[path] = trees.dense(fitting[0]).to(tensor.device, tensor.dtype)
    return goals


def _cut_goals(subject: Subject, output: Any, batch: Batch) -> dict[str, torch.Tensor]:
    """Return, by the output's path, the output of its shape that is cut from the graph: what it is drawn to.

    Of several (two views of a sample) it is the one at which the loss lies lowest, or else highest.
    """
    cut = cut_outputs(output, batch)
    floats = {p: t for p, t in trees.floats(output).items() if cut and not t.is_complex()}
    goals: dict[str, torch.Tensor] = {}
    for path, tensor in floats.items():
        if not tensor.requires_grad or not tensor.dim():
            continue
        peaks = [
            (*peak, goal)
            for goal in (_as(t, tensor) for t in cut if t.shape == tensor.shape)
            if (peak := _peak(subject, output, batch, path, goal)) is not None
        ]
        low = [peak for peak in peaks if peak[0] == "low"]
        if low:
            goals[path] = min(low, key=lambda peak: peak[1])[2]
        elif peaks:
            goals[path] = max(peaks, key=lambda peak: peak[1])[2]
    return goals


def cut_outputs(output: Any, batch: Batch) -> list[torch.Tensor]:
    """Return the outputs that require no gradient and are no inputs."""
    given = {id(t) for _, t in batch.input_leaves()}
    found = trees.floats(output).values()
    return [t for t in found if not t.requires_grad and not t.is_complex() and id(t) not in given]


def _as(goal: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return trees.dense(goal.detach()).to(tensor.device, tensor.dtype)


def _slope(subject: Subject, output: Any, batch: Batch, path: str) -> torch.Tensor | None:
    """Return the gradient of the loss to one output, with all outputs cut from the model; None without one."""
    own = trees.tensors(output)
    free = {id(t): t.detach() for t in own.values()}
    leaf = own[path].detach().clone().requires_grad_(True)
    free[id(own[path])] = leaf
    try:
        loss = _loss_of(subject, output, free, batch)
    except (SubjectError, RuntimeError):
        return None  # a loss may refuse what no model made
    if loss is None or loss.dim() or not loss.requires_grad:
        return None
    (slope,) = torch.autograd.grad(loss, [leaf], allow_unused=True)
    return None if slope is None else trees.dense(slope)


def _loss_of(
    subject: Subject, output: Any, free: dict[int, torch.Tensor], batch: Batch
) -> torch.Tensor | None:
    made = trees.substitute(output, free)
    if made is None:
        return None
    seed_everything(subject.seed)
    return subject.compute_loss(made, batch)


def _extreme(subject: Subject, output: Any, batch: Batch, path: str, goal: torch.Tensor) -> bool:
    """Say whether the loss falls, or rises, on both sides of the target: only then is it the goal."""
    return _peak(subject, output, batch, path, goal) is not None


def _peak(
    subject: Subject, output: Any, batch: Batch, path: str, goal: torch.Tensor
) -> tuple[str, float] | None:
    """Return whether the loss is lowest or highest with an output at its goal, and how high there."""
    own = trees.tensors(output)
    free = {id(t): t.detach() for t in own.values()}
    way = trees.dense(own[path]) - goal
    losses: list[float] = []
    with torch.no_grad():
        for share in (0.0, 0.1, -0.1):
            free[id(own[path])] = goal + share * way
            try:
                loss = _loss_of(subject, output, free, batch)
            except (SubjectError, RuntimeError):
                return None
            if loss is None or loss.dim():
                return None
            losses.append(float(loss))
    at, above, below = losses
    if at < min(above, below):
        return "low", at
    return ("high", at) if at > max(above, below) else None
