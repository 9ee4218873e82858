"""Buffers, and state of an optimizer, that are the memory of a parameter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ...probes.recorded.watch import storage_of
from ...runs.training.steps import trajectory
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ...subject.optimizers import aliases, optimizers_of

if TYPE_CHECKING:
    from torch import nn

    from ...subject import Subject


def in_one_memory(model: nn.Module) -> dict[str, str]:
    """Return the buffers that are views of the whole of a trained parameter, each with its parameter."""
    trained = {storage_of(p): name for name, p in model.named_parameters() if p.requires_grad}
    sizes = {name: p.shape for name, p in model.named_parameters()}
    return {
        name: other
        for name, buffer in model.named_buffers()
        if (place := storage_of(buffer)) is not None
        and (other := trained.get(place)) is not None
        and buffer.shape == sizes[other]
    }


def state_of_own_memory(subject: Subject) -> dict[str, str]:
    """Return the parameters whose own memory is an entry of the declared optimizer's state, with its key."""
    found = trajectory(subject).aliases if subject.contract.optimizer is not None else {}
    return {} if found and _set_anew(subject) else found


def _set_anew(subject: Subject) -> bool:
    """Say whether each step sets the entries that are parameters' own memory before it reads them.

    They are NaN when a second step begins: neither the entries nor the parameters may be so at its end. A
    sharpness-aware optimizer puts back what it kept, and the parameter has that memory until the next step.
    """
    with subject.pristine(steps=True, train=True) as model:
        seed_everything(subject.seed)
        made = subject.make_optimizer(model)
        optimizers = optimizers_of(made)
        clear_gradients(model)
        try:
            subject.train_step(model, made, subject.batch().clone())
            parameters = dict(model.named_parameters())
            held = [(parameters[name], key) for name, key in aliases(model, optimizers).items()]
            states = [optimizer.state for optimizer in optimizers]
            for parameter, key in held:
                for state in states:
                    if key in state.get(parameter, {}):
                        state[parameter][key] = torch.full_like(parameter.detach(), math.nan)
            subject.train_step(model, made, subject.batch().clone())
        except SubjectError:
            return False
        now = [state[p][key] for p, key in held for state in states if key in state.get(p, {})]
        return all(bool(tensor.isfinite().all()) for tensor in (*now, *(p for p, _ in held)))
