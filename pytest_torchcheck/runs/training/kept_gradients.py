"""State of an optimizer that is the memory of a gradient, which the next backward pass may write to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ...lean import dataclass
from ...objects import trees
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ...subject.optimizers import gradient_aliases, optimizers_of
from .steps import trajectory

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from torch import nn

    from ...subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptGradient:
    """Entries of an optimizer's state that are gradients themselves.

    Attributes:
        keys: By parameter, the entry's key.
        optimizer: The class of the optimizer.
        decides: Whether the second step ends elsewhere where each entry is a copy.
    """

    keys: dict[str, str]
    optimizer: type[torch.optim.Optimizer]
    decides: bool


def kept_gradient(subject: Subject) -> KeptGradient | None:
    """Return what an optimizer's step has kept of a gradient without a copy, and reads in the next step.

    What was one with the gradient before the first step may be its buffer on purpose.

    Cost: nothing where no entry is a gradient; else four runs of two steps at most.
    """
    found = trajectory(subject).of_gradients
    if not found or subject.contract.optimizer is None:
        return None
    try:
        ends = _ends(subject)
        if ends is None or not _reads(subject):
            return None
        copied = _ends(subject, torch.clone)
        decides = not _alike(ends, copied) and subject.kernel_exact
        if decides:
            decides = _alike(ends, _ends(subject))
    except SubjectError:
        return None
    with subject.pristine(steps=True) as model:
        kinds = [type(one) for one in optimizers_of(subject.make_optimizer(model))]
    return KeptGradient(keys=found, optimizer=kinds[0], decides=decides)


_Ends = dict[str, torch.Tensor]


def _alike(one: _Ends | None, other: _Ends | None) -> bool:
    return one is not None and other is not None and all(trees.same(one[n], other[n]) for n in one)


def _reads(subject: Subject) -> bool:
    """Say whether a number that is none, in place of an entry, gets into a parameter in the next step."""
    ends = _ends(subject, lambda held: torch.full_like(held, math.nan))
    return ends is not None and not all(bool(t.isfinite().all()) for t in ends.values())


def _ends(
    subject: Subject, put: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> _Ends | None:
    """Return the parameters after two steps, between which each entry is replaced; None where a step makes none."""
    with subject.pristine(steps=True, train=True) as model:
        made = first_step(subject, model)
        if made is None:
            return None
        for state, key in gradient_aliases(model, optimizers_of(made)).values():
            if put is not None:
                state[key] = put(state[key])
        seed_everything(subject.seed + 1)
        subject.train_step(model, made, subject.batch().clone())
        return {n: p.detach().clone() for n, p in model.named_parameters()}


def first_step(subject: Subject, model: nn.Module) -> Any:
    """Do one step and return what was made for it; None where an entry was a gradient before the optimizer stepped."""
    seed_everything(subject.seed)
    made = subject.make_optimizer(model)
    optimizers = optimizers_of(made)
    clear_gradients(model)
    early: list[str] = []
    handles = [
        one.register_step_pre_hook(lambda *_: early.extend(gradient_aliases(model, optimizers)))
        for one in optimizers
    ]
    try:
        subject.train_step(model, made, subject.batch().clone())
    finally:
        for handle in handles:
            handle.remove()
    return None if early else made
