"""The optimizers of a training step."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

from ..objects.peek import attribute, entries


def default_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the checks' own optimizer: Adam at 1e-3, or SGD where gradients are sparse."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    if any(attribute(m, "sparse", False) is True for m in model.modules()):
        return torch.optim.SGD(trainable, lr=1e-2)
    return torch.optim.Adam(trainable, lr=1e-3)


def optimizers_of(made: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers in what a user's ``optimizer`` function returned.

    One optimizer, a sequence, a dict, or pairs of optimizer and scheduler.
    """
    return _instances_of(torch.optim.Optimizer, made)


def schedulers_of(made: Any) -> list[torch.optim.lr_scheduler.LRScheduler]:
    """Return the learning-rate schedulers in what a user's ``optimizer`` function returned."""
    return _instances_of(torch.optim.lr_scheduler.LRScheduler, made)


_T = TypeVar("_T")


def _instances_of(kind: type[_T], made: Any) -> list[_T]:
    found: list[_T] = []
    stack = [made]
    while stack:
        value = stack.pop(0)
        if isinstance(value, kind):
            found.append(value)
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list | tuple):
            stack.extend(entries(value))
    return found
