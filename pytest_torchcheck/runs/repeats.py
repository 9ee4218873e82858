"""What a contract is made of, made again under one seed: the model that its factory builds, the batch of its function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset

from ..batches.read import is_fixed, read
from ..objects import trees
from ..objects.held import random_state, same_state
from ..state import ModuleState, filled_memory, isolated

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

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
