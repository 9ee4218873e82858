"""What a checkpoint of the steps that run anyway holds."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..objects import trees
from ..subject.optimizers import optimizers_of, schedulers_of

if TYPE_CHECKING:
    from ..subject import Subject

_KEPT_BYTES = 2**26
"""Of a checkpoint that waits until it is asked for; a larger one costs a step more, and no memory."""


CHECKPOINT = "checkpoint"


def keep_checkpoint(subject: Subject, model: nn.Module, made: Any) -> None:
    """Keep the states after the first of the steps that run anyway, for :func:`is_resumed`.

    Nothing is kept where the step is the user's own, whose closures may hold more than these states
    do, or where they are large.
    """
    if subject.contract.train_step is not None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            things = {"model": model, **pieces_of(made)}
            states = {name: thing.state_dict() for name, thing in things.items()}
            tensors = trees.tensors(states).values()
            if sum(t.nbytes for t in tensors if t.layout == torch.strided) <= _KEPT_BYTES:
                subject.cache[CHECKPOINT] = copied(states)
        except (
            Exception
        ):  # a piece may refuse in its own words: the run that needs the states tells
            subject.cache.pop(CHECKPOINT, None)


def copied(states: Any) -> Any:
    """Return a deep copy of what ``state_dict`` returned, its tensors copied at the speed of memory."""
    tensors = [t for t in trees.tensors(states).values() if t.layout == torch.strided]
    # what a deep copy meets in its memo it takes: a storage is copied byte by byte
    return copy.deepcopy(states, {id(t): t.detach().clone() for t in tensors})


def pieces_of(made: Any) -> dict[str, Any]:
    """Name the optimizers and schedulers that a user's optimizer function returned."""
    found: dict[str, Any] = {}
    for kind, things in (("optimizer", optimizers_of(made)), ("scheduler", schedulers_of(made))):
        for place, thing in enumerate(things):
            found[kind if len(things) == 1 else f"{kind}{place}"] = thing
    return found
