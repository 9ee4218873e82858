"""Optimizers that undo their own steps: parameters that are bit-equal to their start again, whatever was learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ...loop.checkpoints import is_torchs
from ...objects import trees
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.optimizers import optimizers_of
from ...subject.remembered import remembered
from .enduring import MANY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...subject import Subject

_MOST: Final = 4
"""Parameters of an optimizer that are looked at, the largest ones."""


def own_optimizers(made: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers whose step is not torch's own alone."""
    return [one for one in optimizers_of(made) if not is_torchs(one)]


@remembered("own-optimizer")
def own_optimizer(subject: Subject) -> type[torch.optim.Optimizer] | None:
    """Return the class of the first optimizer whose step is not torch's own alone, or None; cached, since four ask."""
    if subject.contract.optimizer is None:
        return None
    with subject.pristine(steps=True) as model:
        own = own_optimizers(subject.make_optimizer(model))
    return type(own[0]) if own else None


def returning(subject: Subject) -> tuple[list[str], int] | None:
    """Return what the optimizer sets back to where it began, and after how many steps; None where nothing.

    Each optimizer of the user's own steps alone, with the same gradients each time, which no rule that follows
    them can turn back. Then the declared steps must set the same parameters back after as many. One that
    evaluates a closure may return for the sake of the loss, and is not asked.

    Cost: nothing for torch's own optimizers; else the optimizer's steps alone.
    """
    try:
        if own_optimizer(subject) is None:
            return None
    except SubjectError:
        return None
    with subject.pristine(steps=True) as model:
        made = subject.make_optimizer(model)
        known = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
        for optimizer in own_optimizers(made):
            held = [p for g in optimizer.param_groups for p in g["params"] if id(p) in known]
            after = _stepped_alone(optimizer, held)
            if after is not None:
                names = [known[id(p)] for p in held if p.numel() > 1] or [known[id(held[0])]]
                break
        else:
            return None
    return (names, after) if _trained_back(subject, names, after) else None


def _stepped_alone(optimizer: torch.optim.Optimizer, held: list[torch.Tensor]) -> int | None:
    looked = sorted((p for p in held if trees.computable(p)), key=lambda p: -p.numel())[:_MOST]
    if not looked:
        return None
    draw = torch.Generator().manual_seed(1)
    gradients = [torch.rand(p.shape, generator=draw).to(p) + 0.5 for p in held]
    begun = [p.detach().clone() for p in looked]
    moved = False
    for step in range(1, MANY + 1):
        for p, gradient in zip(held, gradients, strict=True):
            p.grad = gradient.clone()
        try:
            optimizer.step()
        except Exception:  # it needs a closure, or gradients of a kind that a loss gives
            return None
        if all(map(trees.same, looked, begun)):
            if moved:
                return step
        else:
            moved = True
    return None


def _trained_back(subject: Subject, names: Iterable[str], after: int) -> bool:
    """Say whether the declared steps too give parameters their first values, and move them before."""
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        try:
            made = subject.make_optimizer(model)
            tensors = {name: model.get_parameter(name) for name in names}
            begun = {name: p.detach().clone() for name, p in tensors.items()}
            moved = False
            for step in range(after):
                moved = moved or any(not trees.same(p, begun[n]) for n, p in tensors.items())
                seed_everything(subject.seed + step)
                subject.train_step(model, made, subject.batch().clone())
            return moved and all(trees.same(p, begun[n]) for n, p in tensors.items())
        except SubjectError:
            return False
