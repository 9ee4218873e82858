"""What a contract is made of, made again under one seed, and what two instances of a factory share."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ..batches.read import is_fixed, read
from ..objects import trees
from ..objects.held import random_state, same_state
from ..state import ModuleState, filled_memory, isolated
from ..subject.errors import SubjectError
from .outputs import gap, outputs_of
from .saving import perturb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..subject import Subject


def moved_by_building(subject: Subject) -> list[str]:
    """Build the model again under its seed; return the tensors that come out as other ones."""
    if not subject.contract.is_factory or not _moved(_values(subject.model), built(subject)):
        return []
    with filled_memory():  # what nobody writes is told by the check of the initialisation
        return _moved(built(subject), built(subject))


def differing_generators(subject: Subject) -> dict[str, tuple[Any, Any]]:
    """Build the model again under its seed; return the generators that it holds in another state.

    Returns:
        The model's generator, and the state that the other model's has, by name.
    """
    if not subject.contract.is_factory or not (mine := [one for one, _ in subject.state.random]):
        return {}
    with isolated():
        theirs = [one for one, _ in ModuleState(subject.build()).random]
    return {
        subject.state.name_of(one, "a generator"): (one, state)
        for one, two in zip(mine, theirs, strict=False)
        if type(one) is type(two) and not same_state(random_state(one), state := random_state(two))
    }


def moved_by_asking(subject: Subject) -> list[str]:
    """Ask the batch function twice for one seed; return the tensors that come out as other ones."""
    source = subject.contract.batch
    if source is None or is_fixed(source) or isinstance(source, DataLoader | Dataset):
        return []
    return _moved(asked(subject).tensors(), asked(subject).tensors())


def asked(subject: Subject) -> Any:
    """Return what the batch function gives for the subject's seed."""
    with subject.phase("batch"):
        return read(subject.contract.batch, subject.seed)


def built(subject: Subject) -> dict[str, torch.Tensor]:
    """Return the values of a model that is built under the subject's seed."""
    with isolated():
        return _values(subject.build())


def _values(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: tensor.detach()
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if not tensor.is_meta
    }


def _moved(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> list[str]:
    return [name for name in one if name in two and not trees.same(one[name], two[name])]


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
