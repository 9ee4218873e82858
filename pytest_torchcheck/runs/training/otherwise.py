"""Parameters that a step moves without a gradient, or that wait for their turn at a rate of 0."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

from ...loop.recorder import trace_of
from ...objects import trees
from ...subject.errors import SubjectError
from ...subject.optimizers import optimizers_of, schedulers_of, step_schedulers
from .steps import trajectory

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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


_LONG: Final = 1000
"""Calls of a schedule within which a group's turn comes; a wait of more is not told from a rate left at 0."""


def waiting(subject: Subject, names: Collection[str]) -> set[str]:
    """Return which parameters belong to a group whose rate a schedule holds at 0 now and raises later.

    The schedule alone is stepped: no forward runs. Where the optimizer function returns none, but the group shows
    that one drives it, the schedule belongs to the step and cannot be asked.

    Cost: nothing where no group has a rate of 0.
    """
    with subject.pristine(steps=True) as model:
        try:
            made = subject.make_optimizer(model)
        except SubjectError:
            return set()
        held = {id(p): name for name, p in model.named_parameters() if name in names}
        groups = [
            group
            for optimizer in optimizers_of(made)
            for group in optimizer.param_groups
            if group.get("lr") == 0.0 and group.get("initial_lr", 0.0) > 0.0
        ]
        resting = [g for g in groups if any(id(p) in held for p in g["params"])]
        turned = [] if schedulers_of(made) else list(resting)
        with warnings.catch_warnings():
            # torch wants the optimizer's step before the schedule's
            warnings.simplefilter("ignore")
            for _ in range(_LONG if len(turned) < len(resting) else 0):
                step_schedulers(made, 1.0)
                turned += [g for g in resting if g["lr"] > 0.0 and all(g is not t for t in turned)]
                if len(turned) == len(resting):
                    break
        return {held[id(p)] for g in turned for p in g["params"] if id(p) in held}
