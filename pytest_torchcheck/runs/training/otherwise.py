"""Parameters to which the contract's loss gives no gradient, and which a training step moves all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...loop.recorder import trace_of
from ...objects import trees
from .steps import trajectory

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ...subject import Subject


def trained_in_step(subject: Subject, dead: Mapping[str, str]) -> set[str]:
    """Name the parameters without a gradient of the contract's loss that the user's own step gives one.

    The discriminator of a GAN gets its gradient from a loss of its own. A gradient of None is
    refuted by a backward pass that writes one, one that is zero by a step after which it is not.
    """
    if subject.contract.train_step is None:
        return set()
    found = set(dead) & trajectory(subject).live
    if any(kind == "none" and name not in found for name, kind in dead.items()):
        touched = {name for event in trace_of(subject).backwards() for name in event.touched}
        found |= {name for name, kind in dead.items() if kind == "none" and name in touched}
    return found


def written_by_step(subject: Subject, dead: Mapping[str, str]) -> set[str]:
    """Name the parameters that never get a gradient and change in the user's own step all the same.

    No optimizer moves what has no gradient: the step writes the values itself. So do a target network and an
    average of another's weights change.
    """
    if subject.contract.train_step is None:
        return set()
    moved = trajectory(subject).moved
    return {name for name, kind in dead.items() if kind == "none" and moved.get(name, 0.0) > 0}


def in_live_memory(subject: Subject, dead: Mapping[str, str]) -> set[str]:
    """Name the parameters without a gradient whose whole memory is that of one with a gradient.

    A parameter that wraps another one is a second one on the same memory: it moves as the other does.
    """
    if not dead:
        return set()

    def memory(parameter: torch.Tensor) -> tuple[object, ...]:
        return trees.address(parameter), parameter.shape, parameter.stride()

    parameters = subject.named_parameters()
    live = {
        memory(p)
        for name, p in parameters.items()
        if name not in dead and p.requires_grad and trees.address(p) is not None
    }
    return {name for name in dead if memory(parameters[name]) in live}
