"""Whether a loss, a model or a training step reads its targets at all: others are put in their place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...objects import trees
from ...state import seed_everything
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...batches import Batch
    from ...subject import Subject


def reads_no_target(batch: Batch, run: Callable[[Batch], dict[str, torch.Tensor]]) -> list[str]:
    """Return the paths of all targets where none of them has an influence, else an empty list.

    Tried are targets in another order, and values that nothing can read without a trace.

    Args:
        batch: The batch, on the CPU: an index out of range would cost a GPU its context.
        run: Does with a batch what may read its targets, from one state and seed; returns what they
            would decide.
    """
    targets = {path: t for path, t in targets_of(batch).items() if t.numel()}
    if not targets or any(t.device.type != "cpu" for t in targets.values()):
        return []
    try:
        base = run(batch)
        for target in targets.values():
            for other in (target.flip(0) if target.dim() else target, _unreadable(target)):
                if not _same(base, run(with_target(batch, target, other))):
                    return []
    except SubjectError:
        return []  # it is read, and refused
    finite = all(bool(torch.isfinite(t).all()) for t in trees.floats(base).values())
    return list(targets) if base and finite else []


def targets_of(batch: Batch) -> dict[str, torch.Tensor]:
    """Return the tensors of the targets, by their paths in the batch."""
    own = {id(t) for t in trees.tensors(batch.targets).values()}
    return {path: t for path, t in batch.tensors().items() if id(t) in own}


def with_target(batch: Batch, old: torch.Tensor, new: torch.Tensor) -> Batch:
    """Return the batch with one target tensor exchanged for another."""
    targets = batch.targets
    changed = new if targets is old else trees.substitute(targets, {id(old): new})
    return replace(batch, targets=changed)


def by_step(subject: Subject, batch: Batch) -> dict[str, torch.Tensor]:
    """Return the loss, parameters and gradients after one step of training with a batch.

    Empty where no parameter moves and no gradient is left: nothing would show what was read.

    Raises:
        SubjectError: The step raises.
    """
    with subject.pristine(steps=True) as model:
        model.train()
        seed_everything(subject.seed)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer = subject.make_optimizer(model)
        loss = subject.train_step(model, optimizer, batch.clone())
        made = {name: p.detach().clone() for name, p in model.named_parameters()}
        grads = {
            f"gradient {n}": p.grad.clone()
            for n, p in model.named_parameters()
            if p.grad is not None
        }
        if not grads and all(trees.same(before[name], made[name]) for name in made):
            return {}
        if isinstance(loss, torch.Tensor | float):
            made["loss"] = torch.as_tensor(loss).detach().clone()
        return made | grads


def by_own_loss(subject: Subject, batch: Batch) -> dict[str, torch.Tensor]:
    """Return the loss that the model itself computes of a batch.

    Raises:
        SubjectError: The model raises, or returns no loss.
    """
    output = subject.forward(batch, train=True)
    return {"loss": subject.compute_loss(output, batch).detach().clone()}


def _same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(trees.same(one[key], two[key]) for key in one)


def _unreadable(target: torch.Tensor) -> torch.Tensor:
    """Return a target of values that change whatever is computed from them."""
    if target.is_floating_point() or target.is_complex():
        return torch.full_like(target, float("nan"))
    return (
        ~target
        if target.dtype == torch.bool
        else torch.full_like(target, max(torch.iinfo(target.dtype).min, -127) or 255)
    )
