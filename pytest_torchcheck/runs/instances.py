"""Two instances of one factory: what they share, and whether the first reads what belongs to the last."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..objects import trees
from ..subject.errors import SubjectError
from .outputs import gap, outputs_of
from .saving import perturb

if TYPE_CHECKING:
    from ..subject import Subject

_LAST = "last-instance"


def in_one_memory(model: nn.Module, other: nn.Module) -> list[str]:
    """Return the trainable parameters and the buffers whose values another instance keeps in the same memory.

    Not those of a module that both hold: a pretrained part that is loaded once, which a factory puts into
    each model. Nor those of a traced graph, which is a view of one program.
    """
    both = {id(module) for module in other.modules()}
    theirs = {trees.address(t) for t in (*other.parameters(), *other.buffers()) if t.numel()}
    theirs.discard(None)
    found = []
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        trained = tensor.requires_grad or not isinstance(tensor, nn.Parameter)
        if not trained or not tensor.numel() or trees.address(tensor) not in theirs:
            continue
        owner = model.get_submodule(name.rpartition(".")[0])
        kind = type(owner)
        traced = kind is nn.Module or kind.__module__.startswith(("torch.fx", "torch.export"))
        if id(owner) not in both and not traced:
            found.append(name)
    return found


def keep_track(subject: Subject, other: nn.Module) -> None:
    """Remember the tensors of an instance without keeping them: who does is seen later, in :func:`reads_last`."""
    named = (*other.named_parameters(), *other.named_buffers())
    subject.cache[_LAST] = [(name, weakref.ref(tensor)) for name, tensor in named]


def reads_last(subject: Subject) -> tuple[list[str], float] | None:
    """Return what of an instance that is no longer used decides the first one's outputs, and by how much.

    Cost: nothing where nothing holds any of that instance; else three forwards.
    """
    held = [(name, t) for name, ref in subject.cache.get(_LAST, ()) if (t := ref()) is not None]
    own = {trees.address(t) for t in (*subject.model.parameters(), *subject.model.buffers())}
    held = [(name, t) for name, t in held if trees.address(t) not in own]
    if not held:
        return None
    values = [t.detach().clone() for _, t in held]
    try:
        with (
            subject.pristine() as model
        ):  # what another check has left in that instance counts already
            expected = outputs_of(subject, model)
            subject.restore()
            perturb(t for _, t in held)
            found = gap(outputs_of(subject, model), expected)
            _put_back(held, values)
        with subject.pristine() as model:
            noise = gap(outputs_of(subject, model), expected) if found is not None else None
    except SubjectError:
        return None
    finally:
        _put_back(held, values)
    if found is None or (noise is not None and noise[1] > 0.01 * found[1]):
        return None
    return [name for name, _ in held], found[1]


@torch.no_grad()
def _put_back(held: list[tuple[str, torch.Tensor]], values: list[torch.Tensor]) -> None:
    for (_, tensor), value in zip(held, values, strict=True):
        tensor.data.copy_(value)
